"""Plans with a server: a recursion for the synchronous ones, laws for those in which something goes wrong."""

import dataclasses
import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
from sheafgossip.launcher.planner.draws import ComputeTimes, latencies
from sheafgossip.launcher.planner.timeline import Awaited, stretches_of, timeline_of

from .test_planner_laws import the_two_ends_of_an_edge_agree

ROUNDS = 7
laws = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
MOMENTS = st.sampled_from([0.0, 0.03, 0.1, 0.3, 0.7])


def star_of(clients, participants=None, opening=0, **changes):
    """A scenario of clients 0, 1, ... and their server; all take part in all rounds, unless said otherwise."""
    rounds = changes.get("rounds", ROUNDS)
    everyone = frozenset(range(clients))
    chosen = [frozenset(each) for each in participants] if participants else [everyone] * rounds
    edges = [(i, clients) for i in range(clients)] + [(clients, i) for i in range(clients)]
    return Scenario(
        **{
            "seed": 0,
            "rounds": rounds,
            "neighbours": (*[(clients,)] * clients, tuple(range(clients))),
            "message_bytes": dict.fromkeys(edges, (100,) * (1 + opening)),
            "star": Star(tuple(chosen), (*chosen[1:], everyone), opening),
        }
        | changes
    )


@st.composite
def stars(draw, calm=False):
    clients, opening = draw(st.integers(1, 5)), draw(st.integers(0, 1))
    some = st.sets(st.integers(0, clients - 1), min_size=1)
    edges = [(i, clients) for i in range(clients)] + [(clients, i) for i in range(clients)]
    link = st.builds(
        Link,
        latency=st.builds(Latency, kind=st.sampled_from(["fixed", "uniform"]), seconds=MOMENTS, high_s=st.just(0.8)),
        bandwidth=st.just(math.inf) if calm else st.sampled_from([math.inf, 1e4]),
        loss=st.just(0.0) if calm else st.sampled_from([0.0, 0.3]),
    )
    numbers = st.integers(0, clients - 1)
    window = st.builds(lambda a, n: (a, a + n), st.integers(1, ROUNDS), st.integers(0, 3))
    restart = st.sampled_from([{}, {"restart_after": 0}, {"restart_after": 2}, {"restart_after_s": 0.2}])
    fault = st.one_of(
        st.builds(
            lambda i, r, back: Fault("crash", clients=(i,), at_round=r, **back),
            numbers,
            st.integers(1, ROUNDS),
            restart,
        ),
        st.builds(lambda i, r: Fault("join", clients=(i,), at_round=r), numbers, st.integers(2, ROUNDS)),
        st.builds(lambda i, w: Fault("slow", clients=(i,), rounds=w, factor=20.0), numbers, window),
        st.builds(
            lambda kind, i, w: Fault(kind, clients=(i,), rounds=w, delay_s=0.2),
            st.sampled_from(["loss", "cut", "duplicate", "delay", "reorder"]),
            numbers,
            window,
        ),
    )
    return star_of(
        clients,
        [draw(some) for _ in range(ROUNDS)] if draw(st.booleans()) else None,
        opening,
        seed=draw(st.integers(0, 100)),
        execution=Execution(
            silence="wait" if calm else draw(st.sampled_from(["wait", "skip", "stale"])),
            deadline_s=math.inf if calm else draw(st.sampled_from([0.04, 0.4, 2.0])),
            notice_s=draw(st.sampled_from([0.0, 0.1])),
        ),
        compute=Compute(
            0.05,
            steps=(*(draw(st.integers(1, 4)) for _ in range(clients)), 0),
            stragglers=Stragglers(draw(st.sampled_from(["none", "exponential"])), fraction=0.5),
        ),
        links={edge: draw(link) for edge in edges},
        faults=() if calm else tuple(draw(st.lists(fault, max_size=4))),
        checkpoint_every=draw(st.integers(0, 2)),
    )


@laws
@given(stars(calm=True))
def test_where_nothing_goes_wrong_a_round_ends_with_the_last_upload(scenario):
    server, opening = scenario.clients - 1, scenario.star.opening
    works = ComputeTimes(scenario)
    delay = {
        edge: latencies(link.latency, (ROUNDS, 1 + opening), scenario.seed, *edge)
        for edge, link in scenario.links.items()
    }
    last = defaultdict(float)

    def arrival(src, dst, round, phase, sent):
        last[src, dst] = max(last[src, dst], sent + delay[src, dst][round - 1, phase])
        return last[src, dst]

    ready, now, ends = dict.fromkeys(range(server), 0.0), 0.0, []
    if opening:
        ready = {i: arrival(server, i, 1, 0, 0.0) for i in ready}
        now = max(arrival(i, server, 1, 0, ready[i]) for i in ready)
    for round in range(1, ROUNDS + 1):
        phase = opening if round == 1 else 0
        chosen, next_ = scenario.star.participants[round - 1], scenario.star.receivers[round - 1]
        uploads = [arrival(i, server, round, phase, ready[i] + works(i, round, ready[i])) for i in chosen]
        now = max([now, *uploads])
        ends.append(now)
        ready |= {i: arrival(server, i, round, phase, now) for i in next_}
    plan = simulate(scenario)
    np.testing.assert_allclose(plan.schedules[server].end, ends, rtol=1e-12)
    assert [plan.schedules[i].end[-1] for i in range(server)] == pytest.approx([ready[i] for i in range(server)])
    assert plan.synchronous
    assert not plan.withheld


@laws
@given(stars())
def test_with_a_deadline_it_ends_and_the_server_takes_what_has_come_in_time(scenario):
    plan = simulate(scenario)
    server, opening, execution = scenario.clients - 1, scenario.star.opening, scenario.execution
    schedule = plan.schedules[server]
    assert plan.incarnations[server][-1].ending == "finish"
    assert (schedule.idle <= (1 + opening * (np.arange(ROUNDS) == 0)) * execution.deadline_s + 1e-9).all()
    arrived = {(m.src, m.round, m.phase): m.arrived_s for m in plan.messages if m.dst == server and m.copies}
    for round in range(1, ROUNDS + 1):
        phase, chosen = opening if round == 1 else 0, scenario.star.participants[round - 1]
        for i in range(server):
            used = int(schedule.uses[round - 1, phase, i])
            when = arrived.get((i, round, phase), math.inf)
            if i not in chosen:
                assert used == 0
            elif used == round:
                assert when <= schedule.end[round - 1] + 1e-9
            else:
                assert when > schedule.end[round - 1] - 1e-9
                assert used == 0 or execution.silence == "stale"


@laws
@given(stars())
def test_a_client_works_when_it_is_chosen_and_its_work_can_still_be_used(scenario):
    plan = simulate(scenario)
    server, opening = scenario.clients - 1, scenario.star.opening
    for i in range(server):
        schedule = plan.schedules[i]
        answers = [
            (m.arrived_s, m.round)
            for m in plan.messages
            if m.dst == i and m.copies and m.phase == (opening if m.round == 1 else 0)
        ]
        firsts = {life.first for life in plan.incarnations[i] if life.first > 1 and life.state_round != life.first - 1}
        for round in range(1, ROUNDS + 1):
            if np.isnan(schedule.end[round - 1]):
                continue
            worked = not np.isnan(schedule.compute[round - 1])
            sent = [m for m in plan.messages if m.src == i and m.round == round and m.phase == (opening * (round == 1))]
            assert len(sent) <= worked
            closed = any(when < schedule.start[round - 1] - 1e-9 and number >= round for when, number in answers)
            if worked:
                assert i in scenario.star.participants[round - 1]
                assert round not in firsts
                assert not closed or round == 1
            elif i in scenario.star.participants[round - 1] and round not in firsts:
                assert any(when <= schedule.start[round - 1] + 1e-9 and number >= round for when, number in answers)
            used = int(schedule.uses[round - 1, opening if round == 1 else 0, 0])
            assert used in (0, round)


@laws
@given(stars())
def test_the_two_ends_agree_on_what_is_sent_and_used(scenario):
    the_two_ends_of_an_edge_agree(scenario, simulate(scenario))


def test_a_straggler_misses_the_deadline_and_comes_back_where_the_server_is():
    slow = Fault("slow", clients=(0,), rounds=(2, 2), factor=10.0)
    links = {edge: Link(Latency(seconds=0.1)) for edge in ((0, 3), (1, 3), (2, 3), (3, 0), (3, 1), (3, 2))}
    scenario = star_of(
        3, execution=Execution(silence="skip", deadline_s=1.5), compute=Compute(1.0), faults=(slow,), links=links
    )
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
    shorter = simulate(dataclasses.replace(scenario, faults=(dataclasses.replace(slow, factor=4.0),)))
    # Done at 5.2, it has the answers of rounds 2 and 3. Round 4 ends at 5.6 and round 5 at 7.1, just too soon for what
    # it has ready at 6.2 and 7.2; then it is in step again
    assert shorter.schedules[3].uses[:, 0, 0].tolist() == [1, 0, 0, 0, 0, 6, 7]
    assert np.flatnonzero(np.isnan(shorter.schedules[0].compute)).tolist() == [2]


def test_a_client_that_comes_back_only_listens_at_first():
    crash = Fault("crash", clients=(0,), at_round=3, restart_after=2)
    plan = simulate(star_of(2, compute=Compute(1.0), faults=(crash,)))
    assert [(life.first, life.last) for life in plan.incarnations[0]] == [(1, 2), (5, 7)]
    assert plan.schedules[0].compute.tolist() == pytest.approx([1, 1, math.nan, math.nan, math.nan, 1, 1], nan_ok=True)
    assert plan.schedules[0].uses[:, 0, 0].tolist() == [1, 2, 0, 0, 5, 6, 7]
    assert plan.schedules[2].uses[:, 0, 0].tolist() == [1, 2, 0, 0, 0, 6, 7]
    assert plan.schedules[2].end.tolist() == list(range(1, 8))  # nobody waits for it


def test_who_does_not_take_part_is_not_waited_for_and_waits_until_it_is_called():
    rounds = [{0}, {1}, {0}, {1}, {0}, {1}, {0}]
    scenario = star_of(2, rounds, compute=Compute(1.0), execution=Execution(silence="skip", deadline_s=1.2))
    plan = simulate(scenario)
    assert plan.schedules[2].end.tolist() == list(range(1, 8))
    assert [schedule.deadlines.sum() for schedule in plan.schedules] == [0, 0, 0]
    assert np.flatnonzero(~np.isnan(plan.schedules[0].compute)).tolist() == [0, 2, 4, 6]


def test_the_answer_may_go_to_those_who_have_just_taken_part():
    rounds = tuple(map(frozenset, [{0}, {1}, {0}, {1}, {0}, {1}, {0}]))
    scenario = dataclasses.replace(star_of(2, compute=Compute(1.0)), star=Star(rounds, rounds))
    plan = simulate(scenario)
    assert [(m.dst, m.round) for m in plan.messages if m.src == 2] == [(r % 2, r + 1) for r in range(7)]
    assert plan.synchronous


def test_an_upload_that_is_lost_without_a_deadline_is_refused():
    lost = Fault("loss", clients=(1,), rounds=(4, 4))
    with pytest.raises(PlanError, match=r"the server would wait for ever in round 4 for a message of client 1; set"):
        simulate(star_of(3, faults=(lost,)))


def test_a_timeline_is_that_of_the_clients_and_tells_whom_the_server_waits_for():
    slow = Fault("slow", clients=(0,), rounds=(1, 7), factor=3.0)
    plan = simulate(star_of(3, compute=Compute(1.0), faults=(slow,)))
    timeline = timeline_of(plan)
    assert (timeline.clients, timeline.leaving, timeline.sent, timeline.withheld) == (3, 0, 42, 0)
    assert timeline.computing_s == (21, 7, 7)
    assert timeline.waiting_s == (0, 14, 14)
    assert timeline.awaited == (Awaited(client=0, seconds=21.0, rounds=7),)
    assert timeline.awaited_s == 21
    assert timeline.ages["same round"] == 42
    assert timeline.ages["none: goes without"] == 0
    straggler, other, *more = stretches_of(plan)
    assert len(more) == 1
    assert other.computing.tolist() == [[3.0 * r, 3.0 * r + 1] for r in range(7)]
    assert other.waiting.tolist() == [[3.0 * r + 1, 3.0 * r + 3] for r in range(7)]
    assert not len(straggler.waiting)
