"""Maps that stay as they are: P_ij = sqrt(a_ij) I, or rows of the identity."""

import math
from abc import abstractmethod
from collections.abc import Mapping

import numpy as np

from .base import Maps, Stacking, Vectors


class FixedMaps(Maps):
    """They have nothing to remember."""

    @abstractmethod
    def coverage(self) -> np.ndarray:
        """The diagonal of sum_j P_ij^T P_ij, (d_i,): how much the edges see of each coordinate of theta."""

    def _subtract(self, mine: Vectors, r: Vectors, theta: np.ndarray, step: float) -> None:
        raise TypeError("these maps are fixed")

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        pass


class IdentityMaps(FixedMaps):
    """Neighbours compare their models themselves. Nothing is stored, nothing is multiplied."""

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


class SelectionMaps(FixedMaps):
    """An edge sees some coordinates of the model and no others."""

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
