"""What a few random rows tell of the cosine between two vectors, and how surely.

P holds m of the d rows of an orthogonal matrix, drawn at random without replacement. Of unit vectors u and v

    x = 1 - d/(2m) ||P u - P v||^2,    E x = 1 - ||u - v||^2 / 2 = cos(u, v),

as every row is drawn with probability m/d. Where the matrix has spread u - v evenly over its d rows, as random signs
before a cosine transform do,

    Var x = (1 - cos)^2 2/m (1 - m/d),

the variance of a mean of m squares of normal variables, less what drawing without replacement saves.
"""

import math
from dataclasses import dataclass

import numpy as np


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


@dataclass(slots=True)
class CosineEstimate:
    """A mean of x over rounds in which each counts ``smoothing`` times as much as the next one.

    sum_t w_t x_t / sum_t w_t with w_t = smoothing^(seen since t) has variance sum_t w_t^2 Var x_t / (sum_t w_t)^2.
    """

    smoothing: float
    total: float = 0.0
    """sum_t w_t x_t"""
    weight: float = 0.0
    """sum_t w_t"""
    variance: float = 0.0
    """sum_t w_t^2 Var x_t / (1 - cos)^2"""
    seen: int = 0

    def see(self, cosine: float, rows: int, size: int) -> None:
        """Takes in an x of ``rows`` of ``size`` rows."""
        self.total = self.smoothing * self.total + cosine
        self.weight = self.smoothing * self.weight + 1
        self.variance = self.smoothing**2 * self.variance + relative_variance(rows, size)
        self.seen += 1

    def forget(self) -> None:
        self.total = self.weight = self.variance = 0.0
        self.seen = 0

    @property
    def mean(self) -> float:
        """0 before anything was seen."""
        return self.total / self.weight if self.seen else 0.0

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return (1 - self.mean) * math.sqrt(self.variance) / self.weight
