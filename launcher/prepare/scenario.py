"""From a configuration to a scenario, and from its plan to each client's schedule."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...metrics.config_file import require_plain_file
from ...topology import Graph
from ...transport.codecs import Format
from ...transport.envelope import pack_header
from ...transport.wire import message_wire_bytes
from ..config.sections import ConfigError, RunConfig
from ..planner import Compute, Execution, Fault, Latency, Link, Plan, Scenario, Star, simulate
from ..planner.chaos import draw_faults
from ..planner.scenario import Edge

_MOST_MESSAGES = 100_000_000
_LONGEST_WAIT_S = 1e8
"""Three years: a clock cannot be asked for ever more."""


def plan_run(
    config: RunConfig,
    graph: Graph,
    messages: Mapping[Edge, tuple[Format, ...]],
    steps: Sequence[int],
    step_s: float,
    star: Star | None = None,
) -> Plan:
    """The plan of a configuration. Raises UserError where it would never end.

    ``messages`` are what travels on each directed edge in the first round, ``steps`` the local steps of each client's
    round, of ``step_s`` seconds each.
    """
    sent = config.rounds * sum(map(len, messages.values()))
    if sent > _MOST_MESSAGES:
        raise ConfigError(
            f"rounds = {config.rounds}: a scenario is planned message by message, at most {_MOST_MESSAGES:,} of them, "
            f"and these rounds would have {sent:,}; use fewer rounds or links, or leave the scenario out"
        )
    plan = simulate(scenario_of(config, graph, messages, steps, step_s, star))
    longest = _LONGEST_WAIT_S if config.time.clock == "wall" else sys.float_info.max
    if not plan.end_s <= longest:
        raise ConfigError(
            f"time.clock = {config.time.clock!r}: this scenario would end after {plan.end_s:.3g} s, and allowed are "
            f"{longest:.3g}; look at compute.step_s, [stragglers] and [links]"
        )
    return plan


def scenario_of(
    config: RunConfig,
    graph: Graph,
    messages: Mapping[Edge, tuple[Format, ...]],
    steps: Sequence[int],
    step_s: float,
    star: Star | None = None,
) -> Scenario:
    """Raises ConfigError."""
    time, count = config.time, graph.clients
    return Scenario(
        seed=config.seed,
        rounds=config.rounds,
        neighbours=tuple(graph.neighbours(i) for i in range(count)),
        message_bytes={
            edge: tuple(_wire_bytes(config, edge, phase, format) for phase, format in enumerate(of_edge))
            for edge, of_edge in messages.items()
        },
        execution=Execution(
            staleness=time.most_ahead,
            silence=time.silence,
            deadline_s=time.longest_wait_s,
            notice_s=time.notice_s,
        ),
        compute=Compute(
            step_s=step_s,
            steps=(*steps, *[0] * (count - len(steps))),  # a server takes none
            slowdown=tuple(
                config.compute.slowdown[i % len(config.compute.slowdown)] if config.compute.slowdown else 1.0
                for i in range(count)
            ),
            stragglers=config.stragglers,
            trace=_trace(config.stragglers.path, config.clients),
        ),
        links=_links(config, graph),
        uplink=config.links.uplink or math.inf,
        faults=faults_of(config, graph),
        checkpoint_every=config.checkpoints.every,
        star=star,
    )


def _wire_bytes(config: RunConfig, edge: Edge, phase: int, format: Format) -> int:
    """Returns the bytes of a message of the last round: headers grow by a byte or two until then."""
    header = pack_header(1 << 62, *edge, config.rounds, phase, format.layout)
    tensors = (dtype.itemsize * length for dtype, (length,) in format.layout)
    return message_wire_bytes([len(header), *tensors], sealed=config.transport.keyed)


def _links(config: RunConfig, graph: Graph) -> dict[Edge, Link]:
    section, links = config.links, {}
    latency = Latency(section.latency, section.latency_s, section.latency_high_s, section.latency_sigma)
    for i, j in graph.edges:
        links[i, j] = links[j, i] = Link(latency, section.bandwidth or math.inf, section.loss)
    for number, table in enumerate(section.edges):
        i, j = table.between
        if (i, j) not in links:
            raise ConfigError(f"links.edges.{number}.between = [{i}, {j}]: the graph has no such edge")
        own_latency, bandwidth, loss = latency, section.bandwidth, section.loss
        if table.latency_s is not None:
            high = table.latency_s + section.latency_high_s - section.latency_s
            own_latency = Latency(section.latency, table.latency_s, high, section.latency_sigma)
        if table.bandwidth is not None:
            bandwidth = table.bandwidth
        if table.loss is not None:
            loss = table.loss
        links[i, j] = links[j, i] = Link(own_latency, bandwidth or math.inf, loss)
    return links


def faults_of(config: RunConfig, graph: Graph) -> tuple[Fault, ...]:
    """Those that are written down, then those that chaos draws."""
    for number, fault in enumerate(config.faults):
        _check_fault(config, number, fault)
    joining = [client for fault in config.faults if fault.kind == "join" for client in fault.clients]
    if twice := {client for client in joining if joining.count(client) > 1}:
        raise ConfigError(f"faults: client {min(twice)} joins twice; name it in one fault of kind 'join'")
    seed = config.seed if config.chaos.seed is None else config.chaos.seed
    return config.faults + draw_faults(config.chaos, seed, config.clients, graph.edges, config.rounds)


def _check_fault(config: RunConfig, number: int, fault: Fault) -> None:
    named = {*fault.clients, *(i for edge in fault.edges for i in edge), *(i for group in fault.groups for i in group)}
    if named and max(named) >= config.clients:
        raise ConfigError(f"faults.{number}: there is no client {max(named)}; they are 0 to {config.clients - 1}")
    for i, j in fault.edges:
        if i == j:
            raise ConfigError(f"faults.{number}.edges: [{i}, {j}]: a client has no link to itself")


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
        raise ConfigError(
            f"stragglers.path {path}: needs the columns client, round, factor, with clients 0 to {clients - 1}, rounds "
            f"from 1 and factors above 0 ({type(error).__name__}: {error})"
        ) from None
    return trace


def local_steps(config: RunConfig, train_samples: int) -> int:
    """Returns how many a client takes in a round."""
    return config.training.count(train_samples)
