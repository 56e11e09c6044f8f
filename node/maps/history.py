"""The sum of all updates that maps have seen, as two thin matrices: U = R^T T."""

from __future__ import annotations

import numpy as np


def block_rows(size: int) -> int:
    """Rows are added to blocks of this many: growing copies nothing, and products take few calls."""
    return max(32, (1 << 16) // size)


class _GrowingRows:
    """A matrix that grows by rows, kept as a list of blocks of which the last is not full yet."""

    def __init__(self, width: int, dtype: np.dtype, block_rows: int):
        self._width = width
        self._dtype = dtype
        self._block_rows = block_rows
        self._blocks: list[np.ndarray] = []
        self.rows = 0

    def append(self, row: np.ndarray) -> None:
        place = self.rows % self._block_rows
        if place == 0:
            self._blocks.append(np.empty((self._block_rows, self._width), self._dtype))
        self._blocks[-1][place] = row
        self.rows += 1

    def blocks(self) -> list[np.ndarray]:
        """The rows in order, a few dozen at a time."""
        full, rest = divmod(self.rows, self._block_rows)
        return self._blocks[:full] + ([self._blocks[full][:rest]] if rest else [])

    def row(self, place: int) -> np.ndarray:
        return self._blocks[place // self._block_rows][place % self._block_rows]

    def array(self) -> np.ndarray:
        blocks = self.blocks()
        return np.concatenate(blocks) if blocks else np.empty((0, self._width), self._dtype)

    def replace(self, rows: np.ndarray) -> None:
        self._blocks, self.rows = [], 0
        for row in rows:
            self.append(row)


class History:
    """U = R^T T (height, size): row k of T is a theta, row k of R the step times the disagreements met with it.

    Memory: rows x (size + height) numbers, read once by each product.
    """

    def __init__(self, size: int, height: int, dtype: np.dtype):
        self._theta = _GrowingRows(size, dtype, block_rows(size))
        self._r = _GrowingRows(height, dtype, block_rows(size))

    @property
    def rows(self) -> int:
        return self._theta.rows

    @property
    def newest_theta(self) -> np.ndarray:
        return self._theta.row(self.rows - 1)

    def append(self, theta: np.ndarray, r: np.ndarray) -> None:
        self._theta.append(theta)
        self._r.append(r)

    def times(self, theta: np.ndarray) -> np.ndarray:
        """U theta = R^T (T theta), (height,)."""
        return sum((T @ theta) @ R for T, R in zip(self._theta.blocks(), self._r.blocks(), strict=True))

    def transpose_times(self, stacked: np.ndarray) -> np.ndarray:
        """U^T v = T^T (R v), (size,)."""
        return sum((R @ stacked) @ T for T, R in zip(self._theta.blocks(), self._r.blocks(), strict=True))

    def matrix(self, part: slice) -> np.ndarray:
        """Rows of U."""
        return sum(R[:, part].T @ T for T, R in zip(self._theta.blocks(), self._r.blocks(), strict=True))

    def truncate(self, rank: int) -> float:
        """Replaces U by its best approximation of this rank; returns the Frobenius norm of what is lost."""
        basis_t, factor_t = np.linalg.qr(self._theta.array().T)
        basis_r, factor_r = np.linalg.qr(self._r.array().T)
        left, singular, right = np.linalg.svd(factor_r @ factor_t.T, full_matrices=False)
        root = np.sqrt(singular[:rank])[:, None]
        self._theta.replace(root * (right[:rank] @ basis_t.T))
        self._r.replace(root * (left[:, :rank].T @ basis_r.T))
        return float(np.linalg.norm(singular[rank:]))

    def nbytes(self) -> int:
        return sum(block.nbytes for rows in (self._theta, self._r) for block in rows.blocks())

    def state(self) -> dict[str, np.ndarray]:
        return {"history_theta": self._theta.array(), "history_r": self._r.array()}

    def load(self, theta: np.ndarray, r: np.ndarray) -> None:
        self._theta.replace(theta)
        self._r.replace(r)
