"""What runs must come to, worked out once more in plain numpy: gradients, mini-batches, participants, matrices of
graphs, closed forms of least squares. Messages are weighed by chaos/wire.py."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sheafgossip.topology.randomness import generator

Shard = dict[str, np.ndarray]


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """The relative one."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


# -- models ------------------------------------------------------------------------------------------------------------


def bordered(x: np.ndarray) -> np.ndarray:
    """(samples, features + 1): a one behind each sample's features."""
    return np.column_stack([x.reshape(len(x), -1).astype(np.float64), np.ones(len(x))])


def weights_of(theta: np.ndarray, classes: int = 10) -> np.ndarray:
    """(classes, features + 1) of the theta of a linear model, whose biases come last."""
    return np.column_stack([theta[:-classes].reshape(classes, -1), theta[-classes:]])


def probabilities(scores: np.ndarray) -> np.ndarray:
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def logistic_gradient(theta: np.ndarray, shard: Shard, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
    """The gradient of the mean cross-entropy of multinomial logistic regression on training samples."""
    x, y = bordered(shard["x_train"])[rows], shard["y_train"][rows]
    w = weights_of(theta)
    slope = (probabilities(x @ w.T) - np.eye(len(w))[y]).T @ x / len(y)
    return np.concatenate([slope[:, :-1].ravel(), slope[:, -1]])


def mlp_gradient(theta: np.ndarray, shard: Shard, hidden: int) -> np.ndarray:
    """The same of one hidden layer with ReLU, by the chain rule."""
    x, y = bordered(shard["x_train"]), shard["y_train"]
    first, second = np.split(theta, [hidden * x.shape[1]])
    w1, w2 = weights_of(first, hidden), weights_of(second)
    z = x @ w1.T
    h = bordered(np.maximum(z, 0))
    delta = (probabilities(h @ w2.T) - np.eye(len(w2))[y]) / len(x)
    back = (delta @ w2[:, :-1]) * (z > 0)
    slopes = [back.T @ x, delta.T @ h]
    return np.concatenate([part for slope in slopes for part in (slope[:, :-1].ravel(), slope[:, -1])])


def accuracy(theta: np.ndarray, shard: Shard) -> float:
    """A linear model's, on test samples."""
    return float((np.argmax(bordered(shard["x_test"]) @ weights_of(theta).T, axis=1) == shard["y_test"]).mean())


# -- what a seed draws -------------------------------------------------------------------------------------------------


def batch_rows(seed: int, client: int, samples: int, batch_size: int, number: int) -> np.ndarray:
    """The samples of a client's mini-batch of this number, from 0, over all rounds."""
    size = min(batch_size, samples)
    passes, place = divmod(number, -(-samples // size))
    order = generator(seed, "mini-batches", client, passes).permutation(samples)
    return order[place * size : (place + 1) * size]


def participants(seed: int, clients: int, rounds: int, fraction: float, round: int) -> list[int]:
    """The clients that the server draws for a round; all download after the last one."""
    if fraction == 1 or round > rounds:
        return list(range(clients))
    order = generator(seed, "participants", round).permutation(clients)
    return sorted(order[: int(fraction * clients + 0.5)].tolist())


# -- graphs ------------------------------------------------------------------------------------------------------------

Edges = Iterable[tuple[int, int]]


def adjacency(edges: Edges, clients: int) -> np.ndarray:
    A = np.zeros((clients, clients))
    for i, j in edges:
        A[i, j] = A[j, i] = 1
    return A


def metropolis_hastings(edges: Edges, clients: int) -> np.ndarray:
    """W_ij = 1 / (1 + max(deg_i, deg_j)) on edges; each row sums to one."""
    A = adjacency(edges, clients)
    W = A / (1 + np.maximum.outer(A.sum(axis=0), A.sum(axis=0)))
    return W + np.diag(1 - W.sum(axis=1))


def laplacian(edges: Edges, clients: int) -> np.ndarray:
    A = adjacency(edges, clients)
    return np.diag(A.sum(axis=0)) - A


def both_directions(edges: Edges) -> list[tuple[int, int]]:
    return [arc for edge in edges for arc in (edge, edge[::-1])]


def stacked_maps(
    states: dict[int, Shard], edges: Iterable[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray, dict[int, slice]]:
    """P, its support H, and the place of each client's theta in the columns: edge (i, j), i < j, has P_ij in i's
    columns and -P_ji in j's."""
    edges = list(edges)
    ends = dict(zip(sorted(states), np.cumsum([states[node]["theta"].size for node in sorted(states)]), strict=True))
    of = {node: slice(end - states[node]["theta"].size, end) for node, end in ends.items()}
    rows = [len(states[i][f"P.{j}"]) for i, j in edges]
    P = np.zeros((sum(rows), max(ends.values())))
    H = np.zeros_like(P)
    for (i, j), end, count in zip(edges, np.cumsum(rows), rows, strict=True):
        block = slice(end - count, end)
        P[block, of[i]], P[block, of[j]] = states[i][f"P.{j}"], -states[j][f"P.{i}"]
        H[block, of[i]] = H[block, of[j]] = 1
    return P, H, of


# -- least squares -----------------------------------------------------------------------------------------------------


def normal_equations(shard: Shard) -> tuple[np.ndarray, np.ndarray]:
    """H, b of f(theta) = theta'H theta/2 - b'theta + const, f the mean squared error with an intercept."""
    x, y = bordered(shard["x_train"]), shard["y_train"].astype(np.float64).ravel()
    return 2 * x.T @ x / len(x), 2 * x.T @ y / len(x)


def minimiser(shards: dict[int, Shard], coupling: np.ndarray) -> np.ndarray:
    """(clients, d), of sum_i f_i(theta_i) + theta' (coupling x I) theta / 2."""
    systems = [normal_equations(shard) for _, shard in sorted(shards.items())]
    d = len(systems[0][1])
    matrix, right = np.kron(coupling, np.eye(d)), np.concatenate([b for _, b in systems])
    for client, (H, _) in enumerate(systems):
        part = slice(client * d, (client + 1) * d)
        matrix[part, part] += H
    return np.linalg.solve(matrix, right).reshape(-1, d)
