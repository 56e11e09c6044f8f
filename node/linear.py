"""Models of one linear layer, in closed form: a handful of numpy calls take a third of the time that torch needs to
dispatch its own, and leave the processor's caches to the other clients.

Shapes: x (n, features), W (outputs, features), b (outputs,), predictions Z = x W^T + b. Sums are over samples.

    classification    loss = sum_i log sum_k exp Z_ik - Z_i,y_i     dloss/dZ = softmax(Z) - onehot(y)
    regression        loss = ||Z - y||^2                            dloss/dZ = 2 (Z - y)
    dloss/dW = (dloss/dZ)^T x      dloss/db = sum_i (dloss/dZ)_i
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Layer(NamedTuple):
    """Views of theta, or of its gradient."""

    weight: np.ndarray
    bias: np.ndarray

    @classmethod
    def of(cls, vector: np.ndarray, outputs: int) -> Layer:
        """``vector`` is (outputs * features + outputs,)."""
        return cls(vector[:-outputs].reshape(outputs, -1), vector[-outputs:])


def add_gradient(task: str, layer: Layer, into: Layer, x: np.ndarray, y: np.ndarray, samples: int) -> float:
    """Adds the gradient of loss / samples to ``into``; returns loss / samples."""
    summed, slope = _loss_and_slope(task, _predictions(layer, x), y)
    slope /= samples
    into.weight[:] += slope.T @ x
    into.bias[:] += slope.sum(0)
    return summed / samples


def evaluate(task: str, layer: Layer, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The loss, and the number of correct classifications or the squared error."""
    z = _predictions(layer, x)
    right = float((z.argmax(1) == y).sum()) if task == "classification" else None
    summed, _ = _loss_and_slope(task, z, y)
    return summed, summed if right is None else right


def _predictions(layer: Layer, x: np.ndarray) -> np.ndarray:
    return x @ layer.weight.T + layer.bias


def _loss_and_slope(task: str, z: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Overwrites z."""
    if task == "regression":
        z -= y
        return float(np.square(z).sum()), 2 * z
    z -= z.max(1, keepdims=True)
    rows = np.arange(len(y))
    of_the_right = z[rows, y].sum()
    np.exp(z, out=z)
    total = z.sum(1)
    z /= total[:, None]
    z[rows, y] -= 1
    return float(np.log(total).sum() - of_the_right), z
