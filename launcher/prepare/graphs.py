"""The graphs that a configuration asks for, and whether its algorithm works on them."""

from ...node.algorithms import ALGORITHMS
from ...node.algorithms.base import Traits
from ...topology import Digraph, Graph, GraphSequence, draw_sequence
from ..config.sections import ConfigError, RunConfig


def has_server(config: RunConfig) -> bool:
    return config.algorithm.traits.server != "none"


def draw_graphs(config: RunConfig) -> GraphSequence:
    """[topology]'s, or a star around the server, the process that comes after the clients. Raises UserError."""
    if has_server(config):
        star = Graph.of(config.clients + 1, [(client, config.clients) for client in range(config.clients)])
        return GraphSequence((star,))
    return drawn(config)


def drawn(config: RunConfig) -> GraphSequence:
    """Those of [topology]. Raises UserError."""
    return draw_sequence(config.topology, config.clients, config.seed, config.rounds)


def figures_of(config: RunConfig, graphs: GraphSequence) -> dict[str, str]:
    """What there is to say of the graphs, by name."""
    from ...topology.figures import describe

    kind = "star around a server" if has_server(config) else config.topology.kind
    return {"kind": kind, "clients": f"{config.clients}", **describe(graphs)}


def check_graphs(config: RunConfig, graphs: GraphSequence) -> None:
    """Raises ConfigError where the run's algorithm or scenario needs other graphs."""
    topology, traits = config.topology, config.algorithm.traits
    kind = f"topology.kind = {topology.kind!r}"
    changing = f"topology.redraw_every = {topology.redraw_every}" if topology.redraw_every else kind
    directed = "topology.directed = true" if topology.directed else kind
    needs = f"algorithm.name = {config.algorithm.name!r} needs"
    if not _works_where_directed(traits, graphs):
        needed = "an undirected graph"
        if traits.directed_graphs == "regular":
            needed = (
                "doubly stochastic weights: all clients have to send to as many as they hear from, and equally many"
            )
        raise ConfigError(f"{directed}: {needs} {needed}; on this graph use {_able(graphs)}")
    if graphs.changes and not traits.changing_graphs:
        raise ConfigError(f"{changing}: {needs} a graph that stays the same; on this one use {_able(graphs)}")
    if config.has_scenario and (graphs.changes or graphs.directed):
        raise ConfigError(
            f"{changing if graphs.changes else directed}: a scenario is planned for one undirected graph; use such a "
            "graph, or leave the scenario out"
        )


def _works_where_directed(traits: Traits, graphs: GraphSequence) -> bool:
    directed = [graph for graph in graphs.graphs if isinstance(graph, Digraph)]
    if traits.directed_graphs == "regular":
        return all(graph.is_regular for graph in directed)
    return traits.directed_graphs == "all" or not directed


def _able(graphs: GraphSequence) -> str:
    traits_of = {name: algorithm().traits for name, algorithm in ALGORITHMS.items()}
    *others, last = [
        repr(name)
        for name, traits in traits_of.items()
        if _works_where_directed(traits, graphs) and (traits.changing_graphs or not graphs.changes)
    ]
    return f"{', '.join(others)} or {last}"
