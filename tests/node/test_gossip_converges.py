"""Where gossip algorithms end on quadratic losses: on a star, whose clients weigh very differently, and on others."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue

import numpy as np
import pytest

from sheafgossip.launcher.prepare.assignments import periods
from sheafgossip.node.algorithms import ALGORITHMS
from sheafgossip.node.assignment import Neighbour
from sheafgossip.node.client import Client
from sheafgossip.topology import TopologySpec, draw_sequence
from sheafgossip.topology.graph import matchings
from sheafgossip.topology.weights import mixing_row

CLIENTS, SIZE, ALPHA = 5, 3, 0.1
STAR = TopologySpec("star")
ONE_WAY = TopologySpec(p=0.4, directed=True)
"""Strongly connected, and its clients send to one to three others."""
RNG = np.random.default_rng(2)
STARTS, TARGETS = RNG.normal(size=(2, CLIENTS, SIZE))
CURVATURES = RNG.uniform(0.5, 2, size=(CLIENTS, SIZE))
MINIMISER = (CURVATURES * TARGETS).sum(axis=0) / CURVATURES.sum(axis=0)


class Quadratic:
    """f(theta) = 1/2 (theta - target)' diag(curvature) (theta - target)"""

    def __init__(self, node: int, curvature: np.ndarray):
        self.theta, self.target, self.curvature = STARTS[node].copy(), TARGETS[node], curvature

    def learn(self) -> float:
        self.theta -= ALPHA * self.curvature * (self.theta - self.target)
        return 0.0


class Mailboxes:
    """Peers of one client among others in this process."""

    def __init__(self, node: int, boxes: dict[tuple[int, int], SimpleQueue]):
        self.node, self.boxes, self.round = node, boxes, 0

    def exchange(self, vectors, senders=None):
        for j, vector in vectors.items():
            self.boxes[self.node, j].put(vector.copy())
        return {j: self.boxes[j, self.node].get(timeout=10) for j in (vectors if senders is None else senders)}


@pytest.fixture
def last_thetas(assignment):
    """Plays an algorithm to its end, each client in a thread; returns its thetas (CLIENTS, SIZE)."""

    def play(name: str, rounds: int, curvatures: np.ndarray = CURVATURES, spec: TopologySpec = STAR) -> np.ndarray:
        graphs = draw_sequence(spec, CLIENTS, 0, rounds)
        graph = graphs.union
        numbers = matchings(graph)
        boxes = {(i, j): SimpleQueue() for edge in graph.edges for i, j in (edge, edge[::-1])}

        def live(node: int) -> np.ndarray:
            weights = mixing_row(graph, node, "metropolis-hastings")
            neighbours = tuple(
                Neighbour(j, SIZE, weights[j], facts=numbers[min(node, j), max(node, j)])
                for j in graph.neighbours(node)
            )
            own = replace(
                assignment,
                node=node,
                neighbours=neighbours,
                facts=1 + max(numbers.values()),
                run=replace(assignment.run, rounds_a_period=graphs.rounds_each),
                periods=periods(graphs, node, "metropolis-hastings"),
            )
            client, peers = Client(own, Quadratic(node, curvatures[node])), Mailboxes(node, boxes)
            algorithm = ALGORITHMS[name]()
            client.state = algorithm.begin(client)
            for peers.round in range(1, rounds + 1):
                client.enter(peers.round)
                algorithm.round(client, peers)
            return client.theta

        with ThreadPoolExecutor(CLIENTS) as pool:
            return np.stack(list(pool.map(live, range(CLIENTS))))

    return play


@pytest.mark.parametrize(
    ("name", "spec"),
    [("gradient-tracking", STAR), ("gradient-tracking", TopologySpec(p=0.4, redraw_every=1)), ("d2", STAR)],
)
def test_different_losses_lead_every_client_to_the_minimiser_of_their_sum(last_thetas, name, spec):
    np.testing.assert_allclose(last_thetas(name, 600, spec=spec), np.tile(MINIMISER, (CLIENTS, 1)), atol=1e-9)


def test_d_psgd_with_a_constant_step_stays_away_from_it(last_thetas):
    assert np.abs(last_thetas("d-psgd", 600) - MINIMISER).max() > 0.01


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        *(("push-sum", STAR), ("pairwise", STAR), ("d-psgd", STAR)),
        *(("push-sum", ONE_WAY), ("push-sum", replace(ONE_WAY, redraw_every=2))),
        ("d-psgd", TopologySpec("one-peer-exponential")),
        ("d-psgd", TopologySpec("ring", directed=True)),
        ("d-psgd", TopologySpec(p=0.4, redraw_every=2)),
    ],
)
def test_without_a_loss_all_clients_agree_on_the_mean_of_their_starts(last_thetas, name, spec):
    ends = last_thetas(name, 300, 0 * CURVATURES, spec)
    np.testing.assert_allclose(ends, np.tile(STARTS.mean(axis=0), (CLIENTS, 1)), atol=1e-9)


def test_with_the_mixing_of_d_psgd_they_agree_on_another_point_where_the_weights_are_not_doubly_stochastic(last_thetas):
    ends = last_thetas("d-psgd", 300, 0 * CURVATURES, ONE_WAY)
    np.testing.assert_allclose(ends, np.tile(ends[0], (CLIENTS, 1)), atol=1e-9)
    assert np.abs(ends[0] - STARTS.mean(axis=0)).max() > 0.01
