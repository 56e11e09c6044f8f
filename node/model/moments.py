"""How the samples of each class lie: their means, and how they scatter around them."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

Sketch = Callable[[np.ndarray], np.ndarray]  # rows (n, h) -> short ones (n, k), linearly


class ClassMoments(NamedTuple):
    """In double precision; 0 for classes without samples."""

    means: np.ndarray
    """(classes, h)"""
    scatter: float
    """The sum over samples of the squared distance from the mean of their class."""
    products: np.ndarray
    """(k, k), the sum over samples of e e^T, e being the sketch of what a sample is off from the mean of its class."""


def moments_of(parts: Iterable[np.ndarray], y: np.ndarray, classes: int, h: int, sketch: Sketch) -> ClassMoments:
    """``parts`` are rows (n, h) of some samples, and y (samples,) the classes of all."""
    sums, squares, at = np.zeros((classes, h)), 0.0, 0
    short = sketch(sums)
    products = short.T @ short
    for z in parts:
        np.add.at(sums, y[at : at + len(z)], z)
        squares += float(np.square(z, dtype=np.float64).sum())
        short = sketch(z.astype(np.float64))
        products += short.T @ short
        at += len(z)
    n = np.bincount(y, minlength=classes).clip(min=1)[:, None]
    means = sums / n
    short = sketch(means)
    return ClassMoments(means, max(0.0, squares - float((n * means**2).sum())), products - short.T @ (n * short))
