"""Factored maps whose history may keep only so many rows: what is lost, and what is said about it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafgossip.node.maps import FactoredMaps, starting_maps

STEP = 0.05


def pair(size: int, rows: dict[int, int], cap: int, dtype: str = "float64") -> tuple[FactoredMaps, FactoredMaps]:
    """(capped, uncapped) maps with one start."""

    def start():
        return starting_maps("orthogonal", seed=2, node=0, rows=rows, theta=np.empty(size, dtype), scale=1.0)

    return FactoredMaps(start(), cap), FactoredMaps(start())


def stacked(maps: FactoredMaps) -> np.ndarray:
    return np.concatenate([maps.dense(j) for j in maps.neighbours]).astype(np.float64)


def update(maps: FactoredMaps, theta: np.ndarray, r: np.ndarray) -> None:
    maps.update(maps.project(theta), maps.stacking.split(r), theta, STEP)


def feed(rng: np.random.Generator, updates: int, *all_maps: FactoredMaps) -> np.ndarray:
    """The same random updates for all; returns the last theta."""
    height, size = stacked(all_maps[0]).shape
    for _ in range(updates):
        theta, r = rng.normal(size=size), rng.normal(size=height)
        for maps in all_maps:
            update(maps, theta, r)
    return theta


def error(capped: FactoredMaps, exact: FactoredMaps) -> float:
    return float(np.linalg.norm(stacked(capped) - stacked(exact)))


shapes = st.integers(1, 15).flatmap(
    lambda size: st.tuples(st.just(size), st.dictionaries(st.integers(1, 5), st.integers(1, size), min_size=1))
)


@given(shape=shapes, cap=st.integers(1, 20), updates=st.integers(1, 60), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_the_error_of_capped_maps_is_within_their_bound_and_their_history_within_the_cap(shape, cap, updates, seed):
    capped, exact = pair(*shape, cap)
    rng = np.random.default_rng(seed)
    reach = 0.0
    for _ in range(updates):
        theta, r = rng.normal(size=shape[0]), rng.normal(size=capped.stacking.height)
        update(capped, theta, r)
        update(exact, theta, r)
        reach += STEP * float(np.linalg.norm(theta)) * float(np.linalg.norm(r))
        assert capped.history.rows <= cap
    assert error(capped, exact) <= capped.error_bound + 1e-13 * (1 + reach)


def test_a_cap_that_acts_loses_something_and_its_bound_is_no_wild_guess():
    capped, exact = pair(60, {1: 20, 4: 20}, 12)
    feed(np.random.default_rng(1), 40, capped, exact)
    assert 0.1 * capped.error_bound < error(capped, exact) < capped.error_bound
    assert error(capped, exact) > 0.01 * np.linalg.norm(stacked(exact))


def test_one_truncation_loses_exactly_the_smallest_singular_values():
    capped, exact = pair(30, {1: 12, 4: 12}, 8)
    rng = np.random.default_rng(1)
    feed(rng, 8, capped, exact)
    lost = np.linalg.svd(exact.history.matrix(slice(None)), compute_uv=False)[6:]
    feed(rng, 1, capped, exact)
    assert capped.error_bound == pytest.approx(np.linalg.norm(lost), rel=1e-12)
    assert error(capped, exact) == pytest.approx(capped.error_bound, rel=1e-9)


def test_the_bound_is_zero_until_the_cap_acts_and_always_without_one():
    capped, exact = pair(20, {1: 10}, 6)
    rng, bounds = np.random.default_rng(1), []
    for _ in range(8):
        feed(rng, 1, capped, exact)
        bounds.append(capped.error_bound)
    assert bounds[:6] == [0.0] * 6
    assert 0 < bounds[6] == bounds[7]
    feed(rng, 42, exact)
    assert exact.error_bound == 0.0
    assert exact.history.rows == 50


@pytest.mark.parametrize("what", ["thetas", "disagreements"])
@pytest.mark.parametrize(("dtype", "eps"), [("float64", 1e-14), ("float32", 1e-5)])
def test_nothing_is_lost_while_the_true_rank_is_within_what_a_truncation_keeps(what, dtype, eps):
    capped, exact = pair(40, {1: 15, 4: 15}, 12, dtype)
    rng = np.random.default_rng(1)
    few_thetas, few_r = rng.normal(size=(9, 40)), rng.normal(size=(9, 30))
    for _ in range(60):
        theta = rng.normal(size=9) @ few_thetas if what == "thetas" else rng.normal(size=40)
        r = rng.normal(size=9) @ few_r if what == "disagreements" else rng.normal(size=30)
        update(capped, theta.astype(dtype), r.astype(dtype))
        update(exact, theta.astype(dtype), r.astype(dtype))
    reach = np.linalg.norm(stacked(exact))
    assert max(error(capped, exact), capped.error_bound) < eps * reach


@pytest.mark.parametrize(("size", "rows"), [(50, {1: 2}), (50, {1: 1, 4: 1}), (3, {1: 2, 4: 3})])
def test_a_history_longer_than_its_maps_are_high_or_wide_is_kept_without_loss(size, rows):
    """No sum of updates has a greater rank than the maps have rows or columns."""
    capped, exact = pair(size, rows, 20)
    feed(np.random.default_rng(1), 70, capped, exact)
    assert capped.history.rows <= 20
    assert max(error(capped, exact), capped.error_bound) < 1e-12 * np.linalg.norm(stacked(exact))


def test_projections_of_capped_maps_are_within_the_bound_of_the_exact_ones():
    capped, exact = pair(60, {1: 20, 4: 20}, 12)
    rng = np.random.default_rng(1)
    for _ in range(40):
        theta = feed(rng, 1, capped, exact)
        for x in (theta, rng.normal(size=60)):  # the theta of the update takes the short way
            gap = np.concatenate(list(capped.project(x).values())) - np.concatenate(list(exact.project(x).values()))
            assert np.linalg.norm(gap) <= capped.error_bound * np.linalg.norm(x) + 1e-11
