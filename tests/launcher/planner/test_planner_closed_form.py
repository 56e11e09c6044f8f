"""Synchronous plans in which nothing goes wrong are a max-plus recursion, written here once more, on matrices."""

import math

import numpy as np
from hypothesis import given, settings

from sheafgossip.launcher.planner import Compute, Latency, Link, Scenario, simulate
from sheafgossip.launcher.planner.draws import ComputeTimes, latencies

from .test_planner_laws import scenarios


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
            drawn = latencies(link.latency, (scenario.rounds, scenario.phases), scenario.seed, src, dst)
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


@settings(deadline=None, max_examples=120)
@given(scenarios(calm=True))
def test_a_synchronous_plan_is_a_max_plus_recursion(scenario):
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
