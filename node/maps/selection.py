"""P_ij = rows of the identity: an edge sees some coordinates of the model and no others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .base import FixedMaps, Stacking, Vectors


class SelectionMaps(FixedMaps):
    def __init__(self, chosen: Mapping[int, np.ndarray], size: int):
        """``chosen`` is {j: the distinct coordinates that edge j sees}; ``size`` is d_i."""
        rows = {j: len(coordinates) for j, coordinates in chosen.items()}
        super().__init__(Stacking(rows), rows)
        self._chosen = dict(chosen)
        self._size = size

    def project(self, theta: np.ndarray) -> dict[int, np.ndarray]:
        return {j: theta[coordinates] for j, coordinates in self._chosen.items()}

    def pull_back(self, vectors: Vectors) -> np.ndarray:
        total = np.zeros(self._size, dtype=next(iter(vectors.values())).dtype if vectors else np.float32)
        for j, vector in vectors.items():
            total[self._chosen[j]] += vector  # within an edge no coordinate comes twice
        return total

    def coverage(self) -> np.ndarray:
        return self.pull_back({j: np.ones(len(coordinates)) for j, coordinates in self._chosen.items()})

    def dense(self, neighbour: int) -> np.ndarray:
        return np.eye(self._size)[self._chosen[neighbour]]

    def state_bytes(self) -> int:
        return sum(coordinates.nbytes for coordinates in self._chosen.values())
