"""Every plan is that of a second simulation, to the bit; and some by hand."""

import dataclasses
import math
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from sheafgossip.launcher.planner import simulation
from sheafgossip.launcher.planner.plan import PlanError
from sheafgossip.launcher.planner.scenario import Fault, Links, Star
from sheafgossip.launcher.planner.simulation import simulate

from .naive import Naive
from .scenarios import scenario_of, small, small_star


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=400)
@given(st.randoms(use_true_random=False))
def test_every_plan_is_that_of_a_simulation_that_asks_every_client_at_every_moment(rng: random.Random):
    calm, server = rng.random() < 0.2, rng.random() < 0.4
    scenario = scenario_of(rng, calm=calm, server=server, deadlines=[0.5, 3, 30, math.inf])
    at_once = any(0 in (fault.restart_after, fault.restart_after_s) for fault in scenario.faults)
    assume(not (at_once and scenario.notice_s))  # a return and the notice of the end at one moment: which is first?
    naive = Naive(scenario)
    try:
        plan, refusal = simulate(scenario), ""
    except PlanError as error:
        refusal = str(error)
    assert refusal.startswith(naive.refusal)
    assert bool(refusal) == bool(naive.refusal)
    if refusal:
        assert (scenario.deadline_s, calm) == (math.inf, False), "with a deadline every scenario ends"
        return
    assert list(plan.messages) == naive.messages
    assert list(plan.events) == sorted(naive.events)
    assert (plan.withheld, plan.synchronous) == (naive.withheld, naive.synchronous)
    assert plan.end_s == max((m.end_s for peer in naive.peers for m in peer.incarnations), default=0)
    assert plan.has_server == (scenario.star is not None)
    for peer, schedule, incarnations in zip(naive.peers, plan.schedules, plan.incarnations, strict=True):
        for found, expected in zip(incarnations, peer.incarnations, strict=True):
            np.testing.assert_equal(dataclasses.astuple(found), dataclasses.astuple(expected))
        for name, expected in peer.own.items():
            np.testing.assert_array_equal(getattr(schedule, name), expected, name, strict=True)
        np.testing.assert_array_equal(plan.asked[peer.number], peer.asked)


def returns(fault: Fault, staleness: float = 0, latency_s: float = 0.0) -> list[tuple[int, int]]:
    """(first round, last) of each incarnation of the client that is struck, which is between two others or one of
    these."""
    slow = Links(latency_s=latency_s)
    scenario = small(
        ((1, 2), (0,), (0,)), (1, 1), staleness=staleness, notice_s=5.0, step_s=1.0, steps=(2, 4, 2), faults=(fault,),
        links={(0, 1): slow, (1, 0): slow},
    )  # fmt: skip
    return [(each.first, each.last) for each in simulate(scenario).incarnations[fault.clients[0]]]


def test_a_restart_in_a_round_that_a_neighbour_is_in_would_never_end():
    # Client 2 gets to round 6 while client 1 is in it: in its second exchange client 1 would wait for client 0, and
    # client 0, in its first, for a message of round 5 or later, which client 1 has sent while nobody was there.
    assert returns(Fault("crash", (0,), at_round=5, restart_after=1), staleness=1, latency_s=4.0) == [(1, 4), (7, 10)]


@pytest.mark.parametrize("staleness", [0, math.inf])
def test_clients_in_step_and_those_that_never_wait_restart_and_join_when_asked_for(staleness):
    for after in (1, 2, 3):
        assert returns(Fault("crash", (0,), at_round=5, restart_after=after), staleness) == [(1, 4), (5 + after, 10)]
    for client in range(3):
        for when, first in (({"at_round": 1}, 1), ({"at_s": 0.0}, 1), ({"at_round": 4}, 4)):
            assert returns(Fault("join", (client,), **when), staleness) == [(first, 10)]


# -- with a server -----------------------------------------------------------------------------------------------------


def test_a_straggler_misses_the_deadline_and_comes_back_where_the_server_is():
    slow = Fault("slow", clients=(0,), rounds=(2, 2), factor=10.0)
    scenario = small_star(3, silence="skip", deadline_s=1.5, step_s=1.0, faults=(slow,), link=Links(latency_s=0.1))
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
    plan = simulate(small_star(2, step_s=1.0, faults=(crash,)))
    assert [(each.first, each.last) for each in plan.incarnations[0]] == [(1, 2), (5, 7)]
    assert plan.schedules[0].compute.tolist() == pytest.approx([1, 1, math.nan, math.nan, math.nan, 1, 1], nan_ok=True)
    assert plan.schedules[0].uses[:, 0, 0].tolist() == [1, 2, 0, 0, 5, 6, 7]
    assert plan.schedules[2].uses[:, 0, 0].tolist() == [1, 2, 0, 0, 0, 6, 7]
    assert plan.schedules[2].end.tolist() == list(range(1, 8))  # nobody waits for it


def test_a_watcher_is_told_how_much_is_planned(monkeypatch):
    monkeypatch.setattr(simulation, "_TOLD_EVERY", 5)
    told = []
    watching = simulation.watcher.set(told.append)
    simulate(small())
    simulation.watcher.reset(watching)
    assert told == [0, 0.25, 0.5, 0.75, 1, 1]


def test_a_server_shows_an_answer_to_nobody_whose_next_process_it_has_sent_to_before():
    """Client 0 runs ahead, leaves before round 7 at 2 s and is back when the server is in round 3: from round 5 on the
    server sends to its second process, so the first cannot wait for what it would be shown of rounds 5 and 6."""
    leave = Fault("leave", clients=(0,), at_round=7, restart_after_s=0.5)
    late = small_star(2, silence="skip", deadline_s=1.0, step_s=0.0, faults=(leave,), link=Links(latency_s=100.0))
    taking_part = (frozenset({1}),) * 4 + (frozenset({0, 1}),) * 3
    plan = simulate(dataclasses.replace(late, star=Star(taking_part, taking_part)))
    assert [(each.first, each.last) for each in plan.incarnations[0]] == [(1, 6), (7, 7)]
    assert plan.schedules[2].to_life[:, 0, 0].tolist() == [0, 0, 0, 0, 2, 2, 2]
    assert plan.schedules[2].shows[:6, 0].tolist() == [1, 1, 1, 1, 0, 0]
