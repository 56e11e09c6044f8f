"""Whose classes look alike: estimates from few samples and few random products, against all that chance could draw."""

import math
import statistics
from itertools import product
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from sheafgossip.node.algorithms.class_likeness import (
    Chance,
    End,
    apart,
    compared,
    distance,
    sketched,
    spread,
    squared_covariance,
)
from sheafgossip.node.algorithms.prototype_sheaf import rows_of

numbers = st.floats(-3, 3).map(lambda number: round(number, 3))
counts = arrays(np.int64, 3, elements=st.integers(0, 5))


def told(samples, classes=3):
    """What a client tells that has these samples, {class: (n, h)}."""
    h = next(iter(samples.values())).shape[1]
    n = np.array([len(samples.get(c, ())) for c in range(classes)])
    a = np.array([samples[c].mean(axis=0) if n[c] else np.zeros(h) for c in range(classes)])
    apart = [((a[c] - a[n > 0].mean(axis=0)) ** 2).sum() if n[c] else 0.0 for c in range(classes)]
    off = np.concatenate([x - x.mean(axis=0) for x in samples.values()])
    T = squared_covariance(off.T @ off, len(off) - len(samples))
    return np.concatenate([a.ravel(), apart, n, [(off**2).sum(), T]])


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
        both, w = np.array([0, 1]), np.array([0.5, 0.5])
        D.append(distance(apart(*ends, both, both, V), w, np.full(2, 1.5), Chance(V, V**2))[0])
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


@given(
    sigma=st.sampled_from([0.5, 1.0, 2.0]),
    n=arrays(np.int64, 2, elements=st.integers(1, 5)),
    angles=arrays(float, 2, elements=numbers),
    length=st.sampled_from([0.0, 0.3, 2.0]),
)
def test_the_standard_error_is_that_of_normal_samples(sigma, n, angles, length):
    """Two classes whose true means lie ``length`` apart at the two ends, in any direction: integrals over all errors of
    prototypes, exact for polynomials."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    weights = weights / weights.sum()
    w, v = np.array([0.3, 0.7]), 1 / n + 1 / 3
    mu = length * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    drawn = (mu[:, :, None] + sigma * np.sqrt(v)[:, None, None] * nodes) ** 2  # (classes, numbers, nodes)
    means = drawn @ weights
    variance = (w**2 * (drawn**2 @ weights - means**2).sum(axis=1)).sum()
    V, T = 2 * sigma**2, 2 * sigma**4
    D, se = distance(means.sum(axis=1) - V * v, w, v, Chance(V, T))
    assert (D, se**2) == pytest.approx((length**2, variance), rel=1e-9, abs=1e-9)
    assert distance(np.array([1.0, 3.0]), w, v, Chance(0.0, 0.0)) == pytest.approx((2.4, 2.4))  # nothing is known


@pytest.mark.parametrize("freedom", [2, 3, 8, 40])
def test_the_square_of_the_covariance_is_estimated_without_bias_from_few_samples(freedom):
    rng, scale = np.random.default_rng(freedom), np.geomspace(1, 0.2, 6)
    found = []
    for _ in range(4000):
        e = scale * rng.normal(size=(freedom, 6))
        found.append(squared_covariance(e.T @ e, freedom))
        square = ((e**2).sum() / freedom) ** 2
        assert 0.999 * square / scale.size <= found[-1] <= 1.001 * square
    close = 4 * statistics.stdev(found) / math.sqrt(len(found)) + 0.1 * (freedom == 2)  # there bounds take a little
    assert statistics.mean(found) == pytest.approx((scale**4).sum(), abs=close)


@given(v=arrays(float, 3, elements=numbers))
def test_over_all_signs_the_squared_length_of_a_sketch_is_that_of_the_vector_and_its_variance_as_told(v):
    lengths = [float((np.array(signs) @ v) ** 2) for signs in product((-1, 1), repeat=3)]  # one number
    assert statistics.mean(lengths) == pytest.approx(v @ v, abs=1e-9)
    assert statistics.pvariance(lengths) <= 2 * (v @ v) ** 2 + 1e-9


def test_signs_are_as_drawn_for_the_run_whoever_draws_them():
    def R(seed):
        return sketched(np.eye(500), seed, 8)

    assert set(np.unique(R(3))) == {-1 / math.sqrt(8), 1 / math.sqrt(8)}
    assert abs(R(3).mean()) < 4 / math.sqrt(8 * 500) / math.sqrt(8)
    np.testing.assert_array_equal(R(3), R(3))
    assert (R(4) != R(3)).any()


@settings(max_examples=50)
@given(first=counts, second=counts, seed=st.integers(0, 2**31))
def test_both_ends_find_the_same_number_to_the_last_bit(first, second, seed):
    rng = np.random.default_rng(seed)
    ends = []
    for n in (first, second):
        samples = {c: rng.normal(size=(count, 2)) for c, count in enumerate(n) if count}
        ends.append((told(samples) if samples else np.zeros(3 * 4 + 2)).astype(np.float32))
    found, beyond, _ = compared(*ends, 3, 1.0, 0.1)
    assert (found, beyond) == compared(*ends[::-1], 3, 1.0, 0.1)[:2]
    several = [(n > 0).sum() > 1 for n in (first, second)]
    if not any(several):
        assert (found, beyond) == (-math.inf, 0.0)


any_number = st.floats(width=32) | st.sampled_from([0, 1, -1, 3e38])


@given(mine=arrays(np.float32, 14, elements=any_number), theirs=arrays(np.float32, 14, elements=any_number))
def test_whatever_a_neighbour_tells_is_a_number_for_both_and_stops_nobody(mine, theirs):
    found, beyond, classes = compared(mine, theirs, 3, 1.0, 0.1)
    assert not math.isnan(found)
    assert beyond >= 0
    assert (found, beyond) == compared(theirs, mine, 3, 1.0, 0.1)[:2]
    assert classes is None or (sorted(classes[classes >= 0]) == np.unique(classes[classes >= 0])).all()


@pytest.mark.parametrize(("turned", "expected", "classes"), [(False, 1.0, None), (True, 1.0, [1, 0, -1])])
def test_one_task_is_alike_and_an_opposed_one_under_other_names(turned, expected, classes):
    """Many samples of two classes; the other end has them the other way round, or not."""
    rng = np.random.default_rng(0)
    centres = np.array([[2.0, 0], [-2.0, 0]])
    ends = []
    for flip in (False, turned):
        samples = {c: centres[1 - c if flip else c] + rng.normal(size=(4000, 2)) for c in range(2)}
        ends.append(told(samples))
    found = compared(*ends, 3, 0.0, 0.1)
    assert found.likeness == pytest.approx(expected, abs=0.05)
    assert (None if found.classes is None else found.classes.tolist()) == classes
    if turned:  # where every likeness is enough
        assert compared(*ends, 3, 0.0, -2.0).likeness == pytest.approx(-1.0, abs=0.05)


@settings(max_examples=50)
@given(names=st.permutations(range(5)), lacking=st.sets(st.integers(0, 4), max_size=1), seed=st.integers(0, 1000))
def test_classes_are_found_under_other_names_and_both_ends_say_so(names, lacking, seed):
    """Five classes far apart, of which the other end may lack one; where all names are the same they are not asked."""
    rng = np.random.default_rng(seed)
    centres = 5 * rng.normal(size=(5, 8))
    mine = told({c: centres[c] + rng.normal(size=(6, 8)) for c in range(5)}, 5)
    theirs = told({names[c]: centres[c] + rng.normal(size=(6, 8)) for c in range(5) if c not in lacking}, 5)
    one, other = compared(mine, theirs, 5, 1.0, 0.3), compared(theirs, mine, 5, 1.0, 0.3)
    assert one[:2] == other[:2]
    same = sum(names[c] == c for c in range(5) if c not in lacking)
    if same == 0:
        assert one.likeness > 0.7
        assert one.classes.tolist() == [-1 if c in lacking else names[c] for c in range(5)]
        assert other.classes.tolist() == [-1 if names.index(c) in lacking else names.index(c) for c in range(5)]
    if same == 5 - len(lacking):
        assert one.classes is None


@pytest.mark.parametrize("classes", [2, 3, 5, 10])
def test_tasks_that_have_nothing_to_do_with_each_other_are_hardly_ever_taken_for_one_under_other_names(classes):
    """Four samples a class; classes lie as far apart as chance puts their prototypes. Of ten classes half are each
    other's nearest all the same."""
    rng, found = np.random.default_rng(classes), 0
    for _ in range(300):
        ends = []
        for _ in range(2):
            samples = {c: rng.normal(size=32) / 2 + rng.normal(size=(4, 32)) for c in range(classes)}
            ends.append(told(samples, classes))
        found += compared(*ends, classes, 1.0, 2.0).classes is not None
    assert found <= 3


@given(
    outputs=st.integers(2, 5),
    features=st.integers(1, 6),
    body=st.integers(0, 10),
    data=st.data(),
)
def test_all_rows_have_their_turn_and_those_of_a_class_go_where_the_other_end_has_it(outputs, features, body, data):
    last = outputs * (features + 1)
    model = Mock(outputs=outputs, features=features, last_size=last, size=body + last)
    all_turns = np.arange(model.size)
    rows = rows_of(all_turns, model)
    assert sorted(rows) == all_turns.tolist()
    assert rows[:body].tolist() == all_turns[:body].tolist()
    mine = data.draw(st.sets(st.integers(0, outputs - 1), min_size=1))
    theirs = data.draw(st.permutations(range(outputs)))[: len(mine)]
    classes = np.full(outputs, -1)
    classes[sorted(mine)] = theirs
    weights = np.arange(outputs * features).reshape(outputs, features)  # of the last layer, by place
    named = np.concatenate([weights, outputs * features + np.arange(outputs)[:, None]], axis=1) + body
    for turn, row in zip(all_turns, rows_of(all_turns, model, classes), strict=True):
        if turn < body:
            assert row == turn
            continue
        ((c, number),) = np.argwhere(named == rows[turn])
        assert row == (named[list(classes).index(c), number] if c in theirs else -1)


def test_apart_beyond_chance_is_the_distance_in_units_of_what_two_draws_of_one_task_differ_by():
    """Four thousand samples of two classes of a thousand numbers each: chance moves prototypes by 1000/4000 each."""
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(2, 1000))
    for shift in (0.0, 0.05):  # of each number: 2.5 in squares
        ends = [told({c: centres[c] + by + rng.normal(size=(4000, 1000)) for c in range(2)}) for by in (0.0, shift)]
        assert compared(*ends, 3, 0.0, -9.0).beyond == pytest.approx(shift**2 * 1000 / (2 * 1000 / 4000), abs=0.3)


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
