"""What each client is told: its neighbours, its model, its place."""

import math
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from ...node import own_code
from ...node.algorithms import link
from ...node.algorithms.base import Algorithm, RunFacts, facts_of
from ...node.assignment import Assignment, Deployment, Neighbour, Period, Run
from ...node.model.architecture import Architecture
from ...node.privacy import Withheld
from ...topology import Graph, GraphSequence, draw_sequence, mixing_row
from ...topology.errors import install
from ...topology.randomness import generator
from ...transport.environment import CONSTANTS
from ..config.sections import ConfigError, PlacementSection, RunConfig
from ..data.shards import DataSummary
from .attackers import attackers_of, with_attackers
from .prepared import memory_of

_SECTIONS = {field.name for field in fields(Assignment)} & {field.name for field in fields(RunConfig)} - {"algorithm"}
"""What clients are told of the configuration as it is."""


@dataclass(frozen=True)
class Host:
    """A machine that runs clients. ``memory`` are the bytes that it has free, ``address`` is where its clients' data
    sockets are bound; "": at ``transport.host``."""

    name: str
    address: str = ""
    cores: float = 1
    memory: float = math.inf


@dataclass(frozen=True)
class Site:
    """Where a run takes place: a folder for its Unix sockets, the address of its collector (tcp://ADDRESS:*: it picks a
    port), and the hosts that its clients are placed on."""

    sockets: Path
    records: str
    hosts: Sequence[Host] = (Host("this-host"),)


def deal_architectures(config: RunConfig, data: DataSummary) -> list[Architecture]:
    """Deals one to each client, so that every first n clients hold the architectures in proportion to their shares; a
    server comes last, with that of the first client, or the one on all features. Raises ConfigError."""
    sections = (config.model, *config.model.mix)
    choices = [_architecture(config, number, data) for number in range(len(sections))]
    server = [] if config.algorithm.traits.server == "none" else [choices[0]]
    for section in sections:
        if (section.kind, data.task) in (("linear", "classification"), ("logistic", "regression")):
            fitting = "linear" if data.task == "regression" else "logistic"
            why = f"the data is a {data.task} task"
            raise ConfigError.of("model.kind", section.kind, why, f"{fitting!r}, 'mlp', 'cnn' and 'gru'")
        if config.model.init == "zeros" and section.kind not in ("logistic", "linear"):
            raise ConfigError.of("model.init", "zeros", f"hidden layers of {section.kind!r} never learn", "'uniform'")
    if why := config.data.holds_features:
        if len(set(config.data.tasks)) > 1:
            raise ConfigError.of("data.tasks", config.data.tasks, why, "one task")
        if len(choices) > 1 or not choices[0].is_dense:
            allowed = "'logistic', 'linear' and 'mlp', without model.mix"
            raise ConfigError.of("model.kind", config.model.kind, why, allowed)
        seen = [client.features for client in data.clients if client.features is not None]
        return [_holding(choices[0], features) for features in seen] + server
    total, dealt, architectures = sum(section.share for section in sections), [0] * len(sections), []
    for number, client in enumerate(data.clients, 1):
        owed = [section.share / total * number - count for section, count in zip(sections, dealt, strict=True)]
        chosen = owed.index(max(owed))
        dealt[chosen] += 1
        architectures.append(replace(choices[chosen], outputs=client.outputs))
    return architectures + server


def _holding(model: Architecture, features: tuple[int, ...]) -> Architecture:
    """Returns that of a client which sees some of the features."""
    if not model.is_linear:
        model = replace(model, held=features, held_of=math.prod(model.input_shape))
    return replace(model, input_shape=(len(features),))


def _architecture(config: RunConfig, number: int, data: DataSummary) -> Architecture:
    """Returns that of [model], or of a table of model.mix."""
    section = (config.model, *config.model.mix)[number]
    architecture = Architecture.of(section, data.input_shape, data.outputs)
    if not section.use:
        return architecture
    from ...node.model.own import measured  # loads torch

    for key, value, default in (
        ("data.tasks", config.data.tasks, ("classes",)),
        ("model.init", config.model.init, "uniform"),
    ):
        if value != default:
            raise ConfigError.of(key, value, "a model of your own has one task, and starts as it is made", default)
    key = "model.use" if number == 0 else f"model.mix.{number - 1}.use"
    about = data.input_shape, data.outputs, data.task
    return replace(architecture, own=measured(section.use, key, section.options, about, np.dtype(config.model.dtype)))


def assign(
    config: RunConfig,
    folder: Path,
    graphs: GraphSequence,
    architectures: Sequence[Architecture],
    data: DataSummary,
    site: Site,
) -> tuple[Assignment, ...]:
    """Raises SettingsError where the algorithm does not fit the graph or the models."""
    algorithm, graph = config.algorithm, connected(config.algorithm, graphs)
    run_facts = RunFacts(
        graph=graph,
        models=architectures,
        task=data.task,
        same_start=config.model.same_start,
        classes=Withheld() if config.privacy.clip else [client.classes for client in data.clients],
        features=[client.features for client in data.clients],
        samples=[client.train_samples for client in data.clients],
        topology=lambda: draw_sequence(config.topology, config.clients, config.seed, config.rounds),
    )
    if algorithm.traits.same_size:
        run_facts.require_same_size(f"algorithm.name = {algorithm.name!r}")
    facts, run = facts_of(algorithm, run_facts), _run_of(config, folder, graphs, architectures, data)
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
            periods=_periods(graphs, node, config.topology.weights),
            facts=facts.nodes.get(node),
            **told,
        )
        assignments.append(assignment)
    longest = (link(algorithm, own, peer).longest(own.dtype) for own in assignments for peer in own.neighbours)
    run = replace(run, largest_vector=max(longest, default=0))
    told_run = with_attackers(config, graphs, [replace(each, run=run) for each in assignments])
    return _placed(config, graphs.union, told_run, site.hosts)


def connected(algorithm: Algorithm, graphs: GraphSequence) -> Graph:
    """Returns who is connected with whom: all that ever talk, by the graphs or because they come to know each other."""
    graph = graphs.union
    return Graph.of(graph.clients, combinations(range(graph.clients), 2)) if algorithm.traits.new_edges else graph


def _opens_late(config: RunConfig, graphs: GraphSequence) -> bool:
    """Whether connections are opened when they are first needed, rather than all at the start: where somebody has many,
    more than twice as many as anybody needs in one round. Not on the wall clock, whose time that would take, nor in
    its replay: who comes back hears at once from all that it hears from."""
    traits, time = config.algorithm.traits, config.time
    on_wall_clock = config.has_scenario and (time.clock == "wall" or time.replay is not None)
    most = config.clients - 1 if traits.new_edges else graphs.union.max_degree
    in_a_round = 1 if traits.meets else max(graph.undirected.max_degree for graph in graphs.graphs)
    return most > max(CONSTANTS.opened_at_start, 2 * in_a_round) and not on_wall_clock


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
        period_seed=graphs.seed,
        opens_late=_opens_late(config, graphs),
        attackers=attackers_of(config),
        scenario=config.has_scenario,
        code=own_code.digests(config.uses),
    )


def _periods(graphs: GraphSequence, node: int, weights: str) -> tuple[Period, ...]:
    """Returns a client's part of each graph; none where it is the same for all rounds and both directions."""
    if not graphs.changes and not graphs.directed:
        return ()
    rows = [(graph, mixing_row(graph, node, weights)) for graph in graphs.graphs]
    return tuple(Period(graph.successors(node), {j: row[j] for j in graph.predecessors(node)}) for graph, row in rows)


def _placed(
    config: RunConfig, graph: Graph, assignments: Sequence[Assignment], hosts: Sequence[Host]
) -> tuple[Assignment, ...]:
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


def chosen_hosts(section: PlacementSection, hosts: Sequence[Host]) -> Sequence[Host]:
    if len(hosts) > 1 or section.hosts < 2:
        return hosts[: section.hosts or None]
    (whole,) = hosts
    parts = range(1, section.hosts + 1)
    return [replace(whole, name=f"{whole.name}-{part}", cores=whole.cores / section.hosts) for part in parts]


def place(
    section: PlacementSection, graph: Graph, hosts: Sequence[Host], needs: Sequence[float], seed: int
) -> list[int]:
    """Returns the index of each client's host. ``needs`` are the bytes of memory that each takes. Hosts get clients in
    proportion to their cores, no more than their memory holds. Raises ConfigError where it does not hold all."""
    shares = _shares(section, hosts, needs)
    if len(hosts) == 1:
        return [0] * graph.clients
    if section.by == "partition":
        return _partition(graph, shares, seed)
    dealt = [host for turn in range(max(shares)) for host, share in enumerate(shares) if turn < share]
    return dealt if section.by == "round-robin" else generator(seed, "placement").permutation(dealt).tolist()


def _shares(section: PlacementSection, hosts: Sequence[Host], needs: Sequence[float]) -> list[int]:
    clients, largest, most = len(needs), max(needs), []
    for host in hosts:
        memory = min(host.memory, section.memory_gb * 1e9 or math.inf)
        limit = min(memory / largest, section.clients_a_core * host.cores or math.inf, clients)
        most.append(math.floor(limit))
    if sum(most) < clients:
        held = ", ".join(f"{host.name} {count}" for host, count in zip(hosts, most, strict=True))
        fewer = f"clients = {clients}: the hosts hold fewer ({held}), at about {largest / 1e6:.0f} MB each"
        remedy = "use more hosts or fewer clients, or raise placement.clients_a_core and placement.memory_gb"
        raise ConfigError(f"{fewer}; {remedy}")
    shares = [0] * len(hosts)
    for _ in range(clients):  # to the host that is then the least busy
        open_ = [index for index, count in enumerate(shares) if count < most[index]]
        shares[min(open_, key=lambda index: ((shares[index] + 1) / max(hosts[index].cores, 1e-9), index))] += 1
    return shares


def _partition(graph: Graph, shares: Sequence[int], seed: int) -> list[int]:
    """Partitions by METIS: parts of about these sizes, few edges between them; hosts without a share get none, which
    METIS itself does not tolerate. Then moves clients from hosts with too many to those that hold more, each time the
    one that costs the fewest edges."""
    try:
        import pymetis
    except ImportError:
        raise ConfigError(f"placement.by = 'partition' needs pymetis: {install('ray')}, or use 'round-robin'") from None
    neighbours = [list(graph.neighbours(node)) for node in range(graph.clients)]
    used = [host for host, share in enumerate(shares) if share]
    weights = [shares[host] / sum(shares) for host in used]
    options = pymetis.Options(seed=int(generator(seed, "placement").integers(1 << 31)))
    parts = pymetis.part_graph(len(used), adjacency=neighbours, tpwgts=weights, options=options)[1]
    placed = [used[part] for part in parts]
    left = [share - placed.count(host) for host, share in enumerate(shares)]
    while min(left) < 0:
        moves = []
        for node in (node for node, host in enumerate(placed) if left[host] < 0):
            around = Counter(placed[peer] for peer in graph.neighbours(node))
            moves += [(around[placed[node]] - around[to], node, to) for to, free in enumerate(left) if free > 0]
        _, node, to = min(moves)
        left[placed[node]] += 1
        left[to] -= 1
        placed[node] = to
    return placed
