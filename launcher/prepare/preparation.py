"""From a configuration to everything that must exist before the first process: folder, graph, shards, assignments."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from ...metrics.names import packed
from ...metrics.schema import CONFIG, CONFIG_DIGEST, CONSTANT_METRIC
from ...metrics.store import Store
from ...node.algorithms import ALGORITHMS
from ...node.algorithms.server import ServerAlgorithm, participants
from ...node.assignment import Assignment, LocalWork, Neighbour, Turn
from ...node.model.architecture import Architecture
from ...topology import Graph, GraphSequence
from ...topology.matchings import matchings
from ...topology.weights import mixing_row
from ...transport.failpoints import failpoint
from ...transport.keys import there_are_keys
from ..config.sections import ConfigError, RunConfig
from ..data import DataSummary, prepare
from ..planner import Plan, Star
from ..run.folder import digest_of_config, kept_digest
from ..run.origin import origin
from .graphs import check_graphs, draw_graphs, has_server, relation_edges
from .memory import memory_of, most_memory
from .placement import Host, chosen_hosts, place
from .reach import check_reach
from .scenario import local_steps, plan_run


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to start."""

    config: RunConfig
    folder: Path
    graph: Graph
    """Who is connected with whom."""
    assignments: tuple[Assignment, ...]
    """Of each client, its first life."""
    samples: tuple[int, ...]
    """Training samples of each client; 0 for a server."""
    data: DataSummary
    plan: Plan | None = None
    resumed_at: int = 0
    """The round after which an interrupted run is taken up again."""
    went_on_s: float = 0.0
    """Wall seconds that the run had taken until then."""
    told: tuple[tuple[int, str, float | None, str], ...] = ()
    """(client, kind, virtual seconds, detail) of what a plan has happen once, and is on record."""
    keyed_records: bool = False
    """Whether the collector asks for keys."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What table ``meta`` tells of its data."""
    moved: str = ""
    """In what the machine that takes up the run differs from the one where it began."""


Calibrate = Callable[[Assignment, int], float]
"""Times a local step of a client, in seconds; given are the steps of its round."""


def once_for_alike(calibrate: Calibrate) -> Calibrate:
    """Runs that compute the same are compared on one time of a step, not on the noise of two."""
    times: dict[tuple[object, ...], float] = {}

    def time_a_step(assignment: Assignment, steps: int) -> float:
        key = assignment.architecture, assignment.task, assignment.dtype, assignment.training, steps
        if key not in times:
            times[key] = calibrate(assignment, steps)
        return times[key]

    return time_a_step


def prepare_run(
    config: RunConfig,
    folder: Path,
    *,
    sockets: Path,
    records: str,
    hosts: Sequence[Host] = (Host("this-host"),),
    calibrate: Calibrate | None = None,
) -> Prepared:
    """Fills a run folder: shards, resolved configuration, plan, empty database. Raises UserError.

    ``sockets`` is a folder for the run's Unix sockets, ``records`` the address of its collector (tcp://ADDRESS:*: it
    picks a port), ``hosts`` are those that its clients are placed on. What is there already from an earlier preparation
    of the same run stays as it is.
    """
    prepared = work_out(config, folder, sockets=sockets, records=records, hosts=hosts, calibrate=calibrate)
    write_down(prepared).close()
    return prepared


def work_out(
    config: RunConfig,
    folder: Path,
    *,
    sockets: Path,
    records: str,
    hosts: Sequence[Host] = (Host("this-host"),),
    calibrate: Calibrate | None = None,
) -> Prepared:
    """As ``prepare_run``, which calls it; of the folder it only fills ``shards``, and what calibrating logs."""
    _check_algorithm(config)
    if config.transport.keyed and not there_are_keys():
        raise ConfigError("transport.keys = true: this machine's libzmq was built without CurveZMQ; allowed is false")
    keyed_records = _keyed_records(config, records)
    graphs = draw_graphs(config)
    check_graphs(config, graphs)
    if config.transport.protocol == "tcp" and not hosts[0].address:
        check_reach(config.transport.host, graphs.union)
    data = prepare(config.data, config.clients, config.seed, folder / "shards")
    architectures = deal_architectures(config, data)
    assignments = _assign(config, folder, graphs, architectures, data, sockets, records)
    assignments = _placed(config, graphs.union, assignments, hosts)
    plan = None
    if config.has_scenario:
        if config.compute.step_s is None:
            assert calibrate
            (folder / "log").mkdir(exist_ok=True)
            step_s = calibrate(assignments[0], local_steps(config, data.clients[0].train_samples))
            config = config.model_copy(update={"compute": config.compute.model_copy(update={"step_s": step_s})})
        plan = _plan(config, graphs.union, assignments, data)
    if config.transport.protocol == "tcp":
        assignments = tuple(replace(each, memory=most_memory(each, plan)) for each in assignments)
    samples = tuple(client.train_samples for client in data.clients) + (0,) * (len(assignments) - config.clients)
    facts = {
        "metric": "accuracy" if data.task == "classification" else "mse",
        "groups": ",".join(str(client.group) for client in data.clients),
        **packed([client.owner for client in data.clients]),
    }
    if data.constant_metric is not None:
        facts[CONSTANT_METRIC] = repr(data.constant_metric)
    graph = graphs.union
    return Prepared(config, folder, graph, assignments, samples, data, plan, keyed_records=keyed_records, facts=facts)


def write_down(prepared: Prepared) -> Store:
    """Writes the plan, the configuration, and what table ``meta`` tells of the run; that is not committed yet."""
    config, folder = prepared.config, prepared.folder
    for assignment, schedule in zip(
        prepared.assignments, prepared.plan.schedules if prepared.plan else (), strict=False
    ):
        schedule.save(assignment.schedule)
    (folder / "log").mkdir(exist_ok=True)
    failpoint("plan written")
    _write_config(config, folder / "config.toml")
    failpoint("configuration written")
    database = folder / "run.sqlite"
    bears_digests = not database.exists() or not database.stat().st_size or kept_digest(folder) is not None
    store = Store(database)
    store.describe(**prepared.facts)
    if bears_digests:
        store.describe(**{CONFIG_DIGEST: digest_of_config(folder), CONFIG: config.to_toml()})
        store.describe_once(origin())
    return store


def _keyed_records(config: RunConfig, records: str) -> bool:
    if not records.startswith("tcp://"):
        return False
    if not config.transport.keys and not records.startswith("tcp://127."):
        raise ConfigError(f"transport.keys = false: records go to {records}; allowed is true, or a loopback address")
    return config.transport.keys


def _write_config(config: RunConfig, path: Path) -> None:
    """Whole or not at all, for others tell by it what run this is."""
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(config.to_toml())
    unfinished.replace(path)


def _check_algorithm(config: RunConfig) -> None:
    algorithm, name = ALGORITHMS[config.algorithm.name], config.algorithm.name
    with_server = issubclass(algorithm, ServerAlgorithm)
    if config.has_scenario and with_server and config.time.staleness != 0:
        raise ConfigError(
            f"time.staleness = {config.time.staleness!r}: the server of algorithm.name = {name!r} waits for its "
            "clients in each round; allowed is 0, and time.deadline_s bounds the wait"
        )
    if config.has_scenario and not algorithm.with_everyone and not with_server:
        raise ConfigError(
            f"algorithm.name = {name!r} exchanges with some neighbours a round, and a scenario is planned for "
            "exchanges with all of them; use 'd-psgd', or leave the scenario out"
        )
    if config.has_scenario and algorithm.may_meet(config.algorithm):
        raise ConfigError(
            "algorithm.seek = true: a scenario is planned for a graph that stays the same; set it to false, or leave "
            "the scenario out"
        )
    if config.has_scenario and has_server(config) and not with_server:
        raise ConfigError(
            "algorithm.server = true: a scenario is planned for clients that all learn, and a server does not; set it "
            "to false, or leave the scenario out"
        )
    if config.training.momentum and not algorithm.has_momentum:
        raise ConfigError(
            f"training.momentum = {config.training.momentum}: the local steps of algorithm.name = {name!r} are its "
            "own, without momentum; allowed is 0"
        )
    if config.time.deaths == "continue" and algorithm.bears(config.algorithm) == "nothing":
        hardier = algorithm.hardier(config.algorithm)
        raise ConfigError(
            f"time.deaths = 'continue': algorithm.name = {name!r} with these settings needs every message, and who "
            f"dies sends none; use {hardier + ', or ' if hardier else ''}'fail'"
        )
    may_lose = algorithm.may_lose(config.algorithm)
    for key, codec in (("codec", config.transport.codec), ("codec_between", config.transport.between)):
        if codec == "top-k" and may_lose == "digits":
            raise ConfigError(
                f"transport.{key} = 'top-k': algorithm.name = {name!r} with these settings needs every entry in every "
                "message; allowed are 'none', 'float16', 'bfloat16' and 'int8'"
            )
        if codec != "none" and may_lose == "nothing":
            raise ConfigError(
                f"transport.{key} = {codec!r}: algorithm.name = {name!r} with these settings needs every vector as it "
                "is; allowed is 'none'"
            )


def _plan(config: RunConfig, graph: Graph, assignments: Sequence[Assignment], data: DataSummary) -> Plan:
    """Raises ConfigError where the scenario never ends, or where the algorithm cannot bear it."""
    algorithm = ALGORITHMS[config.algorithm.name]
    messages = {
        (own.node, peer.node): algorithm.link(config.algorithm, own, peer).sent_as(1, np.dtype(own.dtype))
        for own in assignments
        for peer in own.neighbours
    }
    steps = [local_steps(config, client.train_samples) for client in data.clients]
    assert config.compute.step_s
    star = _star(config, algorithm, assignments) if issubclass(algorithm, ServerAlgorithm) else None
    plan = plan_run(config, graph, messages, steps, config.compute.step_s, star)
    bears = algorithm.bears(config.algorithm)
    slack = config.time.deadline_s is not None or config.time.staleness != 0
    loose = config.time.clock == "wall" and slack  # what will really come in time, no plan can tell
    may_be_late = loose and (star is None or config.time.silence == "stale")
    harmed = {"nothing": loose or not plan.synchronous, "missing": may_be_late or plan.has_late, "late": False}[bears]
    if harmed:
        what = "every message, in its own round" if bears == "nothing" else "messages of the same round, or none"
        hardier = algorithm.hardier(config.algorithm)
        raise ConfigError(
            f"algorithm.name = {config.algorithm.name!r} with these settings needs {what}, but in this scenario some "
            f"are late or lost; use {hardier + ', or ' if hardier else ''}time.staleness = 0 and no losses or crashes"
        )
    return plan


def _star(config: RunConfig, algorithm: type[ServerAlgorithm], assignments: Sequence[Assignment]) -> Star:
    def chosen(round: int) -> frozenset[int]:
        return frozenset(participants(config.seed, config.algorithm.fraction, config.clients, config.rounds, round))

    server, rounds = assignments[-1], range(1, config.rounds + 1)
    later = algorithm.answers == "next"
    return Star(
        participants=tuple(chosen(round) for round in rounds),
        receivers=tuple(chosen(round + later) for round in rounds),
        opening=len(algorithm.opening(config.algorithm, algorithm.ways(server, server.neighbours[0])[0])),
    )


def deal_architectures(config: RunConfig, data: DataSummary) -> list[Architecture]:
    """One a client, dealt so that every first n clients hold the architectures in proportion to their shares; a server
    comes last, with that of the first client, or the one on all features.
    """
    sections = (config.model, *config.model.mix)
    choices = [
        Architecture(
            section.kind,
            data.input_shape,
            data.outputs,
            section.filters,
            section.hidden,
            section.kernel,
            section.padding,
            section.norm_groups,
        )
        for section in sections
    ]
    server = [choices[0]] if has_server(config) else []
    if config.data.features_held < 1:
        if len(set(config.data.tasks)) > 1:
            raise ConfigError(f"data.features_held below 1 needs one task: data.tasks = {list(config.data.tasks)}")
        return [_on_features(choices, client.features) for client in data.clients] + server
    _check_task(config, data)
    total = sum(section.share for section in sections)
    dealt = [0] * len(sections)
    architectures = []
    for number, client in enumerate(data.clients):
        owed = [section.share / total * (number + 1) - count for section, count in zip(sections, dealt, strict=True)]
        chosen = max(range(len(sections)), key=lambda index: (owed[index], -index))
        dealt[chosen] += 1
        architectures.append(replace(choices[chosen], outputs=client.outputs))
    return architectures + server


def _on_features(choices: Sequence[Architecture], features: tuple[int, ...] | None) -> Architecture:
    """The run's one linear model, on the features that a client sees."""
    if len(choices) > 1 or choices[0].kind not in ("logistic", "linear") or features is None:
        raise ConfigError("data.features_held below 1 needs model.kind = 'logistic' or 'linear', and no model.mix")
    return replace(choices[0], input_shape=(len(features),))


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


def _check_task(config: RunConfig, data: DataSummary) -> None:
    for section in (config.model, *config.model.mix):
        if (section.kind, data.task) in (("linear", "classification"), ("logistic", "regression")):
            fitting = "linear" if data.task == "regression" else "logistic"
            raise ConfigError(
                f"model.kind = {section.kind!r}: the data is a {data.task} task; use {fitting!r}, 'mlp', 'cnn' or 'gru'"
            )
        if config.model.init == "zeros" and section.kind in ("mlp", "cnn", "gru"):
            raise ConfigError(
                "model.init = 'zeros': hidden layers would never learn; allowed with 'logistic' and 'linear'"
            )


def _assign(
    config: RunConfig,
    folder: Path,
    graphs: GraphSequence,
    architectures: Sequence[Architecture],
    data: DataSummary,
    sockets: Path,
    records: str,
) -> tuple[Assignment, ...]:
    algorithm, graph = ALGORITHMS[config.algorithm.name], graphs.union
    if algorithm.may_meet(config.algorithm):
        graph = Graph.of(graph.clients, combinations(range(graph.clients), 2))
    sizes = [architecture.size for architecture in architectures]
    common = {
        (i, j): _common_coordinates(data, i, j, data.outputs) for edge in graph.edges for i, j in (edge, edge[::-1])
    }
    algorithm.check(config.algorithm, sizes, graph.edges)
    algorithm.check_models(config.algorithm, architectures, data.task, config.model.same_start)
    settings = dict(vars(config.algorithm))
    training = LocalWork(**config.training.model_dump())
    matching_of = matchings(graph)
    run = 1 << 62 | secrets.randbits(62)  # tells runs apart on the wire; always 9 bytes of a header
    assignments = []
    relations = relation_edges(config) if algorithm.is_told_relations(config.algorithm) else ()
    for node in range(graph.clients):
        is_server = node == config.clients
        weights = mixing_row(graphs.graphs[0], node, config.topology.weights)
        address = (
            f"ipc://{sockets}/{node:04d}" if config.transport.protocol == "ipc" else f"tcp://{config.transport.host}:*"
        )
        assignments.append(
            Assignment(
                node=node,
                role="server" if is_server else "client",
                clients=config.clients,
                run=run,
                seed=config.seed,
                rounds=config.rounds,
                folder=folder,
                address=address,
                records=records,
                architecture=architectures[node],
                task=data.task,
                init=config.model.init,
                same_start=config.model.same_start,
                first_outputs=architectures[0].outputs,
                dtype=config.model.dtype,
                training=training,
                algorithm=settings,
                neighbours=tuple(
                    Neighbour(
                        j,
                        sizes[j],
                        weights.get(j, 0.0),
                        common[node, j],
                        matching_of[min(node, j), max(node, j)],
                        data.clients[j].train_samples if j < config.clients else 0,
                        data.clients[j].classes if is_server else (),
                    )
                    for j in graph.neighbours(node)
                ),
                classes=() if is_server else data.clients[node].classes,
                matchings=1 + max(matching_of.values(), default=0),
                relations=relations if is_server else (),
                turns=_turns(graphs, node, config.topology.weights),
                rounds_a_turn=graphs.rounds_each,
                largest_vector=0,
                codec=config.transport.codec,
                codec_between=config.transport.between,
                keep=config.transport.keep,
                timeout=config.transport.timeout,
                evaluate_every=config.evaluation.every,
                checkpoint_every=config.checkpoints.every,
                save_maps=config.checkpoints.save_maps,
                measure=config.measuring.enabled,
                sample_every=config.measuring.every,
                kernel_counters=config.measuring.enabled
                and config.measuring.kernel
                and config.transport.protocol == "tcp",
                clock=config.time.clock if config.has_scenario else "none",
                staleness=math.inf if config.time.staleness == "inf" else config.time.staleness,
                silence=config.time.silence,
                deadline_s=math.inf if config.time.deadline_s is None else config.time.deadline_s,
                survives=config.time.deaths == "continue",
                drift_round=0 if config.data.drift is None else config.data.drift.at_round,
                keyed=config.transport.keyed,
            )
        )
    largest = _largest_vector(config, assignments)
    return tuple(replace(assignment, largest_vector=largest) for assignment in assignments)


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
        address = assignment.address
        if config.transport.protocol == "tcp" and hosts[number].address:
            address = f"tcp://{hosts[number].address}:*"
        placed.append(
            replace(assignment, neighbours=neighbours, address=address, host=number, host_name=hosts[number].name)
        )
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


def _turns(graphs: GraphSequence, node: int, weights: str) -> tuple[Turn, ...]:
    """A client's part of each graph; none where it is the same for all rounds and both directions."""
    if not graphs.changes and not graphs.directed:
        return ()
    rows = [mixing_row(graph, node, weights) for graph in graphs.graphs]
    return tuple(
        Turn(graph.successors(node), {j: row[j] for j in graph.predecessors(node)})
        for graph, row in zip(graphs.graphs, rows, strict=True)
    )
