"""Synchronous plans in which nothing goes wrong are a max-plus recursion, written here once more, on matrices."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafgossip.launcher.planner import Compute, Latency, Link, Scenario, Stragglers, simulate
from sheafgossip.launcher.planner.draws import ComputeTimes, latencies

KINDS = ("none", "fixed", "lognormal", "exponential", "pareto", "on-off", "trace")
sizes = st.integers(1, 3000)
seconds = st.floats(0, 0.5)
rates = st.one_of(st.just(math.inf), st.floats(1e3, 1e6))


@st.composite
def scenarios(draw, limits=st.just(math.inf)):
    clients, rounds, phases = draw(st.integers(2, 7)), draw(st.integers(1, 8)), draw(st.integers(0, 2))
    pairs = {(draw(st.integers(0, i - 1)), i) for i in range(1, clients)}
    pairs |= set(draw(st.lists(st.sampled_from([(i, j) for j in range(clients) for i in range(j)]), max_size=8)))
    edges = sorted(pairs | {(j, i) for i, j in pairs})
    kinds = st.sampled_from(["fixed", "uniform", "lognormal"])
    delays = st.builds(lambda kind, low, more: Latency(kind, low, low + more), kinds, seconds, seconds)
    cells = st.tuples(st.integers(0, clients - 1), st.integers(1, rounds))
    stragglers = st.builds(
        Stragglers,
        kind=st.sampled_from(KINDS),
        fraction=st.floats(0, 1),
        factor=st.floats(0.1, 20),
        on_s=st.floats(0.05, 1),
        off_s=st.floats(0.05, 1),
        trace=st.dictionaries(cells, st.floats(0, 20), max_size=5),
    )
    return Scenario(
        seed=draw(st.integers(0, 2**32)),
        rounds=rounds,
        neighbours=tuple(tuple(j for k, j in edges if k == i) for i in range(clients)),
        message_bytes={edge: tuple(draw(sizes) for _ in range(phases)) for edge in edges},
        compute=Compute(
            step_s=draw(st.floats(0, 0.1)),
            steps=tuple(draw(st.integers(1, 5)) for _ in range(clients)),
            slowdown=tuple(draw(st.floats(0.5, 4)) for _ in range(clients)),
            stragglers=draw(stragglers),
        ),
        links={edge: Link(draw(delays), draw(limits)) for edge in edges},
        uplink=draw(limits),
    )


class MaxPlus:
    """Rounds of all clients at once."""

    def __init__(self, scenario):
        self.scenario, n = scenario, scenario.clients
        self.linked = np.zeros((n, n), bool)
        self.bandwidth = np.full((n, n), math.inf)
        self.bytes = np.zeros((scenario.phases, n, n))
        self.latency = np.zeros((scenario.rounds, scenario.phases, n, n))
        for (src, dst), link in scenario.links.items():
            self.linked[src, dst] = True
            self.bandwidth[src, dst] = link.bandwidth
            self.bytes[:, src, dst] = scenario.message_bytes[src, dst]
            drawn = latencies(link.latency, scenario.rounds, scenario.phases, scenario.seed, src, dst)
            self.latency[:, :, src, dst] = drawn
        self.uplink_free = np.zeros(n)
        self.link_free = np.zeros((n, n))
        self.arrived = np.zeros((n, n))

    def exchange(self, row, phase, sent):
        """When each client has the messages of all its neighbours, each having sent its own at ``sent``."""
        bytes = self.bytes[phase]
        left = np.maximum(sent, self.uplink_free)[:, None] + bytes.cumsum(axis=1) / self.scenario.uplink
        self.uplink_free = left[:, -1]
        self.link_free = np.maximum(left, self.link_free) + bytes / self.bandwidth
        self.arrived = np.maximum(self.link_free + self.latency[row, phase], self.arrived)
        return np.maximum(sent, np.where(self.linked, self.arrived, -math.inf).max(axis=0))

    def play(self):
        """(K, n) each: starts, computing times, ends, idle times."""
        times, rows = ComputeTimes(self.scenario), []
        now = np.zeros(self.scenario.clients)
        for row in range(self.scenario.rounds):
            start = now
            met = self.exchange(row, 0, start) if self.scenario.phases else start
            compute = np.array([times(i, row + 1, moment) for i, moment in enumerate(met.tolist())])
            worked = met + compute
            now = self.exchange(row, 1, worked) if self.scenario.phases == 2 else worked
            rows.append((start, compute, now, (met - start) + (now - worked)))
        return map(np.array, zip(*rows, strict=True))


def check(scenario):
    plan = simulate(scenario)
    start, compute, end, idle = MaxPlus(scenario).play()
    for i, schedule in enumerate(plan.schedules):
        for expected, planned in ((start, schedule.start), (compute, schedule.compute), (end, schedule.end)):
            np.testing.assert_allclose(planned, expected[:, i], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(schedule.idle, idle[:, i], rtol=1e-9, atol=1e-9)
        own = np.arange(1, scenario.rounds + 1)[:, None, None]
        np.testing.assert_array_equal(schedule.uses, np.broadcast_to(own, schedule.uses.shape))
    assert plan.synchronous
    assert len(plan.messages) == scenario.rounds * scenario.phases * len(scenario.links)


@settings(deadline=None, max_examples=80)
@given(scenarios())
def test_a_synchronous_plan_is_a_max_plus_recursion(scenario):
    check(scenario)


@settings(deadline=None, max_examples=80)
@given(scenarios(limits=rates))
def test_messages_queue_for_uplinks_and_links(scenario):
    check(scenario)


def test_two_clients_by_hand():
    # Both send at 0; client 1's message takes 0.5 s, so client 0 computes from 0.5 to 0.6, client 1 from 0.2 to 0.5.
    # Then client 0's second message comes to client 1 at 0.8, client 1's to client 0 at 1.
    scenario = Scenario(
        seed=0,
        rounds=1,
        neighbours=((1,), (0,)),
        message_bytes={(0, 1): (10, 10), (1, 0): (10, 10)},
        compute=Compute(step_s=0.1, steps=(1, 3)),
        links={(0, 1): Link(Latency(seconds=0.2)), (1, 0): Link(Latency(seconds=0.5))},
    )
    first, second = simulate(scenario).schedules
    np.testing.assert_allclose([*first.end, *second.end], [1.0, 0.8])
    np.testing.assert_allclose([*first.idle, *second.idle], [0.9, 0.5])
    np.testing.assert_allclose(first.delays[0, :, 0], [0.5, 0.5])
    assert first.waited_for.tolist() == [1]
