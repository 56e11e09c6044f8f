"""Where gossip algorithms end on quadratic losses, on a star: its clients weigh very differently."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue

import numpy as np
import pytest

from sheafgossip.node.algorithms import ALGORITHMS
from sheafgossip.node.assignment import Neighbour
from sheafgossip.node.client import Client
from sheafgossip.topology import TopologySpec, draw
from sheafgossip.topology.matchings import matchings
from sheafgossip.topology.weights import mixing_row

CLIENTS, SIZE, ALPHA = 5, 3, 0.1
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

    def exchange(self, vectors):
        for j, vector in vectors.items():
            self.boxes[self.node, j].put(vector.copy())
        return {j: self.boxes[j, self.node].get(timeout=10) for j in vectors}


@pytest.fixture
def last_thetas(assignment):
    """Plays an algorithm to its end, each client in a thread; returns its thetas (CLIENTS, SIZE)."""

    def play(name: str, rounds: int, curvatures: np.ndarray = CURVATURES) -> np.ndarray:
        graph = draw(TopologySpec("star"), CLIENTS, 0)
        numbers = matchings(graph)
        boxes = {(i, j): SimpleQueue() for edge in graph.edges for i, j in (edge, edge[::-1])}

        def live(node: int) -> np.ndarray:
            weights = mixing_row(graph, node, "metropolis-hastings")
            neighbours = tuple(
                Neighbour(j, SIZE, weights[j], matching=numbers[min(node, j), max(node, j)])
                for j in graph.neighbours(node)
            )
            own = replace(assignment, node=node, neighbours=neighbours, matchings=1 + max(numbers.values()))
            client, peers = Client(own, Quadratic(node, curvatures[node])), Mailboxes(node, boxes)
            algorithm = ALGORITHMS[name](ALGORITHMS[name].Settings(), client)
            for peers.round in range(1, rounds + 1):
                algorithm.round(client, peers)
            return client.theta

        with ThreadPoolExecutor(CLIENTS) as pool:
            return np.stack(list(pool.map(live, range(CLIENTS))))

    return play


@pytest.mark.parametrize("name", ["gradient-tracking", "d2"])
def test_different_losses_lead_every_client_to_the_minimiser_of_their_sum(last_thetas, name):
    np.testing.assert_allclose(last_thetas(name, 600), np.tile(MINIMISER, (CLIENTS, 1)), atol=1e-9)


def test_d_psgd_with_a_constant_step_stays_away_from_it(last_thetas):
    assert np.abs(last_thetas("d-psgd", 600) - MINIMISER).max() > 0.01


@pytest.mark.parametrize("name", ["push-sum", "pairwise", "d-psgd"])
def test_without_a_loss_all_clients_agree_on_the_mean_of_their_starts(last_thetas, name):
    ends = last_thetas(name, 300, 0 * CURVATURES)
    np.testing.assert_allclose(ends, np.tile(STARTS.mean(axis=0), (CLIENTS, 1)), atol=1e-9)
