"""What each client is told: its neighbours, its model, its place."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from ...node.algorithms import ALGORITHMS
from ...node.assignment import Assignment, Deployment, Neighbour, Period, Run
from ...node.model.architecture import Architecture
from ...topology import Graph, GraphSequence
from ...topology.matchings import matchings
from ...topology.weights import mixing_row
from ..config.section import ConfigError
from ..config.sections import RunConfig
from ..data import DataSummary
from .graphs import relation_edges
from .memory import memory_of
from .placement import Host, chosen_hosts, place

_SECTIONS = ("model", "training", "evaluation", "checkpoints", "transport", "measuring", "time")
"""What clients are told of the configuration as it is."""


@dataclass(frozen=True)
class Site:
    """Where a run takes place: a folder for its Unix sockets, the address of its collector (tcp://ADDRESS:*: it picks a
    port), and the hosts that its clients are placed on."""

    sockets: Path
    records: str
    hosts: Sequence[Host] = (Host("this-host"),)


def assign(
    config: RunConfig,
    folder: Path,
    graphs: GraphSequence,
    architectures: Sequence[Architecture],
    data: DataSummary,
    site: Site,
) -> tuple[Assignment, ...]:
    """Raises ConfigError where the algorithm does not fit the graph or the models."""
    algorithm, graph = ALGORITHMS[config.algorithm.name], graphs.union
    if algorithm.may_meet(config.algorithm):
        graph = Graph.of(graph.clients, combinations(range(graph.clients), 2))
    sizes = [architecture.size for architecture in architectures]
    algorithm.check(config.algorithm, sizes, graph.edges)
    algorithm.check_models(config.algorithm, architectures, data.task, config.model.same_start)
    matching_of = matchings(graph)
    run = Run(
        number=1 << 62 | secrets.randbits(62),  # always 9 bytes of a header
        folder=folder,
        seed=config.seed,
        clients=config.clients,
        rounds=config.rounds,
        task=data.task,
        first_outputs=architectures[0].outputs,
        drift_round=0 if config.data.drift is None else config.data.drift.at_round,
        matchings=1 + max(matching_of.values(), default=0),
        rounds_a_period=graphs.rounds_each,
        scenario=config.has_scenario,
    )
    relations = relation_edges(config) if algorithm.is_told_relations(config.algorithm) else ()
    sections = {name: getattr(config, name) for name in _SECTIONS}
    assignments = []
    for node in range(graph.clients):
        is_server = node == config.clients
        weights = mixing_row(graphs.graphs[0], node, config.topology.weights)
        address = f"ipc://{site.sockets}/{node:04d}"
        if config.transport.protocol == "tcp":
            address = f"tcp://{config.transport.host}:*"
        assignments.append(
            Assignment(
                node=node,
                role="server" if is_server else "client",
                run=run,
                deployment=Deployment(address, site.records),
                architecture=architectures[node],
                algorithm=dict(vars(config.algorithm)),
                neighbours=tuple(
                    Neighbour(
                        j,
                        sizes[j],
                        weights.get(j, 0.0),
                        _common_coordinates(data, node, j, data.outputs),
                        matching_of[min(node, j), max(node, j)],
                        data.clients[j].train_samples if j < config.clients else 0,
                        data.clients[j].classes if is_server else (),
                    )
                    for j in graph.neighbours(node)
                ),
                periods=periods(graphs, node, config.topology.weights),
                classes=() if is_server else data.clients[node].classes,
                relations=relations if is_server else (),
                **sections,
            )
        )
    run = replace(run, largest_vector=_largest_vector(config, assignments))
    return _placed(config, graphs.union, [replace(each, run=run) for each in assignments], site.hosts)


def periods(graphs: GraphSequence, node: int, weights: str) -> tuple[Period, ...]:
    """A client's part of each graph; none where it is the same for all rounds and both directions."""
    if not graphs.changes and not graphs.directed:
        return ()
    rows = [mixing_row(graph, node, weights) for graph in graphs.graphs]
    return tuple(
        Period(graph.successors(node), {j: row[j] for j in graph.predecessors(node)})
        for graph, row in zip(graphs.graphs, rows, strict=True)
    )


def _placed(
    config: RunConfig, graph: Graph, assignments: Sequence[Assignment], hosts: Sequence[Host]
) -> tuple[Assignment, ...]:
    """The same, each on one of the hosts."""
    hosts = chosen_hosts(config.placement, hosts)
    host_of = place(config.placement, graph, hosts, [memory_of(assignment) for assignment in assignments], config.seed)
    placed = []
    for assignment, number in zip(assignments, host_of, strict=True):
        neighbours = tuple(
            replace(peer, remote=True) if host_of[peer.node] != number else peer for peer in assignment.neighbours
        )
        where = replace(assignment.deployment, host=number, host_name=hosts[number].name)
        if config.transport.protocol == "tcp" and hosts[number].address:
            where = replace(where, address=f"tcp://{hosts[number].address}:*")
        placed.append(replace(assignment, neighbours=neighbours, deployment=where))
    return tuple(placed)


def _largest_vector(config: RunConfig, assignments: Sequence[Assignment]) -> int:
    """Raises ConfigError where a vector would have no length."""
    algorithm, largest = ALGORITHMS[config.algorithm.name], 0
    for own in assignments:
        for peer in own.neighbours:
            lengths = algorithm.link(config.algorithm, own, peer).sent_in(1)
            if not all(lengths):
                raise ConfigError(
                    f"algorithm.start = 'selection': clients {own.node} and {peer.node} have no parameter in common; "
                    "set data.features_held below 1, or choose another start"
                )
            largest = max((largest, *lengths))
    return largest


def _common_coordinates(data: DataSummary, own: int, other: int, outputs: int) -> tuple[int, ...]:
    """The coordinates of a linear model's theta, of client ``own``, that client ``other`` has too: the weights of the
    features that both see, and the biases."""
    mine, theirs = _features(data, own), _features(data, other)
    if mine is None or theirs is None:
        return ()
    both = set(theirs)
    places = [place for place, feature in enumerate(mine) if feature in both]
    weights = [output * len(mine) + place for output in range(outputs) for place in places]
    return (*weights, *range(outputs * len(mine), outputs * (len(mine) + 1)))


def _features(data: DataSummary, node: int) -> tuple[int, ...] | None:
    """Those that a client sees, None where it is all in any case; a server sees all."""
    if node < len(data.clients):
        return data.clients[node].features
    partly = any(client.features is not None for client in data.clients)
    return tuple(range(math.prod(data.input_shape))) if partly else None
