import dataclasses
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafgossip.launcher.planner import Compute, Execution, Fault, Latency, Link, Scenario, Stragglers, simulate
from sheafgossip.launcher.planner.chaos import Rates, draw_faults
from sheafgossip.launcher.planner.draws import ComputeTimes, latencies, losses, stragglers_of, strikes

KINDS = ("none", "fixed", "lognormal", "exponential", "pareto", "on-off", "trace")
RING = ((1, 4), (0, 2), (1, 3), (2, 4), (0, 3))


def stragglers(kind, fraction=0.2):
    return Stragglers(kind, fraction, path=Path("trace.csv") if kind == "trace" else None)


def scenario_of(neighbours=RING, **given):
    edges = [(i, j) for i, others in enumerate(neighbours) for j in others]
    link = Link(Latency("lognormal", 0.01), loss=0.2)
    everything = {
        "seed": 1,
        "rounds": 30,
        "neighbours": neighbours,
        "message_bytes": dict.fromkeys(edges, (100, 200)),
        "execution": Execution(staleness=2, silence="stale", deadline_s=20.0),
        "compute": Compute(step_s=5.0, stragglers=Stragglers("lognormal", fraction=0.6)),
        "links": dict.fromkeys(edges, link),
        "faults": (Fault("crash", clients=(2,), at_round=10, restart_after=3), Fault("duplicate", probability=0.3)),
    }
    return Scenario(**everything | given)


def assert_same(first, second, clients):
    for i in clients:
        for field in dataclasses.fields(first.schedules[i]):
            one, other = (getattr(plan.schedules[i], field.name) for plan in (first, second))
            np.testing.assert_array_equal(one, other, field.name)
        assert [dataclasses.asdict(life) for life in first.incarnations[i]] == [
            pytest.approx(dataclasses.asdict(life), nan_ok=True) for life in second.incarnations[i]
        ]
        assert [m for m in first.messages if m.src == i] == [m for m in second.messages if m.src == i]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_scenario_has_the_same_plan_and_another_seed_another(kind):
    scenario = scenario_of(compute=Compute(stragglers=stragglers(kind), trace={(1, 2): 3.0}))
    first, second = simulate(scenario), simulate(scenario)
    assert_same(first, second, range(5))
    assert (first.events, first.synchronous, first.end_s) == (second.events, second.synchronous, second.end_s)
    assert first.messages == second.messages
    plans = [simulate(dataclasses.replace(scenario, seed=seed)) for seed in range(5)]
    assert len({plan.end_s for plan in plans}) > 1
    assert len({tuple(m.copies for m in plan.messages[:500]) for plan in plans}) == 5


def test_losses_and_strikes_come_with_their_probability_and_each_direction_and_fault_has_its_own():
    rare, shape = Fault("loss", probability=0.2), (10_000, 2)
    every = [losses(0.2, shape, 0, *edge) for edge in ((1, 2), (2, 1))]
    every += [strikes(rare, place, shape, 0, *edge) for place in (0, 1) for edge in ((1, 2), (2, 1))]
    assert [drawn.mean() for drawn in every] == [pytest.approx(0.2, rel=0.05)] * 6
    assert len({drawn.tobytes() for drawn in every}) == 6
    assert not losses(0.0, (10, 2), 0, 1, 2).any()
    assert strikes(Fault("cut"), 0, (10, 2), 0, 1, 2).all()


def drawn(plan, client, elsewhere):
    """What is drawn for a client and for the links between it and others than those ``elsewhere``."""
    links = [m for m in plan.messages if client in (m.src, m.dst) and not {m.src, m.dst} & elsewhere]
    messages = {(m.src, m.dst, m.round, m.phase): (round(m.arrived_s - m.left_s, 9), m.copies) for m in links}
    return plan.schedules[client].compute, messages


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from([kind for kind in KINDS if kind != "on-off"]))
def test_draws_of_a_client_do_not_know_of_other_edges_and_faults(seed, kind):
    compute = Compute(step_s=5.0, stragglers=stragglers(kind, 0.6), trace={(0, 3): 2.0})
    neither_queues_nor_clamps = dict.fromkeys([(i, j) for i in range(5) for j in range(5)], (100,))
    given = {"seed": seed, "compute": compute, "message_bytes": neither_queues_nor_clamps}
    scenario = scenario_of(**given)
    times, messages = drawn(simulate(scenario), 0, set())
    assert messages
    chord = ((1, 4), (0, 2, 3), (1, 3), (1, 2, 4), (0, 3))
    with_chord = scenario_of(chord, **given)
    more = Fault("loss", edges=((2, 3),), probability=0.5), Fault("slow", clients=(3,), factor=2.0)
    with_faults = dataclasses.replace(scenario, faults=scenario.faults + more)
    for changed in (with_chord, with_faults):
        times_there, messages_there = drawn(simulate(changed), 0, set())
        np.testing.assert_array_equal(times_there, times)
        assert messages_there == messages


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(KINDS), staleness=st.sampled_from([0, 1, math.inf]))
def test_what_happens_in_one_part_of_a_graph_is_not_felt_in_another(seed, kind, staleness):
    two = ((1, 2), (0, 2), (0, 1), (4,), (3, 5), (4,))
    changed = ((1, 2), (0, 2), (0, 1), (4, 5), (3, 5), (3, 4))
    compute = Compute(stragglers=stragglers(kind, 0.6))
    execution = Execution(staleness=staleness, deadline_s=0.05)
    faults = (Fault("crash", clients=(0,), at_round=5, restart_after=2), Fault("delay", clients=(1,), delay_s=0.1))
    given = {"seed": seed, "compute": compute, "execution": execution, "uplink": 1e4}
    before = simulate(scenario_of(two, faults=faults, **given))
    elsewhere = (Fault("leave", clients=(5,), at_round=3), Fault("cut", clients=(4,), seconds=(0.1, 0.3)))
    after = simulate(scenario_of(changed, faults=faults + elsewhere, **given))
    assert_same(before, after, range(3))


@pytest.mark.parametrize(("fraction", "count"), [(0.0, 0), (0.2, 2), (0.25, 3), (0.5, 5), (1.0, 10)])
def test_a_fraction_of_the_clients_straggles(fraction, count):
    every = [stragglers_of(Stragglers("fixed", fraction), 10, seed) for seed in range(20)]
    assert {len(set(drawn)) for drawn in every} == {count}
    assert count in (0, 10) or len(set(map(tuple, every))) > 5
    stragglers = Stragglers("fixed", fraction, 7.0)
    times = ComputeTimes(scenario_of(compute=Compute(step_s=2.0, steps=(1, 2, 3, 4, 5), stragglers=stragglers)))
    for i in range(5):
        assert times(i, 3, 0.0) == 2.0 * (i + 1) * (7.0 if i in times.stragglers else 1.0)


def test_a_trace_and_a_slow_fault_name_rounds():
    compute = Compute(step_s=1.0, trace={(0, 2): 4.0, (0, 99): 5.0, (77, 1): 6.0})
    slow = Fault("slow", clients=(0,), rounds=(2, 3), factor=10.0), Fault("slow", clients=(1,), seconds=(5.0, 6.0))
    times = ComputeTimes(scenario_of(compute=compute, faults=slow))
    assert [times(0, round, 0.0) for round in (1, 2, 3, 4)] == [1.0, 40.0, 10.0, 1.0]
    assert [times(1, 1, now) for now in (4.9, 5.0, 5.9, 6.0)] == [1.0, 10.0, 10.0, 1.0]


@pytest.mark.parametrize(
    ("stragglers", "mean", "least"),
    [
        (Stragglers("lognormal", 1.0, sigma=0.5), math.exp(0.125), 0.0),
        (Stragglers("exponential", 1.0, mean=3.0), 4.0, 1.0),
        (Stragglers("pareto", 1.0, shape=4.0), 4 / 3, 1.0),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_factors_have_the_distribution_of_their_kind(stragglers, mean, least):
    times = ComputeTimes(scenario_of(rounds=20_000, compute=Compute(1.0, stragglers=stragglers)))
    factors = np.array([times(i, round, 0.0) for i in range(5) for round in range(1, 20_001)])
    assert factors.min() >= least
    assert factors.mean() == pytest.approx(mean, rel=0.03)


def test_on_off_stragglers_are_on_for_their_share_of_the_time():
    stragglers = Stragglers("on-off", 1.0, factor=9.0, on_s=10.0, off_s=30.0)
    times = ComputeTimes(scenario_of(compute=Compute(1.0, stragglers=stragglers)))
    assert times(0, 1, 0.0) == 1.0
    now = np.linspace(0, 40_000, 5_000)
    seen = [times(0, 1, moment) for moment in now.tolist()]
    assert set(seen) == {1.0, 9.0}
    assert np.mean(np.array(seen) == 9.0) == pytest.approx(0.25, abs=0.03)
    back = [times(0, 1, moment) for moment in now[::-1].tolist()]
    assert back == seen[::-1]


def test_latencies_have_the_distribution_of_their_kind():
    fixed, uniform, lognormal = (
        latencies(Latency(kind, 0.1, 0.3, sigma=0.5), (10_000, 2), 0, 1, 2)
        for kind in ("fixed", "uniform", "lognormal")
    )
    assert (fixed == 0.1).all()
    assert ((uniform >= 0.1) & (uniform < 0.3)).all()
    assert uniform.mean() == pytest.approx(0.2, rel=0.01)
    assert np.median(lognormal) == pytest.approx(0.1, rel=0.03)
    assert np.log(lognormal).std() == pytest.approx(0.5, rel=0.03)


def test_random_faults_combine_on_one_client_in_the_order_in_which_they_can_happen():
    faults = draw_faults(Rates(join=1, crash=1, restart=1, leave=1, slow=1), 3, 5, [], 40)
    for client in range(5):
        own = {fault.kind: fault for fault in faults if fault.clients == (client,)}
        assert list(own) == ["join", "crash", "leave", "slow"]
        moments = [own[kind].at_round for kind in ("join", "crash", "leave")]
        assert moments == sorted(moments)
        assert own["crash"].restart_after == 4


def test_random_faults_are_as_frequent_as_their_rates():
    faults = draw_faults(Rates(join=0.2, crash=0.5, restart=0.5, leave=0.1), 0, 4000, [], 40)
    counts = Counter(fault.kind for fault in faults)
    assert counts["join"] == pytest.approx(800, rel=0.1)
    assert counts["crash"] == pytest.approx(2000, rel=0.1)
    assert counts["leave"] == pytest.approx(400, rel=0.15)
    back = sum(fault.restart_after is not None for fault in faults)
    assert back == pytest.approx(1000, rel=0.1)
