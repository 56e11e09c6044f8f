"""What every kind of restriction maps can do, and maps that stay as they are."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

Vectors = Mapping[int, np.ndarray]
"""{neighbour j: a vector of length d_ij}"""


class Stacking:
    """The rows of all edges of a client, one below the other: one product then serves all edges."""

    def __init__(self, rows: Mapping[int, int]):
        """``rows`` is {j: d_ij}."""
        ends = np.cumsum(list(rows.values())).tolist() if rows else []
        self.neighbours = tuple(rows)
        self.parts = dict(zip(rows, map(slice, [0, *ends[:-1]], ends), strict=True))
        self.height = ends[-1] if ends else 0

    def split(self, stacked: np.ndarray) -> dict[int, np.ndarray]:
        return {j: stacked[part] for j, part in self.parts.items()}

    def join(self, vectors: Vectors) -> np.ndarray:
        """A neighbour without a vector has zeros."""
        if len(vectors) == len(self.neighbours):
            return np.concatenate([vectors[j] for j in self.neighbours])
        joined = np.zeros(self.height, next((vector.dtype for vector in vectors.values()), np.float32))
        for j, vector in vectors.items():
            joined[self.parts[j]] = vector
        return joined


class Maps(ABC):
    """The maps P_ij (d_ij, d_i) of one client i, one for each neighbour j, all at once.

    Update, projections and norms are exact for every storage; only rounding differs. ``flops`` are the operations done
    so far in products with the maps, and in their changes. ``error_bound`` is the Frobenius norm that the stacked maps
    may be off by, where a cap on their memory acted.
    """

    error_bound = 0.0

    def __init__(self, stacking: Stacking, squared_norms: Mapping[int, float]):
        self.stacking = stacking
        self.neighbours = stacking.neighbours
        self.flops = 0
        self._squared_norms = dict(squared_norms)

    @abstractmethod
    def project(self, theta: np.ndarray) -> dict[int, np.ndarray]:
        """{j: P_ij theta}"""

    @abstractmethod
    def pull_back(self, vectors: Vectors) -> np.ndarray:
        """sum_j P_ij^T v_j, (d_i,), over the neighbours that have a v_j."""

    def update(self, mine: Vectors, r: Vectors, theta: np.ndarray, step: float) -> None:
        """P_ij <- P_ij - step r_j theta^T for every j in ``r``; ``mine`` is what ``project(theta)`` gave."""
        raise TypeError("these maps are fixed")

    def norms(self) -> dict[int, float]:
        """{j: ||P_ij||_F}, followed from round to round: no map is ever made for it."""
        return {j: math.sqrt(max(squared, 0.0)) for j, squared in self._squared_norms.items()}

    @abstractmethod
    def dense(self, neighbour: int) -> np.ndarray:
        """P_ij as a matrix (d_ij, d_i)."""

    def state_bytes(self) -> int:
        """Memory that the maps take now."""
        return 0

    def history_bytes(self) -> int:
        """The share of ``state_bytes`` that grows from round to round."""
        return 0

    def state(self) -> dict[str, np.ndarray]:
        """What ``load`` needs, beside the start, to rebuild the maps."""
        return {}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Goes on from what ``state`` gave."""
        return


class FixedMaps(Maps):
    @abstractmethod
    def coverage(self) -> np.ndarray:
        """The diagonal of sum_j P_ij^T P_ij, (d_i,): how much the edges see of each coordinate of theta."""


class IdentityMaps(FixedMaps):
    """P_ij = sqrt(a_ij) I: neighbours compare their models themselves. Nothing is stored, nothing is multiplied."""

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


class SelectionMaps(FixedMaps):
    """P_ij are rows of the identity: an edge sees some coordinates of the model and no others."""

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
