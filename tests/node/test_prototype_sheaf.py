"""Whose classes look alike: estimates from few samples and few random products, against all that chance could draw."""

import math
import statistics
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from sheafgossip.node.algorithms import prototype_sheaf as module
from sheafgossip.node.algorithms.prototype_sheaf import End, compared, distance, spread

numbers = st.floats(-3, 3).map(lambda number: round(number, 3))
counts = arrays(np.int64, 3, elements=st.integers(0, 5))


def told(samples):
    """What a client tells that has these samples, {class: (n, h)} of 3 classes."""
    h = next(iter(samples.values())).shape[1]
    n = np.array([len(samples.get(c, ())) for c in range(3)])
    a = np.array([samples[c].mean(axis=0) if n[c] else np.zeros(h) for c in range(3)])
    apart = [((a[c] - a[n > 0].mean(axis=0)) ** 2).sum() if n[c] else 0.0 for c in range(3)]
    scatter = sum(((x - x.mean(axis=0)) ** 2).sum() for x in samples.values())
    return np.concatenate([a.ravel(), apart, n, [scatter]])


@given(
    centres=arrays(float, (2, 2, 1), elements=numbers), steps=arrays(float, 2, elements=st.sampled_from([0.5, 1, 2]))
)
def test_distance_and_spread_are_those_of_the_true_means_on_average_over_all_samples_that_could_be_drawn(
    centres, steps
):
    """Two ends with 2 and 1 samples of each of two classes; each sample is its class's centre, plus or minus a step."""
    draws = list(product(*[(-1, 1)] * 6))
    D, S = [], []
    V = float((steps**2).mean())  # of both classes; w is 1/2
    for signs in draws:
        noise = np.array(signs) * np.repeat(steps, 3)
        ends = []
        for number, part in ((0, slice(0, 2)), (1, slice(2, 3))):
            samples = {c: centres[number, c] + noise.reshape(2, 3)[c, part, None] for c in range(2)}
            ends.append(End.of(told(samples), 3))
        both, w = np.array([True, True, False]), np.array([0.5, 0.5])
        D.append(distance(*ends, both, w, V)[0])
        end = ends[0]
        seen, K = (w * end.apart[both]).sum(), 2
        by_chance = (w * ((1 - 2 / K) / end.n[both] + (1 / end.n[both]).sum() / K**2)).sum()
        assert spread(end, both, w, V) == pytest.approx(max(seen - V * by_chance, 0.1 * seen))
        S.append(seen - V * by_chance)
    assert statistics.mean(D) == pytest.approx(((centres[0] - centres[1]) ** 2).sum() / 2, abs=1e-9)
    true = ((centres[0] - centres[0].mean(axis=0)) ** 2).sum() / 2
    assert statistics.mean(S) == pytest.approx(true, abs=1e-9)


@given(centre=arrays(float, 2, elements=numbers), n=st.integers(2, 3), m=st.integers(1, 2))
def test_the_variance_around_prototypes_is_that_of_the_samples_on_average(centre, n, m):
    """All draws of n and m samples of one class, each of them one of these two numbers."""
    found = []
    for draw in product(centre, repeat=n + m):
        ends = [End.of(told({0: np.array(part)[:, None]}), 3) for part in (draw[:n], draw[n:])]
        found.append((ends[0].scatter + ends[1].scatter) / (n - 1 + m - 1))
    assert statistics.mean(found) == pytest.approx(float(np.var(centre)), abs=1e-9)


@given(apart=arrays(float, 3, elements=numbers), n=st.integers(1, 4))
def test_the_standard_error_is_that_of_the_mean_over_classes(apart, n):
    ends = [End(one[:, None], np.zeros(3), np.full(3, float(n)), 0.0) for one in (apart, np.zeros(3))]
    D, se = distance(*ends, np.ones(3, bool), np.full(3, 1 / 3), 0.0)
    assert (D, se) == pytest.approx((statistics.mean(apart**2), statistics.stdev(apart**2) / math.sqrt(3)), abs=1e-9)


@given(v=arrays(float, 3, elements=numbers))
def test_over_all_signs_the_squared_length_of_a_sketch_is_that_of_the_vector_and_its_variance_as_told(v):
    lengths = [float((np.array(signs) @ v) ** 2) for signs in product((-1, 1), repeat=3)]  # one number
    assert statistics.mean(lengths) == pytest.approx(v @ v, abs=1e-9)
    assert statistics.pvariance(lengths) <= 2 * (v @ v) ** 2 + 1e-9


def test_signs_are_as_drawn_for_the_class_whoever_draws_them():
    def R(seed, label):
        return module.sketched(np.eye(500), seed, label, 8)

    assert set(np.unique(R(3, 1))) == {-1 / math.sqrt(8), 1 / math.sqrt(8)}
    assert abs(R(3, 1).mean()) < 4 / math.sqrt(8 * 500) / math.sqrt(8)
    np.testing.assert_array_equal(R(3, 1), R(3, 1))
    assert all((other != R(3, 1)).any() for other in (R(3, 2), R(4, 1)))


@settings(max_examples=50)
@given(first=counts, second=counts, seed=st.integers(0, 2**31))
def test_both_ends_find_the_same_number_to_the_last_bit(first, second, seed):
    rng = np.random.default_rng(seed)
    ends = []
    for n in (first, second):
        samples = {c: rng.normal(size=(count, 2)) for c, count in enumerate(n) if count}
        ends.append((told(samples) if samples else np.zeros(3 * 4 + 1)).astype(np.float32))
    found, beyond = compared(*ends, 3, 1.0)
    assert (found, beyond) == compared(*ends[::-1], 3, 1.0)
    several = [(n > 0).sum() > 1 for n in (first, second)]
    if not ((first > 0) & (second > 0)).any() or not any(several):
        assert (found, beyond) == (-math.inf, 0.0)


any_number = st.floats(width=32) | st.sampled_from([0, 1, -1, 3e38])


@given(mine=arrays(np.float32, 13, elements=any_number), theirs=arrays(np.float32, 13, elements=any_number))
def test_whatever_a_neighbour_tells_is_a_number_for_both_and_stops_nobody(mine, theirs):
    found, beyond = compared(mine, theirs, 3, 1.0)
    assert not math.isnan(found)
    assert beyond >= 0
    assert (found, beyond) == compared(theirs, mine, 3, 1.0)


@pytest.mark.parametrize(("turned", "expected"), [(False, 1.0), (True, -1.0)])
def test_one_task_is_alike_and_an_opposed_one_is_not(turned, expected):
    """Many samples of two classes; the other end has them the other way round, or not."""
    rng = np.random.default_rng(0)
    centres = np.array([[2.0, 0], [-2.0, 0]])
    ends = []
    for flip in (False, turned):
        samples = {c: centres[1 - c if flip else c] + rng.normal(size=(4000, 2)) for c in range(2)}
        ends.append(told(samples))
    assert compared(*ends, 3, 0.0)[0] == pytest.approx(expected, abs=0.05)


def test_apart_beyond_chance_is_the_distance_in_units_of_what_two_draws_of_one_task_differ_by():
    """Four thousand samples of two classes of a thousand numbers each: chance moves prototypes by 1000/4000 each."""
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(2, 1000))
    for shift in (0.0, 0.05):  # of each number: 2.5 in squares
        ends = [told({c: centres[c] + by + rng.normal(size=(4000, 1000)) for c in range(2)}) for by in (0.0, shift)]
        assert compared(*ends, 3, 0.0)[1] == pytest.approx(shift**2 * 1000 / (2 * 1000 / 4000), abs=0.3)


@given(
    x=arrays(float, st.integers(2, 4), elements=numbers),
    w=arrays(float, 3, elements=st.sampled_from([0.1, 0.5, 1])),
    s=st.sampled_from([0.5, 1, 2]),
)
def test_a_mean_is_nearer_on_average_than_ones_own_where_tasks_lie_nearer_than_their_errors(x, w, s):
    """Over all errors of clients whose own are x; what docs/prototype-sheaf.md says of client 0."""
    m = len(x) - 1
    w = np.concatenate([[1.0], w[:m]])
    learned = [x + s * np.array(signs) for signs in product((-1, 1), repeat=m + 1)]
    of_mean, of_own = (
        statistics.mean((float(guess @ each) - x[0]) ** 2 for each in learned)
        for guess in (w / w.sum(), np.eye(m + 1)[0])
    )
    apart = (w * (x - x[0])).sum() ** 2
    assert of_mean == pytest.approx((s**2 * (w**2).sum() + apart) / w.sum() ** 2)
    assert of_own == pytest.approx(s**2)
    if abs(gain := s**2 * (w.sum() ** 2 - (w**2).sum()) - apart) > 1e-9:
        assert (of_mean < of_own) == (gain > 0)


@given(apart=numbers, s=st.sampled_from([0.5, 1, 2]), w=st.sampled_from([0.1, 0.3, 1]))
def test_the_best_weight_of_one_neighbour_falls_from_1_with_its_distance_and_a_small_one_pays_from_further_away(
    apart, s, w
):
    def error(w):
        return (s**2 * (1 + w**2) + (w * apart) ** 2) / (1 + w) ** 2

    weights = np.linspace(0, 2, 20_001)
    best = weights[np.argmin(error(weights))]
    assert best == pytest.approx(s**2 / (s**2 + apart**2), abs=1e-3)
    if abs(w * apart**2 - 2 * s**2) > 1e-9:
        assert (error(w) < s**2) == (w * apart**2 < 2 * s**2)


@given(
    m=st.integers(1, 5),
    same=st.integers(0, 3),
    s=st.sampled_from([0.5, 1, 2]),
    apart=st.sampled_from([0.0, 0.3, 1, 2]),
)
def test_the_best_weight_of_neighbours_that_lie_equally_far_apart_falls_with_their_number_not_with_that_of_others(
    m, same, s, apart
):
    """Tasks are drawn about one mean, each two apart^2 from each other on average; errors have the variance s^2. Others
    have the ``same`` task, and a weight of 1."""

    def error(w, same=same):
        bias = w**2 * apart**2 / 2 * m * (m + 1)
        return (s**2 * (1 + same + m * w**2) + bias) / (1 + same + m * w) ** 2

    tasks = apart / math.sqrt(2) * np.array([*product((-1, 1), repeat=m + 1)])
    at = 0.3
    bias = statistics.mean((at * (x[1:] - x[0]).sum()) ** 2 for x in tasks)
    assert error(at, same=0) == pytest.approx((s**2 * (1 + m * at**2) + bias) / (1 + m * at) ** 2)
    weights = np.linspace(0, 2, 20_001)
    by_chance = 2 * s**2  # the difference of two clients' errors, in squares
    assert weights[np.argmin(error(weights))] == pytest.approx(1 / (1 + (m + 1) * apart**2 / by_chance), abs=1e-3)
