"""P_ij = sqrt(a_ij) I: neighbours compare their models themselves. Nothing is stored, nothing is multiplied."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from .base import FixedMaps, Stacking, Vectors


class IdentityMaps(FixedMaps):
    def __init__(self, weights: Mapping[int, float], size: int):
        """``weights`` is {j: a_ij}; ``size`` is d, the same at both ends of every edge."""
        super().__init__(Stacking(dict.fromkeys(weights, size)), {j: a * size for j, a in weights.items()})
        self._roots = {j: math.sqrt(a) for j, a in weights.items()}
        self._size = size

    def project(self, theta: np.ndarray) -> dict[int, np.ndarray]:
        return {j: theta if root == 1 else root * theta for j, root in self._roots.items()}

    def pull_back(self, vectors: Vectors) -> np.ndarray:
        return sum((self._roots[j] * v for j, v in vectors.items()), start=np.zeros(self._size, np.float32))

    def coverage(self) -> np.ndarray:
        return np.full(self._size, sum(root**2 for root in self._roots.values()))

    def dense(self, neighbour: int) -> np.ndarray:
        return self._roots[neighbour] * np.eye(self._size)

    def state_bytes(self) -> int:
        return 0
