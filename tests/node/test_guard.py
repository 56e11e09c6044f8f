"""Selective sheaf's guard: what honest clients say passes, what liars say does not; both ends think the same of it."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.fft import dct

from runs import assert_same, run_here_again, small
from sheafgossip.metrics.summary import summarize
from sheafgossip.node.algorithms.selective_sheaf import (
    Estimate,
    SelectiveSheaf,
    cut,
    length_error,
    relative_variance,
)

SIZE, ROWS = 400, 40
seeds = st.integers(0, 2**32 - 1)


def sketches(rng: np.random.Generator, *updates: np.ndarray) -> list[np.ndarray]:
    """P a of each: rows of a cosine transform after random signs, drawn anew."""
    signs, rows = rng.choice([-1.0, 1.0], SIZE), rng.choice(SIZE, ROWS, replace=False)
    return [dct(signs * update, norm="ortho")[rows] for update in updates]


def edge(guard: bool = True) -> Estimate:
    return Estimate(SelectiveSheaf(guard=guard), [SIZE], 50, 50)


def see(one: Estimate, mine: np.ndarray, theirs: np.ndarray, n: float, n_theirs: float) -> None:
    one.see(np.zeros(ROWS, int), mine, theirs, np.array([n]), np.array([n_theirs]))


def alike(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two updates whose cosine is about 0.8."""
    common = rng.standard_normal(SIZE)
    return tuple(2 * common + rng.standard_normal(SIZE) for _ in range(2))


def test_the_error_of_a_length_has_the_mean_and_the_deviation_that_the_guard_goes_by():
    rng = np.random.default_rng(0)
    a = rng.standard_normal(SIZE)
    errors = np.array([length_error(*sketches(rng, a), a @ a, SIZE) for _ in range(4000)])
    deviation = math.sqrt(relative_variance(ROWS, SIZE)) / 2
    assert abs(errors.mean()) < 0.1 * deviation
    assert errors.std() == pytest.approx(deviation, rel=0.05)
    assert length_error(a, a @ a, SIZE) == pytest.approx(0, abs=1e-12)


def test_alike_clients_are_believed_in_every_round_and_come_together():
    rng = np.random.default_rng(1)
    (a, b), found = alike(rng), edge()
    for _ in range(1000):
        see(found, *sketches(rng, a, b), a @ a, b @ b)
        assert found.believed.all()
    assert found.on.all()


@pytest.mark.parametrize("factor", [2.0, 1e6])
def test_a_forged_norm_lets_a_stranger_in_but_not_past_the_guard(factor):
    rng = np.random.default_rng(2)
    (a, b), open_, guarded = rng.standard_normal((2, SIZE)), edge(guard=False), edge()
    believed = []
    for _ in range(40):
        mine, theirs = sketches(rng, a, b)
        for found in (open_, guarded):
            see(found, mine, theirs, a @ a, factor * (b @ b))
        believed.append(guarded.believed.all())
    assert guarded.is_surely_off
    assert not any(believed[10:])
    assert bool(open_.on.all()) == (factor > 2)  # a small forgery is found out, too, and of no use


def test_zeros_beside_a_true_norm_let_in_as_a_forged_norm_does_and_are_not_believed():
    rng = np.random.default_rng(3)
    (a, b), open_, guarded = alike(rng), edge(guard=False), edge()
    for _ in range(40):
        (mine,) = sketches(rng, a)
        for found in (open_, guarded):
            see(found, mine, 0 * mine, a @ a, b @ b)
        assert not guarded.believed.any()
    assert open_.on.all()
    assert guarded.is_surely_off


def test_a_copied_sketch_lets_in_and_is_not_believed():
    rng = np.random.default_rng(4)
    (a, _), open_, guarded = alike(rng), edge(guard=False), edge()
    for _ in range(40):
        (mine,) = sketches(rng, a)
        for found in (open_, guarded):
            see(found, mine, mine.copy(), a @ a, a @ a)
        assert not guarded.believed.any()
    assert open_.on.all()
    assert guarded.is_surely_off


def test_whoever_was_let_in_and_turns_round_does_not_pull_in_the_very_round():
    rng = np.random.default_rng(5)
    (a, b), found = alike(rng), edge()
    for _ in range(60):
        see(found, *sketches(rng, a, b), a @ a, b @ b)
    assert (found.on.all(), found.believed.all()) == (True, True)
    mine, theirs = sketches(rng, a, b)
    see(found, mine, -theirs, a @ a, b @ b)
    assert not found.believed.any()


@given(seed=seeds, factors=st.lists(st.floats(-10, 10), min_size=12, max_size=30), forged=st.floats(0.01, 1e6))
def test_both_ends_think_the_same_of_an_edge_whatever_is_said_on_it(seed, factors, forged):
    rng = np.random.default_rng(seed)
    (a, b), here, there = alike(rng), edge(), edge()
    for factor in factors:
        mine, theirs = sketches(rng, a, b)
        see(here, mine, factor * theirs, a @ a, forged * (b @ b))
        see(there, factor * theirs, mine, forged * (b @ b), a @ a)
        assert (here.believed == there.believed).all()
        np.testing.assert_array_equal(here.numbers[:, :6], there.numbers[:, :6])
        assert here.is_surely_off == there.is_surely_off


@given(seed=seeds, longest=st.floats(0.01, 100))
def test_a_pull_is_cut_to_the_longest_and_keeps_its_direction(seed, longest):
    r = np.random.default_rng(seed).standard_normal(30)
    found, length = cut(r, longest), float(np.linalg.norm(r))
    np.testing.assert_allclose(found, r * min(1, longest / length), rtol=1e-12)


RUN = small(
    "model.dtype = 'float64'",
    "training.alpha = 0.5",
    "evaluation.every = 0",
    "attack.clients = [1]",
    "attack.kind = 'forged-norm'",
    clients=8,
    rounds=30,
    samples=600,
    topology="complete",
    algorithm="selective-sheaf",
)


def test_a_forged_norm_ruins_a_run_and_not_a_guarded_one_which_goes_on_from_a_checkpoint_to_the_same_bits(
    tmp_path, run_in_threads
):
    guarded = run_in_threads(RUN, "algorithm.guard=true", "checkpoints.every=15")
    found = [summarize(folder.path).final.mean for folder in (run_in_threads(RUN), guarded)]
    assert found[0] < 0.5
    assert found[1] > 0.8
    broken = guarded.copy(tmp_path / "run")
    broken.cut_after(15)
    run_here_again(broken, "threads")
    assert_same(broken, guarded)
