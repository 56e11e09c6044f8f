"""How restriction maps begin: the four families of the paper's Table 6, as dense matrices of scale 1."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

StartKind = Literal["gaussian", "uniform", "orthogonal", "identity"]

_NOISE = 0.01  # of the identity start, as in the paper


def starting_map(
    kind: StartKind, generator: Callable[..., np.random.Generator], neighbour: int, shape: tuple[int, int]
) -> np.ndarray:
    """P_ij (d_ij, d_i) float64. ``generator(purpose, *key)`` gives the client's random draws."""
    rng = generator("starting map", neighbour)
    if kind == "gaussian":
        return rng.standard_normal(shape)
    if kind == "uniform":
        return rng.uniform(-1, 1, shape)
    if kind == "identity":
        return np.eye(*shape) + _NOISE * rng.standard_normal(shape)
    signs = generator("signs of the orthogonal maps").choice([-1.0, 1.0], shape[1])
    return cosine_rows(rng.choice(shape[1], shape[0], replace=False), shape[1]) * signs


def cosine_rows(rows: np.ndarray, length: int) -> np.ndarray:
    """Rows of the orthonormal DCT-II matrix of the given length, (len(rows), length)."""
    # Reduced exactly in integers: the cosine of a huge angle would lose digits
    angles = np.outer(rows, 2 * np.arange(length) + 1) % (4 * length)
    norms = np.where(rows == 0, math.sqrt(1 / length), math.sqrt(2 / length))
    return norms[:, None] * np.cos(angles * (math.pi / (2 * length)))
