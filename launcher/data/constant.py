"""What a prediction that is the same for every sample of every client comes to: a model that learns is better."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .shards import Shard


class ConstantPredictor:
    """Sums over shards, one at a time: the mean of all training targets, or the most frequent class among them."""

    def __init__(self, tasks: Sequence[str]):
        """``tasks`` are those of data.tasks; where there are several, classes do not mean the same for all."""
        self._comparable = len(set(tasks)) == 1
        self._train: list[tuple[int, np.ndarray]] = []
        self._test: list[tuple[np.ndarray, np.ndarray]] = []
        self._regression = False

    def add(self, shard: Shard) -> None:
        self._regression = shard.task == "regression"
        train, test = (self._as_columns(y, shard.outputs) for y in (shard.y_train, shard.y_test))
        self._train.append((len(train), train.sum(axis=0)))
        self._test.append((test.mean(axis=0), test.var(axis=0)))

    def _as_columns(self, y: np.ndarray, outputs: int) -> np.ndarray:
        """(n, outputs) float64: targets, or 1 for the sample's class."""
        return np.asarray(y, np.float64).reshape(len(y), -1) if self._regression else np.eye(outputs)[y]

    def metric(self) -> float | None:
        """Mean over clients of its MSE or accuracy on their test samples."""
        if not self._comparable or len({len(total) for _, total in self._train}) > 1:
            return None
        mean = sum(total for _, total in self._train) / max(1, sum(count for count, _ in self._train))
        if not self._regression:
            return float(np.mean([means[np.argmax(mean)] for means, _ in self._test]))
        return float(np.mean([np.mean(variance + (means - mean) ** 2) for means, variance in self._test]))
