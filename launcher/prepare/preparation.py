"""From a configuration to everything that must exist before the first process: folder, graph, shards, assignments, and
the plan of a scenario."""

import csv
import ipaddress
import math
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import zmq

from ...metrics.config_file import require_plain_file
from ...node import own_code
from ...node.algorithms import ALGORITHMS, Algorithm, link
from ...node.algorithms.base import Setup, pattern_of
from ...node.algorithms.flt import FLT, Autoencoder, EncoderError
from ...node.assignment import Assignment, Neighbour
from ...topology import Graph, GraphSequence, draw_sequence
from ...topology.errors import shown
from ...topology.randomness import generator
from ...transport.wire import message_wire_bytes, pack_header
from ..config.sections import ConfigError, RunConfig
from ..data.sets import load
from ..data.shards import DataSummary, prepare
from ..planner.busy import for_the_wall_clock
from ..planner.draws import draw_faults
from ..planner.plan import Plan
from ..planner.replay import Recording, replayed
from ..planner.scenario import Edge, Fault, Scenario, Star
from ..planner.simulation import simulate
from ..planner.traces import read_traces
from .assignments import Site, assign, connected, deal_architectures
from .attackers import silent_of
from .links import Shape, links_of, unlike_clients
from .prepared import Prepared, memory_of, write_down
from .privacy import check_privacy, with_privacy
from .work import check_batches, check_confusion, check_own_code, local_work

Calibrate = Callable[[Assignment, int], float]  # (a client, the steps of its round) -> seconds of a local step
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_SAME_GRAPH = "a graph that stays the same"
_MOST_MESSAGES = 100_000_000
_LEAST_MEMORY, _MEMORY_TO_ESTIMATE = 1 << 30, 8  # bounds against those who would have a client take all there is


def once_for_alike(calibrate: Calibrate) -> Calibrate:
    """Compares runs that compute the same on one time of a step, not on the noise of two."""
    times: dict[tuple[object, ...], float] = {}

    def time_a_step(assignment: Assignment, steps: int) -> float:
        kind, training, privacy = assignment.model.dtype, repr(assignment.training), assignment.privacy
        key = assignment.architecture, assignment.run.task, kind, training, privacy, steps
        if key not in times:
            times[key] = calibrate(assignment, steps)
        return times[key]

    return time_a_step


def prepare_run(config: RunConfig, folder: Path, site: Site, calibrate: Calibrate | None = None) -> Prepared:
    """Fills a run folder: shards, resolved configuration, plan, empty database. Raises UserError. What is there already
    from an earlier preparation of the same run stays as it is."""
    prepared = work_out(config, folder, site, calibrate)
    write_down(prepared).close()
    return prepared


def work_out(config: RunConfig, folder: Path, site: Site, calibrate: Calibrate | None = None) -> Prepared:
    """Prepares a run without its folder, of which only ``shards``, ``code`` and a calibration's log are filled."""
    _check_algorithm(config)
    check_privacy(config)
    transport, records = config.transport, site.records
    if transport.keyed and not zmq.has("curve"):
        raise ConfigError.of("transport.keys", True, "this machine's libzmq was built without CurveZMQ", "false")
    if records.startswith("tcp://") and not transport.keys and not records.startswith("tcp://127."):
        raise ConfigError.of("transport.keys", False, f"records go to {records}", "true, or a loopback address")
    graphs = draw_graphs(config)
    emulated = transport.emulate and transport.protocol == "tcp" and config.time.clock == "wall"
    emulated &= not site.hosts[0].address
    if transport.protocol == "tcp" and not site.hosts[0].address and not emulated:
        _check_reach(transport.host, graphs.union)
    for name, text in own_code.sources(config.uses).items():
        copy = folder / own_code.FOLDER / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text, encoding="utf-8")
    data = prepare(config.data, config.clients, config.seed, folder / "shards")
    architectures = deal_architectures(config, data)
    assignments = assign(config, folder, graphs, architectures, data, site)
    check_own_code(config, assignments, data)
    plan, graph, samples = None, connected(config.algorithm, graphs), [each.train_samples for each in data.clients]
    check_confusion(config, data)
    check_batches(config, assignments, samples)
    assignments, privacy = with_privacy(config, assignments, samples, faults_of(config, graph))
    shape = Shape.of(config, graph, links_of(config.links, graph)) if emulated else None
    if config.has_scenario:
        if config.times_a_step:
            assert calibrate
            (folder / "log").mkdir(exist_ok=True)
            step_s = calibrate(assignments[0], config.training.count(samples[0]))
            config = config.but(compute={"step_s": step_s})
        plan = plan_of(config, graphs, assignments, data, emulated=emulated)
    if transport.protocol == "tcp":
        most = [max(_LEAST_MEMORY, round(_MEMORY_TO_ESTIMATE * memory_of(each, plan))) for each in assignments]
        bounds = [replace(each.deployment, memory=memory) for each, memory in zip(assignments, most, strict=True)]
        assignments = tuple(replace(each, deployment=bound) for each, bound in zip(assignments, bounds, strict=True))
    return Prepared(config, folder, graphs.union, assignments, data, plan, shape, privacy=privacy)


def _check_algorithm(config: RunConfig) -> None:
    """Raises ConfigError where the algorithm does not work with what other sections say."""
    traits, time, name = config.algorithm.traits, config.time, f"algorithm.name = {config.algorithm.name!r}"
    if config.has_scenario and traits.server == "answers" and time.staleness != 0:
        why = f"the server of {name} waits for its clients in each round"
        raise ConfigError.of("time.staleness", time.staleness, why, "0; time.deadline_s bounds the wait")
    if traits.meets:
        why = f"in {name} time decides who meets whom, as the plan tells it"
        for key, value, allowed in (("clock", time.clock, "virtual"), ("staleness", time.staleness, 0)):
            if value != allowed:
                raise ConfigError.of(f"time.{key}", value, why, shown(allowed))
    if config.has_scenario and traits.no_scenario:
        raise ConfigError(traits.no_scenario)
    if not traits.momentum:
        for key, none in (("optimizer", "sgd"), ("momentum", 0), ("clip", 0)):
            if (value := getattr(config.training, key)) != none:
                why = f"the local steps of {name} are its own, by plain SGD"
                found = getattr(value, "use", value)
                raise ConfigError.of(f"training.{key}", found, why, shown(none))
    if time.deaths == "continue" and traits.tolerates == "nothing":
        why = f"{name} with these settings needs every message, and who dies sends none"
        instead = f"'fail'; or use {traits.more_tolerant}" if traits.more_tolerant else "'fail'"
        raise ConfigError.of("time.deaths", time.deaths, why, instead)
    for key, codec in (("codec", config.transport.codec), ("codec_between", config.transport.between)):
        needs, allowed = "", "'none'"
        if codec == "top-k" and traits.codec_may_drop == "digits":
            needs, allowed = "every entry in every message", "'none', 'float16', 'bfloat16' and 'int8'"
        elif codec != "none" and traits.codec_may_drop == "nothing":
            needs = "every vector as it is"
        if needs:
            raise ConfigError.of(f"transport.{key}", codec, f"{name} with these settings needs {needs}", allowed)


def draw_graphs(config: RunConfig) -> GraphSequence:
    """Draws those of the algorithm's pattern, or a star around the server, the process after the clients. Raises
    UserError."""

    def topology() -> GraphSequence:
        graphs = draw_sequence(config.topology, config.clients, config.seed, config.rounds)
        _check_graphs(config, graphs)
        return graphs

    if config.algorithm.traits.server == "none":
        return pattern_of(config.algorithm, Setup(config.clients, config.rounds, config.seed, topology))
    return GraphSequence((Graph.of(config.clients + 1, [(i, config.clients) for i in range(config.clients)]),))


def _check_graphs(config: RunConfig, graphs: GraphSequence) -> None:
    """Raises ConfigError where the run's algorithm needs others."""
    topology, kind = config.topology, ("topology.kind", config.topology.kind)
    changing = ("topology.redraw_every", topology.redraw_every) if topology.redraw_every else kind
    directed = ("topology.directed", True) if topology.directed else kind
    if lack := _lack(config.algorithm, graphs):
        able = ", ".join(repr(name) for name, other in ALGORITHMS.items() if not _lack(other(), graphs))
        why = f"algorithm.name = {config.algorithm.name!r} needs {lack}"
        key, value = changing if lack == _SAME_GRAPH else directed
        raise ConfigError.of(key, value, why, f"on this graph, {able}")


def _lack(algorithm: Algorithm, graphs: GraphSequence) -> str:
    """Returns what the algorithm needs, and these graphs are not; "" where it works on them."""
    traits, directed = algorithm.traits, [graph for graph in graphs.graphs if graph.directed]
    if directed and traits.directed_graphs == "none":
        return "an undirected graph"
    if traits.directed_graphs == "regular" and not all(graph.is_regular for graph in directed):
        return "doubly stochastic weights: all clients have to send to as many as they hear from, and equally many"
    return _SAME_GRAPH if graphs.changes and not traits.changing_graphs else ""


def _check_reach(host: str, graph: Graph) -> None:
    """Raises ConfigError where nobody can listen at ``host``, or be reached there, or ports do not suffice."""
    interfaces = psutil.net_if_stats()
    try:  # without a packet, for all that goes over the network is counted
        with socket.create_server((host, 0)) as listening, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as calling:
            calling.connect(listening.getsockname())
        if "lo" in interfaces and not interfaces["lo"].isup:
            raise OSError("a machine's link to itself")
    except OSError as error:
        up = [places for name, places in psutil.net_if_addrs().items() if name in interfaces and interfaces[name].isup]
        own = sorted({place.address for places in up for place in places if place.family == socket.AF_INET})
        remedy = f"this machine has no such address; allowed are {', '.join(own) or 'none, without a network'}"
        if host in own:
            remedy = "this machine cannot reach itself there; see that its loopback interface is up"
        elif ipaddress.IPv4Address(host).is_loopback:
            remedy = "the loopback interface is down; set it up (ip link set lo up), or use transport.protocol = 'ipc'"
        raise ConfigError(f"transport.host = {host!r}: {remedy} ({error.strerror or error})") from None
    if not _PORTS.exists():
        return
    first, last = map(int, _PORTS.read_text().split())
    # A client listens at one port; connections to the same client leave from different ones.
    needed = graph.clients + max((sum(j < i for j in graph.neighbours(i)) for i in range(graph.clients)), default=0)
    if needed > last - first + 1:
        given = f"this system gives out {last - first + 1} ({first} to {last})"
        why = f"{graph.clients} processes need {needed} ports, and {given}"
        raise ConfigError.of("transport.protocol", "tcp", why, "'ipc', or a wider net.ipv4.ip_local_port_range")


def plan_of(
    config: RunConfig,
    graphs: GraphSequence,
    assignments: Sequence[Assignment],
    data: DataSummary,
    *,
    emulated: bool = False,
) -> Plan:
    """Raises UserError where the scenario never ends, or where the algorithm does not tolerate it."""
    sizes = {(own.node, peer.node): _message_bytes(config, own, peer) for own in assignments for peer in own.neighbours}
    messages = config.rounds * sum(map(len, sizes.values()))
    if messages > _MOST_MESSAGES:
        why = f"a scenario is planned message by message, and these rounds would have {messages:,}"
        allowed = f"as many as send {_MOST_MESSAGES:,}; use fewer rounds or links, or leave the scenario out"
        raise ConfigError.of("rounds", config.rounds, why, allowed)
    star, server, rounds = None, assignments[-1], range(1, config.rounds + 1)
    if config.algorithm.traits.server == "answers":
        participants = tuple(frozenset(config.algorithm.participants(config, round)) for round in rounds)
        receivers = tuple(frozenset(config.algorithm.receivers(config, round)) for round in rounds)
        to_a_client = link(config.algorithm, server, server.neighbours[0])
        counts = len(to_a_client.opens), len(to_a_client.sends), config.algorithm.least_heard(config)
        star = Star(participants, receivers, *counts)
    samples = [client.train_samples for client in data.clients]
    scenario = replace(_scenario(config, graphs, assignments, sizes, samples, star), emulated=emulated)
    plan = for_the_wall_clock(simulate(scenario), scenario) if config.time.clock == "wall" else simulate(scenario)
    if config.time.replay is not None:
        recording = Recording.load(assignments[0].run.folder / config.time.replay)
        return replayed(plan, recording, star)
    longest = 1e8 if config.time.clock == "wall" else np.finfo(float).max  # three years: a clock cannot wait for ever
    if not plan.end_s <= longest:
        allowed = f"at most {longest:.3g} s; look at compute.step_s, [stragglers] and [links]"
        raise ConfigError.of("time.clock", config.time.clock, f"this scenario ends after {plan.end_s:.3g} s", allowed)
    time, traits = config.time, config.algorithm.traits
    # what will really come in time, no plan can tell
    loose = time.clock == "wall" and (time.deadline_s is not None or time.staleness != 0)
    may_be_late = loose and (not plan.has_server or time.silence == "stale")
    harms = {"nothing": loose or not plan.synchronous, "missing": may_be_late or plan.has_late, "late": False}
    if harms[traits.tolerates]:
        needs_all = traits.tolerates == "nothing"
        what = "every message, in its own round" if needs_all else "messages of the same round, or none"
        needs = f"algorithm.name = {config.algorithm.name!r} with these settings needs {what}"
        use = " or ".join(filter(None, [traits.more_tolerant, "time.staleness = 0 and no losses or crashes"]))
        raise ConfigError(f"{needs}, but in this scenario some are late or lost; use {use}")
    return plan


def _message_bytes(config: RunConfig, own: Assignment, peer: Neighbour) -> tuple[int, ...]:
    """Returns the bytes of each message of the last round: headers grow by a byte or two until then."""
    sizes = []
    for phase, format in enumerate(link(config.algorithm, own, peer).sent_as(1, own.dtype)):
        header = pack_header(1 << 62, own.node, peer.node, config.rounds, phase, format.layout)
        tensors = (dtype.itemsize * length for dtype, (length,) in format.layout)
        sizes.append(message_wire_bytes([len(header), *tensors], sealed=config.transport.keyed))
    return tuple(sizes)


def _scenario(
    config: RunConfig,
    graphs: GraphSequence,
    assignments: Sequence[Assignment],
    sizes: Mapping[Edge, tuple[int, ...]],
    samples: Sequence[int],
    star: Star | None,
) -> Scenario:
    """``sizes`` are the bytes of a round's messages on each directed edge, ``samples`` what each client trains on."""
    graph = connected(config.algorithm, graphs)
    time, compute, every, count = config.time, config.compute, config.evaluation.every, graph.clients
    slowdown, unit_s = compute.slowdown or (1.0,), compute.sample_s or compute.step_s
    assert unit_s
    traces = read_traces(config.trace, config.clients, config.seed)
    if config.links.sharing == "fair" and any(trace.up or trace.down for trace in traces.values()):
        why = "in [trace], what clients can send or get changes as time goes by"
        raise ConfigError.of("links.sharing", "fair", why, "'queue'")
    return Scenario(
        seed=config.seed,
        rounds=config.rounds,
        neighbours=tuple(graph.neighbours(i) for i in range(count)),
        graphs=graphs if graphs.changes or graphs.directed else None,
        **{name: getattr(config.algorithm.traits, name) for name in ("learns_first", "meets", "tolerates")},
        participants=_participants(config) if star is None else (),
        message_bytes=sizes,
        staleness=float(time.staleness),
        silence=time.silence,
        deadline_s=time.deadline_s or math.inf,
        notice_s=time.notice_s,
        step_s=unit_s,
        steps=local_work(config, assignments, samples),
        message_s=compute.message_s,
        evaluation_s=compute.evaluation_s,
        evaluated=[k for k in range(1, config.rounds + 1) if k == config.rounds or (every and k % every == 0)],
        slowdown=tuple(slowdown[i % len(slowdown)] for i in range(count)),
        stragglers=config.stragglers,
        trace=_trace(config.stragglers.path, config.clients),
        traces=traces,
        links=links_of(config.links, graph),
        uplink=config.links.uplink or math.inf,
        downlink=config.links.downlink or math.inf,
        uplinks=unlike_clients(config.links, count, "uplink"),
        downlinks=unlike_clients(config.links, count, "downlink"),
        groups=config.links.groups,
        fair=config.links.sharing == "fair",
        faults=faults_of(config, graph),
        silent=silent_of(config, assignments),
        checkpoint_every=config.checkpoints.every,
        star=star,
    )


def _participants(config: RunConfig) -> Sequence[Collection[int]]:
    """By round, where not all clients do local work."""
    found = [config.algorithm.participants(config, round) for round in range(1, config.rounds + 1)]
    return [] if None in found else [frozenset(each) for each in found]


def faults_of(config: RunConfig, graph: Graph) -> tuple[Fault, ...]:
    """Returns those that are written down, then those that chaos draws."""
    joining: set[int] = set()
    for number, fault in enumerate(config.faults):
        named = {*fault.clients, *(end for ends in fault.edges + fault.groups for end in ends)}
        if max(named, default=0) >= config.clients:
            raise ConfigError(f"faults.{number}: there is no client {max(named)}; they are 0 to {config.clients - 1}")
        if loops := [edge for edge in fault.edges if edge[0] == edge[1]]:
            raise ConfigError(f"faults.{number}.edges: {[*loops[0]]}: a client has no link to itself")
        for client in fault.clients if fault.kind == "join" else ():
            if client in joining:
                raise ConfigError(f"faults: client {client} joins twice; name it in one fault of kind 'join'")
            joining.add(client)
    seed = config.seed if config.chaos.seed is None else config.chaos.seed
    return config.faults + draw_faults(config.chaos, seed, config.clients, graph.edges, config.rounds)


def _trace(path: Path | None, clients: int) -> dict[tuple[int, int], float]:
    if path is None:
        return {}
    trace = {}
    try:
        require_plain_file(path)
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if not {"client", "round", "factor"} <= set(reader.fieldnames or ()):
                raise ValueError(f"its columns are {', '.join(reader.fieldnames or ['(none)'])}")
            for row in reader:
                client, round, factor = int(row["client"]), int(row["round"]), float(row["factor"])
                if not 0 <= client < clients or round < 1 or not 0 < factor < math.inf:
                    raise ValueError(f"client {client}, round {round}, factor {factor:g}")
                trace[client, round] = factor
    except OSError as error:
        raise ConfigError(f"stragglers.path {path}: cannot be read: {error.strerror or error}") from None
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        needs = f"clients 0 to {clients - 1}, rounds from 1 and factors above 0 ({type(error).__name__}: {error})"
        raise ConfigError(f"stragglers.path {path}: needs the columns client, round, factor, with {needs}") from None
    return trace


def train_encoder(config: RunConfig, epochs: int, embedding: int | None, out: Path) -> Iterator[tuple[int, float]]:
    """Trains an autoencoder on all images of the configuration's data set, as they are, and saves it. Yields (epoch,
    mean squared error). Without ``embedding``, it is that of the algorithm, where that is FLT. Raises UserError."""
    if out.exists():
        raise ConfigError(f"--out {out}: is there already; nothing is overwritten, choose another name")
    if embedding is None:
        embedding = config.algorithm.embedding if isinstance(config.algorithm, FLT) else FLT.embedding
    pool = load(config.data, config.seed, config.clients)
    try:
        autoencoder = Autoencoder(pool.input_shape, embedding)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.touch(exist_ok=False)  # nobody shall wait for what cannot be kept
        out.unlink()
    except EncoderError as error:
        raise ConfigError(f"data.dataset = {config.data.dataset!r}: an encoder {error}") from None
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error.strerror or error}") from None
    import torch

    torch.set_num_threads(1)  # as in the clients: the same bits whatever the machine, and no waste where it is busy
    images = pool.inputs(np.arange(len(pool)))
    vector = autoencoder.start(generator(config.seed, "encoder")).astype(np.float32)
    errors = autoencoder.train(vector, images, epochs, generator(config.seed, "training of the encoder"))
    yield from enumerate(errors, 1)
    autoencoder.save(vector, out)
