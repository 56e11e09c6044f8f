"""What each client is told: its neighbours, its model, its place."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from ...node.algorithms import check, link
from ...node.algorithms.base import RunFacts
from ...node.assignment import Assignment, Deployment, Neighbour, Period, Run
from ...node.model.architecture import Architecture
from ...topology import Graph, GraphSequence
from ...topology.weights import mixing_row
from ..config.sections import RunConfig
from ..data import DataSummary
from .graphs import drawn
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
    """Raises SettingsError where the algorithm does not fit the graph or the models."""
    algorithm, graph = config.algorithm, graphs.union
    if algorithm.traits.new_edges:
        graph = Graph.of(graph.clients, combinations(range(graph.clients), 2))
    sizes = [architecture.size for architecture in architectures]
    run_facts = _facts_of(config, graph, architectures, data)
    check(algorithm, run_facts)
    facts = algorithm.facts(run_facts)
    run = _run_of(config, folder, graphs, architectures, data)
    sections = {name: getattr(config, name) for name in _SECTIONS}
    assignments = []
    for node in range(graph.clients):
        is_server = node == config.clients
        weights = mixing_row(graphs.graphs[0], node, config.topology.weights)
        assignments.append(
            Assignment(
                node=node,
                role="server" if is_server else "client",
                run=run,
                deployment=Deployment(_address(config, site, node), site.records),
                architecture=architectures[node],
                algorithm=dict(vars(config.algorithm)),
                neighbours=tuple(
                    Neighbour(
                        j,
                        sizes[j],
                        weights.get(j, 0.0),
                        data.clients[j].train_samples if j < config.clients else 0,
                        facts.edges.get((node, j)),
                    )
                    for j in graph.neighbours(node)
                ),
                periods=periods(graphs, node, config.topology.weights),
                facts=facts.nodes.get(node),
                **sections,
            )
        )
    run = replace(run, largest_vector=_largest_vector(config, assignments))
    return _placed(config, graphs.union, [replace(each, run=run) for each in assignments], site.hosts)


def _facts_of(config: RunConfig, graph: Graph, architectures: Sequence[Architecture], data: DataSummary) -> RunFacts:
    return RunFacts(
        graph=graph,
        models=architectures,
        task=data.task,
        same_start=config.model.same_start,
        classes=[client.classes for client in data.clients],
        features=[client.features for client in data.clients],
        topology=lambda: drawn(config),
    )


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


def _address(config: RunConfig, site: Site, node: int) -> str:
    if config.transport.protocol == "tcp":
        return f"tcp://{config.transport.host}:*"
    return f"ipc://{site.sockets}/{node:04d}"


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
    lengths = (link(config.algorithm, own, peer).sent_in(1) for own in assignments for peer in own.neighbours)
    return max((length for several in lengths for length in several), default=0)
