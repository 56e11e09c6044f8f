"""What classes look like, told in few numbers, and how alike they are at two clients.

a_ic (h,) is the mean of client i's n_ic samples of class c, its prototype: of their inputs, or of what a model's last
layer sees of them. Class c at one end of an edge and class k at the other, whose prototypes are

    D_ck = ||a_ic - a_jk||^2 - V (1/n_ic + 1/n_jk)

apart beyond what chance adds, are compared by name, c with c, over all C that both have, or by what they look like:
each with the one that is its nearest, as it is that one's nearest. Over the C pairs that are compared

    w_c  = n_ic n_jk / (n_ic + n_jk),  scaled to sum_c w_c = 1
    D    = sum_c w_c D_ck
    se^2 = sum_c w_c^2 (2 T v_c^2 + 4 max(0, D) T/V v_c),  v_c = 1/n_ic + 1/n_jk
    S_i  = sum_c w_c (||a_ic - mean_k a_ik||^2 - V e_ic),  e_ic = (1 - 2/K)/n_ic + sum_k 1/n_ik / K^2 of i's K classes
    E_ij = V sum_c w_c (1/n_ic + 1/n_jk)
    L_ij = 1 - (D + sure se)/(S_i + S_j)

V = tr Sigma and T = tr Sigma^2 are of the covariance Sigma of samples around the prototypes of their classes, pooled
over both ends. What V takes away is what chance adds: D is an unbiased estimate of how far the classes' true means lie
apart at the two ends, with the standard error se, and S_i of how far classes lie apart at one; E_ij is what chance
alone makes of D's squared distances. Another mix of labels changes none of them.

Of a prototype travel the products with ``sketch`` random vectors of entries +-1, whose squared distances are right on
average."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from ...topology.randomness import generator
from ..model.architecture import Architecture
from .base import Client

_SIGNS_AT_ONCE = 1 << 20  # entries of R: h may be large
_LEAST_SPREAD = 0.1  # of a spread, what the noise of few samples leaves of it at least
_LEAST_MATCHED = 2 / 3  # of the classes, each with its weight L_ij: by chance half of them are each other's nearest


def length_of(model: Architecture, of: Literal["inputs", "features"], sketch: int) -> int:
    """Returns how many numbers a client tells of its prototypes."""
    h = model.features if of == "features" else math.prod(model.input_shape)
    return model.outputs * (min(sketch, h) + 2) + 2


def described(client: Client, theta: np.ndarray | None, sketch: int) -> np.ndarray:
    """Returns what a client tells of its prototypes, of inputs or in a model theta: their sketches (classes, numbers),
    for each class ||a_ic - mean_k a_ik||^2 and n_ic, the sum of squared distances of its samples from their classes'
    prototypes, and T; 0 for classes that it has no samples of."""
    n = client.class_counts()
    those = n > 0
    means, scatter, products = client.class_moments(theta, partial(sketched, seed=client.seed, numbers=sketch))
    spread = np.where(those, np.square(means - means[those].mean(axis=0)).sum(axis=1), 0.0)
    sketches = sketched(means, client.seed, sketch)
    T = squared_covariance(products, int(n.sum() - those.sum()))
    return np.concatenate([sketches.ravel(), spread, n, [scatter, T]]).astype(client.theta.dtype)


def squared_covariance(products: np.ndarray, freedom: int) -> float:
    """Returns an estimate of tr Sigma^2 that is unbiased for normal samples, from the sum (k, k) of products of what
    they are off from their means, ``freedom`` of them on their own: E tr S^2 is (1 + 1/f) tr Sigma^2 + (tr Sigma)^2/f,
    S being that sum divided by f. No covariance has less than (tr Sigma)^2/k, or more than (tr Sigma)^2."""
    f = max(1, freedom)
    S = products / f
    square = float(np.trace(S)) ** 2
    found = (float(np.square(S).sum()) - square / f) * f**2 / ((f + 2) * (f - 1)) if f > 1 else square
    return min(max(found, square / len(S)), square)


def sketched(a: np.ndarray, seed: int, numbers: int) -> np.ndarray:
    """Returns a R^T (rows, numbers) of a (rows, h) for a matrix R of entries +-1/sqrt(numbers), the same for all
    clients: E ||R v||^2 is ||v||^2, its variance at most 2/numbers ||v||^4. Where h is no more than that, a itself."""
    if a.shape[1] <= numbers:
        return a
    signs, h = generator(seed, "signs of prototypes"), a.shape[1]
    parts, at_once = [], max(1, _SIGNS_AT_ONCE // h)
    for start in range(0, numbers, at_once):
        drawn = [signs.integers(0, 2, h, np.int8) for _ in range(min(at_once, numbers - start))]
        parts.append(a @ (2.0 * np.stack(drawn, axis=1) - 1))
    return np.concatenate(parts, axis=1) / math.sqrt(numbers)


@dataclass(frozen=True)
class End:
    """What one end of an edge has told, in double precision."""

    sketches: np.ndarray  # (classes, numbers)
    apart: np.ndarray  # (classes,), ||a_ic - mean_k a_ik||^2
    n: np.ndarray  # (classes,)
    scatter: float  # sum over its samples of ||x - a_ic||^2
    T: float  # its estimate of tr Sigma^2

    @property
    def freedom(self) -> float:
        return float(np.maximum(self.n - 1, 0).sum())

    @classmethod
    def of(cls, told: np.ndarray, classes: int) -> "End":
        sketches, apart, n, rest = np.split(told.astype(np.float64), [-2 * classes - 2, -classes - 2, -2])
        return cls(sketches.reshape(classes, -1), apart, n, *rest.tolist())


class Chance(NamedTuple):
    """How samples scatter around the true means of their classes."""

    V: float  # tr Sigma
    T: float  # tr Sigma^2

    @classmethod
    def of(cls, i: End, j: End) -> "Chance":
        freedom = max(1.0, i.freedom + j.freedom)
        return cls((i.scatter + j.scatter) / freedom, max(0.0, i.freedom * i.T + j.freedom * j.T) / freedom)


class Compared(NamedTuple):
    """``likeness`` is L_ij, minus infinity where the two have nothing to compare; ``beyond`` is max(0, D - sure se) in
    units of E_ij; ``classes`` (classes,) are what the other end calls one's own, each -1 where it has none like it;
    None where both call all alike."""

    likeness: float
    beyond: float
    classes: np.ndarray | None = None


def compared(mine: np.ndarray, theirs: np.ndarray, classes: int, sure: float, threshold: float) -> Compared:
    """Compares what both ends tell, by names, and where that comes to less than ``threshold`` by looks, if enough
    classes are alike. Numbers that are none have nothing in common. Exchanging the two ends gives the same numbers to
    the last bit, on any machine, as fsum rounds once."""
    i, j = End.of(mine, classes), End.of(theirs, classes)
    if not np.isfinite(np.append(mine, theirs)).all():
        return Compared(-math.inf, 0.0)
    chance = Chance.of(i, j)
    both = np.flatnonzero((i.n > 0) & (j.n > 0))
    by_name = _of_pairs(i, j, both, both, chance, sure)
    if by_name.likeness >= threshold:
        return by_name
    return _by_looks(i, j, chance, sure) or by_name


def _of_pairs(i: End, j: End, own: np.ndarray, other: np.ndarray, chance: Chance, sure: float) -> Compared:
    """Compares the classes ``own`` of i's with ``other`` of j's, one with one. The spread of an end that has a single
    class is taken to be that of the other."""
    if not len(own):
        return Compared(-math.inf, 0.0)
    w = i.n[own] * j.n[other] / (i.n[own] + j.n[other])
    w /= math.fsum(w.tolist())
    V, v = chance.V, 1 / i.n[own] + 1 / j.n[other]
    D, se = distance(apart(i, j, own, other, V), w, v, chance)
    spreads = [S for end, those in ((i, own), (j, other)) if (S := spread(end, those, w, V)) > 0]
    if not spreads:
        return Compared(-math.inf, 0.0)
    by_chance = V * math.fsum((w * v).tolist())
    beyond = max(0.0, (D - sure * se) / by_chance) if by_chance > 0 else 0.0
    return Compared(1 - (D + sure * se) * len(spreads) / (2 * math.fsum(spreads)), beyond)


def _by_looks(i: End, j: End, chance: Chance, sure: float) -> Compared | None:
    """Compares each class with its nearest at the other end, where it is nearest to that one, too. None where fewer
    than two thirds of the classes of the end with fewer have such a one, each counted as much as they are alike, or
    the next nearest are on average no further than by what chance adds to a distance: of two that have nothing to do
    with each other half the classes are each other's nearest."""
    mine, theirs = np.flatnonzero(i.n > 0), np.flatnonzero(j.n > 0)
    if min(len(mine), len(theirs)) < 2:
        return None
    V = chance.V
    squares = [np.square(i.sketches[c] - j.sketches[theirs]).sum(axis=1) for c in mine]
    D = np.array(squares) - V * (1 / i.n[mine][:, None] + 1 / j.n[theirs])  # tells which are near, and no more
    nearest, back = D.argmin(axis=1), D.argmin(axis=0)
    there = np.flatnonzero(back[nearest] == np.arange(len(mine)))
    own, other = mine[there], theirs[nearest[there]]
    likeness, beyond, _ = _of_pairs(i, j, own, other, chance, sure)
    likeness = min(1.0, likeness) * len(own) / min(len(mine), len(theirs))
    if not likeness >= _LEAST_MATCHED:  # or it is no number
        return None
    D[there, nearest[there]] = math.inf
    further = apart(i, j, own, theirs[D[there].argmin(axis=1)], V)
    further_back = apart(i, j, mine[D[:, nearest[there]].argmin(axis=0)], other, V)
    gaps = (further + further_back - 2 * apart(i, j, own, other, V)) / (1 / i.n[own] + 1 / j.n[other])
    if not math.fsum(gaps.tolist()) >= 2 * V * len(gaps):
        return None
    classes = np.full(len(i.n), -1)
    classes[own] = other
    return Compared(likeness, beyond, classes)


def apart(i: End, j: End, own: np.ndarray, other: np.ndarray, V: float) -> np.ndarray:
    """Returns D_ck of pairs of classes, ``own`` of i's and ``other`` of j's."""
    squares = np.square(i.sketches[own] - j.sketches[other]).tolist()
    return np.array([math.fsum(each) for each in squares]) - V * (1 / i.n[own] + 1 / j.n[other])


def distance(D_c: np.ndarray, w: np.ndarray, v: np.ndarray, chance: Chance) -> tuple[float, float]:
    """Returns D and se of pairs' distances D_c with the weights w; |D| where no class has two samples, so that nothing
    is known of chance. That ||mu + e||^2 has the variance 2 T + 4 mu^T Sigma mu holds for normal errors e, and that
    their covariance Sigma is in the direction of mu as it is elsewhere is a guess."""
    D, (V, T) = math.fsum((w * D_c).tolist()), chance
    if not V > 0:
        return D, abs(D)
    return D, math.sqrt(math.fsum((np.square(w) * (2 * T * v**2 + 4 * max(0.0, D) * (T / V) * v)).tolist()))


def spread(end: End, those: np.ndarray, w: np.ndarray, V: float) -> float:
    """Returns S_i over ``those`` classes with the weights w; 0 of an end with a single class."""
    K = int((end.n > 0).sum())
    seen = math.fsum((w * end.apart[those]).tolist())
    by_chance = (1 - 2 / K) / end.n[those] + math.fsum((1 / end.n[end.n > 0]).tolist()) / K**2
    return max(seen - V * math.fsum((w * by_chance).tolist()), _LEAST_SPREAD * seen)
