"""Every accepted plan comes to its end, on both clocks, and nowhere are more messages under way than was reckoned.

Two hundred scenarios by default; `make liveness` plays 100,000. SHEAFGOSSIP_LIVENESS=7 or =0-999 chooses.
"""

from __future__ import annotations

import dataclasses
import math
import os
import random

import numpy as np
import pytest

from sheafgossip.launcher.planner import (
    Compute,
    Execution,
    Fault,
    Latency,
    Link,
    PlanError,
    Scenario,
    Star,
    Stragglers,
    simulate,
)
from sheafgossip.transport import window
from sheafgossip.transport.codecs import codec

from .played import Stage, Wire

CHUNK = 100
STEP_S = 0.01
KINDS = ("crash", "leave", "join", "slow", "loss", "cut", "partition", "duplicate", "delay", "reorder")


def chosen() -> list[range]:
    first, _, last = os.environ.get("SHEAFGOSSIP_LIVENESS", "0-199").partition("-")
    start, end = int(first), int(last or first) + 1
    return [range(at, min(end, at + CHUNK)) for at in range(start, end, CHUNK)]


def scenario_of(rng: random.Random) -> tuple[Scenario, Wire]:
    with_server = rng.random() < 0.2
    clients = rng.randint(2, 5)
    neighbours = (*[(clients,)] * clients, tuple(range(clients))) if with_server else _graph(rng, clients)
    size = int(10 ** rng.uniform(0, 7))
    few = size < 2000 and rng.random() < 0.15
    rounds = rng.randint(100, 300) if few and clients < 4 else rng.randint(1, 16)
    phases = 1 if with_server else rng.randint(1, 3)
    opening = (rng.randint(1, size),) * rng.randint(0, 2) if with_server else ()
    dtype = rng.choice(["float32", "float64"])
    used = None
    if size <= 300 and rng.random() < 0.3:
        used = codec(rng.choice(["float16", "int8", "top-k"]), np.dtype(dtype), 0.5)
    wire = Wire(tuple(rng.randint(1, size) for _ in range(phases)), opening, dtype, used)
    edges = [(i, j) for i, others in enumerate(neighbours) for j in others]
    nbytes = tuple(8 * length for length in wire.opening + wire.lengths)
    calm = rng.random() < 0.5
    link = lambda: Link(  # noqa: E731
        _latency(rng),
        rng.choice([math.inf, math.inf, sum(nbytes) / STEP_S, sum(nbytes) / (20 * STEP_S)]),
        0.0 if calm else rng.choice([0.0, 0.2]),
    )
    alike = link()
    return Scenario(
        seed=rng.randrange(1000),
        rounds=rounds,
        neighbours=neighbours,
        message_bytes=dict.fromkeys(edges, nbytes),
        execution=Execution(
            staleness=0 if with_server else rng.choice([0, 1, 2, 4, 8, 16, math.inf]),
            silence=rng.choice(["wait", "stale", "skip"]),
            deadline_s=math.inf if calm else rng.choice([0.5 * STEP_S, 3 * STEP_S, 100 * STEP_S]),
            notice_s=rng.choice([0.0, STEP_S]),
        ),
        compute=Compute(
            STEP_S,
            steps=(*(rng.randint(1, 3) for _ in range(clients)), *[0] * with_server),
            stragglers=Stragglers(rng.choice(["none", "none", "fixed", "exponential", "pareto"]), fraction=0.5),
        ),
        links={edge: alike if rng.random() < 0.5 else link() for edge in edges},
        uplink=rng.choice([math.inf, math.inf, 5 * sum(nbytes) / STEP_S]),
        faults=() if calm else tuple(_fault(rng, clients, rounds) for _ in range(rng.randint(0, 5))),
        checkpoint_every=rng.randint(0, 3),
        star=_star(rng, clients, rounds, len(opening)) if with_server else None,
    ), wire


def _graph(rng: random.Random, clients: int) -> tuple[tuple[int, ...], ...]:
    pairs = {(rng.randrange(i), i) for i in range(1, clients)}
    pairs |= {(i, j) for j in range(clients) for i in range(j) if rng.random() < 0.4}
    return tuple(tuple(sorted({a + b - i for a, b in pairs if i in (a, b)})) for i in range(clients))


def _latency(rng: random.Random) -> Latency:
    """Up to a hundred rounds."""
    seconds = rng.choice([0.0, STEP_S, STEP_S * 10 ** rng.uniform(-1, 2)])
    return Latency(rng.choice(["fixed", "uniform", "lognormal"]), seconds, seconds * rng.uniform(1, 3))


def _star(rng: random.Random, clients: int, rounds: int, opening: int) -> Star:
    drawn = [frozenset(rng.sample(range(clients), rng.randint(1, clients))) for _ in range(rounds)]
    everyone = frozenset(range(clients))
    following = [*drawn[1:], everyone] if rng.random() < 0.5 else drawn
    return Star(tuple(drawn), tuple(following), opening)


def _fault(rng: random.Random, clients: int, rounds: int) -> Fault:
    kind = rng.choice(KINDS)
    first = rng.randint(1, rounds)
    once = kind in ("crash", "leave", "join")
    span = {"at_round": first} if once else {"rounds": (first, first + rng.randint(0, 5))}
    if kind == "partition":
        whom = {"groups": ((0,), tuple(range(1, clients)))}
    else:
        whom = {"clients": (rng.randrange(clients),)}
    back = {"restart_after": rng.randint(0, 3)} if kind == "crash" and rng.random() < 0.7 else {}
    return Fault(kind, factor=10.0, delay_s=rng.uniform(0, 20) * STEP_S, **span, **whom, **back)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("numbers", chosen(), ids=lambda numbers: f"{numbers[0]}-{numbers[-1]}")
def test_every_accepted_plan_comes_to_its_end(numbers):
    refused = 0
    for number in numbers:
        rng = random.Random(number)
        scenario, wire = scenario_of(rng)
        try:
            plan = simulate(scenario)
        except PlanError:
            refused += 1
            continue
        for clock in ("virtual", "wall"):
            try:
                play(scenario, wire, plan, clock, number)
            except BaseException as error:
                raise AssertionError(f"scenario {number}, {clock} clock: {error!r}\n{scenario}\n{wire}") from error
    assert refused <= len(numbers) / 5


def play(scenario, wire, plan, clock: str, seed: int) -> None:
    stage = Stage(scenario, plan, wire, clock, seed)
    stage.play()
    if clock == "virtual":
        assert {key for key in stage.used if stage.used[key]} == used_by(plan)
    if clock == "virtual" and not plan.synchronous:
        lengths = wire.opening + wire.lengths
        for (src, dst), most in stage.most_under_way.items():
            schedule = plan.schedules[src]
            backlog = int(schedule.backlog[schedule.neighbours.tolist().index(dst)])
            assert most <= window.limit(lengths, np.dtype(wire.dtype).itemsize, backlog)


def used_by(plan) -> set[tuple[int, int, int, int]]:
    """(client, round, phase, neighbour) where the plan has it use a message."""
    return {
        (node, row + 1, phase, int(schedule.neighbours[place]))
        for node, schedule in enumerate(plan.schedules)
        for row, phase, place in zip(*(axis.tolist() for axis in np.nonzero(schedule.uses)), strict=True)
    }


def test_a_window_smaller_than_the_backlog_is_found_out(monkeypatch):
    """So that the others can fail: what latency holds up needs room for all that is under way meanwhile."""
    scenario = Scenario(
        seed=0,
        rounds=12,
        neighbours=((1,), (0,)),
        message_bytes={(0, 1): (8,), (1, 0): (8,)},
        execution=Execution(staleness=4),
        compute=Compute(STEP_S),
        links=dict.fromkeys([(0, 1), (1, 0)], Link(Latency(seconds=3 * STEP_S))),
    )
    wire, plan = Wire((10_000_000,)), simulate(scenario)
    for clock in ("virtual", "wall"):
        play(scenario, wire, plan, clock, 0)
    nothing = [dataclasses.replace(s, backlog=np.zeros_like(s.backlog)) for s in plan.schedules]
    with pytest.raises(Exception, match="in rounds"):
        play(scenario, wire, dataclasses.replace(plan, schedules=tuple(nothing)), "virtual", 0)
