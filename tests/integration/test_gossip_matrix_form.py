"""Gossip algorithms over client processes against a loop in numpy: theta of all clients as one matrix, no messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from sheafgossip.topology import TopologySpec, draw, draw_sequence
from sheafgossip.topology.weights import mixing_matrix

CLIENTS, ROUNDS, ALPHA = 6, 20, 0.5
CONFIG = f"""
clients = {CLIENTS}
rounds = {ROUNDS}
seed = 3
[topology]
p = 0.5
[data]
samples = 360
partition = "classes"
[training]
work = "full"
alpha = {ALPHA}
[model]
kind = "logistic"
dtype = "float64"
[evaluation]
every = 0
[algorithm]
"""


class Network:
    """Row i of ``theta`` is the start of client i; ``adjacency`` is the graph's."""

    def __init__(self, folder):
        self.folder = folder
        self.theta = matrix(folder, 0)
        self.shards = folder.shards()
        self.adjacency = np.zeros((CLIENTS, CLIENTS))
        for i, j in folder.edges():
            self.adjacency[i, j] = self.adjacency[j, i] = 1
        self.degree = self.adjacency.sum(axis=0)
        assert len(set(self.degree)) > 1

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        return gradients(theta, self.shards)

    def mixing(self) -> np.ndarray:
        W = self.adjacency / (1 + np.maximum.outer(self.degree, self.degree))
        return W + np.diag(1 - W.sum(axis=1))

    def error(self, theta: np.ndarray) -> float:
        return distance(matrix(self.folder, ROUNDS), theta)


def matrix(folder, round: int) -> np.ndarray:
    return np.stack([theta for _, theta in sorted(folder.theta(round).items())])


def distance(theta: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(theta - expected) / np.linalg.norm(expected))


def gradients(theta: np.ndarray, shards: dict[int, dict[str, np.ndarray]]) -> np.ndarray:
    return np.stack([logistic_gradient(theta[i], shards[i]) for i in range(CLIENTS)])


def logistic_gradient(theta: np.ndarray, shard: dict[str, np.ndarray]) -> np.ndarray:
    x = shard["x_train"].reshape(len(shard["x_train"]), -1).astype(np.float64)
    x = np.column_stack([x, np.ones(len(x))])
    classes = theta.size // x.shape[1]
    weight = np.column_stack([theta[:-classes].reshape(classes, -1), theta[-classes:]])
    scores = np.exp(x @ weight.T)
    gradient = (scores / scores.sum(axis=1, keepdims=True) - np.eye(classes)[shard["y_train"]]).T @ x / len(x)
    return np.concatenate([gradient[:, :-1].ravel(), gradient[:, -1]])


def check_payload(folder, numbers: int) -> None:
    """Each directed edge carries one message of so many numbers in each round."""
    edges = folder.edges()
    expected = {(*edge, round) for i, j in edges for edge in ((i, j), (j, i)) for round in range(1, ROUNDS + 1)}
    payload = folder.payload()
    assert set(payload) == expected
    assert {row[:2] for row in payload.values()} == {(1, 8 * numbers)}


def check_arcs(folder, numbers: int, arcs_of: Callable[[int], Iterable[tuple[int, int]]]) -> None:
    """Each arc of a round carries one message of so many numbers in it, and nothing else does."""
    payload = folder.payload()
    assert set(payload) == {(*arc, round) for round in range(1, ROUNDS + 1) for arc in arcs_of(round)}
    assert {row[:2] for row in payload.values()} == {(1, 8 * numbers)}


def test_gradient_tracking_is_diging(run):
    folder = run(CONFIG + 'name = "gradient-tracking"')
    network = Network(folder)
    W, theta = network.mixing(), network.theta
    gradient = network.gradient(theta)
    y = gradient
    for _ in range(ROUNDS):
        theta = W @ theta - ALPHA * y
        before, gradient = gradient, network.gradient(theta)
        y = W @ y + gradient - before
    assert network.error(theta) < 1e-10
    check_payload(folder, 2 * theta.shape[1])


@pytest.mark.parametrize("lazy", [True, False])
def test_d2_is_its_two_step_recursion(run, lazy):
    folder = run(CONFIG + f'name = "d2"\nlazy = {str(lazy).lower()}')
    network = Network(folder)
    W = network.mixing()
    if lazy:
        W = (W + np.eye(CLIENTS)) / 2
    before, gradient_before = network.theta, network.gradient(network.theta)
    theta = W @ (before - ALPHA * gradient_before)
    for _ in range(ROUNDS - 1):
        gradient = network.gradient(theta)
        step = ALPHA * (gradient - gradient_before)
        before, theta, gradient_before = theta, W @ (2 * theta - before - step), gradient
    assert network.error(theta) < 1e-10
    check_payload(folder, theta.shape[1])


def test_push_sum_is_right_with_weights_whose_columns_alone_sum_to_one(run):
    folder = run(CONFIG + 'name = "push-sum"')
    network = Network(folder)
    P = (network.adjacency + np.eye(CLIENTS)) / (1 + network.degree)  # column j divided by 1 + deg_j
    np.testing.assert_allclose(P.sum(axis=0), 1)
    assert np.abs(P.sum(axis=1) - 1).max() > 0.1
    x, w = network.theta, np.ones((CLIENTS, 1))
    for _ in range(ROUNDS):
        x, w = P @ (x - ALPHA * network.gradient(x / w)), P @ w
    assert network.error(x / w) < 1e-10
    check_payload(folder, x.shape[1] + 1)


def test_push_sum_is_right_where_arcs_go_one_way(run):
    folder = run(CONFIG.replace("p = 0.5", "p = 0.4\ndirected = true") + 'name = "push-sum"')
    graph = draw(TopologySpec(p=0.4, directed=True), CLIENTS, seed=3)
    theta, shards = matrix(folder, 0), folder.shards()
    P = np.eye(CLIENTS)
    for i, j in graph.arcs:
        P[j, i] = 1
    P /= P.sum(axis=0)
    assert np.abs(P.sum(axis=1) - 1).max() > 0.1
    x, w = theta, np.ones((CLIENTS, 1))
    for _ in range(ROUNDS):
        x, w = P @ (x - ALPHA * gradients(x / w, shards)), P @ w
    assert distance(matrix(folder, ROUNDS), x / w) < 1e-10
    check_arcs(folder, theta.shape[1] + 1, lambda round: graph.arcs)


def test_d_psgd_on_one_peer_exponential_graphs_goes_half_way_to_another_client_each_round(run):
    folder = run(CONFIG.replace("p = 0.5", 'kind = "one-peer-exponential"') + 'name = "d-psgd"')
    theta, shards = matrix(folder, 0), folder.shards()
    hops = [2 ** (t % 3) for t in range(ROUNDS)]
    for hop in hops:
        theta = (theta + np.roll(theta, hop, axis=0)) / 2 - ALPHA * gradients(theta, shards)
    assert distance(matrix(folder, ROUNDS), theta) < 1e-10
    check_arcs(folder, theta.shape[1], lambda round: {(i, (i + hops[round - 1]) % CLIENTS) for i in range(CLIENTS)})


def test_gradient_tracking_mixes_with_the_graph_of_the_round(run):
    folder = run(CONFIG.replace("p = 0.5", "p = 0.5\nredraw_every = 3") + 'name = "gradient-tracking"')
    graphs = draw_sequence(TopologySpec(p=0.5, redraw_every=3), CLIENTS, seed=3, rounds=ROUNDS)
    theta, shards = matrix(folder, 0), folder.shards()
    y = gradient = gradients(theta, shards)
    for round in range(1, ROUNDS + 1):
        W = mixing_matrix(graphs.of(round), "metropolis-hastings")
        theta = W @ theta - ALPHA * y
        before, gradient = gradient, gradients(theta, shards)
        y = mixing_matrix(graphs.of(round + 1), "metropolis-hastings") @ y + gradient - before
    assert distance(matrix(folder, ROUNDS), theta) < 1e-10
    check_arcs(
        folder, 2 * theta.shape[1], lambda round: [arc for edge in graphs.of(round).edges for arc in (edge, edge[::-1])]
    )


@pytest.mark.parametrize("order", ["random", "cyclic"])
def test_pairwise_gossip_halves_the_way_between_the_pairs_that_the_traffic_tells(run, order):
    folder = run(CONFIG + f'name = "pairwise"\norder = "{order}"')
    network = Network(folder)
    payload = folder.payload()
    theta = network.theta
    met = set()
    for round in range(1, ROUNDS + 1):
        pairs = {(i, j) for i, j, k in payload if k == round}
        assert pairs == {(j, i) for i, j in pairs}
        assert len({i for i, _ in pairs}) == len(pairs) > 0  # one partner each
        W = np.eye(CLIENTS)
        for i, j in pairs:
            W[i, i] = W[i, j] = 1 / 2
        theta = W @ theta - ALPHA * network.gradient(theta)
        met |= {pair for pair in pairs if pair[0] < pair[1]}
    assert met == set(folder.edges())
    assert network.error(theta) < 1e-10
    assert {row[:2] for row in payload.values()} == {(1, 8 * theta.shape[1])}


@pytest.mark.parametrize(("name", "redraw_every"), [("gradient-tracking", 7), ("pairwise", 0)])
def test_a_run_that_is_taken_up_again_ends_with_the_same_bits(run, cut, name, redraw_every):
    """What the algorithm remembers is in the checkpoint, and the round tells the graph; in pairwise gossip clients are
    many rounds apart."""
    rounds = 30
    text = CONFIG.replace(f"rounds = {ROUNDS}", f"rounds = {rounds}\ncheckpoints.every = 10")
    text = text.replace("p = 0.5", f"p = 0.5\nredraw_every = {redraw_every}") + f'name = "{name}"'
    broken = cut(text, round=20)
    assert "going on after round" in broken.resume()
    whole = run(text)
    np.testing.assert_array_equal(matrix(broken, rounds), matrix(whole, rounds))
    assert broken.payload() == whole.payload()
