"""``sheafgossip.testing``, as the author of an algorithm uses it."""

from dataclasses import dataclass

import pytest

import sheafgossip as sg


@dataclass(frozen=True)
class HalfWay(sg.Algorithm):
    way: float = 0.3
    traits = sg.Traits(same_size=True)

    def round(self, client, peers):
        client.learn()
        theirs = peers.exchange(dict.fromkeys(client.neighbours, client.theta))
        if theirs:
            client.theta += self.way * (sum(theirs.values()) / len(theirs) - client.theta)


@dataclass(frozen=True)
class Forgetful(HalfWay):
    """Keeps what it has heard where no checkpoint sees it."""

    def begin(self, client):
        return sg.State(_sum=0 * client.theta)

    def round(self, client, peers):
        super().round(client, peers)
        client.state._sum = client.state._sum + client.theta
        client.theta += 0.01 * client.state._sum


@dataclass(frozen=True)
class Careless(HalfWay):
    def round(self, client, peers):
        client.learn()
        theirs = peers.exchange(dict.fromkeys(client.neighbours, client.theta))
        client.theta += self.way * (theirs[min(client.neighbours)] - client.theta)


@dataclass(frozen=True)
class Random(HalfWay):
    def round(self, client, peers):
        super().round(client, peers)
        client.theta += 1e-6 * id(client) % 7


def test_a_network_is_its_matrix_form():
    network = sg.testing.Network(HalfWay(), clients=5, rounds=4)
    theta = network.start
    for _ in range(network.rounds):
        theta = theta - network.alpha * network.gradients(theta)
        theta = theta + 0.3 * (network.means(theta) - theta)
    network.assert_ends_at(theta)
    with pytest.raises(AssertionError, match="the relative error is"):
        network.assert_ends_at(theta + 0.01)
    assert set(network.sent.values()) == {8 * theta.shape[1]}
    assert network.W.sum(axis=0) == pytest.approx([1] * 5)


def test_an_algorithm_that_keeps_its_promises_passes():
    sg.testing.check(HalfWay())


@pytest.mark.parametrize(
    ("algorithm", "text"),
    [(Forgetful(), "does not go on from its state"), (Random(), "a second run differs"), (Careless(), "KeyError")],
)
def test_one_that_does_not_is_told_what_is_wrong(algorithm, text):
    with pytest.raises((AssertionError, sg.Error), match=text):
        sg.testing.check(algorithm)
