"""What each client is told: its neighbours, its model, its place."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from pathlib import Path

from ...node.algorithms import check, link
from ...node.algorithms.base import RunFacts
from ...node.assignment import Assignment, Deployment, Neighbour, Period, Run
from ...node.model.architecture import Architecture
from ...topology import Graph, GraphSequence
from ...topology.weights import mixing_row
from ..config.sections import ConfigError, RunConfig
from ..data.shards import DataSummary
from .graphs import drawn, has_server
from .memory import memory_of
from .placement import Host, chosen_hosts, place

_SECTIONS = {field.name for field in fields(Assignment)} & {field.name for field in fields(RunConfig)} - {"algorithm"}
"""What clients are told of the configuration as it is."""


@dataclass(frozen=True)
class Site:
    """Where a run takes place: a folder for its Unix sockets, the address of its collector (tcp://ADDRESS:*: it picks a
    port), and the hosts that its clients are placed on."""

    sockets: Path
    records: str
    hosts: Sequence[Host] = (Host("this-host"),)


def deal_architectures(config: RunConfig, data: DataSummary) -> list[Architecture]:
    """One a client, dealt so that every first n clients hold the architectures in proportion to their shares; a server
    comes last, with that of the first client, or the one on all features. Raises ConfigError.
    """
    sections = (config.model, *config.model.mix)
    choices = [Architecture.of(section, data.input_shape, data.outputs) for section in sections]
    server = [choices[0]] if has_server(config) else []
    seen = [client.features for client in data.clients if client.features is not None]
    if config.data.features_held < 1:
        if len(set(config.data.tasks)) > 1:
            raise ConfigError(f"data.features_held below 1 needs one task: data.tasks = {list(config.data.tasks)}")
        if len(choices) > 1 or choices[0].kind not in ("logistic", "linear"):
            raise ConfigError("data.features_held below 1 needs model.kind = 'logistic' or 'linear', and no model.mix")
        return [replace(choices[0], input_shape=(len(features),)) for features in seen] + server
    for section in sections:
        if (section.kind, data.task) in (("linear", "classification"), ("logistic", "regression")):
            fitting = "linear" if data.task == "regression" else "logistic"
            raise ConfigError(
                f"model.kind = {section.kind!r}: the data is a {data.task} task; use {fitting!r}, 'mlp', 'cnn' or 'gru'"
            )
        if config.model.init == "zeros" and section.kind in ("mlp", "cnn", "gru"):
            raise ConfigError(
                "model.init = 'zeros': hidden layers would never learn; allowed with 'logistic' and 'linear'"
            )
    total = sum(section.share for section in sections)
    dealt = [0] * len(sections)
    architectures = []
    for number, client in enumerate(data.clients):
        owed = [section.share / total * (number + 1) - count for section, count in zip(sections, dealt, strict=True)]
        chosen = max(range(len(sections)), key=lambda index: (owed[index], -index))
        dealt[chosen] += 1
        architectures.append(replace(choices[chosen], outputs=client.outputs))
    return architectures + server


def assign(
    config: RunConfig,
    folder: Path,
    graphs: GraphSequence,
    architectures: Sequence[Architecture],
    data: DataSummary,
    site: Site,
) -> tuple[Assignment, ...]:
    """Raises SettingsError where the algorithm does not fit the graph or the models."""
    algorithm, graph = config.algorithm, graphs.union
    if algorithm.traits.new_edges:
        graph = Graph.of(graph.clients, combinations(range(graph.clients), 2))
    run_facts = RunFacts(
        graph=graph,
        models=architectures,
        task=data.task,
        same_start=config.model.same_start,
        classes=[client.classes for client in data.clients],
        features=[client.features for client in data.clients],
        topology=lambda: drawn(config),
    )
    check(algorithm, run_facts)
    facts, run = algorithm.facts(run_facts), _run_of(config, folder, graphs, architectures, data)
    told = {name: getattr(config, name) for name in _SECTIONS}
    samples = [client.train_samples for client in data.clients] + [0]  # a server has none
    assignments = []
    for node in range(graph.clients):
        weights = mixing_row(graphs.graphs[0], node, config.topology.weights)
        neighbours = [
            Neighbour(j, architectures[j].size, weights.get(j, 0.0), samples[j], facts.edges.get((node, j)))
            for j in graph.neighbours(node)
        ]
        assignment = Assignment(
            node=node,
            role="server" if node == config.clients else "client",
            run=run,
            deployment=Deployment(f"ipc://{site.sockets}/{node:04d}", site.records),
            architecture=architectures[node],
            algorithm=dict(vars(algorithm)),
            neighbours=tuple(neighbours),
            periods=periods(graphs, node, config.topology.weights),
            facts=facts.nodes.get(node),
            **told,
        )
        assignments.append(assignment)
    lengths = (link(algorithm, own, peer).sent_in(1) for own in assignments for peer in own.neighbours)
    run = replace(run, largest_vector=max((length for several in lengths for length in several), default=0))
    return _placed(config, graphs.union, [replace(each, run=run) for each in assignments], site.hosts)


def _run_of(
    config: RunConfig, folder: Path, graphs: GraphSequence, architectures: Sequence[Architecture], data: DataSummary
) -> Run:
    return Run(
        number=1 << 62 | secrets.randbits(62),  # always 9 bytes of a header
        folder=folder,
        seed=config.seed,
        clients=config.clients,
        rounds=config.rounds,
        task=data.task,
        first_outputs=architectures[0].outputs,
        drift_round=0 if config.data.drift is None else config.data.drift.at_round,
        rounds_a_period=graphs.rounds_each,
        scenario=config.has_scenario,
    )


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
        neighbours = tuple(replace(peer, remote=host_of[peer.node] != number) for peer in assignment.neighbours)
        where = replace(assignment.deployment, host=number, host_name=hosts[number].name)
        if config.transport.protocol == "tcp":
            where = replace(where, address=f"tcp://{hosts[number].address or config.transport.host}:*")
        placed.append(replace(assignment, neighbours=neighbours, deployment=where))
    return tuple(placed)
