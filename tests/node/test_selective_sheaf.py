"""Selective sheaf: who finds whom, what both ends of an edge agree on, and what messages that are lost do to it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import combinations
from threading import Barrier

import numpy as np
import pytest

from sheafgossip.node.algorithms.base import SettingsError
from sheafgossip.node.algorithms.selective_sheaf.method import SelectiveSheaf
from sheafgossip.node.assignment import Neighbour
from sheafgossip.node.client import Client
from sheafgossip.node.model.architecture import Architecture

ALPHA, CLIENTS = 0.05, 6
ONE_LAYER = Architecture("logistic", (59,), 5)
TWO_LAYERS = Architecture("mlp", (20,), 6, hidden=(10,))
EDGES = list(combinations(range(CLIENTS), 2))
LIKE = {(i, j) for i, j in EDGES if i % 2 == j % 2}
"""Clients with even numbers have one task, those with odd ones another."""


class Quadratic:
    """f(theta) = 1/2 ||theta - target||^2, from a start that all have in common; the target may change on the way."""

    def __init__(self, target: np.ndarray, samples: int):
        self.theta, self.target, self.train_samples, self.steps = np.full_like(target, 0.3), target, samples, 1

    def learn(self, pull: np.ndarray | float = 0.0, lam: float = 1.0) -> float:
        losses = []
        for _ in range(self.steps):
            gradient = self.theta - self.target
            self.theta -= ALPHA * (gradient + lam * pull)
            losses.append(float(gradient @ gradient) / 2)
        return sum(losses) / len(losses)


def targets(size: int, noise: float = 0.7) -> np.ndarray:
    rng = np.random.default_rng(4)
    tasks = rng.normal(size=(2, size))
    return 0.3 + tasks[np.arange(CLIENTS) % 2] + noise * rng.normal(size=(CLIENTS, size))


Lost = Callable[[int, int, int], bool]
"""Of round, sender and receiver."""


@dataclass
class Network:
    """Clients in threads, in step; what is not lost is heard by whoever listens."""

    lost: Lost = lambda round, src, dst: False
    barrier: Barrier = field(default_factory=lambda: Barrier(CLIENTS))
    sent: dict[tuple[int, int, int], np.ndarray] = field(default_factory=dict)
    """{(round, src, dst): message}, also of the lost ones"""
    words: dict[tuple[int, int, int], np.ndarray] = field(default_factory=dict)
    """What is said in meetings."""
    learners: dict[int, Quadratic] = field(default_factory=dict)
    clients: dict[int, Client] = field(default_factory=dict)
    weights: dict[tuple[int, int, int], float] = field(default_factory=dict)
    """{(round, i, j): w_ij as client i used it}"""
    votes: dict[tuple[int, int, int], bool] = field(default_factory=dict)
    """{(round, i, j): whether client i would have the edge on after the round}"""

    @property
    def thetas(self) -> np.ndarray:
        return np.stack([self.clients[node].theta for node in range(CLIENTS)])

    def on(self, round: int) -> set[tuple[int, int]]:
        """Edges that are on at both ends."""
        return {(i, j) for i, j in EDGES if self.votes[round, i, j] and self.votes[round, j, i]}


@dataclass
class Peers:
    node: int
    network: Network
    round: int = 0

    def exchange(self, vectors, *, quiet=None):
        network, meets = self.network, quiet is None
        assert meets or not set(vectors) & quiet
        said = network.words if meets else network.sent
        said |= {(self.round, self.node, j): vector.copy() for j, vector in vectors.items()}
        network.barrier.wait(10)
        if meets:  # who is waited for does speak
            return {j: said[self.round, j, self.node] for j in vectors}
        heard = [j for j in range(CLIENTS) if (self.round, j, self.node) in said]
        return {j: said[self.round, j, self.node] for j in heard if not network.lost(self.round, j, self.node)}

    def as_heard(self, vectors):
        return vectors


@pytest.fixture
def play(assignment):
    def play(
        rounds: int,
        lost: Lost = lambda round, src, dst: False,
        *,
        aims: np.ndarray | None = None,
        architecture: Architecture = ONE_LAYER,
        then: Callable[[int, int, Quadratic], None] = lambda round, node, learner: None,
        broken_at: int = 0,
        graph: tuple[set[int], ...] = (),
        samples: tuple[int, ...] = (1 << 40,) * CLIENTS,
        **settings,
    ) -> Network:
        network = Network(lost)
        algorithm = SelectiveSheaf(**{"gamma": 0.2, "threshold": 0.4} | settings)
        aims = targets(architecture.size) if aims is None else aims

        def born(node: int) -> Client:
            neighbours = tuple(
                Neighbour(j, architecture.size, 0.0 if graph and {node, j} not in graph else 0.2, samples=samples[j])
                for j in range(CLIENTS)
                if j != node
            )
            own = replace(assignment, node=node, neighbours=neighbours, architecture=architecture)
            network.learners[node] = Quadratic(aims[node], samples[node])
            own = replace(own, training=replace(own.training, alpha=ALPHA))
            client = network.clients[node] = Client(own, network.learners[node])
            client.state = algorithm.begin(client)
            return client

        def live(node: int) -> None:
            client, peers = born(node), Peers(node, network)
            for peers.round in range(1, rounds + 1):
                if peers.round == broken_at:  # another process goes on from the state of this one
                    theta, state = client.theta.copy(), {name: a.copy() for name, a in client.state.arrays().items()}
                    client = born(node)
                    client.theta[:] = theta
                    client.state.load(state)
                then(peers.round, node, network.learners[node])
                algorithm.round(client, peers)
                at = peers.round, node
                network.weights |= {(*at, j): weight for j, weight in client.report.weights.items()}
                network.votes |= {(*at, j): bool(edge.on.any()) for j, edge in client.state.edges.items()}

        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(live, range(CLIENTS)))
        return network

    return play


# -- who finds whom ----------------------------------------------------------------------------------------------------


def take_steps(round: int, node: int, learner: Quadratic) -> None:
    learner.steps = 1 + 2 * node + round % 2


@pytest.mark.parametrize("then", [lambda round, node, learner: None, take_steps], ids=["one step", "steps differ"])
def test_clients_of_one_task_find_each_other_and_leave_the_others_alone_whatever_their_local_work(play, then):
    played = play(60, then=then)
    assert played.on(60) == LIKE
    exact = played.thetas - 0.3
    for i, j in EDGES:
        cosine = exact[i] @ exact[j] / np.linalg.norm(exact[i]) / np.linalg.norm(exact[j])
        assert played.clients[i].report.cosines[j] == pytest.approx(cosine, abs=0.25)


def test_noisy_updates_of_one_task_find_each_other_by_it(play):
    """Targets are a task and more noise: cosines of one task are about 0.1 to 0.4."""
    settings = {"aims": targets(ONE_LAYER.size, noise=1.5), "gamma": 0.5, "threshold": 0.5, "samples": (10,) * CLIENTS}
    assert play(150, noise_samples=0.0, **settings).on(150) == set()
    assert play(150, noise_samples=15.0, **settings).on(150) == LIKE


def test_an_edge_can_agree_on_the_layers_before_the_last_and_not_on_the_last(play):
    """All clients have one extractor to learn; the heads of odd and even numbers differ."""
    aims = targets(TWO_LAYERS.size)
    extractor = TWO_LAYERS.size - 66
    aims[:, :extractor] = aims[0, :extractor] + 0.5 * np.random.default_rng(1).normal(size=(CLIENTS, extractor))
    clients = play(80, aims=aims, architecture=TWO_LAYERS, blocks="head", gamma=0.3).clients
    for i, j in EDGES:
        assert clients[i].state.edges[j].on.tolist() == [True, (i, j) in LIKE]


def test_a_client_without_neighbours_learns_alone(assignment):
    learner, alone = (Quadratic(targets(ONE_LAYER.size)[0], samples=1) for _ in range(2))
    client = Client(replace(assignment, neighbours=(), architecture=ONE_LAYER), learner)
    algorithm, peers = SelectiveSheaf(), Peers(0, Network(barrier=Barrier(1)))
    client.state = algorithm.begin(client)
    for peers.round in (1, 2):
        client.state.load(client.state.arrays())
        algorithm.round(client, peers)
        alone.learn()
    np.testing.assert_array_equal(client.theta, alone.theta)


# -- what both ends agree on -------------------------------------------------------------------------------------------


def a_third_is_lost(until: int) -> Lost:
    draws = np.random.default_rng(9).random((until + 1, CLIENTS, CLIENTS)) < 0.33
    return lambda round, src, dst: round <= until and bool(draws[round, src, dst])


@pytest.mark.parametrize("settings", [{"gamma": 0.05}, {"probe_every": 4}, {"threshold": 0.2, "sure": 0.5}])
def test_whoever_hears_each_other_in_a_round_uses_the_same_weight_in_it_whatever_was_lost(play, settings):
    lost = a_third_is_lost(100)
    played = play(100, lost, **{"gamma": 0.1} | settings)
    both = [(k, i, j) for k in range(1, 101) for i, j in EDGES if {(k, i, j), (k, j, i)} <= played.sent.keys()]
    heard = [(k, i, j) for k, i, j in both if not lost(k, i, j) and not lost(k, j, i)]
    assert len(heard) > 100
    assert all(played.weights[k, i, j] == played.weights[k, j, i] for k, i, j in heard)
    assert played.on(100) == LIKE
    differ = any(played.votes[k, i, j] != played.votes[k, j, i] for k in range(1, 101) for i, j in EDGES)
    assert differ or "gamma" not in settings  # so they do hold different opinions for a while


def test_an_end_that_would_have_the_edge_off_keeps_the_other_from_pulling(play):
    """Client 0 has heard nobody for 40 rounds: it has decided on nothing, and tells."""
    played = play(60, lambda round, src, dst: dst == 0 and round <= 40)
    assert played.votes[40, 2, 0]
    assert not played.votes[40, 0, 2]
    assert all(played.weights[k, 2, 0] == 0 for k in range(1, 50))
    assert played.weights[60, 0, 2] == played.weights[60, 2, 0] == 1


def test_soft_weights_of_two_ends_come_together_again_when_losses_end(play):
    """Their estimates differ by what only one of them heard, and each round that both hear takes a tenth of it away."""
    weights = play(90, a_third_is_lost(30), weights="soft", probe_every=1, threshold=0.0).weights
    gaps = {k: max(abs(weights[k, i, j] - weights[k, j, i]) for i, j in LIKE) for k in (32, 60, 90)}
    assert gaps[32] > 0
    assert gaps[60] < 0.15 * gaps[32]
    assert gaps[90] < 0.15 * gaps[60]
    assert 0.2 < weights[90, 0, 2] < 1  # the square of a cosine


# -- clients that seek, and tasks that change --------------------------------------------------------------------------

RING = tuple({node, (node + 1) % CLIENTS} for node in range(CLIENTS))
"""On which nobody is beside a client of its own task."""


def test_clients_that_seek_find_those_of_their_task_whom_the_graph_had_not_given_them(play):
    played = play(80, graph=RING, seek=True, probe_every=5)
    assert all(((10, i, j) in played.sent) == ({i, j} in RING) for i, j in EDGES)
    assert played.on(80) == LIKE
    apart = [(80, i, j) in played.sent for i, j in EDGES if (i, j) not in LIKE]
    assert sum(apart) < len(RING)  # of those that it began with some were given up
    assert {(k, j, i) for k, i, j in played.sent} == played.sent.keys()
    assert played.words.keys() >= {(15, i, (i + 1) % CLIENTS) for i in range(CLIENTS)}


@pytest.mark.parametrize(
    ("settings", "broken_at"),
    [
        ({"blocks": "head", "architecture": TWO_LAYERS, "probe_every": 3}, 27),
        ({"graph": RING, "seek": True, "probe_every": 5}, 32),  # after the first meetings
    ],
    ids=["blocks", "seeking"],
)
def test_who_goes_on_from_its_state_does_so_to_the_last_bit(play, settings, broken_at):
    whole, broken = play(60, **settings), play(60, broken_at=broken_at, **settings)
    np.testing.assert_array_equal(whole.thetas, broken.thetas)
    assert whole.sent.keys() == broken.sent.keys()


@pytest.mark.parametrize("restart", [True, False])
def test_a_client_whose_task_changes_starts_again_leaves_its_neighbours_and_finds_others(play, restart):
    """The task of client 0 becomes that of the others in round 60; with this lambda neighbours end near each other, and
    without a new start those who pull at each other stay alike."""
    aims = targets(ONE_LAYER.size)
    aims[0], other = aims[2] + 0.1, aims[1] + 0.1

    def then(round: int, node: int, learner: Quadratic) -> None:
        if round == 60 and node == 0:
            learner.target = other

    played = play(150, aims=aims, then=then, probe_every=5, lam=10.0, restart=restart)
    assert played.on(59) == LIKE  # nobody starts again as long as tasks stay
    if restart:
        left = {edge for edge in LIKE if 0 in edge}
        assert not any(played.votes[61, i, j] or played.votes[61, j, i] for i, j in left)  # at once, at both ends
        assert played.on(150) == LIKE - left | {(0, 1), (0, 3), (0, 5)}
    else:
        assert played.on(150) >= LIKE


def test_clients_that_start_apart_and_heads_without_layers_before_them_are_refused_in_one_line(run_facts):
    with pytest.raises(SettingsError, match=r"^model.same_start: = false: .* common start; set it to true$"):
        SelectiveSheaf().check(run_facts([ONE_LAYER], same_start=False))
    SelectiveSheaf(blocks="head").check(run_facts([TWO_LAYERS]))
    with pytest.raises(SettingsError, match=r"^algorithm.blocks: = 'head' needs a model with layers before"):
        SelectiveSheaf(blocks="head").check(run_facts([ONE_LAYER]))
