"""Plans in which nothing goes wrong are recursions, written here once more; with a server, too."""

import dataclasses
import random
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sheafgossip.launcher.planner.draws import ComputeTimes, latencies
from sheafgossip.launcher.planner.scenario import Link, Scenario
from sheafgossip.launcher.planner.simulation import simulate

from .scenarios import scenario_of


class Network:
    """Each uplink, then each link, carries one message after the other; none overtakes another."""

    def __init__(self, scenario: Scenario):
        self.scenario, shape = scenario, (scenario.rounds, scenario.phases)
        self.opening = scenario.star.opening if scenario.star else 0
        self.links = {edge: scenario.links.get(edge, Link()) for edge in scenario.message_bytes}
        self.latency = {edge: latencies(each, shape, scenario.seed, *edge) for edge, each in self.links.items()}
        self.uplink_free, self.link_free, self.arrived = (defaultdict(float) for _ in range(3))

    def arrival(self, src: int, dst: int, round: int, phase: int, sent: float) -> float:
        edge = src, dst
        size = self.scenario.message_bytes[edge][phase if round == 1 else self.opening + phase]
        self.uplink_free[src] = max(sent, self.uplink_free[src]) + size / self.scenario.uplink
        self.link_free[edge] = max(self.uplink_free[src], self.link_free[edge]) + size / self.links[edge].bandwidth
        self.arrived[edge] = max(self.link_free[edge] + self.latency[edge][round - 1, phase], self.arrived[edge])
        return self.arrived[edge]


recursion = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
randoms = st.randoms(use_true_random=False)


@recursion
@given(randoms)
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
                idle += met - now
                now = met
            if phase == 0:
                compute = np.array([works(i, round, now[i]) for i in everyone])
                now = now + compute
        for i, planned in enumerate(plan.schedules):
            of_round = [each[round - 1] for each in (planned.start, planned.compute, planned.end, planned.idle)]
            np.testing.assert_allclose(of_round, [start[i], compute[i], now[i], idle[i]], rtol=1e-9, atol=1e-9)
            assert (planned.uses[round - 1] == round).all()
    assert plan.synchronous
    assert len(plan.messages) == scenario.rounds * scenario.phases * len(scenario.message_bytes)


@recursion
@given(randoms)
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
