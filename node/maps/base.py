"""What every kind of restriction maps can do."""

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

    Update, projections and norms are exact for every storage; only rounding differs.
    """

    def __init__(self, stacking: Stacking, squared_norms: Mapping[int, float]):
        self.stacking = stacking
        self._squared_norms = dict(squared_norms)
        self._flops = 0

    @property
    def flops(self) -> int:
        """Operations done so far in products with the maps, and in their changes."""
        return self._flops

    @property
    def neighbours(self) -> tuple[int, ...]:
        return self.stacking.neighbours

    @abstractmethod
    def project(self, theta: np.ndarray) -> dict[int, np.ndarray]:
        """{j: P_ij theta}"""

    @abstractmethod
    def pull_back(self, vectors: Vectors) -> np.ndarray:
        """sum_j P_ij^T v_j, (d_i,), over the neighbours that have a v_j."""

    def update(self, mine: Vectors, r: Vectors, theta: np.ndarray, step: float) -> None:
        """P_ij <- P_ij - step r_j theta^T for every j in ``r``; ``mine`` is what ``project(theta)`` gave."""
        if r:
            self._subtract(mine, r, theta, step)
        squared = float(theta @ theta)
        for j in r:
            # ||P - s r t'||^2 = ||P||^2 - 2 s r'(P t) + s^2 ||r||^2 ||t||^2
            self._squared_norms[j] += step * (step * float(r[j] @ r[j]) * squared - 2 * float(r[j] @ mine[j]))

    @abstractmethod
    def _subtract(self, mine: Vectors, r: Vectors, theta: np.ndarray, step: float) -> None: ...

    def norms(self) -> dict[int, float]:
        """{j: ||P_ij||_F}, followed from round to round: no map is ever made for it."""
        return {j: math.sqrt(max(squared, 0.0)) for j, squared in self._squared_norms.items()}

    @abstractmethod
    def dense(self, neighbour: int) -> np.ndarray:
        """P_ij as a matrix (d_ij, d_i)."""

    @abstractmethod
    def state_bytes(self) -> int:
        """Memory that the maps take now."""

    def history_bytes(self) -> int:
        """The share of ``state_bytes`` that grows from round to round."""
        return 0

    @abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """What ``load`` needs, beside the start, to rebuild the maps."""

    @abstractmethod
    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Goes on from what ``state`` gave."""

    @property
    def error_bound(self) -> float:
        """Frobenius norm that the stacked maps may be off by, where a cap on their memory acted; 0 if exact."""
        return 0.0
