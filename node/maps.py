"""Restriction maps: fixed ones, and the starts of others: the families of the paper's Table 6, and our shared maps."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from ..topology.randomness import generator

Vectors = Mapping[int, np.ndarray]  # {neighbour j: a vector of length d_ij}

StartKind = Literal["gaussian", "uniform", "orthogonal", "identity", "shared"]

IDENTITY_NOISE = 0.01  # standard deviation of the identity start's noise, as in the paper
_ROWS_AT_A_TIME = 64  # of random numbers: a double precision copy of all rows would not fit large models


class Stacking:
    """The rows of all edges, {j: d_ij}, one below the other, so that one product serves all."""

    def __init__(self, rows: Mapping[int, int]):
        self.rows, self._neighbours = dict(rows), [*rows]
        *starts, self.height = np.cumsum([0, *rows.values()]).tolist()
        self.parts = {j: slice(start, start + rows[j]) for j, start in zip(rows, starts, strict=True)}

    def split(self, stacked: np.ndarray) -> dict[int, np.ndarray]:
        return {j: stacked[part] for j, part in self.parts.items()}

    def join(self, vectors: Vectors) -> np.ndarray:
        """A neighbour without a vector has zeros."""
        if vectors and [*vectors] == self._neighbours:  # all of them, in the order of the rows
            return np.concatenate([*vectors.values()])
        joined = np.zeros(self.height, np.result_type(np.float32, *vectors.values()))
        for j, vector in vectors.items():
            joined[self.parts[j]] = vector
        return joined


class Maps(ABC):
    """The maps P_ij (d_ij, d_i) of one client i, one for each neighbour j, all at once. Update, projections and norms
    are exact for every storage; only rounding differs."""

    is_constrained = False  # whether they stay within a set other than all matrices, or all of some layers
    error_bound = 0.0  # Frobenius norm that the stacked maps may be off by, where a cap on their memory acted

    def __init__(self, stacking: Stacking, squared_norms: Mapping[int, float]):
        self.stacking, self.neighbours = stacking, tuple(stacking.rows)
        self.flops = 0  # done so far in products with the maps, and in their changes
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

    def constrain(self) -> None:
        """Replaces maps that an update has taken out of the set they are to stay in by the nearest ones in it."""
        return

    def curvature(self, theta: np.ndarray) -> float:
        """||theta||^2, of what the maps see of it: the largest eigenvalue of half ||P theta - v||^2 in one map."""
        return float(theta @ theta)

    def norms(self) -> dict[int, float]:
        """{j: ||P_ij||_F}"""
        return {j: math.sqrt(max(squared, 0.0)) for j, squared in self._squared_norms.items()}

    @abstractmethod
    def dense(self, neighbour: int) -> np.ndarray:
        """P_ij as a matrix (d_ij, d_i)."""

    @abstractmethod
    def state_bytes(self) -> int: ...

    def history_bytes(self) -> int:
        """The share that grows from round to round."""
        return 0

    def state(self) -> dict[str, np.ndarray]:
        """What ``load`` needs, beside the start, to rebuild the maps."""
        return {}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        return


class FixedMaps(Maps):
    """P_ij = sqrt(a_ij) S_ij: an edge sees some coordinates of the model, or all of them, and weighs them alike."""

    def __init__(self, size: int, seen: Mapping[int, np.ndarray | slice], weights: Mapping[int, float] = {}):
        """``size`` is d_i; ``seen`` is {j: the distinct coordinates that edge j sees; slice(None): all}, ``weights`` is
        {j: a_ij}, by default 1."""
        stacking = Stacking({j: len(np.arange(size)[chosen]) for j, chosen in seen.items()})
        super().__init__(stacking, {j: weights.get(j, 1.0) * rows for j, rows in stacking.rows.items()})
        self._roots = {j: math.sqrt(weights.get(j, 1.0)) for j in seen}
        self._size, self._seen = size, dict(seen)

    def project(self, theta: np.ndarray) -> dict[int, np.ndarray]:
        # What is sent to many neighbours is copied once if it is one object: theta itself, not views of it
        seen = {j: theta if isinstance(chosen, slice) else theta[chosen] for j, chosen in self._seen.items()}
        return {j: vector if self._roots[j] == 1 else self._roots[j] * vector for j, vector in seen.items()}

    def pull_back(self, vectors: Vectors) -> np.ndarray:
        total = np.zeros(self._size, np.result_type(np.float32, *vectors.values()))
        for j, vector in vectors.items():
            total[self._seen[j]] += self._roots[j] * vector  # within an edge no coordinate comes twice
        return total

    def coverage(self) -> np.ndarray:
        """The diagonal of sum_j P_ij^T P_ij, (d_i,): how much the edges see of each coordinate of theta."""
        total = np.zeros(self._size)
        for j, chosen in self._seen.items():
            total[chosen] += self._roots[j] ** 2
        return total

    def dense(self, neighbour: int) -> np.ndarray:
        return self._roots[neighbour] * np.eye(self._size)[self._seen[neighbour]]

    def state_bytes(self) -> int:
        return sum(chosen.nbytes for chosen in self._seen.values() if isinstance(chosen, np.ndarray))


class MatrixStart:
    """One matrix (sum_j d_ij, d_i): gaussian, uniform and identity-plus-noise maps, whose random numbers have to be
    kept. ``product_flops`` are those of a projection, or of a pull-back; ``cost_ns`` is what one of each take together.
    """

    def __init__(self, matrix: np.ndarray, stacking: Stacking):
        self.stacking, self.size, self.dtype = stacking, matrix.shape[1], matrix.dtype
        self._matrix = matrix
        self.state_bytes = matrix.nbytes
        self.product_flops = 2 * matrix.size
        self.cost_ns = 2 * matrix.size * time_of_a_number(matrix.nbytes)

    def project(self, theta: np.ndarray) -> np.ndarray:
        return self._matrix @ theta

    def pull_back(self, stacked: np.ndarray) -> np.ndarray:
        return stacked @ self._matrix

    def matrix(self, part: slice) -> np.ndarray:
        return self._matrix[part]

    def squared_norms(self) -> dict[int, float]:
        """{j: ||P_ij^0||_F^2}"""
        return {j: float(np.vdot(rows, rows)) for j, rows in self.stacking.split(self._matrix).items()}


class TransformStart:
    """P_ij^0 = s S_ij C D_i: random signs D, the orthonormal DCT-II C, a random choice S of distinct rows. No matrix is
    stored: one fast transform serves all edges, of which each picks its ``rows``. With several ``blocks``, of these
    lengths, C is block diagonal, so that each row sees one block of theta. The last ``plain`` rows are s times the last
    numbers of theta themselves."""

    def __init__(
        self,
        rows: Vectors,
        blocks: Sequence[int],
        signs: np.random.Generator,
        scale: float,
        dtype: np.dtype,
        plain: int = 0,
    ):
        self.stacking = Stacking({j: len(chosen) for j, chosen in rows.items()})
        self.size, self.dtype = sum(blocks) + plain, dtype
        ends = np.cumsum(blocks).tolist()
        self._blocks = tuple(map(slice, [0, *ends], ends))
        self._scaled_signs = np.full(self.size, scale, dtype)
        self._scaled_signs[: sum(blocks)] *= 1 - 2 * signs.integers(0, 2, sum(blocks))
        self._scale = scale
        self.choose(rows)
        self.state_bytes = self._scaled_signs.nbytes + self._rows.nbytes
        # As FFTs of real numbers are rated by convention, whatever the code does: 5/2 d log2 d
        transformed = sum(blocks)
        self.product_flops = round(2.5 * transformed * math.log2(max(1, transformed)))
        # A length is transformed prime factor by prime factor, or, where one of them is large, by two convolutions
        transform = min(0.2 * _sum_of_prime_factors(transformed), 4 * math.log2(transformed + 1))
        self.cost_ns = 30_000 + 2 * (10 * self.size + transform * transformed) + 20 * self.stacking.height

    def choose(self, rows: Vectors) -> None:
        self._rows = np.concatenate([np.zeros(0, np.int32), *rows.values()]).astype(np.int32)

    def project(self, theta: np.ndarray) -> np.ndarray:
        return self.of(theta)[self._rows]

    def pull_back(self, stacked: np.ndarray) -> np.ndarray:
        # A row may serve several edges; bincount adds them up in double precision
        return self.inverse(np.bincount(self._rows, weights=stacked, minlength=self.size).astype(self.dtype))

    def of(self, theta: np.ndarray) -> np.ndarray:
        """s C D theta: all rows, whichever are chosen."""
        from scipy.fft import dct

        spectrum = self._scaled_signs * theta
        for block in self._blocks:
            spectrum[block] = dct(spectrum[block], norm="ortho", overwrite_x=True)
        return spectrum

    def inverse(self, spectrum: np.ndarray) -> np.ndarray:
        """s D C^T ``spectrum`` (d,), which is overwritten: of s = 1 the inverse, of others the transpose."""
        from scipy.fft import idct

        for block in self._blocks:
            spectrum[block] = idct(spectrum[block], norm="ortho", overwrite_x=True)
        return self._scaled_signs * spectrum

    def matrix(self, part: slice) -> np.ndarray:
        rows = self._rows[part].astype(np.int64)
        matrix = np.zeros((len(rows), self.size))
        for block in self._blocks:
            inside = (block.start <= rows) & (rows < block.stop)
            matrix[inside, block] = cosine_rows(rows[inside] - block.start, block.stop - block.start)
        plain = np.flatnonzero(rows >= (self._blocks[-1].stop if self._blocks else 0))
        matrix[plain, rows[plain]] = 1.0
        return (matrix * self._scaled_signs).astype(self.dtype)

    def squared_norms(self) -> dict[int, float]:
        return {j: self._scale**2 * d_ij for j, d_ij in self.stacking.rows.items()}


StartingMaps = MatrixStart | TransformStart


def starting_maps(
    kind: StartKind, *, seed: int, node: int, rows: Mapping[int, int], theta: np.ndarray, scale: float
) -> StartingMaps:
    """The maps of client ``node`` with ``rows`` = {j: d_ij}, times ``scale``, for vectors of the size and type of
    ``theta``. The same seed draws the same maps in float32 and float64, up to rounding."""
    size, dtype = theta.size, theta.dtype
    if kind == "shared":
        return shared_transform(seed, shared_rows(seed, node, rows, size, 0), (size,), scale=scale, dtype=dtype)
    if kind == "orthogonal":
        drawn = {j: generator(seed, "rows of the orthogonal maps", node, j) for j in rows}
        chosen = {j: rng.choice(size, rows[j], replace=False) for j, rng in drawn.items()}
        return TransformStart(chosen, (size,), generator(seed, "signs of the orthogonal maps", node), scale, dtype)
    stacking = Stacking(rows)
    matrix = np.empty((stacking.height, size), dtype)
    for j, of_edge in stacking.split(matrix).items():
        rng = generator(seed, f"{kind} starting map", node, j)
        for first in range(0, len(of_edge), _ROWS_AT_A_TIME):
            block = of_edge[first : first + _ROWS_AT_A_TIME]
            numbers = rng.uniform(-1, 1, block.shape) if kind == "uniform" else rng.standard_normal(block.shape)
            if kind == "identity":
                numbers = np.eye(len(block), size, first) + IDENTITY_NOISE * numbers
            block[:] = scale * numbers
    return MatrixStart(matrix, stacking)


def shared_transform(
    seed: int, chosen: Vectors, blocks: Sequence[int], *, scale: float = 1.0, dtype: np.dtype, plain: int = 0
) -> TransformStart:
    return TransformStart(chosen, blocks, generator(seed, "signs of the shared maps"), scale, dtype, plain)


def fast_lengths(size: int) -> tuple[int, ...]:
    """Lengths of blocks that add up to ``size``, longest first, without a prime factor above 5: the transform of a
    length with a large one can take ten times as long."""
    lengths, length = [], size
    while size:
        length = min(length, size)
        while not _is_smooth(length):
            length -= 1
        lengths.append(length)
        size -= length
    return tuple(lengths)


def shared_rows(seed: int, node: int, rows: Mapping[int, int], size: int, period: int) -> dict[int, np.ndarray]:
    """The rows that both ends of each edge have in common; every period draws new ones."""
    drawn = {j: generator(seed, "rows of the shared maps", min(node, j), max(node, j), period) for j in rows}
    return {j: rng.choice(size, rows[j], replace=False) for j, rng in drawn.items()}


def rows_in_turn(seed: int, node: int, rows: Mapping[int, int], size: int, period: int) -> dict[int, np.ndarray]:
    """As ``shared_rows``, but the first one of all is drawn, and every period takes the next: within size/d_ij periods,
    rounded up, each comes at least once."""
    drawn = {j: generator(seed, "first of the rows in turn", min(node, j), max(node, j)) for j in rows}
    return {j: (rng.integers(size) + period * rows[j] + np.arange(rows[j])) % size for j, rng in drawn.items()}


def time_of_a_number(matrix_bytes: int) -> float:
    """Nanoseconds to read a number of a matrix and multiply it: twice as many from memory as from a near cache."""
    return 0.15 * min(2.0, max(1.0, matrix_bytes / 1e6) ** 0.2)


def _sum_of_prime_factors(number: int) -> int:
    total, factor = 0, 2
    while factor * factor <= number:
        if number % factor:
            factor += 1
        else:
            total, number = total + factor, number // factor
    return total + (number if number > 1 else 0)


def _is_smooth(number: int) -> bool:
    for factor in (2, 3, 5):
        while number % factor == 0:
            number //= factor
    return number == 1


def cosine_rows(rows: np.ndarray, length: int) -> np.ndarray:
    """Rows of the orthonormal DCT-II matrix of the given length, (len(rows), length) float64."""
    # Reduced exactly, in integers: the cosine of a huge angle would lose digits
    angles = np.outer(rows, 2 * np.arange(length) + 1) % (4 * length)
    norms = np.where(rows == 0, math.sqrt(1 / length), math.sqrt(2 / length))
    return norms[:, None] * np.cos(angles * (math.pi / (2 * length)))
