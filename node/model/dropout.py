"""Dropout, the same with torch and without."""

from collections.abc import Mapping

import numpy as np

from ...topology.randomness import generator


class Dropout:
    """Srivastava et al. 2014: in training each number becomes 0 with probability p, and the others are divided by
    1 - p. Which ones follows from ``key``, (the run's seed, client), and from how many passes there were before."""

    def __init__(self, p: float, key: tuple[int, int]):
        self.p, self._key, self._passes = p, key, 0

    def begin_pass(self) -> None:
        self._passes += 1
        if self.p:
            self._draws = generator(self._key[0], "dropout", self._key[1], self._passes)

    def factors(self, outputs: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Returns what the outputs of this shape, those of the pass's next layer, are multiplied with."""
        return (self._draws.random(outputs, np.float32) >= self.p) * dtype.type(1 / (1 - self.p))

    def state(self) -> dict[str, np.ndarray]:
        return {"model_passes": np.array([self._passes])} if self.p else {}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        if self.p:
            self._passes = int(state["model_passes"][0])
