"""Restriction maps as plain matrices, stacked: one product serves all edges of a client."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..client import Client
from .base import Maps
from .starts import StartKind, starting_map


class DenseMaps(Maps):
    def __init__(self, maps: Mapping[int, np.ndarray]):
        """``maps`` is {j: P_ij}; the stacked copy takes sum_j d_ij x d_i numbers."""
        self.neighbours = tuple(maps)
        ends = np.cumsum([len(matrix) for matrix in maps.values()]).tolist()
        self._rows = dict(zip(maps, map(slice, [0, *ends[:-1]], ends), strict=True))
        self._stack = np.concatenate(list(maps.values())) if maps else None

    @classmethod
    def start(cls, client: Client, rows: Mapping[int, int], *, kind: StartKind, scale: float) -> DenseMaps:
        """Maps with ``rows[j]`` = d_ij rows, drawn for this client and edge."""
        dtype, d_i = client.theta.dtype, client.theta.size
        return cls(
            {
                j: (scale * starting_map(kind, client.generator, j, (d_ij, d_i))).astype(dtype, copy=False)
                for j, d_ij in rows.items()
            }
        )

    def project(self, theta: np.ndarray) -> dict[int, np.ndarray]:
        if self._stack is None:
            return {}
        projected = self._stack @ theta
        return {j: projected[rows] for j, rows in self._rows.items()}

    def pull_back(self, vectors: Mapping[int, np.ndarray]) -> np.ndarray:
        if self._stack is None:
            return np.zeros(1)
        return np.concatenate([vectors[j] for j in self.neighbours]) @ self._stack

    def update(self, r: Mapping[int, np.ndarray], theta: np.ndarray, step: float) -> None:
        for j, rows in self._rows.items():
            self._stack[rows] -= np.outer(step * r[j], theta)

    def dense(self, neighbour: int) -> np.ndarray:
        return self._stack[self._rows[neighbour]]

    def state_bytes(self) -> int:
        return 0 if self._stack is None else self._stack.nbytes

    def state(self) -> dict[str, np.ndarray]:
        return {f"P.{j}": self.dense(j) for j in self.neighbours}
