"""A client's own last layer on a body that it shares: the one that its samples make most probable."""

import math

import numpy as np

from .base import Client

_MOST_STEPS, _STILL = 500, 1e-6  # of the search, and the largest number of a gradient at which it ends


def refitted(client: Client, model: np.ndarray, variance: float) -> np.ndarray:
    """Returns ``model`` (d,) with another last layer W (classes, features + 1), where ``model`` has W0, biases last:

        W = argmin  sum_s -log softmax(W z_s)[y_s] + ||W - W0||^2 / (2 variance)

    over the client's training samples s, whose classes are y_s; z_s is what the last layer sees of one, and a 1. It is
    the most probable one, with a normal prior of this variance around each number of W0: few samples change little.
    Computed in double precision, to gradients of 1e-6 a sample; theta stays. ``model`` itself where z is not finite.
    Raises ArchitectureError where a module of the user's does not end in a linear layer with a bias."""
    C, h = client.model.outputs, client.model.features
    z, y = client.features_of(model).astype(np.float64), np.repeat(np.arange(C), client.class_counts())
    if not variance or not np.isfinite(z).all():
        return model
    own = model.copy()
    last = own[-client.model.last_size :]
    W0 = np.column_stack([last[: C * h].reshape(C, h), last[C * h :]]).astype(np.float64)
    W = _most_probable(W0, np.column_stack([z, np.ones(len(z))]), np.eye(C)[y], len(z) * variance)
    last[:] = np.concatenate([W[:, :h].ravel(), W[:, h]])
    return own


def _most_probable(W0: np.ndarray, z: np.ndarray, y: np.ndarray, weight: float) -> np.ndarray:
    """Returns the W with the smallest mean loss + ||W - W0||^2 / (2 weight), by Nesterov's accelerated gradient descent
    for strongly convex functions (2004, 2.2.11): its curvature is 1/weight at least, and at most half the largest
    eigenvalue of z^T z / samples more (Boehning 1992)."""
    gram = z @ z.T if len(z) < z.shape[1] else z.T @ z
    most = np.linalg.eigvalsh(gram)[-1] / len(z) / 2 + 1 / weight
    root = math.sqrt(most * weight)
    W = ahead = W0
    for _ in range(_MOST_STEPS):
        scores = ahead @ z.T
        p = np.exp(scores - scores.max(axis=0))
        gradient = (p / p.sum(axis=0) - y.T) @ z / len(z) + (ahead - W0) / weight
        before, W = W, ahead - gradient / most
        ahead = W + (root - 1) / (root + 1) * (W - before)
        if np.abs(gradient).max() < _STILL:
            break
    return W
