"""Restriction maps that updates change, stored as matrices, or as their start and the history of their updates.

Every update (19) of a map is of rank one, and its right factor is the client's own theta, the same for all its edges:

    P_ij^k = P_ij^0 - R_ij^T T_i

T_i (k, d_i) holds the theta of each round, R_ij (k, d_ij) the eta lam r_ij of each round, so that projections and
pull-backs cost one pass over T_i, whatever the number of edges and whatever their d_ij."""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from .maps import Maps, MatrixStart, StartingMaps, Vectors, time_of_a_number

Storage = Literal["auto", "dense", "factored"]

# What a round takes, in nanoseconds, fitted to benchmarks/maps.py on one core of a 2.8 GHz server. Only the ratio of
# the two storages matters, and that hardly depends on the machine. Both read matrices, at time_of_a_number each;
# factored maps make more calls, which is what small models are about.
_SUBTRACTION = 1.5  # an outer product is subtracted in place: more than a product that only reads
_HISTORY = 2.2  # it is read twice, block by block, and the blocks' products are added up
_CALLS = 30_000.0  # of a factored round beyond those of a dense one
_CALLS_OF_AN_EDGE = 1_000.0
_CALLS_OF_A_BLOCK = 10_000.0  # of the history


def dense_cost(start: StartingMaps) -> float:
    """Nanoseconds of a round on dense maps: two projections, a pull-back, a subtraction in place."""
    numbers = start.stacking.height * start.size
    return (3 + _SUBTRACTION) * numbers * time_of_a_number(numbers * start.dtype.itemsize)


def factored_cost(start: StartingMaps, rows: int) -> float:
    numbers = rows * (start.size + start.stacking.height)
    blocks = rows / _block_rows(start.size)
    calls = _CALLS + _CALLS_OF_AN_EDGE * len(start.stacking.rows) + _CALLS_OF_A_BLOCK * blocks
    return calls + start.cost_ns + _HISTORY * numbers * time_of_a_number(numbers * start.dtype.itemsize)


def truncation_flops(size: int, height: int, rows: int, rank: int) -> int:
    """Operations of the best approximation of R^T T, with T (rows, size) and R (rows, height), in ``rank`` rows each:
    leading terms for Householder QR with its basis (4 m n^2 - 4/3 n^3) and for the SVD (21 n^3), of Golub & Van Loan,
    Matrix Computations, sections 5.2 and 8.6."""
    a, b = min(rows, size), min(rows, height)
    bases = (4 * max(rows, length) * n**2 - 4 * n**3 // 3 for length, n in ((size, a), (height, b)))
    return sum(bases) + 2 * a * b * rows + 2 * rank * (a * size + b * height) + 21 * min(a, b) ** 2 * max(a, b)


def _block_rows(size: int) -> int:
    return max(32, (1 << 16) // size)


class History:
    """The sum of all updates, U = R^T T (height, size), as blocks of rows: growing copies nothing, and products take
    few calls. Row k of T is a theta, row k of R the step times the disagreements met with it."""

    def __init__(self, size: int, height: int, dtype: np.dtype):
        self._widths, self._dtype, self._block_rows = (size, height), dtype, _block_rows(size)
        self._blocks: list[list[np.ndarray]] = []
        self.rows = 0

    def blocks(self) -> list[list[np.ndarray]]:
        full, rest = divmod(self.rows, self._block_rows)
        return self._blocks[:full] + [[T[:rest], R[:rest]] for T, R in self._blocks[full:]]

    def append(self, theta: np.ndarray, r: np.ndarray) -> None:
        place = self.rows % self._block_rows
        if place == 0:
            self._blocks.append([np.empty((self._block_rows, width), self._dtype) for width in self._widths])
        T, R = self._blocks[-1]
        T[place], R[place] = theta, r
        self.rows += 1

    def scale(self, part: slice, factor: float) -> None:
        for _, R in self.blocks():
            R[:, part] *= factor

    def matrix(self, part: slice) -> np.ndarray:
        return sum(R[:, part].T @ T for T, R in self.blocks())

    def truncate(self, rank: int) -> float:
        """Replaces U by its best approximation of this rank; returns the Frobenius norm of what is lost."""
        (basis_t, factor_t), (basis_r, factor_r) = (np.linalg.qr(rows.T) for rows in self.arrays())
        left, singular, right = np.linalg.svd(factor_r @ factor_t.T, full_matrices=False)
        root = np.sqrt(singular[:rank])[:, None]
        self.load(root * (right[:rank] @ basis_t.T), root * (left[:, :rank].T @ basis_r.T))
        return float(np.linalg.norm(singular[rank:]))

    def arrays(self) -> list[np.ndarray]:
        nothing = [np.empty((0, width), self._dtype) for width in self._widths]
        return [np.concatenate(parts) for parts in zip(nothing, *self.blocks(), strict=True)]

    def load(self, T: np.ndarray, R: np.ndarray) -> None:
        self._blocks, self.rows = [], 0
        for theta, r in zip(T, R, strict=True):
            self.append(theta, r)


class StoredMaps(Maps):
    """``auto`` are factored maps that turn into dense ones, exactly, once their history makes them the dearer; that
    follows from sizes alone, never from a measured time: the same run chooses the same everywhere. A history that has
    ``rank_cap`` rows is replaced by its best approximation with three quarters of them. What is lost adds up in
    ``error_bound``."""

    def __init__(self, start: StartingMaps, storage: Storage = "factored", rank_cap: int | None = None):
        super().__init__(start.stacking, start.squared_norms())
        self.start = start  # where the maps are dense, what they are now
        self.history = History(start.size, start.stacking.height, start.dtype)
        self._rank_cap = rank_cap
        stays_factored = storage == "factored" or rank_cap is not None
        self._dearest = math.inf if stays_factored else dense_cost(start) if storage == "auto" else 0.0
        self._matrix: np.ndarray | None = None  # of dense maps, all stacked: (sum_j d_ij, d_i), row by row in memory
        self._factors: np.ndarray | None = None  # (sum_j d_ij,), of the rows of a start that has been scaled
        self._next: np.ndarray | None = None  # P theta of the newest theta in the history, after its own update
        self._choose_storage()

    def _choose_storage(self) -> None:
        if self._matrix is None and factored_cost(self.start, self.history.rows) > self._dearest:
            self._turn_dense()

    def _turn_dense(self) -> np.ndarray:
        matrix = np.empty((self.stacking.height, self.start.size), self.start.dtype)
        for j, rows in self.stacking.split(matrix).items():
            rows[:] = self.dense(j)
        self.flops += 2 * self.history.rows * matrix.size
        self.start, self._matrix, self._next = MatrixStart(matrix, self.stacking), matrix, None
        self._factors = None
        self.history = History(self.start.size, self.stacking.height, self.start.dtype)
        return matrix

    def project(self, theta: np.ndarray) -> dict[int, np.ndarray]:
        if self._next is not None and np.array_equal(theta, self.history.blocks()[-1][0][-1]):
            return self.stacking.split(self._next)
        self._count_a_product()
        projected = self.start.project(theta)
        if self._factors is not None:
            projected = self._factors * projected
        if self.history.rows:
            projected = projected - sum((T @ theta) @ R for T, R in self.history.blocks())  # R^T (T theta)
        return self.stacking.split(projected)

    def pull_back(self, vectors: Vectors) -> np.ndarray:
        if not self.neighbours:
            return np.zeros(self.start.size, self.start.dtype)
        self._count_a_product()
        stacked = self.stacking.join(vectors)
        pulled = self.start.pull_back(stacked if self._factors is None else self._factors * stacked)
        if self.history.rows:
            pulled = pulled - sum((R @ stacked) @ T for T, R in self.history.blocks())  # T^T (R v)
        return pulled

    def _count_a_product(self) -> None:
        self.flops += self.start.product_flops + 2 * self.history.rows * (self.start.size + self.stacking.height)

    def update(self, mine: Vectors, r: Vectors, theta: np.ndarray, step: float) -> None:
        squared = float(theta @ theta)
        if r and self._matrix is not None:
            from scipy.linalg.blas import get_blas_funcs

            # numpy would write the outer product out before subtracting it: two to four times slower
            subtract_outer = get_blas_funcs("ger", dtype=self._matrix.dtype)
            self.flops += 2 * self._matrix.size
            subtract_outer(-step, theta, self.stacking.join(r), a=self._matrix.T, overwrite_a=True)
        elif r:
            scaled = step * self.stacking.join(r)
            if self._rank_cap is not None and self.history.rows >= self._rank_cap:
                rank = 3 * self._rank_cap // 4
                self.flops += truncation_flops(self.start.size, self.stacking.height, self.history.rows, rank)
                self.error_bound += self.history.truncate(rank)
            self.history.append(theta, scaled)
            # P^{k+1} theta = P^k theta - c ||theta||^2 r: the next projection of this theta costs no pass over anything
            self._next = self.stacking.join(mine) - squared * scaled
        for j in r:
            # ||P - s r t'||^2 = ||P||^2 - 2 s r'(P t) + s^2 ||r||^2 ||t||^2
            dot = r[j].dot  # of short vectors, twice as quick as @
            self._squared_norms[j] += step * (step * float(dot(r[j])) * squared - 2 * float(dot(mine[j])))
        self._choose_storage()

    def scale(self, neighbour: int, factor: float) -> None:
        """P_ij <- factor P_ij"""
        part = self.stacking.parts[neighbour]
        self._squared_norms[neighbour] *= factor**2
        if self._matrix is not None:
            self._matrix[part] *= factor
            return
        if self._factors is None:
            self._factors = np.ones(self.stacking.height, self.start.dtype)
        self._factors[part] *= factor
        self.history.scale(part, factor)
        if self._next is not None:
            self._next[part] *= factor

    def replace(self, neighbour: int, matrix: np.ndarray) -> None:
        """P_ij <- matrix, of dense maps"""
        assert self._matrix is not None
        self._matrix[self.stacking.parts[neighbour]] = matrix
        self._squared_norms[neighbour] = float(np.vdot(matrix, matrix))

    def dense(self, neighbour: int) -> np.ndarray:
        part = self.stacking.parts[neighbour]
        matrix = self.start.matrix(part)
        if self._factors is not None:
            matrix = self._factors[part, None] * matrix
        return matrix - self.history.matrix(part) if self.history.rows else matrix

    def state_bytes(self) -> int:
        return self.start.state_bytes + self.history_bytes()

    def history_bytes(self) -> int:
        return self.history.rows * (self.start.size + self.stacking.height) * self.start.dtype.itemsize

    def state(self) -> dict[str, np.ndarray]:
        state = {"map_squared_norms": np.array(list(self._squared_norms.values()))}
        if self._matrix is not None:
            return state | {"maps": self._matrix}
        theta, r = self.history.arrays()
        state |= {"history_theta": theta, "history_r": r, "map_error_bound": np.array([self.error_bound])}
        if self._factors is not None:
            state["map_factors"] = self._factors
        return state if self._next is None else state | {"map_next": self._next}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self._squared_norms = dict(zip(self.neighbours, state["map_squared_norms"].tolist(), strict=True))
        if "maps" in state:
            matrix = self._turn_dense() if self._matrix is None else self._matrix
            matrix[:] = state["maps"]
            return
        self.history.load(state["history_theta"], state["history_r"])
        self.error_bound = float(state["map_error_bound"][0])
        self._factors, self._next = (
            state[name].copy() if name in state else None for name in ("map_factors", "map_next")
        )
