"""What restriction maps begin as: the four families of the paper's Table 6, and shared maps, which are ours.

P_ij^0 of all edges of client i are stacked to (sum_j d_ij, d_i): either matrices, or one orthogonal transform of which
every edge picks some rows.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np

from ...topology.randomness import generator
from .base import Stacking

StartKind = Literal["gaussian", "uniform", "orthogonal", "identity", "shared"]
START_KINDS: tuple[str, ...] = get_args(StartKind)

_NOISE = 0.01  # standard deviation of the identity start's noise, as in the paper
_ROWS_AT_A_TIME = 64  # of random numbers: a double precision copy of all rows would not fit large models


class MatrixStart:
    """Gaussian, uniform and identity-plus-noise maps: random numbers have to be kept."""

    def __init__(self, matrix: np.ndarray, stacking: Stacking):
        self.stacking, self.size, self.dtype = stacking, matrix.shape[1], matrix.dtype
        self._matrix = matrix

    def project(self, theta: np.ndarray) -> np.ndarray:
        """P^0 theta, (sum_j d_ij,)."""
        return self._matrix @ theta

    def pull_back(self, stacked: np.ndarray) -> np.ndarray:
        """(P^0)^T v, (d_i,)."""
        return stacked @ self._matrix

    def matrix(self, part: slice) -> np.ndarray:
        """Rows of the stacked maps."""
        return self._matrix[part]

    def squared_norms(self) -> dict[int, float]:
        """{j: ||P_ij^0||_F^2}"""
        return {j: float(np.vdot(self._matrix[part], self._matrix[part])) for j, part in self.stacking.parts.items()}

    def state_bytes(self) -> int:
        return self._matrix.nbytes

    def product_flops(self) -> int:
        """Operations of one projection, or of one pull-back."""
        return 2 * self._matrix.size

    def cost(self) -> float:
        """Nanoseconds that one projection and one pull-back take together on a processor like any other."""
        return 2 * self._matrix.size * time_of_a_number(self._matrix.nbytes)


class TransformStart:
    """P_ij^0 = s S_ij C D_i: random signs D, the orthonormal DCT-II C, a random choice S of distinct rows.

    Rows are orthonormal times s. No matrix is stored: a projection is one fast transform for all edges, and of it each
    edge picks its rows; the transposes of all edges add up before the one inverse transform. With several ``blocks`` C
    is block diagonal, so that each row sees one block of theta.
    """

    def __init__(
        self,
        rows: Mapping[int, np.ndarray],
        signs: np.ndarray,
        *,
        scale: float,
        dtype: np.dtype,
        blocks: Sequence[int] = (),
    ):
        """``rows`` is {j: the d_ij distinct rows of edge j}; ``signs`` is the diagonal of D, (d_i,); ``blocks`` are the
        lengths of the blocks, by default one of all."""
        self.stacking = Stacking({j: len(chosen) for j, chosen in rows.items()})
        self.size, self.dtype = len(signs), dtype
        ends = np.cumsum(blocks or [self.size]).tolist()
        self._blocks = tuple(map(slice, [0, *ends[:-1]], ends))
        self._scaled_signs = (scale * signs).astype(dtype)
        self._scale = scale
        self.choose(rows)

    def choose(self, rows: Mapping[int, np.ndarray]) -> None:
        """Gives every edge other rows, as many as before."""
        self._rows = np.concatenate(list(rows.values())).astype(np.int32) if rows else np.zeros(0, np.int32)

    def project(self, theta: np.ndarray) -> np.ndarray:
        from scipy.fft import dct

        spectrum = self._scaled_signs * theta
        for block in self._blocks:
            spectrum[block] = dct(spectrum[block], norm="ortho", overwrite_x=True)
        return spectrum[self._rows]

    def pull_back(self, stacked: np.ndarray) -> np.ndarray:
        from scipy.fft import idct

        # A row may serve several edges; bincount adds them up in double precision
        spectrum = np.bincount(self._rows, weights=stacked, minlength=self.size).astype(self.dtype)
        for block in self._blocks:
            spectrum[block] = idct(spectrum[block], norm="ortho", overwrite_x=True)
        return self._scaled_signs * spectrum

    def matrix(self, part: slice) -> np.ndarray:
        rows = self._rows[part].astype(np.int64)
        matrix = np.zeros((len(rows), self.size))
        for block in self._blocks:
            inside = (block.start <= rows) & (rows < block.stop)
            matrix[inside, block] = cosine_rows(rows[inside] - block.start, block.stop - block.start)
        return (matrix * self._scaled_signs).astype(self.dtype)

    def squared_norms(self) -> dict[int, float]:
        return {j: self._scale**2 * (part.stop - part.start) for j, part in self.stacking.parts.items()}

    def state_bytes(self) -> int:
        return self._scaled_signs.nbytes + self._rows.nbytes

    def product_flops(self) -> int:
        """As FFTs of real numbers are rated by convention, whatever the code does: 5/2 d log2 d."""
        return round(2.5 * self.size * math.log2(self.size))

    def cost(self) -> float:
        # A length is transformed prime factor by prime factor, or, where one of them is large, by two convolutions
        transform = min(0.2 * _sum_of_prime_factors(self.size), 4 * math.log2(self.size + 1))
        return 30_000 + 2 * (10 + transform) * self.size + 20 * self.stacking.height


StartingMaps = MatrixStart | TransformStart


def starting_maps(
    kind: StartKind, *, seed: int, node: int, rows: Mapping[int, int], theta: np.ndarray, scale: float
) -> StartingMaps:
    """The maps of client ``node`` with ``rows`` = {j: d_ij}, times ``scale``, for vectors of the size and type of
    ``theta``. The same seed draws the same maps in float32 and float64, up to rounding."""
    stacking, size, dtype = Stacking(rows), theta.size, theta.dtype
    if kind == "orthogonal":
        signs = _signs(generator(seed, "signs of the orthogonal maps", node), size)
        chosen = {
            j: generator(seed, "rows of the orthogonal maps", node, j).choice(size, d_ij, replace=False)
            for j, d_ij in rows.items()
        }
        return TransformStart(chosen, signs, scale=scale, dtype=dtype)
    if kind == "shared":
        return shared_transform(seed, node, rows, (size,), scale=scale, dtype=dtype)
    matrix = np.empty((stacking.height, size), dtype)
    for j, part in stacking.parts.items():
        rng = generator(seed, f"{kind} starting map", node, j)
        for first in range(part.start, part.stop, _ROWS_AT_A_TIME):
            block = matrix[first : min(first + _ROWS_AT_A_TIME, part.stop)]
            drawn = rng.uniform(-1, 1, block.shape) if kind == "uniform" else rng.standard_normal(block.shape)
            if kind == "identity":
                drawn = np.eye(len(block), size, first - part.start) + _NOISE * drawn
            block[:] = scale * drawn
    return MatrixStart(matrix, stacking)


def shared_transform(
    seed: int, node: int, rows: Mapping[int, int], blocks: Sequence[int], *, scale: float = 1.0, dtype: np.dtype
) -> TransformStart:
    """The maps that both ends of each edge have in common, as they are before any rotation."""
    size = sum(blocks)
    signs = _signs(generator(seed, "signs of the shared maps"), size)
    return TransformStart(shared_rows(seed, node, rows, size, 0), signs, scale=scale, dtype=dtype, blocks=blocks)


def shared_rows(seed: int, node: int, rows: Mapping[int, int], size: int, period: int) -> dict[int, np.ndarray]:
    """The rows that both ends of each edge have in common; every period draws new ones."""
    ends = {j: (min(node, j), max(node, j)) for j in rows}
    return {
        j: generator(seed, "rows of the shared maps", *ends[j], period).choice(size, d_ij, replace=False)
        for j, d_ij in rows.items()
    }


def time_of_a_number(matrix_bytes: int) -> float:
    """Nanoseconds to read a number of a matrix and multiply it: twice as many from memory as from a near cache."""
    return 0.15 * min(2.0, max(1.0, matrix_bytes / 1e6) ** 0.2)


def _sum_of_prime_factors(number: int) -> int:
    total, factor = 0, 2
    while factor * factor <= number:
        while number % factor == 0:
            total += factor
            number //= factor
        factor += 1
    return total + (number if number > 1 else 0)


def cosine_rows(rows: np.ndarray, length: int) -> np.ndarray:
    """Rows of the orthonormal DCT-II matrix of the given length, (len(rows), length) float64."""
    # Reduced exactly, in integers: the cosine of a huge angle would lose digits
    angles = np.outer(rows, 2 * np.arange(length) + 1) % (4 * length)
    norms = np.where(rows == 0, math.sqrt(1 / length), math.sqrt(2 / length))
    return norms[:, None] * np.cos(angles * (math.pi / (2 * length)))


def _signs(rng: np.random.Generator, size: int) -> np.ndarray:
    return 1.0 - 2.0 * rng.integers(0, 2, size)
