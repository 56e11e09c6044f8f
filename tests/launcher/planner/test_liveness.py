"""Every accepted plan comes to its end, on both clocks, and nowhere are more messages under way than was reckoned.

Two hundred scenarios by default; `make liveness` plays 100,000. SHEAFGOSSIP_LIVENESS=7 or =0-999 chooses.
"""

import dataclasses
import os
import random

import numpy as np
import pytest

from sheafgossip.launcher.planner.plan import Plan, PlanError
from sheafgossip.launcher.planner.scenario import Link, Scenario
from sheafgossip.launcher.planner.simulation import simulate
from sheafgossip.transport.channel import codec
from sheafgossip.transport.schedule import limit

from .played import Stage, Wire
from .scenarios import STEP_S, scenario_of, small

CHUNK = 100


def chosen() -> list[range]:
    first, _, last = os.environ.get("SHEAFGOSSIP_LIVENESS", "0-199").partition("-")
    start, end = int(first), int(last or first) + 1
    return [range(at, min(end, at + CHUNK)) for at in range(start, end, CHUNK)]


def case_of(number: int) -> tuple[Scenario, Wire]:
    rng = random.Random(number)
    long = rng.random() < 0.05
    size = 2000 if long else int(10 ** rng.uniform(0, 7))
    scenario = scenario_of(rng, calm=rng.random() < 0.5, server=rng.random() < 0.2, rounds=300 if long else 16)
    phases, opening = scenario.phases, scenario.star.opening if scenario.star else 0
    lengths = tuple(rng.randint(1, size) for _ in range(phases - opening))
    dtype, used = rng.choice(["float32", "float64"]), None
    if size <= 300 and rng.random() < 0.3:
        used = codec(rng.choice(["float16", "int8", "top-k"]), np.dtype(dtype), 0.5)
    return scenario, Wire(lengths, (rng.randint(1, size),) * opening, dtype, used)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("numbers", chosen(), ids=lambda numbers: f"{numbers[0]}-{numbers[-1]}")
def test_every_accepted_plan_comes_to_its_end(numbers):
    refused = 0
    for number in numbers:
        scenario, wire = case_of(number)
        try:
            play(scenario, wire, simulate(scenario), number)
        except PlanError:
            refused += 1
        except BaseException as error:
            raise AssertionError(f"scenario {number}: {error!r}\n{scenario}\n{wire}") from error
    assert refused <= len(numbers) / 5


def play(scenario: Scenario, wire: Wire, plan: Plan, seed: int) -> None:
    stage = Stage(scenario, plan, wire, "virtual", seed)
    stage.play()
    planned = {
        (node, row + 1, phase, int(schedule.neighbours[place]))
        for node, schedule in enumerate(plan.schedules)
        for row, phase, place in np.argwhere(schedule.uses).tolist()
    }
    assert {key for key in stage.used if stage.used[key]} == planned
    for (src, dst), most in stage.most_under_way.items() if not plan.synchronous else ():
        schedule = plan.schedules[src]
        backlog = int(schedule.backlog[schedule.neighbours.tolist().index(dst)])
        assert most <= limit(wire.opening + wire.lengths, np.dtype(wire.dtype).itemsize, backlog)
    Stage(scenario, plan, wire, "wall", seed).play()


def test_a_window_smaller_than_the_backlog_is_found_out(monkeypatch):
    """So that the others can fail: what latency holds up needs room for all that is under way meanwhile."""
    scenario = small(rounds=12, nbytes=(8,), staleness=4, link=Link(latency_s=3 * STEP_S))
    wire, plan = Wire((10_000_000,)), simulate(scenario)
    play(scenario, wire, plan, 0)
    nothing = [dataclasses.replace(s, backlog=np.zeros_like(s.backlog)) for s in plan.schedules]
    with pytest.raises(Exception, match="in rounds"):
        play(scenario, wire, dataclasses.replace(plan, schedules=tuple(nothing)), 0)
