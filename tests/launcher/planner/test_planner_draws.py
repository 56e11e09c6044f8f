"""What is drawn at random: in the right amount, the same each time, and each from a generator of its own."""

import dataclasses
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sheafgossip.launcher.planner.draws import ComputeTimes, Rates, draw_faults, latencies, strikes
from sheafgossip.launcher.planner.scenario import Fault, Links, Stragglers
from sheafgossip.launcher.planner.simulation import simulate
from sheafgossip.topology import Graph, GraphSequence

from .scenarios import edges_of, small

KINDS = ("none", "fixed", "lognormal", "exponential", "pareto", "on-off", "trace")
RING = ((1, 4), (0, 2), (1, 3), (2, 4), (0, 3))


def stragglers(kind):
    return Stragglers(kind, 0.6, path=Path("trace.csv") if kind == "trace" else None)


def scenario(neighbours=RING, **given):
    faults = Fault("crash", clients=(2,), at_round=10, restart_after=3), Fault("duplicate", probability=0.3)
    usual = {"seed": 1, "rounds": 30, "staleness": 2, "silence": "stale", "deadline_s": 20.0, "faults": faults}
    return small(neighbours, (100,), Links("lognormal", 0.01, loss=0.2), **usual | given)


def times_of(**compute):
    faults = Fault("slow", clients=(0,), rounds=(2, 3), factor=10.0), Fault("slow", clients=(1,), seconds=(5.0, 6.0))
    return ComputeTimes(scenario(rounds=20_000, step_s=1.0, **compute, faults=faults))


def parts(plan, clients):
    """Everything about these clients, to the bit."""
    arrays = [array.tobytes() for i in clients for array in vars(plan.schedules[i]).values()]
    return arrays, repr([plan.incarnations[i] for i in clients]), [m for m in plan.messages if m.src in clients]


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from([kind for kind in KINDS if kind != "on-off"]))
def test_draws_of_a_client_do_not_know_of_other_edges_and_faults_but_of_the_seed(seed, kind):
    def drawn(plan):
        messages = [m for m in plan.messages if 0 in (m.src, m.dst)]
        delays = {(m.src, m.dst, m.round): (round(m.arrived_s - m.left_s, 9), m.copies) for m in messages}
        return plan.schedules[0].compute.tolist(), delays

    # Messages neither queue nor overtake each other
    given = {"seed": seed, "step_s": 5.0, "stragglers": stragglers(kind), "trace": {(0, 3): 2.0}}
    alone = scenario(**given)
    chord = scenario(((1, 4), (0, 2, 3), (1, 3), (1, 2, 4), (0, 3)), **given)
    more = Fault("loss", edges=((2, 3),), probability=0.5), Fault("slow", clients=(3,), factor=2.0)
    with_faults = dataclasses.replace(alone, faults=alone.faults + more)
    assert drawn(simulate(alone)) == drawn(simulate(chord)) == drawn(simulate(with_faults))
    assert drawn(simulate(alone)) != drawn(simulate(dataclasses.replace(alone, seed=seed + 1)))


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(KINDS), staleness=st.sampled_from([0, 1, math.inf]))
def test_what_happens_in_one_part_of_a_graph_is_not_felt_in_another(seed, kind, staleness):
    two = ((1, 2), (0, 2), (0, 1), (4,), (3, 5), (4,))
    changed = ((1, 2), (0, 2), (0, 1), (4, 5), (3, 5), (3, 4))
    faults = (Fault("crash", clients=(0,), at_round=5, restart_after=2), Fault("delay", clients=(1,), delay_s=0.1))
    given = {"seed": seed, "stragglers": stragglers(kind), "uplink": 1e4, "staleness": staleness, "deadline_s": 0.05}
    before = simulate(scenario(two, faults=faults, **given))
    elsewhere = (Fault("leave", clients=(5,), at_round=3), Fault("cut", clients=(4,), seconds=(0.1, 0.3)))
    after = simulate(scenario(changed, faults=faults + elsewhere, **given))
    assert parts(before, range(3)) == parts(after, range(3))


def test_strikes_come_with_their_probability_and_each_direction_and_fault_has_its_own():
    every = [strikes(0.2, (10_000, 2), 0, "loss", *edge) for edge in ((1, 2), (2, 1))]
    every += [strikes(0.2, (10_000, 2), 0, "fault", place, *edge) for place in (0, 1) for edge in ((1, 2), (2, 1))]
    assert [drawn.mean() for drawn in every] == [pytest.approx(0.2, rel=0.05)] * 6
    assert len({drawn.tobytes() for drawn in every}) == 6
    assert not strikes(0.0, (10, 2), 0, "loss", 1, 2).any()
    assert strikes(1.0, (10, 2), 0, "fault", 0, 1, 2).all()


@pytest.mark.parametrize(("fraction", "count"), [(0.0, 0), (0.2, 2), (0.25, 3), (0.5, 5), (1.0, 10)])
def test_a_fraction_of_the_clients_straggles(fraction, count):
    ten, spread = small(((),) * 10), Stragglers("fixed", fraction, 7.0)
    every = [ComputeTimes(dataclasses.replace(ten, stragglers=spread, seed=seed)).stragglers for seed in range(20)]
    assert {len(drawn) for drawn in every} == {count}
    assert count in (0, 10) or len(set(every)) > 5
    times = times_of(steps=(1, 2, 3, 4, 5), stragglers=spread)
    assert [times(i, 1, 0.0) for i in range(5)] == [(i + 1) * (7.0 if i in times.stragglers else 1) for i in range(5)]


def test_messages_and_evaluations_are_part_of_local_work():
    """There are 2 neighbours and 3 messages to each of them in a round; in the directed ring, 1 neighbour."""
    given = {
        "step_s": 1.0,
        "message_s": 0.5,
        "evaluation_s": 10.0,
        "evaluated": (2, 5),
        "slowdown": (1.0,) * 4 + (2.0,),
    }
    given |= {"rounds": 5, "stragglers": stragglers("none"), "message_bytes": dict.fromkeys(edges_of(RING), (1, 1, 1))}
    times = ComputeTimes(scenario(**given))
    assert [times(0, round, 0.0) for round in range(1, 6)] == [4.0, 14.0, 4.0, 4.0, 14.0]
    assert [times(4, round, 0.0) for round in range(1, 6)] == [8.0, 28.0, 8.0, 8.0, 28.0]
    ring = GraphSequence((Graph.of(5, [(i, (i + 1) % 5) for i in range(5)], directed=True),))
    assert ComputeTimes(scenario(**given, graphs=ring))(0, 1, 0.0) == 2.5


def test_a_trace_and_a_slow_fault_name_rounds():
    times = times_of(trace={(0, 2): 4.0, (0, 99_999): 5.0, (77, 1): 6.0})
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
    times = times_of(stragglers=stragglers)
    factors = np.array([times(i, round, 0.0) for i in range(2, 5) for round in range(1, 20_001)])
    assert factors.min() >= least
    assert factors.mean() == pytest.approx(mean, rel=0.03)


def test_on_off_stragglers_are_on_for_their_share_of_the_time():
    times = times_of(stragglers=Stragglers("on-off", 1.0, factor=9.0, on_s=10.0, off_s=30.0))
    assert times(0, 1, 0.0) == 1.0
    now = np.linspace(0, 40_000, 5_000)
    seen = [times(0, 1, moment) for moment in now.tolist()]
    assert set(seen) == {1.0, 9.0}
    assert np.mean(np.array(seen) == 9.0) == pytest.approx(0.25, abs=0.03)
    assert [times(0, 1, moment) for moment in now[::-1].tolist()] == seen[::-1]


def test_latencies_have_the_distribution_of_their_kind():
    kinds = ("fixed", "uniform", "lognormal")
    fixed, uniform, lognormal = (latencies(Links(kind, 0.1, 0.3, 0.5), (10_000, 2), 0, 1, 2) for kind in kinds)
    assert (fixed == 0.1).all()
    assert ((uniform >= 0.1) & (uniform < 0.3)).all()
    assert uniform.mean() == pytest.approx(0.2, rel=0.01)
    assert np.median(lognormal) == pytest.approx(0.1, rel=0.03)
    assert np.log(lognormal).std() == pytest.approx(0.5, rel=0.03)


def test_random_faults_are_as_frequent_as_their_rates_and_come_in_an_order_in_which_they_can_happen():
    faults = draw_faults(Rates(join=0.2, crash=0.5, restart=0.5, leave=0.1, slow=1), 0, 4000, [], 40)
    counts = Counter(fault.kind for fault in faults)
    assert [counts[kind] for kind in ("join", "crash", "leave")] == pytest.approx([800, 2000, 400], rel=0.15)
    assert {fault.restart_after for fault in faults} == {None, 4}
    assert sum(fault.restart_after == 4 for fault in faults) == pytest.approx(1000, rel=0.1)
    order = ("join", "crash", "leave", "slow")
    for client in range(200):
        own = [(order.index(fault.kind), fault.at_round or 40) for fault in faults if fault.clients == (client,)]
        for values in zip(*own, strict=True):
            assert list(values) == sorted(values)
        assert len({kind for kind, _ in own}) == len(own)
