"""Restriction maps as their start and the history of their updates.

Every update (19) of a map is of rank one, and its right factor is the client's own theta, the same for all its edges:

    P_ij^k = P_ij^0 - R_ij^T T_i

T_i (k, d_i) holds the theta of each round, R_ij (k, d_ij) the eta lam r_ij of each round,

so that projections and pull-backs cost one pass over T_i, whatever the number of edges and whatever their d_ij.
"""

from collections.abc import Mapping

import numpy as np

from ..model.flops import product_flops, truncation_flops
from .base import Maps, Vectors
from .start import StartingMaps


def block_rows(size: int) -> int:
    """Rows are added to blocks of this many: growing copies nothing, and products take few calls."""
    return max(32, (1 << 16) // size)


class History:
    """The sum of all updates, U = R^T T (height, size), as blocks of rows of which the last is not full yet.

    Row k of T is a theta, row k of R the step times the disagreements met with it. Memory: rows x (size + height)
    numbers, read once by each product.
    """

    def __init__(self, size: int, height: int, dtype: np.dtype):
        self._widths, self._dtype, self._block_rows = (size, height), dtype, block_rows(size)
        self._blocks: list[list[np.ndarray]] = []
        self.rows = 0

    def blocks(self) -> list[list[np.ndarray]]:
        """T and R, a few dozen rows at a time."""
        full, rest = divmod(self.rows, self._block_rows)
        return self._blocks[:full] + [[T[:rest], R[:rest]] for T, R in self._blocks[full:]]

    @property
    def newest_theta(self) -> np.ndarray:
        return self._blocks[-1][0][(self.rows - 1) % self._block_rows]

    def append(self, theta: np.ndarray, r: np.ndarray) -> None:
        place = self.rows % self._block_rows
        if place == 0:
            self._blocks.append([np.empty((self._block_rows, width), self._dtype) for width in self._widths])
        T, R = self._blocks[-1]
        T[place], R[place] = theta, r
        self.rows += 1

    def times(self, theta: np.ndarray) -> np.ndarray:
        """U theta = R^T (T theta), (height,)."""
        return sum((T @ theta) @ R for T, R in self.blocks())

    def transpose_times(self, stacked: np.ndarray) -> np.ndarray:
        """U^T v = T^T (R v), (size,)."""
        return sum((R @ stacked) @ T for T, R in self.blocks())

    def matrix(self, part: slice) -> np.ndarray:
        """Rows of U."""
        return sum(R[:, part].T @ T for T, R in self.blocks())

    def truncate(self, rank: int) -> float:
        """Replaces U by its best approximation of this rank; returns the Frobenius norm of what is lost."""
        T, R = self.arrays()
        basis_t, factor_t = np.linalg.qr(T.T)
        basis_r, factor_r = np.linalg.qr(R.T)
        left, singular, right = np.linalg.svd(factor_r @ factor_t.T, full_matrices=False)
        root = np.sqrt(singular[:rank])[:, None]
        self.load(root * (right[:rank] @ basis_t.T), root * (left[:, :rank].T @ basis_r.T))
        return float(np.linalg.norm(singular[rank:]))

    def nbytes(self) -> int:
        return self.rows * sum(self._widths) * self._dtype.itemsize

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """T and R."""
        if not self.rows:
            size, height = self._widths
            return np.empty((0, size), self._dtype), np.empty((0, height), self._dtype)
        T, R = map(np.concatenate, zip(*self.blocks(), strict=True))
        return T, R

    def load(self, T: np.ndarray, R: np.ndarray) -> None:
        self._blocks, self.rows = [], 0
        for theta, r in zip(T, R, strict=True):
            self.append(theta, r)


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
        theta, r = self.history.arrays()
        state = {
            "history_theta": theta,
            "history_r": r,
            "map_squared_norms": np.array(list(self._squared_norms.values())),
            "map_error_bound": np.array([self._lost]),
        }
        return state if self._next is None else state | {"map_next": self._next}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self.history.load(state["history_theta"], state["history_r"])
        self._squared_norms = dict(zip(self.neighbours, state["map_squared_norms"].tolist(), strict=True))
        self._lost = float(state["map_error_bound"][0])
        self._next = state.get("map_next")
