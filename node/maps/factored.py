"""Restriction maps as their start and the history of their updates.

Every update (19) of a map is of rank one, and its right factor is the client's own theta, the same for all its edges:

    P_ij^k = P_ij^0 - R_ij^T T_i

T_i (k, d_i) holds the theta of each round, R_ij (k, d_ij) the eta lam r_ij of each round,

so that projections and pull-backs cost one pass over T_i, whatever the number of edges and whatever their d_ij.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..model.flops import product_flops, truncation_flops
from .base import Maps, Vectors
from .history import History
from .start import StartingMaps


class FactoredMaps(Maps):
    """Memory: the start, and k (d_i + sum_j d_ij) numbers after k updates.

    With a ``rank_cap`` the history keeps at most that many rows: when it is full, its best approximation with three
    quarters of them takes its place. What is lost adds up in ``error_bound``.
    """

    def __init__(self, start: StartingMaps, rank_cap: int | None = None):
        super().__init__(start.stacking, start.squared_norms())
        self.start = start
        self.history = History(start.size, start.stacking.height, start.dtype)
        self._rank_cap = rank_cap
        self._next: np.ndarray | None = None  # P theta of the newest theta in the history, after its own update
        self._lost = 0.0

    def project(self, theta: np.ndarray) -> dict[int, np.ndarray]:
        if self._next is not None and np.array_equal(theta, self.history.newest_theta):
            return self.stacking.split(self._next)
        self._flops += self._product_flops()
        projected = self.start.project(theta)
        if self.history.rows:
            projected = projected - self.history.times(theta)
        return self.stacking.split(projected)

    def pull_back(self, vectors: Vectors) -> np.ndarray:
        if not self.neighbours:
            return np.zeros(self.start.size, self.start.dtype)
        self._flops += self._product_flops()
        stacked = self.stacking.join(vectors)
        pulled = self.start.pull_back(stacked)
        return pulled - self.history.transpose_times(stacked) if self.history.rows else pulled

    def _subtract(self, mine: Vectors, r: Vectors, theta: np.ndarray, step: float) -> None:
        scaled = step * self.stacking.join(r)
        if self._rank_cap is not None and self.history.rows >= self._rank_cap:
            rank = 3 * self._rank_cap // 4
            self._flops += truncation_flops(self.start.size, self.stacking.height, self.history.rows, rank)
            self._lost += self.history.truncate(rank)
        self.history.append(theta, scaled)
        # P^{k+1} theta = P^k theta - c ||theta||^2 r: the next projection of this theta costs no pass over anything
        self._next = self.stacking.join(mine) - float(theta @ theta) * scaled

    def _product_flops(self) -> int:
        return self.start.product_flops() + product_flops(self.history.rows * (self.start.size + self.stacking.height))

    @property
    def error_bound(self) -> float:
        return self._lost

    def dense(self, neighbour: int) -> np.ndarray:
        part = self.stacking.parts[neighbour]
        matrix = self.start.matrix(part)
        return matrix - self.history.matrix(part) if self.history.rows else matrix

    def state_bytes(self) -> int:
        return self.start.state_bytes() + self.history_bytes()

    def history_bytes(self) -> int:
        return self.history.nbytes()

    def state(self) -> dict[str, np.ndarray]:
        state = self.history.state() | {
            "map_squared_norms": np.array(list(self._squared_norms.values())),
            "map_error_bound": np.array([self._lost]),
        }
        return state if self._next is None else state | {"map_next": self._next}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self.history.load(state["history_theta"], state["history_r"])
        self._squared_norms = dict(zip(self.neighbours, state["map_squared_norms"].tolist(), strict=True))
        self._lost = float(state["map_error_bound"][0])
        self._next = state.get("map_next")
