"""What one end of an edge knows of it: how alike the updates at both ends are, from a few random rows, and how surely.

P holds m of the d rows of an orthogonal matrix, drawn at random without replacement. Of unit vectors u and v

    x = 1 - d/(2m) ||P u - P v||^2,    E x = 1 - ||u - v||^2 / 2 = cos(u, v),

as every row is drawn with probability m/d. Where the matrix has spread u - v evenly over its d rows, as random signs
before a cosine transform do,

    Var x = (1 - cos)^2 2/m (1 - m/d),

the variance of a mean of m squares of normal variables, less what drawing without replacement saves.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .method import SelectiveSheaf


def sampled_cosine(mine: np.ndarray, theirs: np.ndarray, n_mine: float, n_theirs: float, size: int) -> float:
    """x, from P a and P b (m,), ||a||^2 and ||b||^2, with a and b of length ``size``.

    Exchanging the two vectors gives the same number to the last bit, on any machine: differences change their sign
    exactly, and fsum rounds once, whatever the order.
    """
    r = mine.astype(np.float64) / math.sqrt(n_mine) - theirs.astype(np.float64) / math.sqrt(n_theirs)
    return 1 - size / (2 * len(r)) * math.fsum((r * r).tolist())


def relative_variance(rows: int, size: int) -> float:
    """Var x / (1 - cos)^2."""
    return 2 / rows * (1 - rows / size)


class Edge:
    """For each block of theta that has a weight of its own: a mean of x over rounds in which each counts ``smoothing``
    times as much as the next one, and what this end decides by it.

    sum_t w_t x_t / sum_t w_t with w_t = smoothing^(seen since t) has variance sum_t w_t^2 Var x_t / (sum_t w_t)^2.
    """

    def __init__(self, algorithm: "SelectiveSheaf", sizes: Sequence[int], m_i: int, m_j: int):
        """Of clients of m_i and m_j training samples, with blocks of these sizes."""
        self.algorithm, self.sizes = algorithm, sizes
        # An update is signal and noise. Of m samples, a share rho = m / (m + kappa) of its squared length is signal, so
        # the cosine between two updates is sqrt(rho_i rho_j) times that between their signals, to the last bit at both
        # ends.
        kappa = algorithm.noise_samples
        self.threshold = algorithm.threshold * math.sqrt(m_i * m_j / ((m_i + kappa) * (m_j + kappa)))
        self.numbers = np.zeros((len(sizes), 6))
        """All that it knows, a row a block; its columns are:"""
        self.total, self.weight, self.variance, self.seen, self.on, self.listen = self.numbers.T
        # sum_t w_t x_t, sum_t w_t, sum_t w_t^2 Var x_t / (1 - cos)^2, how many x there were, whether this end would
        # have the edge on, and how many x it takes at least to decide
        self.listen[:] = algorithm.listen

    def see(
        self, block: np.ndarray, mine: np.ndarray, theirs: np.ndarray, n_mine: np.ndarray, n_theirs: np.ndarray
    ) -> None:
        """Takes in the sketches of a round, of which ``block`` tells the rows' blocks, and decides for the next one."""
        smoothing = self.algorithm.smoothing
        for b, (size, numbers) in enumerate(zip(self.sizes, self.numbers, strict=True)):
            chosen = block == b
            if n_mine[b] == 0 or n_theirs[b] == 0:  # somebody begins, or begins again
                numbers[:5], self.listen[:] = 0, self.algorithm.listen
            elif chosen.any():
                x = sampled_cosine(mine[chosen], theirs[chosen], n_mine[b], n_theirs[b], size)
                numbers[:3] *= smoothing, smoothing, smoothing**2
                numbers[:4] += x, 1, relative_variance(int(chosen.sum()), size), 1
        surely_on, surely_off = self.decided()
        self.on[:] = surely_on | (self.on > 0) & ~surely_off

    def mean_and_error(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean cosine of each block, 0 before anything was seen, and its standard error."""
        weight = np.where(self.weight, self.weight, 1)
        mean = self.total / weight
        return mean, (1 - mean) * np.sqrt(self.variance) / weight

    def decided(self) -> tuple[np.ndarray, np.ndarray]:
        """Which blocks are surely on, and which are surely off."""
        mean, error = self.mean_and_error()
        enough, margin = self.seen >= self.listen, self.algorithm.sure * error
        return enough & (mean - margin >= self.threshold), enough & (mean + margin < self.threshold)

    @property
    def is_surely_off(self) -> bool:
        """In all blocks."""
        return bool(self.decided()[1].all())

    def is_silent(self, round: int) -> bool:
        return round % self.algorithm.probe_every != 0 and self.is_surely_off

    def weights(self, others: np.ndarray) -> np.ndarray:
        """w_ij; the other end's opinion is that of its message."""
        on = self.on * others
        if self.algorithm.weights == "hard":
            return on
        return on * [max(0.0, mean) ** 2 for mean in self.mean_and_error()[0].tolist()]

    @property
    def cosine(self) -> float | None:
        """The mean over blocks, by their size; None before there is any."""
        means = self.mean_and_error()[0].tolist()
        known = [(size, mean) for size, mean, seen in zip(self.sizes, means, self.seen, strict=True) if seen]
        return sum(size * mean for size, mean in known) / sum(size for size, _ in known) if known else None
