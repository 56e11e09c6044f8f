"""Restriction maps as plain matrices, as the paper writes them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..model.flops import product_flops
from .base import Maps, Stacking, Vectors
from .start import StartingMaps


class DenseMaps(Maps):
    """Memory: sum_j d_ij x d_i numbers, all of them read or written five times a round."""

    def __init__(self, matrix: np.ndarray, stacking: Stacking, squared_norms: Mapping[int, float]):
        """``matrix`` is all maps stacked, (sum_j d_ij, d_i), row by row in memory; it is changed in place."""
        super().__init__(stacking, squared_norms)
        self._matrix = np.ascontiguousarray(matrix)

    @classmethod
    def start(cls, start: StartingMaps) -> DenseMaps:
        matrix = np.empty((start.stacking.height, start.size), start.dtype)
        for part in start.stacking.parts.values():
            matrix[part] = start.matrix(part)
        return cls(matrix, start.stacking, start.squared_norms())

    def project(self, theta: np.ndarray) -> dict[int, np.ndarray]:
        self._flops += product_flops(self._matrix.size)
        return self.stacking.split(self._matrix @ theta)

    def pull_back(self, vectors: Vectors) -> np.ndarray:
        if not self.neighbours:
            return np.zeros_like(self._matrix, shape=self._matrix.shape[1])
        self._flops += product_flops(self._matrix.size)
        return self.stacking.join(vectors) @ self._matrix

    def _subtract(self, mine: Vectors, r: Vectors, theta: np.ndarray, step: float) -> None:
        from scipy.linalg.blas import get_blas_funcs

        # numpy would write the outer product out before subtracting it: two to four times slower
        subtract_outer = get_blas_funcs("ger", dtype=self._matrix.dtype)
        self._flops += product_flops(self._matrix.size)
        subtract_outer(-step, theta, self.stacking.join(r), a=self._matrix.T, overwrite_a=True)

    def dense(self, neighbour: int) -> np.ndarray:
        return self._matrix[self.stacking.parts[neighbour]]

    def state_bytes(self) -> int:
        return self._matrix.nbytes

    def state(self) -> dict[str, np.ndarray]:
        return {"maps": self._matrix, "map_squared_norms": np.array(list(self._squared_norms.values()))}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self._matrix[:] = state["maps"]
        self._squared_norms = dict(zip(self.neighbours, state["map_squared_norms"].tolist(), strict=True))
