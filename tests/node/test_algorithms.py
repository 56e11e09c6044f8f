"""One round of each simple algorithm against its equation, with neighbours that say what the test wants."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from sheafgossip.node.algorithms import ALGORITHMS
from sheafgossip.node.algorithms.base import SettingsError
from sheafgossip.node.client import Client

ALPHA = 0.1
START = np.array([1.0, -2.0, 0.5, 3.0])
TARGET = np.array([0.0, 1.0, 2.0, -1.0])
THEIRS = {1: np.array([2.0, 2.0, 2.0, 2.0]), 5: np.array([-1.0, 0.0, 1.0, 0.5])}
WEIGHTS = {1: 0.25, 5: 0.5}


class Quadratic:
    """A learner whose loss is 1/2 ||theta - TARGET||^2: its gradient is theta - TARGET."""

    def __init__(self):
        self.theta = START.copy()

    def learn(self) -> float:
        loss = 0.5 * float(((self.theta - TARGET) ** 2).sum())
        self.theta -= ALPHA * (self.theta - TARGET)
        return loss


@dataclass
class FakePeers:
    """Answers every exchange with THEIRS, and keeps a copy of what was sent."""

    sent: list[dict[int, np.ndarray]] = field(default_factory=list)

    def exchange(self, vectors):
        self.sent.append({node: vector.copy() for node, vector in vectors.items()})
        return THEIRS


@pytest.fixture
def client(assignment) -> Client:
    neighbours = tuple(replace(peer, parameters=4, weight=WEIGHTS[peer.node]) for peer in assignment.neighbours)
    return Client(replace(assignment, neighbours=neighbours), Quadratic())


def one_round(client: Client, name: str, **settings) -> FakePeers:
    algorithm_class = ALGORITHMS[name]
    peers = FakePeers()
    algorithm_class(algorithm_class.Settings(**settings), client).round(client, peers)
    return peers


def announced(name: str, **settings) -> tuple[int, ...]:
    return ALGORITHMS[name].vectors(ALGORITHMS[name].Settings(**settings), 4, 4)


def test_local_training_takes_its_own_gradient_step_and_says_nothing(client):
    peers = one_round(client, "local")
    np.testing.assert_allclose(client.theta, START - ALPHA * (START - TARGET), rtol=1e-15)
    assert peers.sent == []
    assert announced("local") == ()


def test_d_psgd_averages_with_the_mixing_weights_and_steps_along_its_own_gradient(client):
    peers = one_round(client, "d-psgd")
    mixed = 0.25 * START + 0.25 * THEIRS[1] + 0.5 * THEIRS[5]
    np.testing.assert_allclose(client.theta, mixed - ALPHA * (START - TARGET), rtol=1e-14)
    assert announced("d-psgd") == (4,)
    assert [set(sent) for sent in peers.sent] == [{1, 5}]
    np.testing.assert_array_equal(list(peers.sent[0].values()), [START, START])


def test_dfedu_pulls_towards_the_sum_of_its_neighbours_differences(client):
    lam = 0.3
    peers = one_round(client, "dfedu", lam=lam)
    pull = (START - THEIRS[1]) + (START - THEIRS[5])
    np.testing.assert_allclose(client.theta, START - ALPHA * ((START - TARGET) + lam * pull), rtol=1e-14)
    assert announced("dfedu", lam=lam) == (4,)
    assert [set(sent) for sent in peers.sent] == [{1, 5}]
    np.testing.assert_array_equal(list(peers.sent[0].values()), [START, START])


@pytest.mark.parametrize("name", ["local", "d-psgd", "dfedu"])
def test_theta_is_changed_in_place_and_the_training_loss_is_that_before_the_step(client, name):
    theta = client.theta
    one_round(client, name)
    assert client.theta is theta
    assert not np.array_equal(theta, START)
    assert client.train_loss == 0.5 * ((START - TARGET) ** 2).sum()


@pytest.mark.parametrize("name", ["d-psgd", "dfedu"])
def test_algorithms_that_compare_whole_models_refuse_neighbours_of_different_sizes(name):
    algorithm = ALGORITHMS[name]
    algorithm.check(algorithm.Settings(), [4, 4, 7, 7], [(0, 1), (2, 3)])
    with pytest.raises(SettingsError, match=rf"^algorithm\.name = '{name}': .* 4 and 5 parameters"):
        algorithm.check(algorithm.Settings(), [4, 4, 5], [(0, 1), (1, 2)])


def test_local_training_does_not_mind_neighbours_of_different_sizes():
    ALGORITHMS["local"].check(ALGORITHMS["local"].Settings(), [4, 5], [(0, 1)])


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_an_algorithm_is_listed_under_the_name_of_its_settings(name):
    assert ALGORITHMS[name].Settings().name == name
