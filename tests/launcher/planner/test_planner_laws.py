"""Laws that every plan keeps, recomputed from its messages, schedules and incarnations alone."""

import dataclasses
import itertools
import math
import re
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
    Stragglers,
    simulate,
    simulation,
)

ROUNDS = 7
TOLERANCE = 1e-9
LINK_FAULTS = ("loss", "duplicate", "delay", "reorder", "cut", "partition")
laws = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])

moments = st.sampled_from([0.0, 0.01, 0.03, 0.1, 0.15, 0.3, 0.7])
lengths = st.sampled_from([0.01, 0.05, 0.2, 1.0])
windows = st.one_of(
    st.just({}),
    st.builds(lambda a, n: {"rounds": (a, a + n)}, st.integers(1, ROUNDS), st.integers(0, 3)),
    st.builds(lambda a, n: {"seconds": (a, a + n)}, moments, lengths),
)
starts = st.one_of(
    st.builds(lambda a: {"at_round": a}, st.integers(1, ROUNDS)), st.builds(lambda t: {"at_s": t}, moments)
)
restarts = st.one_of(
    st.just({}),
    st.builds(lambda n: {"restart_after": n}, st.integers(0, 3)),
    st.builds(lambda t: {"restart_after_s": t}, moments),
)
straggler_sets = st.builds(
    Stragglers,
    kind=st.sampled_from(["none", "fixed", "lognormal", "exponential", "pareto", "on-off"]),
    fraction=st.sampled_from([0.0, 0.3, 1.0]),
    factor=st.sampled_from([0.5, 5.0]),
    on_s=lengths,
    off_s=lengths,
)
traces = st.dictionaries(st.tuples(st.integers(0, 5), st.integers(1, ROUNDS)), lengths, max_size=4)
links = st.builds(
    Link,
    latency=st.builds(
        Latency,
        kind=st.sampled_from(["fixed", "uniform", "lognormal"]),
        seconds=st.sampled_from([0.0, 0.01, 0.05]),
        high_s=st.sampled_from([0.05, 0.2]),
    ),
    bandwidth=st.sampled_from([math.inf, math.inf, 1e5, 1e4]),
    loss=st.sampled_from([0.0, 0.0, 0.2]),
)


@st.composite
def graphs(draw, fewest=1, most=6):
    """The neighbours of each client, in a connected graph."""
    clients = draw(st.integers(fewest, most))
    pairs = {(draw(st.integers(0, i - 1)), i) for i in range(1, clients)}
    every = [(i, j) for j in range(clients) for i in range(j)]
    pairs |= set(draw(st.lists(st.sampled_from(every), max_size=4))) if every else set()
    both = pairs | {(j, i) for i, j in pairs}
    return tuple(tuple(sorted(j for k, j in both if k == i)) for i in range(clients))


@st.composite
def faults(draw, neighbours):
    numbers = st.integers(0, len(neighbours) - 1)
    edges = [(i, j) for i, others in enumerate(neighbours) for j in others]
    kind = draw(st.sampled_from(["crash", "leave", "join", "slow", *LINK_FAULTS]))
    chosen = dict(draw(starts if kind in ("crash", "leave", "join") else windows))
    if kind in ("crash", "leave", "join", "slow") or draw(st.booleans()):
        chosen["clients"] = tuple(draw(st.lists(numbers, min_size=1, max_size=2)))
    elif edges and draw(st.booleans()):
        chosen["edges"] = tuple(draw(st.lists(st.sampled_from(edges), min_size=1, max_size=3)))
    if kind == "crash":
        chosen |= draw(restarts)
    if kind == "partition":
        first = draw(st.sets(numbers))
        chosen["groups"] = tuple(sorted(first)), tuple(sorted(set(range(len(neighbours))) - first))
    if kind in LINK_FAULTS:
        chosen["probability"] = draw(st.sampled_from([0.3, 1.0]))
    return Fault(kind, factor=draw(st.sampled_from([0.5, 6.0])), delay_s=draw(lengths), **chosen)


@st.composite
def scenarios(
    draw, staleness=st.sampled_from([0, 0, 1, 2, 3, 4, 5, math.inf]), deadlines=(math.inf, 0.3, 0.04), calm=False
):
    """``calm``: clients are synchronous, and nothing is lost."""
    neighbours = draw(graphs())
    edges = [(i, j) for i, others in enumerate(neighbours) for j in others]
    phases = draw(st.integers(0, 2) if calm else st.sampled_from([1, 2, 2, 3]))
    every = [tuple(draw(st.sampled_from([100, 777, 2000])) for _ in range(phases)) for _ in edges]
    execution = Execution(
        staleness=draw(staleness),
        silence=draw(st.sampled_from(["wait", "stale", "skip"])),
        deadline_s=draw(st.sampled_from(deadlines)),
        notice_s=draw(st.sampled_from([0.0, 0.02, 0.2])),
    )
    of_links = {edge: draw(links) for edge in edges if calm or draw(st.booleans())}
    return Scenario(
        seed=draw(st.integers(0, 1000)),
        rounds=ROUNDS,
        neighbours=neighbours,
        message_bytes=dict(zip(edges, every, strict=True)),
        execution=Execution() if calm else execution,
        compute=Compute(
            step_s=draw(st.sampled_from([0.0, 0.01, 0.02, 0.0137])),
            steps=tuple(draw(st.integers(1, 3)) for _ in neighbours),
            slowdown=tuple(draw(st.sampled_from([1.0, 1.0, 3.0])) for _ in neighbours),
            stragglers=draw(straggler_sets),
            trace=draw(traces),
        ),
        links={edge: dataclasses.replace(link, loss=0.0) if calm else link for edge, link in of_links.items()},
        uplink=draw(st.sampled_from([math.inf, 1e5, 1e4])),
        faults=() if calm else tuple(draw(st.lists(faults(neighbours), max_size=4))),
        checkpoint_every=draw(st.integers(0, 3)),
    )


@st.composite
def plans(draw, **limits):
    """Scenarios that end, with their plans."""
    scenario = draw(scenarios(**limits))
    try:
        return scenario, simulate(scenario)
    except PlanError:
        execution = dataclasses.replace(scenario.execution, deadline_s=0.3)
        scenario = dataclasses.replace(scenario, execution=execution)
        return scenario, simulate(scenario)


def life_of_round(plan, client, round):
    return next((life for life in plan.incarnations[client] if life.first <= round <= life.last), None)


def went(plan):
    """{(src, dst, phase): messages}"""
    sorted_out = defaultdict(list)
    for message in plan.messages:
        sorted_out[message.src, message.dst, message.phase].append(message)
    return sorted_out


def times_of_use(scenario, plan, client, round):
    """(earliest, latest) of each exchange. A message of the next exchange goes out at the moment of use (that of the
    first one: when the work done with it is finished); where none goes out, only bounds are known."""
    schedule, row = plan.schedules[client], round - 1
    start, end, compute = schedule.start[row], schedule.end[row], schedule.compute[row]
    if scenario.phases == 1:
        return [(end - compute, end - compute)]
    sent = {m.phase: m.sent_s for m in plan.messages if m.src == client and m.round == round}
    bounds = []
    for phase in range(scenario.phases):
        if phase == scenario.phases - 1:
            bounds.append((end, end))
        elif phase + 1 in sent:
            moment = sent[phase + 1] - (compute if phase == 0 else 0)
            bounds.append((moment, moment))
        else:
            earliest = start if phase == 0 else max(start + compute, bounds[-1][0])
            later = min((sent[p] for p in sent if p > phase), default=end)
            bounds.append((earliest, later - (compute if phase == 0 else 0)))
    return bounds


def every_use(scenario, plan):
    """(client, round, phase, neighbour, round used, (earliest, latest), messages that its process is sent)"""
    messages = went(plan)
    for i, schedule in enumerate(plan.schedules):
        for round in range(1, scenario.rounds + 1):
            life = life_of_round(plan, i, round)
            if life is None:
                assert not schedule.uses[round - 1].any()
                continue
            times = times_of_use(scenario, plan, i, round)
            for phase, time in enumerate(times):
                for place, j in enumerate(schedule.neighbours.tolist()):
                    into = schedule.into_life[:, phase, place]
                    mine = [m for m in messages[j, i, phase] if m.copies and into[m.round - 1] == life.number]
                    yield i, round, phase, j, int(schedule.uses[round - 1, phase, place]), time, mine


def is_at_work(scenario, plan, client, round, now):
    """Whether the neighbours of a client have to reckon with it in a round: it is there or not known to be gone, has
    not finished, and began in that round or before."""
    notice = scenario.execution.notice_s
    begun = [life for life in plan.incarnations[client] if life.start_s <= now + TOLERANCE]
    if not begun or begun[-1].first > round:
        return False
    life = begun[-1]
    return now < life.end_s + (0 if life.ending == "finish" else notice) - TOLERANCE


def the_freshest_message_that_has_arrived_is_used(scenario, plan):
    staleness, silence = scenario.execution.staleness, scenario.execution.silence
    for i, round, phase, j, used, (earliest, latest), messages in every_use(scenario, plan):
        about = f"client {i} in round {round}, phase {phase}, of client {j}: {used}"
        arrivals = {m.round: m.arrived_s for m in messages}
        surely = [number for number, arrival in arrivals.items() if arrival < earliest - TOLERANCE]
        freshest = max(surely, default=0)
        assert not used or arrivals.get(used, math.inf) <= latest + TOLERANCE, f"before it came: {about}"
        if staleness == 0:
            assert used == round or round not in surely, f"not its own: {about}"
            if silence == "stale":
                assert used == round or used >= freshest, f"not the freshest: {about}"
            else:
                assert used in (0, round), f"not its own: {about}"
        else:
            if silence == "stale" or freshest >= round - staleness:
                assert used >= freshest, f"not the freshest: {about}"
            if silence != "stale":
                assert used == 0 or used >= round - staleness, f"too old: {about}"


def what_is_older_than_allowed_has_a_reason(scenario, plan):
    """Older than allowed, or nothing, only where the deadline passed or the neighbour was not at work. In a synchronous
    run also where a message of a later round was there: its own one was lost, cut or overtaken."""
    staleness = scenario.execution.staleness
    for i, round, phase, j, used, (earliest, latest), messages in every_use(scenario, plan):
        if used >= round - staleness or plan.schedules[i].deadlines[round - 1]:
            continue
        far_enough = [m.arrived_s for m in messages if m.round >= round - staleness]
        if any(arrival <= latest + TOLERANCE for arrival in far_enough):
            assert staleness == 0 or all(arrival >= earliest - TOLERANCE for arrival in far_enough)
            continue
        about = f"client {i} in round {round}, phase {phase}, of client {j}: {used}"
        assert not is_at_work(scenario, plan, j, round, latest), f"too old: {about}"


@laws
@given(scenarios(deadlines=(0.04, 0.3)))
def test_with_a_deadline_every_scenario_ends(scenario):
    plan = simulate(scenario)
    waits = scenario.phases * scenario.execution.deadline_s
    for schedule in plan.schedules:
        assert (schedule.idle <= waits + TOLERANCE).all()
        assert (schedule.idle >= schedule.deadlines * scenario.execution.deadline_s - TOLERANCE).all()
        assert (schedule.deadlines <= scenario.phases).all()


@laws
@given(scenarios(deadlines=(math.inf,)))
def test_without_a_deadline_a_scenario_ends_or_is_refused(scenario):
    try:
        plan = simulate(scenario)
    except PlanError as error:
        refusal = str(error)
    else:
        refusal = None
        assert not any(schedule.deadlines.any() for schedule in plan.schedules)
    assert refusal is None or re.fullmatch(r"client \d+ would wait for ever in round \d+ for .*", refusal)


@laws
@given(scenarios(deadlines=(math.inf,)))
def test_where_no_message_is_lost_or_cut_nobody_waits_for_ever(scenario):
    harmless = [fault for fault in scenario.faults if fault.kind not in ("loss", "cut", "partition")]
    links = {edge: dataclasses.replace(link, loss=0.0) for edge, link in scenario.links.items()}
    simulate(dataclasses.replace(scenario, faults=tuple(harmless), links=links))


def waits_end_when_something_happens(scenario, plan):
    arrivals = defaultdict(list)
    for message in plan.messages:
        arrivals[message.dst].append(message.arrived_s)
    for i, schedule in enumerate(plan.schedules):
        ends = [life for j in schedule.neighbours for life in plan.incarnations[j]]
        news = [life.end_s + (0 if life.ending == "finish" else scenario.execution.notice_s) for life in ends]
        moments = np.array(arrivals[i] + news)
        for round in range(1, scenario.rounds + 1):
            if life_of_round(plan, i, round) is None or schedule.deadlines[round - 1]:
                continue
            assert (schedule.waited_for[round - 1] >= 0) == (schedule.idle[round - 1] > 0)
            if schedule.idle[round - 1] > TOLERANCE and scenario.phases == 1:
                assert np.abs(moments - (schedule.end - schedule.compute)[round - 1]).min() < TOLERANCE


def time_never_runs_back(scenario, plan):
    for schedule, incarnations in zip(plan.schedules, plan.incarnations, strict=True):
        took_part = [round for life in incarnations for round in range(life.first, life.last + 1)]
        assert np.flatnonzero(~np.isnan(schedule.end)).tolist() == [round - 1 for round in took_part]
        np.testing.assert_array_equal(np.isnan(schedule.start), np.isnan(schedule.end))
        start, end = (array[~np.isnan(array)] for array in (schedule.start, schedule.end))
        assert (start <= end).all()
        assert (end[:-1] <= start[1:]).all()
        there = ~np.isnan(schedule.end)
        spent = (schedule.idle + schedule.compute)[there]
        np.testing.assert_allclose(spent, end - start, rtol=1e-9, atol=TOLERANCE)
        assert not schedule.idle[~there].any()
        for life in incarnations:
            rows = slice(life.first - 1, life.last)
            np.testing.assert_array_equal(schedule.start[rows][1:], schedule.end[rows][:-1])
            assert life.last < life.first or schedule.start[life.first - 1] == life.start_s
    assert plan.end_s == max((life.end_s for incarnations in plan.incarnations for life in incarnations), default=0)


def messages_arrive_in_order_after_they_were_sent(scenario, plan):
    sent = [m.sent_s for m in plan.messages]
    assert sent == sorted(sent)
    last = defaultdict(float)
    for m in plan.messages:
        assert m.sent_s <= m.left_s <= m.arrived_s
        if not any(fault.kind == "reorder" and fault.hits(m.src, m.dst) for fault in scenario.faults):
            assert m.arrived_s >= last[m.src, m.dst]
            last[m.src, m.dst] = m.arrived_s


def uplinks_and_links_carry_one_message_at_a_time(scenario, plan):
    uplinks, latest = defaultdict(float), defaultdict(float)
    for m in plan.messages:
        size = scenario.message_bytes[m.src, m.dst][m.phase]
        begun = max(m.sent_s, uplinks[m.src])
        assert m.left_s == pytest.approx(begun + size / scenario.uplink, rel=TOLERANCE)
        uplinks[m.src] = m.left_s
        link = scenario.links.get((m.src, m.dst), Link())
        through = max(m.left_s, latest[m.src, m.dst]) + size / link.bandwidth
        shortest = link.latency.seconds if link.latency.kind != "lognormal" else 0
        assert m.arrived_s >= through + shortest - TOLERANCE
        latest[m.src, m.dst] = through


def messages_go_to_those_who_are_there(scenario, plan):
    messages = {(m.src, m.dst, m.round, m.phase): m for m in plan.messages}
    assert len(messages) == len(plan.messages)
    cutting = any(fault.kind in ("cut", "partition") for fault in scenario.faults)
    for m in plan.messages:
        incarnations = plan.incarnations[m.dst]
        there = [life.number for life in incarnations if life.start_s <= m.sent_s and not gone(life, m.sent_s)]
        schedule = plan.schedules[m.src]
        cell = m.round - 1, m.phase, schedule.neighbours.tolist().index(m.dst)
        assert there, "sent to a client that is not there"
        assert schedule.to_life[cell] in there
        assert schedule.copies[cell] == m.copies
        for fault in scenario.faults:
            if fault.kind in ("cut", "partition") and fault.probability == 1 and fault.hits(m.src, m.dst):
                assert not fault.active(m.round, m.sent_s)
    for i, schedule in enumerate(plan.schedules):
        for (row, phase, place), copies in np.ndenumerate(schedule.copies):
            j, now = int(schedule.neighbours[place]), schedule.start[row]
            if (i, j, row + 1, phase) in messages:
                continue
            assert copies == 0
            assert cutting or schedule.to_life[row, phase, place] == 0
            if phase == 0 and not cutting:
                incarnations = plan.incarnations[j]
                assert not any(life.start_s < now and not gone(life, now, just=True) for life in incarnations)


def gone(life, now, just=False):
    return life.ending != "finish" and (life.end_s <= now if just else life.end_s < now)


def copies_are_none_one_or_two(scenario, plan):
    kinds = {fault.kind for fault in scenario.faults}
    may_lose = "loss" in kinds or any(link.loss for link in scenario.links.values())
    possible = {1} | ({0} if may_lose else set()) | ({2} if "duplicate" in kinds else set())
    assert {m.copies for m in plan.messages} <= possible


def the_two_ends_of_an_edge_agree(scenario, plan):
    messages = {(m.src, m.dst, m.round, m.phase): m for m in plan.messages}
    for i, mine in enumerate(plan.schedules):
        assert mine.neighbours.tolist() == list(scenario.neighbours[i])
        shape = scenario.rounds, scenario.phases, len(mine.neighbours)
        dtypes = {"uses": "i4", "copies": "u1", "to_life": "u1", "needed": "i4", "comes": "u1", "into_life": "u1"}
        for name, dtype in (dtypes | {"keep": "i4", "delays": "f8"}).items():
            assert getattr(mine, name).shape == shape
            assert getattr(mine, name).dtype == dtype
        for place, j in enumerate(mine.neighbours.tolist()):
            theirs = plan.schedules[j]
            there = theirs.neighbours.tolist().index(i)
            for own, other in (("copies", "comes"), ("to_life", "into_life"), ("needed", "keep")):
                np.testing.assert_array_equal(getattr(mine, own)[:, :, place], getattr(theirs, other)[:, :, there])
            keep = np.zeros(shape[:2], int)
            for (row, phase), used in np.ndenumerate(mine.uses[:, :, place]):
                if used:
                    keep[used - 1, phase] = row + 1
                    assert mine.comes[used - 1, phase, place]
            np.testing.assert_array_equal(mine.keep[:, :, place], keep)
            for (row, phase), delay in np.ndenumerate(mine.delays[:, :, place]):
                m = messages.get((j, i, row + 1, phase))
                assert delay == (m.arrived_s - m.sent_s if m and m.copies else 0)


def incarnations_follow_each_other(scenario, plan):
    for i, incarnations in enumerate(plan.incarnations):
        assert [life.number for life in incarnations] == list(range(1, len(incarnations) + 1))
        for life in incarnations:
            assert life.first - 1 <= life.last <= scenario.rounds
            assert (life.ending == "finish") == (life.last == scenario.rounds)
            assert life.start_s <= life.end_s
            if life.start_s > 0 and scenario.execution.staleness < math.inf:
                others = [
                    j
                    for j in scenario.neighbours[i]
                    if plan.incarnations[j] and not finished(plan.incarnations[j][-1], life)
                ]
                starts = [plan.schedules[j].start[life.first - 1 :] for j in others]
                assert not any((start < life.start_s).any() for start in starts)
        for before, life in itertools.pairwise(incarnations):
            assert before.ending != "finish"
            assert before.last < life.first
            assert before.end_s <= life.start_s
            written = life.state_round
            if written is None:  # it came late, and has written nothing yet
                assert incarnations[0].first > 1
                continue
            assert written == 0 or (scenario.checkpoint_every and written % scenario.checkpoint_every == 0)
            assert (incarnations[0] if written == 0 else life_of_round(plan, i, written)).number < life.number
            assert written or incarnations[0].first == 1
        assert not incarnations or incarnations[0].state_round is None
        ends = [life for life in incarnations if life.ending != "finish"]
        comings = [life for life in incarnations if life.number > 1 or (i, life.start_s, "join") in joins(plan)]
        assert [now for now, client, kind, _ in plan.events if client == i and kind in ("crash", "leave")] == [
            life.end_s for life in ends
        ]
        assert [now for now, client, kind, _ in plan.events if client == i and kind in ("restart", "join")] == [
            life.start_s for life in comings
        ]
    assert list(plan.events) == sorted(plan.events)


def finished(life, later):
    return life.ending == "finish" and life.end_s <= later.start_s


def joins(plan):
    return {(client, now, kind) for now, client, kind, _ in plan.events}


def synchronous_says_whether_every_message_is_that_of_the_own_round(scenario, plan):
    rounds = np.arange(1, scenario.rounds + 1)[:, None, None]
    agreed = all((schedule.uses == rounds).all() for schedule in plan.schedules)
    whole = all(
        len(incarnations) == 1 and incarnations[0].first == 1 and incarnations[0].ending == "finish"
        for incarnations in plan.incarnations
    )
    assert plan.synchronous <= (agreed and whole)
    if not any(fault.kind == "join" for fault in scenario.faults):
        assert plan.synchronous == (agreed and whole)


LAWS = (
    the_freshest_message_that_has_arrived_is_used,
    what_is_older_than_allowed_has_a_reason,
    waits_end_when_something_happens,
    time_never_runs_back,
    messages_arrive_in_order_after_they_were_sent,
    uplinks_and_links_carry_one_message_at_a_time,
    messages_go_to_those_who_are_there,
    copies_are_none_one_or_two,
    the_two_ends_of_an_edge_agree,
    incarnations_follow_each_other,
    synchronous_says_whether_every_message_is_that_of_the_own_round,
)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@laws
@given(plans())
def test_every_plan_keeps_the_law(law, played):
    law(*played)


@pytest.mark.parametrize("law", LAWS[:2], ids=lambda law: law.__name__)
@laws
@given(plans(staleness=st.sampled_from([1, 2, 3, 5, math.inf]), deadlines=(math.inf,)))
def test_plans_out_of_step_and_without_deadlines_keep_the_law(law, played):
    law(*played)


def crashed(staleness, restart_after, notice_s=5.0, latency_s=0.0):
    """Client 0, between two others, crashes before round 5."""
    slow = Link(Latency(seconds=latency_s))
    return Scenario(
        seed=0,
        rounds=10,
        neighbours=((1, 2), (0,), (0,)),
        message_bytes=dict.fromkeys(((0, 1), (0, 2), (1, 0), (2, 0)), (1, 1)),
        execution=Execution(staleness, notice_s=notice_s),
        compute=Compute(1.0, steps=(2, 4, 2)),
        links={(0, 1): slow, (1, 0): slow},
        faults=(Fault("crash", clients=(0,), at_round=5, restart_after=restart_after),),
    )


def test_a_restart_in_a_round_that_a_neighbour_is_in_would_never_end():
    # Client 2 gets to round 6 while client 1 is in it: in its second exchange client 1 would wait for client 0, and
    # client 0, in its first, for a message of round 5 or later, which client 1 has sent while nobody was there.
    (first, second), *_ = simulate(crashed(staleness=1, restart_after=1, latency_s=4.0)).incarnations
    assert (first.first, first.last, first.ending) == (1, 4, "crash")
    assert (second.first, second.last, second.ending) == (7, 10, "finish")


@pytest.mark.parametrize("restart_after", [1, 2, 3])
@pytest.mark.parametrize("staleness", [0, math.inf])
def test_clients_in_step_and_those_that_never_wait_restart_when_asked_for(staleness, restart_after):
    first, second = simulate(crashed(staleness, restart_after)).incarnations[0]
    assert (first.last, second.first) == (4, 5 + restart_after)


@pytest.mark.parametrize("when", [{"at_round": 1}, {"at_s": 0.0}, {"at_round": 4}], ids=str)
def test_a_client_joins_in_the_round_asked_for(when):
    for client in range(3):
        scenario = dataclasses.replace(crashed(0, 1), faults=(Fault("join", clients=(client,), **when),))
        (life,) = simulate(scenario).incarnations[client]
        assert life.first == when.get("at_round", 1)


def test_a_planner_that_takes_an_older_message_breaks_the_law(monkeypatch):
    scenario = Scenario(
        seed=0,
        rounds=20,
        neighbours=((1,), (0,)),
        message_bytes={(0, 1): (1,), (1, 0): (1,)},
        execution=Execution(staleness=3),
        compute=Compute(stragglers=Stragglers("exponential", fraction=1.0)),
        links={edge: Link(Latency("uniform", 0.001, 0.01)) for edge in ((0, 1), (1, 0))},
    )
    plan = simulate(scenario)
    the_freshest_message_that_has_arrived_is_used(scenario, plan)
    right = simulation.chosen_round
    wrong = {
        "not the freshest": lambda *arrived: max(0, right(*arrived) - 1),
        "before it came": lambda *arrived: right(*arrived) + 1,
        "too old|not": lambda *arrived: 0,
    }
    for complaint, rule in wrong.items():
        monkeypatch.setattr(simulation, "chosen_round", rule)
        with pytest.raises(AssertionError, match=complaint):
            the_freshest_message_that_has_arrived_is_used(scenario, simulate(scenario))
