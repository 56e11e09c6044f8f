"""What one end of an edge knows of it: estimates of how alike the updates at both ends are, and what it decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING

import numpy as np

from .cosine import CosineEstimate, sampled_cosine

if TYPE_CHECKING:
    from .method import SelectiveSheaf


class Edge:
    """For each block of theta that has a weight of its own."""

    def __init__(self, algorithm: SelectiveSheaf, sizes: Sequence[int], threshold: float):
        self.algorithm = algorithm
        self.sizes = sizes
        self.threshold = threshold
        self.estimates = [CosineEstimate(algorithm.smoothing) for _ in sizes]
        self.on = np.zeros(len(sizes), bool)
        """Whether this end would have it on."""
        self.listen = algorithm.listen
        """Samples that it takes at least to decide."""

    def signed(self, n: np.ndarray) -> np.ndarray:
        """n_i, with a minus where this end would have the edge off."""
        return np.where(self.on, n, -n)

    def weights(self, others: np.ndarray) -> np.ndarray:
        """w_ij; the other end's opinion is that of its message."""
        on = (self.on & others).astype(float)
        return on if self.algorithm.weights == "hard" else on * [max(0.0, e.mean) ** 2 for e in self.estimates]

    def see(
        self, block: np.ndarray, mine: np.ndarray, theirs: np.ndarray, n_mine: np.ndarray, n_theirs: np.ndarray
    ) -> None:
        """Takes in the sketches of a round, of which ``block`` tells the rows' blocks, and decides for the next one."""
        for b, (size, estimate) in enumerate(zip(self.sizes, self.estimates, strict=True)):
            chosen = block == b
            if n_mine[b] == 0 or n_theirs[b] == 0:  # somebody begins, or begins again
                estimate.forget()
                self.on[b], self.listen = False, self.algorithm.listen
            elif chosen.any():
                cosine = sampled_cosine(mine[chosen], theirs[chosen], n_mine[b], n_theirs[b], size)
                estimate.see(cosine, int(chosen.sum()), size)
            if self._is_surely_on(estimate):
                self.on[b] = True
            elif self._is_surely_off(estimate):
                self.on[b] = False

    def is_silent(self, round: int) -> bool:
        return round % self.algorithm.probe_every != 0 and self.is_surely_off

    @property
    def is_surely_off(self) -> bool:
        """In all blocks."""
        return all(map(self._is_surely_off, self.estimates))

    def _is_surely_on(self, estimate: CosineEstimate) -> bool:
        enough = estimate.seen >= self.listen
        return enough and estimate.mean - self.algorithm.sure * estimate.error >= self.threshold

    def _is_surely_off(self, estimate: CosineEstimate) -> bool:
        enough = estimate.seen >= self.listen
        return enough and estimate.mean + self.algorithm.sure * estimate.error < self.threshold

    @property
    def cosine(self) -> float | None:
        """The mean over blocks, by their size; None before there is any."""
        known = [(size, e.mean) for size, e in zip(self.sizes, self.estimates, strict=True) if e.seen]
        return sum(size * mean for size, mean in known) / sum(size for size, _ in known) if known else None

    def numbers(self) -> list[list[float]]:
        """All that it knows, a row a block."""
        return [[*astuple(estimate)[1:], on, self.listen] for estimate, on in zip(self.estimates, self.on, strict=True)]

    def load(self, numbers: Sequence[Sequence[float]]) -> None:
        for block, (total, weight, variance, seen, on, listen) in enumerate(numbers):
            self.estimates[block] = CosineEstimate(self.algorithm.smoothing, total, weight, variance, int(seen))
            self.on[block], self.listen = bool(on), int(listen)


def threshold_of(algorithm: SelectiveSheaf, m_i: int, m_j: int) -> float:
    """The cosine between two clients of m_i and m_j training samples from which they count as alike.

    An update is signal and noise. Of m samples, a share rho = m / (m + kappa) of its squared length is signal, so the
    cosine between two updates is sqrt(rho_i rho_j) times that between their signals. The same to the last bit at both
    ends.
    """
    kappa = algorithm.noise_samples
    return algorithm.threshold * math.sqrt(m_i * m_j / ((m_i + kappa) * (m_j + kappa)))
