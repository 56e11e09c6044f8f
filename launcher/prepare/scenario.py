"""From a configuration to a scenario, and from its plan to each client's schedule."""

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from ...metrics.config_file import require_plain_file
from ...node.algorithms import link
from ...node.algorithms.server import ServerAlgorithm
from ...node.assignment import Assignment
from ...topology import Graph
from ...transport.channel import Format
from ...transport.wire import message_wire_bytes, pack_header
from ..config.sections import ConfigError, RunConfig
from ..data.shards import DataSummary
from ..planner.draws import draw_faults
from ..planner.plan import Plan
from ..planner.scenario import Edge, Fault, Links, Scenario, Star
from ..planner.simulation import simulate

_MOST_MESSAGES = 100_000_000


def plan_of(config: RunConfig, graph: Graph, assignments: Sequence[Assignment], data: DataSummary) -> Plan:
    """Raises UserError where the scenario never ends, or where the algorithm does not tolerate it."""
    sent = {
        (own.node, peer.node): link(config.algorithm, own, peer).sent_as(1, own.dtype)
        for own in assignments
        for peer in own.neighbours
    }
    messages = config.rounds * sum(map(len, sent.values()))
    if messages > _MOST_MESSAGES:
        why = f"a scenario is planned message by message, and these rounds would have {messages:,}"
        allowed = f"as many as send {_MOST_MESSAGES:,}; use fewer rounds or links, or leave the scenario out"
        raise ConfigError.of("rounds", config.rounds, why, allowed)
    star, server, rounds = None, assignments[-1], range(1, config.rounds + 1)
    if isinstance(config.algorithm, ServerAlgorithm):
        participants = tuple(frozenset(config.algorithm.participants(config, round)) for round in rounds)
        receivers = tuple(frozenset(config.algorithm.receivers(config, round)) for round in rounds)
        star = Star(participants, receivers, opening=len(link(config.algorithm, server, server.neighbours[0]).opens))
    plan = simulate(_scenario(config, graph, sent, [client.train_samples for client in data.clients], star))
    longest = 1e8 if config.time.clock == "wall" else sys.float_info.max  # three years: a clock cannot wait for ever
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


def _scenario(
    config: RunConfig, graph: Graph, sent: Mapping[Edge, Sequence[Format]], samples: Sequence[int], star: Star | None
) -> Scenario:
    """``sent`` are the messages on each directed edge in the first round, ``samples`` what each client trains on."""
    time, count, slowdown = config.time, graph.clients, config.compute.slowdown or (1.0,)
    assert config.compute.step_s
    steps = [config.training.count(each) for each in samples]
    return Scenario(
        seed=config.seed,
        rounds=config.rounds,
        neighbours=tuple(graph.neighbours(i) for i in range(count)),
        message_bytes={
            edge: tuple(_wire_bytes(config, edge, phase, format) for phase, format in enumerate(formats))
            for edge, formats in sent.items()
        },
        staleness=float(time.staleness),
        silence=time.silence,
        deadline_s=time.deadline_s or math.inf,
        notice_s=time.notice_s,
        step_s=config.compute.step_s,
        steps=(*steps, *[0] * (count - len(steps))),  # a server takes none
        slowdown=tuple(slowdown[i % len(slowdown)] for i in range(count)),
        stragglers=config.stragglers,
        trace=_trace(config.stragglers.path, config.clients),
        links=_links(config.links, graph),
        uplink=config.links.uplink or math.inf,
        faults=_faults(config, graph),
        checkpoint_every=config.checkpoints.every,
        star=star,
    )


def _wire_bytes(config: RunConfig, edge: Edge, phase: int, format: Format) -> int:
    """Returns the bytes of a message of the last round: headers grow by a byte or two until then."""
    header = pack_header(1 << 62, *edge, config.rounds, phase, format.layout)
    tensors = (dtype.itemsize * length for dtype, (length,) in format.layout)
    return message_wire_bytes([len(header), *tensors], sealed=config.transport.keyed)


def _links(section: Links, graph: Graph) -> dict[Edge, Links]:
    links = dict.fromkeys([*graph.edges, *((j, i) for i, j in graph.edges)], section)
    for number, table in enumerate(section.edges):
        i, j = table.between
        if (i, j) not in links:
            raise ConfigError(f"links.edges.{number}.between = [{i}, {j}]: the graph has no such edge")
        own = {key: value for key, value in vars(table).items() if key != "between" and value is not None}
        if (low_s := own.get("latency_s")) is not None:
            own["latency_high_s"] = max(low_s, low_s + section.latency_high_s - section.latency_s)
        links[i, j] = links[j, i] = replace(section, **own)
    return links


def _faults(config: RunConfig, graph: Graph) -> tuple[Fault, ...]:
    """Returns those that are written down, then those that chaos draws."""
    joining: set[int] = set()
    for number, fault in enumerate(config.faults):
        named = {*fault.clients, *chain.from_iterable(fault.edges + fault.groups)}
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
