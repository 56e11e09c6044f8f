"""The cosine estimated from a few rows against the exact one: mean, variance, and the same bits at both ends."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.fft import dct

from sheafgossip.node.algorithms.selective_sheaf import Edge, SelectiveSheaf, relative_variance, sampled_cosine

SIZE = 7
vectors = arrays(float, SIZE, elements=st.floats(-3, 3).map(lambda number: round(number, 3)))
seeds = st.integers(0, 2**32 - 1)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / math.sqrt((a @ a) * (b @ b)))


def every_choice(a: np.ndarray, b: np.ndarray, rows: int, signs: np.ndarray) -> np.ndarray:
    """The estimates from all sets of so many rows of C D."""
    u, v = (dct(signs * vector, norm="ortho") for vector in (a, b))
    chosen = [list(each) for each in combinations(range(SIZE), rows)]
    return np.array([sampled_cosine(u[each], v[each], u @ u, v @ v, SIZE) for each in chosen])


@given(
    a=vectors, b=vectors, rows=st.integers(1, SIZE), signs=arrays(float, SIZE, elements=st.sampled_from([-1.0, 1.0]))
)
def test_over_all_choices_of_rows_the_mean_is_the_cosine_and_the_variance_that_without_replacement(a, b, rows, signs):
    assume(a @ a > 0.01 and b @ b > 0.01)
    estimates = every_choice(a, b, rows, signs)
    squares = dct(signs * (a / math.sqrt(a @ a) - b / math.sqrt(b @ b)), norm="ortho") ** 2
    variance = SIZE**2 / 4 * np.var(squares, ddof=1) / rows * (1 - rows / SIZE)
    assert estimates.mean() == pytest.approx(cosine(a, b), abs=1e-10)
    assert estimates.var() == pytest.approx(variance, abs=1e-10)


@given(seed=seeds, rows=st.sampled_from([10, 40, 100]))
def test_over_rows_and_signs_the_variance_is_the_formula_that_the_estimate_goes_by(seed, rows):
    """400 numbers: what the formula leaves out is of the order of 1/400. Averaged over signs, rows by their closed
    form."""
    rng = np.random.default_rng(seed)
    size = 400
    a, b = rng.normal(size=(2, size))
    b += rng.uniform(0, 2) * a
    difference = a / math.sqrt(a @ a) - b / math.sqrt(b @ b)
    signs = rng.choice([-1.0, 1.0], size=(400, size))
    squares = dct(signs * difference, norm="ortho", axis=1) ** 2
    exact = (size**2 / 4 * squares.var(axis=1, ddof=1) / rows * (1 - rows / size)).mean()
    assert exact == pytest.approx((1 - cosine(a, b)) ** 2 * relative_variance(rows, size), rel=0.06)


@given(seed=seeds, dtype=st.sampled_from(["float32", "float64"]))
def test_both_ends_get_the_same_bits(seed, dtype):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, 65)).astype(dtype)
    n, m = map(float, rng.uniform(0.1, 10, 2).astype(dtype))
    shuffled = rng.permutation(65)  # nor does the order in which a processor adds up matter
    there = sampled_cosine(a, b, n, m, 650)
    assert there == sampled_cosine(b, a, m, n, 650) == sampled_cosine(a[shuffled], b[shuffled], n, m, 650)


def edge_between(a: np.ndarray, b: np.ndarray, choices: list[np.ndarray], smoothing: float) -> tuple[float, float]:
    """Mean and error of an edge that has seen these rows of a and b, one round after the other."""
    edge = Edge(SelectiveSheaf(smoothing=smoothing), [len(a)], 1, 1)
    for rows in choices:
        edge.see(np.zeros(len(rows), int), a[rows], b[rows], np.array([a @ a]), np.array([b @ b]))
    assert edge.seen == len(choices)
    (mean,), (error,) = edge.mean_and_error()
    return mean, error


@given(seed=seeds, counts=st.lists(st.integers(1, 40), min_size=1, max_size=30), smoothing=st.floats(0, 0.99))
def test_the_mean_and_its_error_are_those_of_weights_that_fade(seed, counts, smoothing):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, 40))
    choices = [rng.choice(40, rows, replace=False) for rows in counts]
    found, error = edge_between(a, b, choices, smoothing)
    weights = smoothing ** np.arange(len(counts))[::-1]
    mean = weights @ [sampled_cosine(a[rows], b[rows], a @ a, b @ b, 40) for rows in choices] / weights.sum()
    variances = [2 / rows * (1 - rows / 40) for rows in counts]
    assert found == pytest.approx(mean, abs=1e-9)
    assert error == pytest.approx((1 - mean) * math.sqrt(weights**2 @ variances) / weights.sum(), abs=1e-9)


def test_the_error_is_the_deviation_that_is_seen():
    """Of 2,000 estimates from 12 rounds each, of 20 of 300 rows."""
    rng = np.random.default_rng(8)
    a, b = rng.normal(size=(2, 300))
    b += a
    estimates = [edge_between(a, b, [rng.choice(300, 20, replace=False) for _ in range(12)], 0.8) for _ in range(2000)]
    means, errors = np.array(estimates).T
    assert np.mean(means) == pytest.approx(cosine(a, b), abs=4 * np.std(means) / math.sqrt(2000))
    assert np.std(means) == pytest.approx(np.mean(errors), rel=0.15)
