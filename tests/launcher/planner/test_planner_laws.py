"""Laws that every plan keeps, recomputed from its messages, schedules and incarnations alone; and the times of plans in
which nothing goes wrong."""

import dataclasses
import itertools
import math
import random
import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sheafgossip.launcher.planner.draws import ComputeTimes, latencies
from sheafgossip.launcher.planner.plan import Incarnation, Plan, PlanError
from sheafgossip.launcher.planner.scenario import Fault, Links, Scenario
from sheafgossip.launcher.planner.simulation import simulate

from .scenarios import scenario_of, small

TOLERANCE = 1e-9
RANDOM, RANDOMS = settings(deadline=None, suppress_health_check=list(HealthCheck)), st.randoms(use_true_random=False)


class Played:
    """A plan with its scenario, and what its messages say."""

    def __init__(self, scenario: Scenario, plan: Plan):
        self.scenario, self.plan = scenario, plan
        self.messages = {(m.src, m.dst, m.round, m.phase): m for m in plan.messages}
        assert len(self.messages) == len(plan.messages)

    def incarnation(self, client: int, round: int) -> Incarnation | None:
        return next((each for each in self.plan.incarnations[client] if each.first <= round <= each.last), None)

    def cells(self) -> Iterator[tuple[int, int, tuple[int, int, int]]]:
        """(client, neighbour, (row, phase, place)) of every message that a schedule speaks of."""
        for i, schedule in enumerate(self.plan.schedules):
            for row, phase, place in np.ndindex(schedule.uses.shape):
                yield i, int(schedule.neighbours[place]), (row, phase, place)

    def times_of_use(self, client: int, round: int) -> list[tuple[float, float]]:
        """(earliest, latest) of each exchange. A message of the next exchange goes out at the moment of use (that of
        the first one: when the work done with it is finished); where none goes out, only bounds are known."""
        schedule, row = self.plan.schedules[client], round - 1
        start, end, compute = (float(each[row]) for each in (schedule.start, schedule.end, schedule.compute))
        sent = {m.phase: m.sent_s for m in self.plan.messages if (m.src, m.round) == (client, round)}
        bounds: list[tuple[float, float]] = []
        for phase in range(self.scenario.phases):
            latest = min((sent[p] for p in sent if p > phase), default=end) - (compute if phase == 0 else 0)
            earliest = start if phase == 0 else max(start + compute, bounds[-1][0])
            is_known = phase + 1 in sent or phase + 1 == self.scenario.phases
            bounds.append((latest if is_known else earliest, latest))
        return bounds

    def uses(self) -> Iterator[tuple[str, int, int, int, int, tuple[float, float], dict[int, float]]]:
        """(text, client, round, neighbour, round used, (earliest, latest), {round: arrival} of what comes to it)"""
        times: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for i, j, (row, phase, place) in self.cells():
            schedule, round = self.plan.schedules[i], row + 1
            used = int(schedule.uses[row, phase, place])
            if (own := self.incarnation(i, round)) is None:
                assert not used
                continue
            if (i, round) not in times:
                times[i, round] = self.times_of_use(i, round)
            to_own = np.flatnonzero(schedule.into_life[:, phase, place] == own.number) + 1
            coming = [self.messages.get((j, i, r, phase)) for r in to_own.tolist()]
            arrivals = {m.round: m.arrived_s for m in coming if m and m.copies}
            about = f"client {i} in round {round}, phase {phase}, of client {j}: {used}"
            yield about, i, round, j, used, times[i, round][phase], arrivals

    def is_at_work(self, client: int, round: int, now: float) -> bool:
        """Whether the neighbours of a client have to reckon with it in a round: it is there or not known to be gone,
        has not finished, and began in that round or before."""
        begun = [each for each in self.plan.incarnations[client] if each.start_s <= now + TOLERANCE]
        if not begun or begun[-1].first > round:
            return False
        notice = 0 if begun[-1].ending == "finish" else self.scenario.notice_s
        return now < begun[-1].end_s + notice - TOLERANCE


def the_freshest_message_that_has_arrived_is_used(played: Played) -> None:
    staleness, silence = played.scenario.staleness, played.scenario.silence
    for about, _, round, _, used, (earliest, latest), arrivals in played.uses():
        surely = [number for number, arrival in arrivals.items() if arrival < earliest - TOLERANCE]
        freshest = max(surely, default=0)
        assert not used or arrivals.get(used, math.inf) <= latest + TOLERANCE, f"before it came: {about}"
        if staleness == 0 and used != round:
            assert round not in surely, f"not its own: {about}"
            assert used >= freshest if silence == "stale" else not used, f"not its own: {about}"
        elif staleness:
            assert used >= freshest or (silence != "stale" and freshest < round - staleness), (
                f"not the freshest: {about}"
            )
            assert silence == "stale" or used == 0 or used >= round - staleness, f"too old: {about}"


def what_is_older_than_allowed_has_a_reason(played: Played) -> None:
    """Older than allowed, or nothing, only where the deadline passed or the neighbour was not at work. In a synchronous
    run also where a message of a later round was there: its own one was lost, cut or overtaken."""
    staleness = played.scenario.staleness
    for about, i, round, j, used, (earliest, latest), arrivals in played.uses():
        if used >= round - staleness or played.plan.schedules[i].deadlines[round - 1]:
            continue
        far_enough = [arrival for number, arrival in arrivals.items() if number >= round - staleness]
        if any(arrival <= latest + TOLERANCE for arrival in far_enough):
            assert staleness == 0 or all(arrival >= earliest - TOLERANCE for arrival in far_enough)
        else:
            assert not played.is_at_work(j, round, latest), f"too old: {about}"


def waits_end_when_something_happens(played: Played) -> None:
    scenario, phases = played.scenario, played.scenario.phases
    arrivals = defaultdict(list)
    for message in played.plan.messages:
        arrivals[message.dst].append(message.arrived_s)
    for i, schedule in enumerate(played.plan.schedules):
        ends = [each for j in schedule.neighbours for each in played.plan.incarnations[j]]
        news = [each.end_s + (0 if each.ending == "finish" else scenario.notice_s) for each in ends]
        moments = np.array(arrivals[i] + news)
        assert (schedule.deadlines <= phases).all()
        if math.isfinite(scenario.deadline_s):
            assert (schedule.idle <= phases * scenario.deadline_s + TOLERANCE).all()
            assert (schedule.idle >= schedule.deadlines * scenario.deadline_s - TOLERANCE).all()
        else:
            assert not schedule.deadlines.any()
        for row in np.flatnonzero(~np.isnan(schedule.end) & (schedule.deadlines == 0)):
            assert (schedule.waited_for[row] >= 0) == (schedule.idle[row] > 0)
            if schedule.idle[row] > TOLERANCE and phases == 1:
                assert np.abs(moments - (schedule.end - schedule.compute)[row]).min() < TOLERANCE


def time_never_runs_back(played: Played) -> None:
    for schedule, incarnations in zip(played.plan.schedules, played.plan.incarnations, strict=True):
        there = ~np.isnan(schedule.end)
        took_part = [round for each in incarnations for round in range(each.first, each.last + 1)]
        assert (np.flatnonzero(there) + 1).tolist() == took_part
        np.testing.assert_array_equal(np.isnan(schedule.start), ~there)
        start, end = schedule.start[there], schedule.end[there]
        assert (start <= end).all()
        assert (end[:-1] <= start[1:]).all()
        np.testing.assert_allclose((schedule.idle + schedule.compute)[there], end - start, rtol=1e-9, atol=TOLERANCE)
        assert not schedule.idle[~there].any()
        for each in incarnations:
            rows = slice(each.first - 1, each.last)
            np.testing.assert_array_equal(schedule.start[rows][1:], schedule.end[rows][:-1])
            assert each.last < each.first or schedule.start[each.first - 1] == each.start_s
    ends = [each.end_s for incarnations in played.plan.incarnations for each in incarnations]
    assert played.plan.end_s == max(ends, default=0)


def uplinks_and_links_carry_one_message_at_a_time_and_in_order(played: Played) -> None:
    scenario, sent = played.scenario, [m.sent_s for m in played.plan.messages]
    assert sent == sorted(sent)
    uplinks, links, last = (defaultdict(float) for _ in range(3))
    opening = scenario.star.opening if scenario.star else 0
    for m in played.plan.messages:
        edge = m.src, m.dst
        size = scenario.message_bytes[edge][m.phase if m.round == 1 else opening + m.phase]
        assert m.left_s == pytest.approx(max(m.sent_s, uplinks[m.src]) + size / scenario.uplink, rel=TOLERANCE)
        uplinks[m.src], link = m.left_s, scenario.links.get(edge, Links())
        links[edge] = max(m.left_s, links[edge]) + size / (link.bandwidth or math.inf)
        shortest = link.latency_s if link.latency != "lognormal" else 0
        assert m.arrived_s >= links[edge] + shortest - TOLERANCE
        if not any(fault.kind == "reorder" and fault.hits(*edge) for fault in scenario.faults):
            assert m.arrived_s >= last[edge]
            last[edge] = m.arrived_s


def messages_go_to_those_who_are_there(played: Played) -> None:
    scenario, kinds = played.scenario, {fault.kind for fault in played.scenario.faults}
    may_lose = "loss" in kinds or any(link.loss for link in scenario.links.values())
    possible = {1} | ({0} if may_lose else set()) | ({2} if "duplicate" in kinds else set())
    for i, j, cell in played.cells():
        (row, phase, _), schedule = cell, played.plan.schedules[i]
        m = played.messages.get((i, j, row + 1, phase))
        if m is not None:
            begun = [each for each in played.plan.incarnations[j] if each.start_s <= m.sent_s]
            there = [each.number for each in begun if each.ending == "finish" or each.end_s >= m.sent_s]
            assert schedule.to_life[cell] in there
            assert schedule.copies[cell] == m.copies
            assert m.copies in possible
            cuts = (fault for fault in scenario.of_kind("cut", "partition") if fault.probability == 1)
            assert not any(fault.hits(i, j) and fault.active(m.round, m.sent_s) for fault in cuts)
            continue
        assert schedule.copies[cell] == 0
        if not kinds & {"cut", "partition"}:
            assert schedule.to_life[cell] == 0
            now = schedule.start[row]
            begun = [each for each in played.plan.incarnations[j] if each.start_s < now]
            there = any(each.ending == "finish" or each.end_s > now for each in begun)
            assert not (there and scenario.star is None and phase == 0)


def the_two_ends_of_an_edge_agree(played: Played) -> None:
    dtypes = {"uses": "i4", "copies": "u1", "to_life": "u1", "needed": "i4", "comes": "u1", "into_life": "u1",
              "keep": "i4", "delays": "f8"}  # fmt: skip
    for i, mine in enumerate(played.plan.schedules):
        assert mine.neighbours.tolist() == list(played.scenario.neighbours[i])
        shape = played.scenario.rounds, played.scenario.phases, len(mine.neighbours)
        for name, dtype in dtypes.items():
            assert (getattr(mine, name).shape, getattr(mine, name).dtype) == (shape, dtype), name
        keep = np.zeros(shape, int)
        for (row, phase, place), used in np.ndenumerate(mine.uses):
            if used:
                keep[used - 1, phase, place] = row + 1
                assert mine.comes[used - 1, phase, place]
        np.testing.assert_array_equal(mine.keep, keep)
        for place, j in enumerate(mine.neighbours.tolist()):
            theirs, there = played.plan.schedules[j], played.scenario.neighbours[j].index(i)
            for own, other in (("copies", "comes"), ("to_life", "into_life"), ("needed", "keep")):
                np.testing.assert_array_equal(getattr(mine, own)[:, :, place], getattr(theirs, other)[:, :, there])
            for (row, phase), delay in np.ndenumerate(mine.delays[:, :, place]):
                m = played.messages.get((j, i, row + 1, phase))
                assert delay == (m.arrived_s - m.sent_s if m and m.copies else 0)


def incarnations_follow_each_other(played: Played) -> None:
    scenario, plan = played.scenario, played.plan
    for i, incarnations in enumerate(plan.incarnations):
        assert [each.number for each in incarnations] == list(range(1, len(incarnations) + 1))
        for each in incarnations:
            assert each.first - 1 <= each.last <= scenario.rounds
            assert (each.ending == "finish") == (each.last == scenario.rounds)
            assert each.start_s <= each.end_s
            if each.start_s > 0 and scenario.staleness < math.inf and scenario.star is None:
                for j in scenario.neighbours[i]:  # none at work has begun the round already
                    at_work = [o for o in plan.incarnations[j] if o.start_s < each.start_s < o.end_s]
                    rows = [row for o in at_work for row in range(each.first - 1, o.last)]
                    assert not (plan.schedules[j].start[rows] < each.start_s).any()
        for before, each in itertools.pairwise(incarnations):
            assert before.ending != "finish"
            assert before.last < each.first
            assert before.end_s <= each.start_s
            if written := each.state_round:
                assert written % scenario.checkpoint_every == 0
                assert played.incarnation(i, written).number < each.number
            else:  # None: it came late, and has written nothing yet
                assert (written is None) == (incarnations[0].first > 1)
        assert not incarnations or incarnations[0].state_round is None
        joins = any(i in fault.clients for fault in scenario.of_kind("join"))
        told = [(each.start_s, "join") for each in incarnations[:1] if joins]
        told += [(each.start_s, "restart") for each in incarnations[1:]]
        told += [(each.end_s, each.ending) for each in incarnations if each.ending != "finish"]
        assert sorted(told) == sorted((now, kind) for now, client, kind, _ in plan.events if client == i)
    assert list(plan.events) == sorted(plan.events)


def synchronous_says_whether_every_message_is_that_of_the_own_round(played: Played) -> None:
    own = np.arange(1, played.scenario.rounds + 1)[:, None, None]
    whole = all([(each.first, each.ending) for each in own] == [(1, "finish")] for own in played.plan.incarnations)
    agreed = whole and all((schedule.uses == own).all() for schedule in played.plan.schedules)
    assert played.plan.synchronous <= agreed
    assert played.plan.synchronous == agreed or played.scenario.of_kind("join")


OF_EVERY_PATTERN = (
    uplinks_and_links_carry_one_message_at_a_time_and_in_order, messages_go_to_those_who_are_there,
    the_two_ends_of_an_edge_agree, incarnations_follow_each_other,
)  # fmt: skip
OF_GOSSIP = (
    *OF_EVERY_PATTERN, the_freshest_message_that_has_arrived_is_used, what_is_older_than_allowed_has_a_reason,
    waits_end_when_something_happens, time_never_runs_back,
    synchronous_says_whether_every_message_is_that_of_the_own_round,
)  # fmt: skip


@settings(RANDOM, max_examples=300)
@given(RANDOMS)
def test_every_plan_keeps_every_law(rng: random.Random):
    scenario = scenario_of(rng, calm=False, deadlines=[0.5, 3, 30, math.inf, math.inf])
    try:
        plan = simulate(scenario)
    except PlanError as error:
        refusal = str(error)
        assert re.fullmatch(r"client \d+ would wait for ever in round \d+ for .*", refusal)
        assert scenario.deadline_s == math.inf, "with a deadline every scenario ends"
        harmless = tuple(fault for fault in scenario.faults if fault.kind not in ("loss", "cut", "partition"))
        links = {edge: dataclasses.replace(link, loss=0.0) for edge, link in scenario.links.items()}
        scenario = dataclasses.replace(scenario, faults=harmless, links=links)
        plan = simulate(scenario)  # now nobody waits for ever
    for law in OF_GOSSIP:
        law(Played(scenario, plan))


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


# -- plans in which nothing goes wrong are recursions -----------------------------------------------------------------


class Network:
    """Each uplink, then each link, carries one message after the other; none overtakes another."""

    def __init__(self, scenario: Scenario):
        self.scenario, shape = scenario, (scenario.rounds, scenario.phases)
        self.opening = scenario.star.opening if scenario.star else 0
        self.links = {edge: scenario.links.get(edge, Links()) for edge in scenario.message_bytes}
        self.latency = {edge: latencies(each, shape, scenario.seed, *edge) for edge, each in self.links.items()}
        self.uplink_free, self.link_free, self.arrived = (defaultdict(float) for _ in range(3))

    def arrival(self, src: int, dst: int, round: int, phase: int, sent: float) -> float:
        edge = src, dst
        size = self.scenario.message_bytes[edge][phase if round == 1 else self.opening + phase]
        self.uplink_free[src] = max(sent, self.uplink_free[src]) + size / self.scenario.uplink
        bandwidth = self.links[edge].bandwidth or math.inf
        self.link_free[edge] = max(self.uplink_free[src], self.link_free[edge]) + size / bandwidth
        self.arrived[edge] = max(self.link_free[edge] + self.latency[edge][round - 1, phase], self.arrived[edge])
        return self.arrived[edge]


@settings(RANDOM, max_examples=60)
@given(RANDOMS)
def test_a_synchronous_plan_is_a_max_plus_recursion(rng: random.Random):
    scenario = dataclasses.replace(scenario_of(rng, calm=True), staleness=0, silence="wait", notice_s=0.0)
    network, works, everyone = Network(scenario), ComputeTimes(scenario), range(scenario.clients)
    plan, now = simulate(scenario), np.zeros(scenario.clients)
    for round in range(1, scenario.rounds + 1):
        start, idle = now, np.zeros(scenario.clients)
        for phase in range(max(1, scenario.phases)):
            if scenario.phases:
                there = {(i, j): network.arrival(i, j, round, phase, now[i]) for i, j in scenario.message_bytes}
                met = np.array([max([now[i], *(there[j, i] for j in scenario.neighbours[i])]) for i in everyone])
                now, idle = met, idle + met - now
            if phase == 0:
                compute = np.array([works(i, round, now[i]) for i in everyone])
                now = now + compute
        for name, expected in (("start", start), ("compute", compute), ("end", now), ("idle", idle)):
            found = [getattr(each, name)[round - 1] for each in plan.schedules]
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
        assert all((each.uses[round - 1] == round).all() for each in plan.schedules)
    assert plan.synchronous
    assert len(plan.messages) == scenario.rounds * scenario.phases * len(scenario.message_bytes)


@settings(RANDOM, max_examples=60)
@given(RANDOMS)
def test_where_nothing_goes_wrong_a_round_ends_with_the_last_upload(rng: random.Random):
    scenario = scenario_of(rng, calm=True, server=True)
    server, star, network, works = scenario.clients - 1, scenario.star, Network(scenario), ComputeTimes(scenario)
    ready, now, ends = dict.fromkeys(range(server), 0.0), 0.0, []
    for phase in range(star.opening):
        ready = {i: max(ready[i], network.arrival(server, i, 1, phase, now)) for i in ready}
        now = max(network.arrival(i, server, 1, phase, ready[i]) for i in ready)
    for round in range(1, scenario.rounds + 1):
        phase = star.opening if round == 1 else 0
        worked = {i: ready[i] + works(i, round, ready[i]) for i in star.participants[round - 1]}
        now = max([now, *(network.arrival(i, server, round, phase, worked[i]) for i in worked)])
        ends.append(now)
        ready |= worked
        ready |= {i: network.arrival(server, i, round, phase, now) for i in sorted(star.receivers[round - 1])}
    plan = simulate(scenario)
    np.testing.assert_allclose(plan.schedules[server].end, ends, rtol=1e-9)
    assert [plan.schedules[i].end[-1] for i in range(server)] == pytest.approx([ready[i] for i in range(server)])
    assert plan.synchronous
    assert not plan.withheld
