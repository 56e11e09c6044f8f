"""What runs must come to, worked out once more in plain numpy: gradients, mini-batches, participants, matrices of
graphs, closed forms of least squares. Messages are weighed by chaos/wire.py."""

from collections.abc import Iterable, Sequence

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


def layers_of(theta: np.ndarray, hidden: Sequence[int] = (), features: int = 64) -> list[np.ndarray]:
    """The layers (outputs, inputs + 1) of a linear model or an MLP, whose biases come last."""
    layers = []
    for width in (*hidden, 0):
        width = width or theta.size // (features + 1)
        part, theta = np.split(theta, [width * (features + 1)])
        layers.append(np.column_stack([part[:-width].reshape(width, features), part[-width:]]))
        features = width
    return layers


def theta_of(layers: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([part for layer in layers for part in (layer[:, :-1].ravel(), layer[:, -1])])


def probabilities(scores: np.ndarray) -> np.ndarray:
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def features_of(theta: np.ndarray, x: np.ndarray, hidden: Sequence[int] = ()) -> list[np.ndarray]:
    """(samples, width + 1) of each layer: what it gets to see."""
    seen = [bordered(x)]
    for layer in layers_of(theta, hidden, seen[0].shape[1] - 1)[:-1]:
        seen.append(bordered(np.maximum(seen[-1] @ layer.T, 0)))
    return seen


def gradient(
    theta: np.ndarray,
    shard: Shard,
    rows: np.ndarray | slice = slice(None),
    hidden: Sequence[int] = (),
    anchors: np.ndarray | None = None,
    lam: float = 0.0,
) -> np.ndarray:
    """The gradient of the mean cross-entropy on training samples, by the chain rule; with ``anchors`` (classes, width)
    that of lam times the mean of ||features - anchor||^2 below the last layer, too."""
    x, y = shard["x_train"][rows], shard["y_train"][rows]
    seen = features_of(theta, x, hidden)
    layers = layers_of(theta, hidden, seen[0].shape[1] - 1)
    slope = (probabilities(seen[-1] @ layers[-1].T) - np.eye(len(layers[-1]))[y]) / len(y)
    slopes = [slope.T @ seen[-1]]
    for level in range(len(hidden), 0, -1):
        below = seen[level][:, :-1]
        back = slope @ layers[level][:, :-1]
        if anchors is not None and level == len(hidden):
            back = back + 2 * lam * (below - anchors[y]) / len(y)
        slope = back * (below > 0)
        slopes.insert(0, slope.T @ seen[level - 1])
    return theta_of(slopes)


def loss(theta: np.ndarray, shard: Shard, rows: np.ndarray | slice = slice(None), hidden: Sequence[int] = ()) -> float:
    """The mean cross-entropy on training samples."""
    x, y = shard["x_train"][rows], shard["y_train"][rows]
    z = features_of(theta, x, hidden)[-1] @ layers_of(theta, hidden, x[0].size)[-1].T
    return float(-np.log(probabilities(z)[np.arange(len(y)), y]).mean())


def accuracy(theta: np.ndarray, shard: Shard, hidden: Sequence[int] = ()) -> float:
    """On test samples."""
    z = features_of(theta, shard["x_test"], hidden)[-1] @ layers_of(theta, hidden, shard["x_test"][0].size)[-1].T
    return float((np.argmax(z, axis=1) == shard["y_test"]).mean())


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
