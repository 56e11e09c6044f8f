"""What noised gradients tell of one sample, as (epsilon, delta)-differential privacy, by Rényi differential privacy."""

import math
from collections.abc import Mapping
from functools import cache

import numpy as np

_LARGE = 80, 96, 128, 192, 256, 384, 512, 768, 1024
ORDERS = np.array([*(1 + step / 20 for step in range(1, 61)), *np.arange(4.5, 12, 0.5), *range(12, 65), *_LARGE])
_MOST_POINTS = 1 << 20  # of an integral; orders that need more are far too large for so little noise

Release = tuple[float, float]  # (q, standard deviation of the noise as a multiple of what one sample adds)


@cache
def rdp(q: float, noise: float) -> np.ndarray:
    """Returns eps(alpha) of each of ORDERS for the Poisson-subsampled Gaussian (Mironov, Talwar, Zhang 2019), where one
    sample is added or removed:

    eps(alpha) = log E_{z ~ N(0, s^2)} ((1 - q) + q exp((2 z - 1) / (2 s^2)))^alpha / (alpha - 1)

    by the trapezoidal rule, whose error vanishes faster than any power of its step here. q = 1: alpha / (2 s^2)."""
    if q == 1:
        return ORDERS / (2 * noise**2)
    return np.array([_log_moment(q, noise, alpha) / (alpha - 1) for alpha in ORDERS])


def _log_moment(q: float, s: float, alpha: float) -> float:
    reach = 12 * max(s, 0.1) + 1  # around the two normal densities that the integrand is made of, at 0 and at alpha
    step = min(s / 8, s**2 / 2)
    if (alpha + 2 * reach) / step > _MOST_POINTS:
        return math.inf
    z = np.arange(-reach, alpha + reach, step)
    log_ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * z - 1) / (2 * s**2))
    logs = -(z**2) / (2 * s**2) - math.log(s * math.sqrt(2 * math.pi)) + alpha * log_ratio
    largest = logs.max()
    return max(0.0, float(largest + math.log(np.exp(logs - largest).sum() * step)))


def epsilon(releases: Mapping[Release, int], delta: float) -> float:
    """Returns epsilon of all these together, {release: how often}, converted as Canonne, Kamath and Steinke (2020,
    proposition 12) do:

    epsilon = min_alpha eps(alpha) + log((alpha - 1) / alpha) - (log delta + log alpha) / (alpha - 1)"""
    if any(not noise for _, noise in releases):
        return math.inf
    total = sum((count * rdp(*release) for release, count in releases.items()), start=np.zeros(len(ORDERS)))
    bounds = total + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(bounds.min())) if releases else 0.0
