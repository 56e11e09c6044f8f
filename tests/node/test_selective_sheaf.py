"""Selective sheaf: who finds whom, what both ends of an edge agree on, and what messages that are lost do to it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import combinations
from threading import Barrier

import numpy as np
import pytest

from sheafgossip.launcher.config.sections import ConfigError, validate
from sheafgossip.node.algorithms.base import Edge, SettingsError, Vector
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

    def __init__(self, target: np.ndarray):
        self.theta, self.target = np.full_like(target, 0.3), target

    steps = 1
    train_samples = 1 << 40

    def learn(self, pull: np.ndarray | float = 0.0, lam: float = 1.0) -> float:
        losses = []
        for _ in range(self.steps):
            gradient = self.theta - self.target
            self.theta -= ALPHA * (gradient + lam * pull)
            losses.append(float(gradient @ gradient) / 2)
        return sum(losses) / len(losses)


def targets(size: int, seed: int = 4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    tasks = rng.normal(size=(2, size))
    return 0.3 + tasks[np.arange(CLIENTS) % 2] + 0.7 * rng.normal(size=(CLIENTS, size))


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


@dataclass
class Peers:
    node: int
    network: Network
    round: int = 0

    def exchange(self, vectors, *, quiet=None):
        if quiet is None:
            return self.meet(vectors)
        assert not set(vectors) & quiet
        for j, vector in vectors.items():
            self.network.sent[self.round, self.node, j] = vector.copy()
        self.network.barrier.wait(10)
        return {j: self.network.sent[self.round, j, self.node] for j in range(CLIENTS) if self.hears(j)}

    def as_heard(self, vectors):
        return vectors

    def meet(self, words):
        for j, word in words.items():
            self.network.words[self.round, self.node, j] = word
        self.network.barrier.wait(10)
        assert all((self.round, j, self.node) in self.network.words for j in words)  # who is waited for does speak
        return {j: self.network.words[self.round, j, self.node] for j in words}

    def hears(self, j: int) -> bool:
        was_sent = (self.round, j, self.node) in self.network.sent
        return was_sent and not self.network.lost(self.round, j, self.node)


@dataclass
class Played:
    network: Network
    thetas: np.ndarray
    weights: dict[tuple[int, int, int], float]
    """{(round, i, j): w_ij as client i used it}"""
    votes: dict[tuple[int, int, int], bool]
    """{(round, i, j): whether client i would have the edge on after the round}"""
    clients: list[Client]

    def spoke(self, round: int, i: int, j: int) -> bool:
        return (round, i, j) in self.network.sent

    def on(self, round: int) -> set[tuple[int, int]]:
        """Edges that are on at both ends."""
        return {(i, j) for i, j in EDGES if self.votes[round, i, j] and self.votes[round, j, i]}


@pytest.fixture
def play(assignment):
    def play(
        rounds: int,
        network: Network | None = None,
        aims: np.ndarray | None = None,
        architecture: Architecture = ONE_LAYER,
        then: Callable[[int, int, Client], None] = lambda round, node, client: None,
        broken_at: int = 0,
        graph: tuple[set[int], ...] = (),
        samples: Callable[[int], int] = lambda node: 1 << 40,
        **settings,
    ) -> Played:
        network = network or Network()
        algorithm = SelectiveSheaf(**{"gamma": 0.2, "threshold": 0.4} | settings)
        aims = targets(architecture.size) if aims is None else aims
        weights, votes, clients = {}, {}, {}

        def born(node: int) -> Client:
            neighbours = tuple(
                Neighbour(j, architecture.size, 0.0 if graph and {node, j} not in graph else 0.2, samples=samples(j))
                for j in range(CLIENTS)
                if j != node
            )
            own = replace(assignment, node=node, neighbours=neighbours, architecture=architecture)
            learner = Quadratic(aims[node])
            learner.train_samples = samples(node)
            client = Client(replace(own, training=replace(own.training, alpha=ALPHA)), learner)
            client.state = algorithm.begin(client)
            return client

        def live(node: int) -> np.ndarray:
            client, peers = born(node), Peers(node, network)
            for peers.round in range(1, rounds + 1):
                if peers.round == broken_at:  # another process goes on from the state of this one
                    theta, state = client.theta.copy(), {name: a.copy() for name, a in client.state.arrays().items()}
                    client = born(node)
                    client.theta[:] = theta
                    client.state.load(state)
                then(peers.round, node, client)
                algorithm.round(client, peers)
                for j, weight in client.report.weights.items():
                    weights[peers.round, node, j] = weight
                for j, edge in client.state.edges.items():
                    votes[peers.round, node, j] = bool(edge.on.any())
            clients[node] = client
            return client.theta

        with ThreadPoolExecutor(CLIENTS) as pool:
            thetas = np.stack(list(pool.map(live, range(CLIENTS))))
        return Played(network, thetas, weights, votes, [clients[node] for node in range(CLIENTS)])

    return play


def test_clients_of_one_task_find_each_other_and_leave_the_others_alone(play):
    played = play(60)
    assert played.on(60) == LIKE
    exact = played.thetas - 0.3
    for i, j in EDGES:
        cosine = exact[i] @ exact[j] / np.linalg.norm(exact[i]) / np.linalg.norm(exact[j])
        assert played.clients[i].report.cosines[j] == pytest.approx(cosine, abs=0.25)


def test_clients_with_few_samples_are_alike_from_a_smaller_cosine(play):
    """By hand: kappa = 12 as many samples again at one end leave half of its signal."""
    samples = (4, 12, 36, 4, 12, 36)
    played = play(1, samples=lambda node: samples[node], noise_samples=12.0, threshold=0.8)
    thresholds = {(i, j): played.clients[i].state.edges[j].threshold for i, j in EDGES}
    assert thresholds == {(i, j): played.clients[j].state.edges[i].threshold for i, j in EDGES}  # to the last bit
    assert thresholds[1, 4] == pytest.approx(0.8 * 0.5)
    assert thresholds[0, 3] == pytest.approx(0.8 * 0.25)
    assert thresholds[0, 2] == pytest.approx(0.8 * (0.25 * 0.75) ** 0.5)
    plain = play(1, samples=lambda node: samples[node], noise_samples=0.0, threshold=0.8)
    assert {edge.threshold for client in plain.clients for edge in client.state.edges.values()} == {0.8}


def test_noisy_updates_of_one_task_find_each_other_by_it(play):
    """Targets are a task and three times as much noise: cosines of one task are about 0.1 to 0.4."""
    rng = np.random.default_rng(4)
    size = ONE_LAYER.size
    aims = 0.3 + rng.normal(size=(2, size))[np.arange(CLIENTS) % 2] + 1.5 * rng.normal(size=(CLIENTS, size))
    settings = {"aims": aims, "gamma": 0.5, "threshold": 0.5, "rounds": 150, "samples": lambda node: 10}
    assert play(noise_samples=0.0, **settings).on(150) == set()
    assert play(noise_samples=15.0, **settings).on(150) == LIKE


def test_they_do_so_whatever_local_work_each_of_them_does(play):
    def then(round: int, node: int, client: Client) -> None:
        client._learner.steps = 1 + 2 * node + round % 2

    assert play(60, then=then).on(60) == LIKE


def test_nothing_is_decided_while_edges_are_listened_to(play):
    played = play(25, listen=20)
    assert not any(weight for (round, _, _), weight in played.weights.items() if round <= 20)
    assert all(played.spoke(round, i, j) for round in range(1, 21) for i, j in EDGES)
    assert played.on(22)


def test_who_wants_to_be_surer_decides_later_and_not_at_all_near_the_threshold(play):
    first = {}
    for sure in (0.0, 2.0, 4.0):
        played = play(80, sure=sure, gamma=0.03, threshold=0.5, listen=2)
        rounds = [k for k in range(1, 81) if played.on(k) >= LIKE]
        first[sure] = rounds[0] if rounds else 81
    assert first[0.0] < first[2.0] < first[4.0]
    assert not play(80, sure=1e6).on(80)


def test_an_edge_that_is_surely_off_speaks_in_some_rounds_only_and_both_ends_in_the_same(play):
    played = play(80, probe_every=7)
    everyone = [(k, i, j) for k in range(1, 81) for edge in EDGES for i, j in (edge, edge[::-1])]
    assert all(played.spoke(k, i, j) == played.spoke(k, j, i) for k, i, j in everyone)
    late = range(40, 81)
    assert all(played.spoke(k, i, j) for k in late for i, j in LIKE)
    unlike = set(EDGES) - LIKE
    assert all(played.spoke(k, i, j) == (k % 7 == 0) for k in late for i, j in unlike)
    assert all(play(20, probe_every=1).spoke(20, i, j) for i, j in EDGES)


def test_without_losses_both_ends_have_the_same_estimates_to_the_last_bit(play):
    for settings in ({}, {"weights": "soft"}, {"blocks": "head", "architecture": TWO_LAYERS}):
        clients = play(50, **settings).clients
        for i, j in EDGES:
            assert clients[i].state.edges[j].estimates == clients[j].state.edges[i].estimates


def a_third_is_lost(until: int) -> Lost:
    draws = np.random.default_rng(9).random((until + 1, CLIENTS, CLIENTS)) < 0.33
    return lambda round, src, dst: round <= until and bool(draws[round, src, dst])


@pytest.mark.parametrize("settings", [{}, {"probe_every": 4}, {"threshold": 0.2, "sure": 0.5}])
def test_whoever_hears_each_other_in_a_round_uses_the_same_weight_in_it_whatever_was_lost(play, settings):
    lost = a_third_is_lost(100)
    played = play(100, Network(lost), gamma=0.1, **settings)
    heard = 0
    for k in range(1, 101):
        for i, j in EDGES:
            if played.spoke(k, i, j) and played.spoke(k, j, i) and not lost(k, i, j) and not lost(k, j, i):
                heard += 1
                assert played.weights[k, i, j] == played.weights[k, j, i]
    assert heard > 100
    assert played.on(100) == LIKE


def test_the_two_ends_do_hold_different_opinions_for_a_while_when_messages_are_lost(play):
    """What the test above is good for."""
    played = play(100, Network(a_third_is_lost(100)), gamma=0.05)
    assert any(played.votes[k, i, j] != played.votes[k, j, i] for k in range(1, 101) for i, j in EDGES)


def test_an_end_that_would_have_the_edge_off_keeps_the_other_from_pulling(play):
    """Client 0 has heard nobody for 40 rounds: it has decided on nothing, and tells."""
    played = play(60, Network(lambda round, src, dst: dst == 0 and round <= 40))
    assert played.votes[40, 2, 0]
    assert not played.votes[40, 0, 2]
    assert all(played.weights[k, 2, 0] == 0 for k in range(1, 50))
    assert played.weights[60, 0, 2] == played.weights[60, 2, 0] == 1


def test_soft_weights_of_two_ends_come_together_again_when_losses_end(play):
    """Their estimates differ by what only one of them heard, and each round that both hear takes a tenth of it away."""
    played = play(90, Network(a_third_is_lost(30)), weights="soft", probe_every=1, threshold=0.0)
    gaps = {k: max(abs(played.weights[k, i, j] - played.weights[k, j, i]) for i, j in LIKE) for k in (32, 60, 90)}
    assert gaps[32] > 0
    assert gaps[60] < 0.15 * gaps[32]
    assert gaps[90] < 0.15 * gaps[60]
    assert 0.2 < played.weights[90, 0, 2] < 1  # the square of a cosine


@pytest.fixture
def changed(play):
    """The task of client 0 becomes that of the others in round 60; with this lambda neighbours end near each other."""

    def changed(**settings) -> Played:
        aims = targets(ONE_LAYER.size)
        aims[0], other = aims[2] + 0.1, aims[1] + 0.1

        def then(round: int, node: int, client: Client) -> None:
            if round == 60 and node == 0:
                client._learner.target = other

        return play(150, aims=aims, then=then, probe_every=5, lam=10.0, **settings)

    return changed


OF_THE_OTHERS = {edge for edge in LIKE if 0 not in edge}


RING = tuple({node, (node + 1) % CLIENTS} for node in range(CLIENTS))
"""On which nobody is beside a client of its own task."""


def test_clients_that_seek_find_those_of_their_task_whom_the_graph_had_not_given_them(play):
    played = play(80, graph=RING, seek=True, probe_every=5)
    assert all(played.spoke(10, i, j) == ({i, j} in RING) for i, j in EDGES)
    assert played.on(80) == LIKE
    apart = [played.spoke(80, i, j) for i, j in EDGES if (i, j) not in LIKE]
    assert sum(apart) < len(RING)  # of those that it began with some were given up
    assert all(played.spoke(k, i, j) == played.spoke(k, j, i) for k in range(1, 81) for i, j in EDGES)
    assert played.network.words.keys() >= {(15, i, (i + 1) % CLIENTS) for i in range(CLIENTS)}


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
    assert whole.network.sent.keys() == broken.network.sent.keys()


@pytest.mark.parametrize("steps", [lambda node: 1, lambda node: 3, lambda node: 10, lambda node: (1, 3, 10)[node % 3]])
def test_where_it_ends_does_not_depend_on_the_local_steps(play, steps):
    """With gamma = 1 and all edges on: sum_i 1/2 ||theta_i - target_i||^2 + lam/2 sum ||theta_i - theta_j||^2."""

    def take(round, node, client):
        client._learner.steps = steps(node)

    lam, aims = 0.02, targets(ONE_LAYER.size)
    played = play(400, then=take, gamma=1.0, threshold=-1.0, lam=lam)
    coupling = lam * (CLIENTS * np.eye(CLIENTS) - np.ones((CLIENTS, CLIENTS)))
    assert played.on(400) == set(EDGES)
    np.testing.assert_allclose(played.thetas, np.linalg.solve(np.eye(CLIENTS) + coupling, aims), rtol=0, atol=1e-7)


def test_a_client_without_neighbours_learns_alone(assignment):
    own = replace(assignment, neighbours=(), architecture=ONE_LAYER)
    client = Client(own, Quadratic(targets(ONE_LAYER.size)[0]))
    algorithm, peers = SelectiveSheaf(), Peers(0, Network(barrier=Barrier(1)))
    client.state = algorithm.begin(client)
    for peers.round in (1, 2):
        client.state.load(client.state.arrays())
        algorithm.round(client, peers)
    alone = Quadratic(targets(ONE_LAYER.size)[0])
    alone.steps = 2
    alone.learn()
    np.testing.assert_array_equal(client.theta, alone.theta)


def test_a_client_whose_task_changes_starts_again_leaves_its_neighbours_and_finds_others(changed):
    played = changed(restart=True)
    assert played.on(59) == LIKE
    assert not any(played.votes[61, i, j] or played.votes[61, j, i] for i, j in LIKE if i == 0)  # at once, at both ends
    assert played.on(150) == OF_THE_OTHERS | {(0, 1), (0, 3), (0, 5)}


def test_without_a_new_start_those_who_pull_at_each_other_stay_alike(changed):
    assert changed(restart=False).on(150) >= LIKE


def test_as_long_as_tasks_stay_nobody_starts_again(play):
    np.testing.assert_array_equal(play(60, restart=True).thetas, play(60, restart=False).thetas)


def test_an_edge_can_agree_on_the_layers_before_the_last_and_not_on_the_last(play):
    """All clients have one extractor to learn; the heads of odd and even numbers differ."""
    aims = targets(TWO_LAYERS.size)
    extractor = TWO_LAYERS.size - 66
    aims[:, :extractor] = aims[0, :extractor] + 0.5 * np.random.default_rng(1).normal(size=(CLIENTS, extractor))
    played = play(80, aims=aims, architecture=TWO_LAYERS, blocks="head", gamma=0.3)
    for i, j in EDGES:
        assert played.clients[i].state.edges[j].on.tolist() == [True, (i, j) in LIKE]


def test_one_message_a_round_of_a_sketch_and_a_number_a_block():
    model = Architecture("logistic", (64,), 10)
    edge = Edge(0, 1, 650, 650, model, from_server=False, facts=None)
    assert SelectiveSheaf().messages(edge) == [Vector(66, exact=1)]
    assert SelectiveSheaf(gamma=0.03).messages(edge) == [Vector(20, exact=1)]
    assert SelectiveSheaf(blocks="head").messages(edge) == [Vector(67, exact=2)]
    assert SelectiveSheaf(seek=True).messages(edge) == [Vector(66, exact=1), Vector(2, exact=2)]


def test_clients_that_start_apart_are_refused_in_one_line(run_facts):
    with pytest.raises(SettingsError, match=r"^model.same_start: = false: .* common start; set it to true$"):
        SelectiveSheaf().check(run_facts([ONE_LAYER], same_start=False))


def test_a_model_without_layers_before_the_last_has_no_head_apart(run_facts):
    SelectiveSheaf(blocks="head").check(run_facts([TWO_LAYERS]))
    with pytest.raises(SettingsError, match=r"^algorithm.blocks: = 'head' needs a model with layers before"):
        SelectiveSheaf(blocks="head").check(run_facts([ONE_LAYER]))


@pytest.mark.parametrize(
    ("key", "value"),
    [("gamma", 0.0), ("threshold", 1.5), ("smoothing", 1.0), ("listen", 0), ("sure", -1.0), ("probe_every", 0)],
)
def test_values_outside_their_range_are_refused_in_one_line_with_the_key(key, value):
    with pytest.raises(ConfigError, match=rf"^algorithm\.{key} = {value}: must be [^\n]*$"):
        validate({"algorithm": {"name": "selective-sheaf", key: value}})
