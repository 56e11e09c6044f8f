"""Models of fully connected layers in closed form, without torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import safe_open

from .architecture import Architecture, Given
from .dropout import Dropout
from .pull import Pull

_Layers = list[tuple[np.ndarray, np.ndarray]]
_sum, _largest = np.add.reduce, np.maximum.reduce  # what z.sum and z.max come to, in half the time


class DenseModel:
    """TorchModel in closed form for linear models and MLPs: numpy takes a third of the time that torch itself needs,
    which is not even loaded.

    Shapes: H_0 = x (n, features), whatever the shape of a sample; layer l has W_l (width_l, width_l-1), b_l (width_l,).

        Z_l = H_l-1 W_l^T + b_l      H_l = max(Z_l, 0)      Z_L are the scores (n, outputs)
        classification    loss = sum_i log sum_k exp Z_ik - Z_i,y_i     dloss/dZ_L = softmax(Z_L) - onehot(y)
        regression        loss = ||Z_L - y||^2                          dloss/dZ_L = 2 (Z_L - y)
        dloss/dW_l = (dloss/dZ_l)^T H_l-1                               dloss/db_l = sum_i (dloss/dZ_l)_i
        dloss/dZ_l-1 = (dloss/dZ_l) W_l where H_l-1 > 0, else 0

    With dropout p, H_l is what it leaves in training, and dloss/dZ_l-1 is divided by 1 - p.
    """

    def __init__(self, given: Given):
        architecture, task, theta, gradient, key = given
        self._dropout = Dropout(architecture.dropout, key)
        self._classifies = task == "classification"
        self._layers, self._slopes = (_layers_of(architecture, vector) for vector in (theta, gradient))

    def read(self, shard: Path, names: Sequence[str]) -> list[np.ndarray]:
        with safe_open(shard, framework="numpy") as file:
            arrays = [file.get_tensor(name) for name in names]
        rows, dtype = [x if x.ndim < 2 else x.reshape(len(x), -1) for x in arrays], self._layers[0][0].dtype
        return [x.astype(dtype, copy=False) if x.dtype.kind == "f" else x for x in rows]

    def rows(self, x: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        return x.take(chosen, 0)

    def add_gradient(self, x: np.ndarray, y: np.ndarray, samples: int, pull: Pull | None = None) -> float:
        """Adds the gradient of loss / samples to the gradient's vector; returns loss / samples."""
        self._dropout.begin_pass()
        seen = self._seen(x, self._dropout)
        summed, slope = self._loss_and_slope(self._scores(seen[-1]), y)
        slope /= samples
        if callable(pull):
            added, of_features = pull(seen[-1])
            summed, of_features = summed + added, of_features / samples
        elif pull is not None:
            apart = seen[-1] - pull[0][y]
            summed += float(pull[1] * np.square(apart).sum())
            of_features = (2 * pull[1] / samples) * apart
        for depth in reversed(range(len(self._layers))):
            (weight, _), (weight_slope, bias_slope) = self._layers[depth], self._slopes[depth]
            weight_slope += slope.T @ seen[depth]
            bias_slope += _sum(slope)
            if depth:
                slope = slope @ weight
                if pull is not None and depth == len(self._layers) - 1:
                    slope += of_features
                slope *= seen[depth] > 0
                if self._dropout.p:
                    slope *= slope.dtype.type(1 / (1 - self._dropout.p))
        return summed / samples

    def add_clipped(self, x: np.ndarray, y: np.ndarray, clip: float) -> float:
        """Adds sum_i min(1, C/||g_i||) g_i of the gradients g_i of single samples to the gradient's vector; returns the
        loss. The norms follow from those of the two factors of g_i in each layer (Goodfellow 2015):

        ||g_i||^2 = sum_l ||(dloss/dZ_l)_i||^2 (||(H_l-1)_i||^2 + 1)"""
        self._dropout.begin_pass()
        seen = self._seen(x, self._dropout)
        summed, slope = self._loss_and_slope(self._scores(seen[-1]), y)
        slopes = [slope]
        for depth in reversed(range(1, len(self._layers))):
            slope = (slope @ self._layers[depth][0]) * (seen[depth] > 0)
            if self._dropout.p:
                slope *= slope.dtype.type(1 / (1 - self._dropout.p))
            slopes.insert(0, slope)
        squares = sum(
            np.einsum("ni,ni->n", s, s) * (np.einsum("ni,ni->n", h, h) + 1) for s, h in zip(slopes, seen, strict=True)
        )
        factors = (clip / np.maximum(clip, np.sqrt(squares))).astype(x.dtype)
        for slope, layer_input, (of_weight, of_bias) in zip(slopes, seen, self._slopes, strict=True):
            slope *= factors[:, None]
            of_weight += slope.T @ layer_input
            of_bias += slope.sum(0)
        return summed

    def evaluate(self, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
        """Returns the loss, and the number of correct classifications or the squared error."""
        z = self._scores(self._seen(x)[-1])
        right = float((z.argmax(1) == y).sum()) if self._classifies else None
        summed, _ = self._loss_and_slope(z, y)
        return summed, summed if right is None else right

    def outputs(self, x: np.ndarray) -> np.ndarray:
        """Returns the scores, or predictions, (samples, outputs)."""
        return self._scores(self._seen(x)[-1])

    def features(self, x: np.ndarray) -> np.ndarray:
        """Returns the inputs (samples, features) of the last layer."""
        return self._seen(x)[-1]

    def state(self) -> dict[str, np.ndarray]:
        """Returns what the model keeps beside theta."""
        return self._dropout.state()

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self._dropout.load(state)

    @staticmethod
    def add(vector: np.ndarray, other: np.ndarray, factor: float) -> None:
        """vector += factor * other, rounded once, as torch does it."""
        exact = other * np.float64(vector.dtype.type(factor))
        exact += vector
        vector[:] = exact

    def _seen(self, x: np.ndarray, dropout: Dropout | None = None) -> list[np.ndarray]:
        """Returns the inputs of each layer."""
        seen = [x]
        for weight, bias in self._layers[:-1]:
            x = x @ weight.T
            x += bias
            seen.append(np.maximum(x, 0, out=x))
            if dropout and dropout.p:
                x *= dropout.factors(x.shape, x.dtype)
        return seen

    def _scores(self, features: np.ndarray) -> np.ndarray:
        weight, bias = self._layers[-1]
        return features @ weight.T + bias

    def _loss_and_slope(self, z: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
        """Overwrites z."""
        if not self._classifies:
            z -= y
            return float(np.square(z).sum()), 2 * z
        z -= _largest(z, axis=1, keepdims=True)
        rows = np.arange(len(y))
        of_the_right = _sum(z[rows, y])
        np.exp(z, out=z)
        total = _sum(z, axis=1)
        z /= total[:, None]
        z[rows, y] -= 1
        return float(_sum(np.log(total)) - of_the_right), z


def _layers_of(architecture: Architecture, vector: np.ndarray) -> _Layers:
    blocks = architecture.parameters()
    ends = np.cumsum([block.size for block in blocks])[:-1]
    parts = [part.reshape(block.shape) for part, block in zip(np.split(vector, ends), blocks, strict=True)]
    return list(zip(parts[::2], parts[1::2], strict=True))
