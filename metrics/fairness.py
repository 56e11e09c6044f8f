"""How a figure is spread over the clients of a run."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

_ROUND_OFF = 1e-9  # must not add a client: 0.07 * 100 is a little more than 7


def mean(values: ArrayLike) -> float:
    return float(np.mean(_checked(values)))


def standard_error(values: ArrayLike) -> float:
    """Returns that of the mean, with the sample variance (n - 1): here the values are a sample. nan for one value."""
    checked = _checked(values)
    with np.errstate(invalid="ignore"):  # of infinities it is not defined: nan
        return float(np.std(checked, ddof=1) / math.sqrt(checked.size)) if checked.size > 1 else math.nan


def worst(values: ArrayLike, share: float = 0.1, higher_is_better: bool = True) -> float:
    """Returns the mean over the ceil(share * n) clients that fare worst; 0 < share <= 1."""
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}; it must be above 0 and at most 1")
    ascending = np.sort(_checked(values))
    count = max(1, math.ceil(share * ascending.size - _ROUND_OFF))
    return float(np.mean(ascending[:count] if higher_is_better else ascending[-count:]))


@dataclass(frozen=True, slots=True)
class Spread:
    """``std`` and ``variance`` are those of the population: the clients are all there are."""

    mean: float
    std: float
    standard_error: float
    variance: float
    worst_10: float
    worst_20: float

    @classmethod
    def of(cls, values: ArrayLike, *, higher_is_better: bool = True) -> "Spread":
        tenth, fifth = (worst(values, share, higher_is_better) for share in (0.1, 0.2))
        with np.errstate(invalid="ignore"):
            variance = float(np.var(_checked(values)))
        return cls(mean(values), math.sqrt(variance), standard_error(values), variance, tenth, fifth)


def _checked(values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"expected one value a client, got shape {array.shape}")
    return array
