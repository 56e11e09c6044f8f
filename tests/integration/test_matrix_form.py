"""Client processes against the network's matrix form: the whole computation once more, in numpy, with no messages.

Equations (30)-(31) of the paper: theta and the maps of all clients stacked, P block-structured over edges and clients,
    theta <- theta - alpha (grad f(theta) + lam P^T P theta)
    P     <- H o (P - eta lam P theta theta^T)
H keeps the blocks that belong to an edge's two ends.
"""

from __future__ import annotations

import numpy as np
import pytest

ROUNDS = 50
BASE = f"""
clients = 8
rounds = {ROUNDS}
seed = 3
[topology]
kind = "erdos-renyi"
p = 0.4
[data]
samples = 600
rotations = [0, 90]
[training]
work = "full"
alpha = 0.5
[checkpoints]
every = {ROUNDS}
"""
SHEAF = """
[algorithm]
name = "sheaf-fmtl"
gamma = {gamma}
lam = {lam}
eta = {eta}
start = "{start}"
start_scale = {scale}
"""


def model(dtype: str, extra: str = "") -> str:
    return f'[model]\nkind = "logistic"\ndtype = "{dtype}"\n{extra}\n'


def logistic_gradient(theta: np.ndarray, shard: dict[str, np.ndarray]) -> np.ndarray:
    x = shard["x_train"].reshape(len(shard["x_train"]), -1).astype(np.float64)
    classes = theta.size // (x.shape[1] + 1)
    weight, bias = theta[: classes * x.shape[1]].reshape(classes, -1), theta[classes * x.shape[1] :]
    scores = x @ weight.T + bias
    scores -= scores.max(axis=1, keepdims=True)
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    probabilities[np.arange(len(x)), shard["y_train"]] -= 1
    return np.concatenate([(probabilities.T @ x).ravel(), probabilities.sum(axis=0)]) / len(x)


def mlp_gradient(theta: np.ndarray, shard: dict[str, np.ndarray], hidden: int) -> np.ndarray:
    """Of one hidden layer with ReLU, by the chain rule."""
    x = shard["x_train"].reshape(len(shard["x_train"]), -1).astype(np.float64)
    inputs = x.shape[1]
    a, b, c = hidden * inputs, hidden, 10 * hidden
    w1, b1 = theta[:a].reshape(hidden, inputs), theta[a : a + b]
    w2, b2 = theta[a + b : a + b + c].reshape(10, hidden), theta[a + b + c :]
    z = x @ w1.T + b1
    h = np.maximum(z, 0)
    scores = h @ w2.T + b2
    scores -= scores.max(axis=1, keepdims=True)
    delta = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    delta[np.arange(len(x)), shard["y_train"]] -= 1
    delta /= len(x)
    back = (delta @ w2) * (z > 0)
    return np.concatenate([(back.T @ x).ravel(), back.sum(axis=0), (delta.T @ h).ravel(), delta.sum(axis=0)])


def stacked(blocks: dict[int, np.ndarray]) -> np.ndarray:
    return np.concatenate([blocks[node] for node in sorted(blocks)]).astype(np.float64)


class Network:
    """theta stacked to one vector, P to one matrix, from what the run wrote for round 0."""

    def __init__(self, folder):
        self.shards = folder.shards()
        states = folder.states(0)
        self.sizes = [states[node]["theta"].size for node in sorted(states)]
        ends = np.cumsum(self.sizes)
        self.of = [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]
        self.theta = stacked({node: arrays["theta"] for node, arrays in states.items()})
        self.edges = folder.edges()
        self.states = states

    def gradient(self) -> np.ndarray:
        parts = []
        for node, part in enumerate(self.of):
            theta, shard = self.theta[part], self.shards[node]
            hidden = {650: 0, 64 * 12 + 12 + 130: 12, 64 * 7 + 7 + 80: 7}[theta.size]
            parts.append(mlp_gradient(theta, shard, hidden) if hidden else logistic_gradient(theta, shard))
        return np.concatenate(parts)

    def maps(self) -> tuple[np.ndarray, np.ndarray]:
        """P and its support H: edge (i, j), i < j, has P_ij in i's columns and -P_ji in j's."""
        rows = [len(self.states[i][f"P.{j}"]) for i, j in self.edges]
        P = np.zeros((sum(rows), self.theta.size))
        H = np.zeros_like(P)
        for (i, j), end, count in zip(self.edges, np.cumsum(rows), rows, strict=True):
            block = slice(end - count, end)
            P[block, self.of[i]] = self.states[i][f"P.{j}"]
            P[block, self.of[j]] = -self.states[j][f"P.{i}"]
            H[block, self.of[i]] = H[block, self.of[j]] = 1
        return P, H


def distance(folder, network: Network, round: int) -> float:
    theta = stacked(folder.theta(round))
    return float(np.linalg.norm(theta - network.theta) / np.linalg.norm(network.theta))


TOLERANCE = {"float64": 1e-10, "float32": 1e-4}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("start", "scale", "extra"),
    [
        ("gaussian", 0.1, ""),
        ("uniform", 0.2, ""),
        ("orthogonal", 2.0, ""),
        ("identity", 1.0, ""),
        ("gaussian", 0.1, 'mix = [{ kind = "mlp", hidden = [12] }, { kind = "mlp", hidden = [7] }]'),
    ],
    ids=["gaussian", "uniform", "orthogonal", "identity", "different model sizes"],
)
def test_sheaf_fmtl_equals_its_matrix_form(run, dtype, start, scale, extra):
    lam, eta, alpha = 0.05, 0.05, 0.5
    settings = SHEAF.format(gamma=0.05, lam=lam, eta=eta, start=start, scale=scale)
    folder = run(BASE + model(dtype, extra) + settings, "--set", "checkpoints.save_maps=true")
    network = Network(folder)
    P, H = network.maps()
    P0 = P.copy()
    for _ in range(ROUNDS):
        network.theta = network.theta - alpha * (network.gradient() + lam * P.T @ (P @ network.theta))  # (30)
        P = H * (P - eta * lam * np.outer(P @ network.theta, network.theta))  # (31)
    assert distance(folder, network, ROUNDS) < TOLERANCE[dtype]
    assert np.linalg.norm(P - P0) > 1e-3 * np.linalg.norm(P0)  # the maps took part
    network.states = folder.states(ROUNDS)
    assert np.linalg.norm(network.maps()[0] - P) < TOLERANCE[dtype] * np.linalg.norm(P)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_dfedu_equals_gradient_descent_on_the_graph_laplacian(run, dtype):
    folder = run(BASE + model(dtype) + '[algorithm]\nname = "dfedu"\nlam = 0.1\n')
    network = Network(folder)
    size, clients = network.sizes[0], len(network.sizes)
    laplacian = np.zeros((clients, clients))
    for i, j in network.edges:
        laplacian[[i, j], [i, j]] += 1
        laplacian[[i, j], [j, i]] -= 1
    for _ in range(ROUNDS):
        pull = (laplacian @ network.theta.reshape(clients, size)).ravel()
        network.theta = network.theta - 0.5 * (network.gradient() + 0.1 * pull)
    assert distance(folder, network, ROUNDS) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_d_psgd_equals_mixing_with_metropolis_hastings_weights(run, dtype):
    folder = run(BASE + model(dtype) + '[algorithm]\nname = "d-psgd"\n')
    network = Network(folder)
    size, clients = network.sizes[0], len(network.sizes)
    degree = np.bincount(np.ravel(network.edges), minlength=clients)
    W = np.zeros((clients, clients))
    for i, j in network.edges:
        W[i, j] = W[j, i] = 1 / (1 + max(degree[i], degree[j]))
    W += np.diag(1 - W.sum(axis=1))
    for _ in range(ROUNDS):
        mixed = (W @ network.theta.reshape(clients, size)).ravel()
        network.theta = mixed - 0.5 * network.gradient()
    assert distance(folder, network, ROUNDS) < TOLERANCE[dtype]
