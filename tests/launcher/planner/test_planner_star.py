"""Plans with a server: laws for those in which something goes wrong, and some by hand."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings

from sheafgossip.launcher.planner.plan import PlanError
from sheafgossip.launcher.planner.scenario import Fault, Links, Star
from sheafgossip.launcher.planner.simulation import simulate
from sheafgossip.launcher.planner.timeline import figures, stretches_of

from .scenarios import scenario_of, small
from .test_planner_laws import OF_EVERY_PATTERN, RANDOM, RANDOMS, TOLERANCE, Played


def star_of(clients, participants=None, **changes):
    """Seven rounds of clients 0, 1, ... and their server; all take part in all rounds, unless said otherwise."""
    everyone = frozenset(range(clients))
    chosen = [frozenset(each) for each in participants] if participants else [everyone] * 7
    star = Star(tuple(chosen), (*chosen[1:], everyone))
    return small((*[(clients,)] * clients, tuple(range(clients))), (100,), rounds=7, star=star, **changes)


@settings(RANDOM, max_examples=150)
@given(RANDOMS)
def test_with_a_deadline_every_run_ends_and_keeps_the_laws(rng: random.Random):
    scenario = scenario_of(rng, calm=False, server=True)
    played = Played(scenario, simulate(scenario))
    for law in (*OF_EVERY_PATTERN, the_server_takes_what_has_come_in_time, a_client_works_when_its_work_can_be_used):
        law(played)


def the_server_takes_what_has_come_in_time(played: Played) -> None:
    scenario, plan = played.scenario, played.plan
    server, opening = scenario.clients - 1, scenario.star.opening
    schedule = plan.schedules[server]
    assert plan.incarnations[server][-1].ending == "finish"
    waits = 1 + opening * (np.arange(scenario.rounds) == 0)
    assert (schedule.idle <= waits * scenario.deadline_s + TOLERANCE).all()
    for round in range(1, scenario.rounds + 1):
        phase, end = opening if round == 1 else 0, schedule.end[round - 1]
        for i in range(server):
            used, m = int(schedule.uses[round - 1, phase, i]), played.messages.get((i, server, round, phase))
            when = m.arrived_s if m and m.copies else math.inf
            if i not in scenario.star.participants[round - 1]:
                assert used == 0
            elif used == round:
                assert when <= end + TOLERANCE
            else:
                assert when > end - TOLERANCE
                assert used == 0 or scenario.silence == "stale"


def a_client_works_when_its_work_can_be_used(played: Played) -> None:
    """When it is chosen, has not just come back, and has no answer yet that was made without it."""
    scenario, plan = played.scenario, played.plan
    server, opening = scenario.clients - 1, scenario.star.opening
    for i, schedule in enumerate(plan.schedules[:-1]):
        answers = [
            (m.arrived_s, m.round)
            for m in plan.messages
            if m.dst == i and m.copies and m.phase == (opening if m.round == 1 else 0)
        ]
        firsts = {each.first for each in plan.incarnations[i] if each.first > 1 and each.state_round != each.first - 1}
        for round in (np.flatnonzero(~np.isnan(schedule.end)) + 1).tolist():
            phase, start = opening if round == 1 else 0, schedule.start[round - 1]
            worked, chosen = not np.isnan(schedule.compute[round - 1]), i in scenario.star.participants[round - 1]
            assert worked or (i, server, round, phase) not in played.messages
            later = [when for when, number in answers if number >= round]
            if worked:
                assert chosen
                assert round not in firsts
                assert round == 1 or not any(when < start - TOLERANCE for when in later)
            elif chosen and round not in firsts:
                assert any(when <= start + TOLERANCE for when in later)
            assert int(schedule.uses[round - 1, phase, 0]) in (0, round)


def test_a_straggler_misses_the_deadline_and_comes_back_where_the_server_is():
    slow = Fault("slow", clients=(0,), rounds=(2, 2), factor=10.0)
    scenario = star_of(3, silence="skip", deadline_s=1.5, step_s=1.0, faults=(slow,), link=Links(latency_s=0.1))
    plan = simulate(scenario)
    straggler, other, server = plan.schedules[0], plan.schedules[1], plan.schedules[3]
    # Round 1 ends at 1.1. The straggler begins at 1.2 and is done at 11.2; rounds without it take 1.5 each.
    assert server.end.tolist() == pytest.approx([1.1, 2.6, 4.1, 5.6, 7.1, 8.6, 10.1])
    assert other.compute.tolist() == [1.0] * 7
    assert server.uses[:, 0].tolist() == [[1, 1, 1], *[[0, r, r] for r in range(2, 8)]]
    # At 11.2 it has the answers of all rounds: of what is left, nothing can be used any more
    assert straggler.compute.tolist() == pytest.approx([1.0, 10.0, *[math.nan] * 5], nan_ok=True)
    assert straggler.uses[:, 0, 0].tolist() == [1, 2, 0, 0, 0, 0, 7]
    assert plan.end_s == pytest.approx(11.2)


def test_a_client_that_comes_back_only_listens_at_first():
    crash = Fault("crash", clients=(0,), at_round=3, restart_after=2)
    plan = simulate(star_of(2, step_s=1.0, faults=(crash,)))
    assert [(life.first, life.last) for life in plan.incarnations[0]] == [(1, 2), (5, 7)]
    assert plan.schedules[0].compute.tolist() == pytest.approx([1, 1, math.nan, math.nan, math.nan, 1, 1], nan_ok=True)
    assert plan.schedules[0].uses[:, 0, 0].tolist() == [1, 2, 0, 0, 5, 6, 7]
    assert plan.schedules[2].uses[:, 0, 0].tolist() == [1, 2, 0, 0, 0, 6, 7]
    assert plan.schedules[2].end.tolist() == list(range(1, 8))  # nobody waits for it


def test_an_upload_that_is_lost_without_a_deadline_is_refused():
    lost = Fault("loss", clients=(1,), rounds=(4, 4))
    with pytest.raises(PlanError, match=r"the server would wait for ever in round 4 for a message of client 1; set"):
        simulate(star_of(3, faults=(lost,)))


def test_a_timeline_is_that_of_the_clients_and_tells_whom_the_server_waits_for():
    slow = Fault("slow", clients=(0,), rounds=(1, 7), factor=3.0)
    plan = simulate(star_of(3, step_s=1.0, faults=(slow,)))
    told = dict(figures(plan))
    assert (told["clients, rounds"], told["messages sent"]) == ("3, 7", "42: lost 0, never used 0")
    assert told["clients' time"] == "55.6% local work, 44.4% waiting"  # 21, 7 and 7 s of work; 14 and 14 s of waiting
    assert told["waited for most"] == "client 0: 21.00 s (100.0%), in 7 rounds of neighbours"
    assert told["  same round"].split()[0] == told["vectors that clients use, by age"] == "42"
    straggler, other, _ = stretches_of(plan)
    assert other.computing.tolist() == [[3.0 * r, 3.0 * r + 1] for r in range(7)]
    assert other.waiting.tolist() == [[3.0 * r + 1, 3.0 * r + 3] for r in range(7)]
    assert not len(straggler.waiting)
