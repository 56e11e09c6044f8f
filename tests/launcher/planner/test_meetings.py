"""Plans of clients that meet by time are those of a second simulation, which looks for the next moment of anything."""

import math
import random

import numpy as np
import pytest

from sheafgossip.launcher.planner.draws import ComputeTimes, latencies
from sheafgossip.launcher.planner.plan import PlanError
from sheafgossip.launcher.planner.scenario import Fault, Links, Stragglers
from sheafgossip.launcher.planner.simulation import simulate
from sheafgossip.topology.randomness import generator

from .scenarios import _graph, small

LINK = Links("lognormal", 0.3, bandwidth=1e3)


def scenario_of(number: int, **given):
    rng = random.Random(number)
    clients = rng.randint(1, 7)
    slow = Stragglers("exponential", fraction=0.6, mean=9.0)
    given = {"steps": (1,) * clients, "slowdown": (1.0,) * clients, "step_s": 1.0, "stragglers": slow} | given
    slowdown = tuple(rng.uniform(0.9, 1.1) for _ in range(clients))  # no two are done at one moment
    return small(
        _graph(rng, clients), (100,), LINK, **given | {"slowdown": slowdown}, rounds=9, seed=number, meets=True
    )


def played(scenario) -> list[list[tuple[int, int, float, float]]]:
    """By client, of each round: (whom it meets, in which of its rounds, when the round ends, seconds of the work that
    has ended in it); whom is -1 where it goes on alone, or another client had done all its rounds before."""
    n, now, rounds = scenario.clients, 0.0, scenario.rounds
    seconds_of = ComputeTimes(scenario)
    latency = {edge: latencies(LINK, (rounds, 1), scenario.seed, *edge) for edge in scenario.message_bytes}
    told, work, done = [[] for _ in range(n)], [0.0] * n, [math.inf] * n
    busy: dict[int, tuple[float, int, int]] = {}  # {client: until when, with whom, in which round of that one}

    def is_over() -> bool:
        return any(len(each) == rounds for each in told)

    def begins(i: int) -> None:
        if done[i] == math.inf and not is_over():
            work[i] = seconds_of(i, len(told[i]) + 1, now)
            done[i] = now + work[i]

    def asks(i: int) -> bool:
        if i in busy or done[i] > now or is_over():
            return False
        free = [j for j in scenario.neighbours[i] if j not in busy]
        if scenario.neighbours[i] and not free:
            return False
        j = free[int(generator(scenario.seed, "partner", i, len(told[i]) + 1).integers(len(free)))] if free else -1
        for one, other in ((i, j), (j, i)) if free else ():
            arrival = now + 100 / LINK.bandwidth + latency[other, one][len(told[other]), 0]
            busy[one] = arrival, other, len(told[other]) + 1
        if not free:
            busy[i] = now, -1, 0
        met.append((i, j, now))
        return True

    met: list[tuple[int, int, float]] = []
    for i in range(n):
        begins(i)
    while any(len(each) < rounds for each in told):
        moments = [until for until, _, _ in busy.values()]
        moments += [done[i] for i in range(n) if i not in busy and now < done[i] < math.inf]
        now = max(now, min(moments))
        for i in [i for i in busy if busy[i][0] <= now]:
            _, j, round = busy.pop(i)
            start = next(t for a, b, t in reversed(met) if i in (a, b))
            own = done[i] <= start
            told[i].append((j, round, now, work[i] if own else math.nan))
            if own:
                done[i] = math.inf
            begins(i)
            asks(i) or [asks(j) for j in scenario.neighbours[i]]
        for i in range(n):
            asks(i)
            if is_over() and i not in busy:
                told[i] += [(-1, 0, now, math.nan)] * (rounds - len(told[i]))
    return told


@pytest.mark.parametrize("numbers", [range(0, 60), range(60, 120)], ids=str)
def test_every_plan_is_that_of_a_second_simulation(numbers):
    alone = 0
    for number in numbers:
        scenario = scenario_of(number)
        plan, expected = simulate(scenario), played(scenario)
        for i, (schedule, told) in enumerate(zip(plan.schedules, expected, strict=True)):
            found = []
            for row in range(scenario.rounds):
                places = np.flatnonzero(schedule.uses[row, 0]) if scenario.phases else []
                who = [(int(schedule.neighbours[p]), int(schedule.uses[row, 0, p])) for p in places] or [(-1, 0)]
                found += [(*each, float(schedule.end[row]), float(schedule.compute[row])) for each in who]
            assert [each[:2] for each in found] == [each[:2] for each in told], (number, i)
            np.testing.assert_allclose([each[2:] for each in found], [each[2:] for each in told], rtol=1e-12)
            alone += sum(each[0] < 0 for each in told)
    assert alone


def test_a_lost_message_needs_a_deadline_and_who_comes_back_meets_again():
    lossy = {"faults": (Fault("loss", probability=0.3),)}
    with pytest.raises(PlanError, match=r"would wait for ever .* set time\.deadline_s"):
        simulate(scenario_of(3, **lossy))
    crash = Fault("crash", (0,), at_round=3, restart_after_s=5.0)
    plan = simulate(scenario_of(3, deadline_s=2.0, faults=(*lossy["faults"], crash)))
    assert [(each.first, each.last) for each in plan.incarnations[0]] == [(1, 2), (3, 9)]
    assert all(each[-1].last == 9 for each in plan.incarnations)
    assert sum(int(schedule.deadlines.sum()) for schedule in plan.schedules) > 0
