"""The bundled digits, the choice of some samples, and tasks with a known structure."""

import numpy as np
import pytest

from sheafgossip.launcher.config.data import DataSection, SyntheticTable
from sheafgossip.launcher.data.sets import load


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    pool, theirs = load(DataSection(), 0), load_digits()
    assert pool.x.shape == (1797, 1, 8, 8)
    assert np.array_equal(pool.inputs(np.arange(1797))[:, 0], theirs.images / 16)
    assert np.array_equal(pool.y, theirs.target)
    assert (pool.y.dtype, pool.outputs, pool.task) == (np.int64, 10, "classification")


def test_samples_takes_that_many_different_ones_and_the_seed_says_which():
    everything = load(DataSection(), 0)
    some, same, other = (load(DataSection(samples=100), seed) for seed in (1, 1, 2))
    rows = {row.tobytes(): label for row, label in zip(everything.x, everything.y, strict=True)}
    assert len({row.tobytes() for row in some.x}) == len(some) == 100
    assert [rows[row.tobytes()] for row in some.x] == some.y.tolist()
    assert np.array_equal(some.x, same.x)
    assert not np.array_equal(some.x, other.x)


# -- synthetic tasks, recovered by least squares -----------------------------------------------------------------------

CLIENTS = 8


def draw(task="regression", seed=3, clients=CLIENTS, **keys):
    return load(DataSection(dataset="synthetic", task=task, synthetic=SyntheticTable(**keys)), seed, clients)


def parameters(pool):
    """Of each client, by least squares: (clients, dimensions)."""
    own = [pool.client == client for client in range(pool.client.max() + 1)]
    return np.array([np.linalg.lstsq(pool.x[rows], pool.y[rows, 0], rcond=None)[0] for rows in own])


def test_a_group_has_one_task_and_deviation_is_the_distance_from_it_relative_to_its_parameters():
    theta = parameters(draw(groups=2, deviation=0, noise=0, samples=200))
    assert np.linalg.norm(theta - theta[[0] * 4 + [4] * 4], axis=1).max() < 1e-4
    assert np.linalg.norm(theta[0] - theta[4]) > 0.5
    assert draw(groups=3).groups.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    exact, apart = (parameters(draw(deviation=d, noise=0, dimensions=400, samples=500)) for d in (0, 0.3))
    distance = np.linalg.norm(apart - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert np.allclose(distance, 0.3, rtol=0.2)


def test_targets_have_deviation_1_and_what_no_model_can_explain_is_the_noise():
    pool = draw(clients=1, groups=1, noise=0.5, samples=20_000)
    assert (pool.y[:, 0] - pool.x @ parameters(pool)[0]).std() == pytest.approx(0.5, rel=0.05)
    pool = draw(clients=1, groups=1, noise=0, deviation=0, dimensions=2000, samples=2000)
    assert pool.y.std() == pytest.approx(1, rel=0.1)


def test_classes_without_noise_are_told_apart_by_a_linear_model():
    from sklearn.linear_model import LogisticRegression

    pool = draw("classification", clients=1, groups=1, classes=3, noise=0, dimensions=5, samples=400)
    assert (pool.outputs, pool.y.dtype, set(pool.y.tolist())) == (3, np.int64, {0, 1, 2})
    assert LogisticRegression(C=1e6, max_iter=5000).fit(pool.x, pool.y).score(pool.x, pool.y) == 1


def test_the_seed_alone_decides_and_a_client_does_not_depend_on_how_many_others_a_group_has():
    first, again, other = draw(seed=3), draw(seed=3), draw(seed=4)
    assert np.array_equal(np.hstack([first.x, first.y]), np.hstack([again.x, again.y]))
    assert not np.array_equal(first.x, other.x)
    fewer = draw(clients=4, groups=1)
    assert np.array_equal(fewer.y, draw(clients=8, groups=1).y[: len(fewer)])
