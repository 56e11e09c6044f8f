"""Models of one linear layer, in closed form: a handful of numpy calls take a third of the time that torch needs to
dispatch its own, and leave the processor's caches to the other clients. A run of such models alone never loads torch.

Shapes: x (n, features), W (outputs, features), b (outputs,), predictions Z = x W^T + b. Sums are over samples.

    classification    loss = sum_i log sum_k exp Z_ik - Z_i,y_i     dloss/dZ = softmax(Z) - onehot(y)
    regression        loss = ||Z - y||^2                            dloss/dZ = 2 (Z - y)
    dloss/dW = (dloss/dZ)^T x      dloss/db = sum_i (dloss/dZ)_i
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors import safe_open

from .architecture import Architecture


class LinearModel:
    """Fulfils what TorchModel does. x is (n, features) here, whatever the shape of a sample."""

    def __init__(self, architecture: Architecture, task: str, theta: np.ndarray, gradient: np.ndarray):
        """Both (d,): a weight and a bias one after the other, of which the model keeps views."""
        self._task = task
        outputs = architecture.outputs
        self._weight, self._bias = theta[:-outputs].reshape(outputs, -1), theta[-outputs:]
        self._weight_slope, self._bias_slope = gradient[:-outputs].reshape(outputs, -1), gradient[-outputs:]

    def read(self, shard: Path, names: Sequence[str]) -> list[np.ndarray]:
        """Samples or targets as the other methods take them: a sample a row, what is real of theta's type."""
        with safe_open(shard, framework="numpy") as file:
            arrays = [file.get_tensor(name) for name in names]
        rows = [x if x.ndim < 2 else x.reshape(len(x), -1) for x in arrays]
        return [x.astype(self._weight.dtype, copy=False) if x.dtype.kind == "f" else x for x in rows]

    def rows(self, x: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        return x.take(chosen, 0)

    def add_gradient(
        self, x: np.ndarray, y: np.ndarray, samples: int, pull: tuple[np.ndarray, float] | None = None
    ) -> float:
        """Adds the gradient of loss / samples to the gradient's vector; returns loss / samples.

        What ``pull`` adds to the loss depends on no parameter: the features of a sample are the sample.
        """
        summed, slope = self._loss_and_slope(self._predictions(x), y)
        slope /= samples
        self._weight_slope += slope.T @ x
        self._bias_slope += slope.sum(0)
        if pull is not None:
            summed += float(pull[1] * np.square(x - pull[0][y]).sum())
        return summed / samples

    def evaluate(self, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
        """The loss, and the number of correct classifications or the squared error."""
        z = self._predictions(x)
        right = float((z.argmax(1) == y).sum()) if self._task == "classification" else None
        summed, _ = self._loss_and_slope(z, y)
        return summed, summed if right is None else right

    def features(self, x: np.ndarray) -> np.ndarray:
        return x

    @staticmethod
    def add(vector: np.ndarray, other: np.ndarray, factor: float) -> None:
        """vector += factor * other, rounded once, as torch does it."""
        exact = other * np.float64(vector.dtype.type(factor))
        exact += vector
        vector[:] = exact

    def _predictions(self, x: np.ndarray) -> np.ndarray:
        return x @ self._weight.T + self._bias

    def _loss_and_slope(self, z: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
        """Overwrites z."""
        if self._task == "regression":
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
