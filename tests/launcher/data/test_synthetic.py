"""Tasks with a known structure, recovered by least squares."""

import numpy as np
import pytest

from sheafgossip.launcher.config.data import DataSection, SyntheticTable
from sheafgossip.launcher.data import DataError, cut, load, prepare

CLIENTS = 8


def draw(task="regression", seed=3, clients=CLIENTS, **keys):
    return load(DataSection(dataset="synthetic", task=task, synthetic=SyntheticTable(**keys)), seed, clients)


def parameters(pool):
    """Of each client, by least squares: (clients, dimensions)."""
    fits = [
        np.linalg.lstsq(pool.x[pool.client == client], pool.y[pool.client == client, 0], rcond=None)
        for client in range(pool.client.max() + 1)
    ]
    return np.array([fit[0] for fit in fits])


def test_without_deviation_all_clients_of_a_group_have_one_task_and_groups_have_different_ones():
    theta = parameters(draw(groups=2, deviation=0, noise=0, samples=200))
    within = np.linalg.norm(theta - theta[[0] * 4 + [4] * 4], axis=1)
    assert within.max() < 1e-4
    assert np.linalg.norm(theta[0] - theta[4]) > 0.5


def test_deviation_is_the_distance_from_the_group_relative_to_its_parameters():
    exact, apart = (parameters(draw(deviation=d, noise=0, dimensions=400, samples=500)) for d in (0, 0.3))
    distance = np.linalg.norm(apart - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert np.allclose(distance, 0.3, rtol=0.2)


def test_what_no_model_can_explain_is_the_noise():
    pool = draw(clients=1, groups=1, noise=0.5, samples=20_000)
    residual = pool.y[:, 0] - pool.x @ parameters(pool)[0]
    assert residual.std() == pytest.approx(0.5, rel=0.05)


def test_targets_without_noise_and_deviation_have_deviation_1():
    pool = draw(clients=1, groups=1, noise=0, deviation=0, dimensions=2000, samples=2000)
    assert pool.y.std() == pytest.approx(1, rel=0.1)


def test_classes_without_noise_are_told_apart_by_a_linear_model():
    pool = draw("classification", clients=1, groups=1, classes=3, noise=0, dimensions=5, samples=400)
    assert (pool.outputs, pool.y.dtype, set(pool.y.tolist())) == (3, np.int64, {0, 1, 2})
    from sklearn.linear_model import LogisticRegression

    assert LogisticRegression(C=1e6, max_iter=5000).fit(pool.x, pool.y).score(pool.x, pool.y) == 1


def test_the_group_of_each_client_is_known(tmp_path):
    section = DataSection(dataset="synthetic", synthetic=SyntheticTable(groups=3, samples=8))
    summary = prepare(section, CLIENTS, 0, tmp_path)
    assert [client.group for client in summary.clients] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert {(client.train_samples, client.test_samples) for client in summary.clients} == {(6, 2)}


def test_groups_do_not_hold_where_samples_are_mixed(tmp_path):
    section = DataSection(dataset="synthetic", partition="even")
    assert {shard.group for shard in cut(section, load(section, 0, CLIENTS), CLIENTS, 0)} == {0}


def test_the_seed_alone_decides_and_a_client_does_not_depend_on_how_many_others_a_group_has():
    first, again, other = draw(seed=3), draw(seed=3), draw(seed=4)
    assert np.array_equal(first.x, again.x)
    assert np.array_equal(first.y, again.y)
    assert not np.array_equal(first.x, other.x)
    fewer = draw(clients=4, groups=1)
    assert np.array_equal(fewer.y, draw(clients=8, groups=1).y[: len(fewer)])


def test_more_groups_than_clients_are_refused():
    with pytest.raises(DataError, match=r"^data\.synthetic\.groups is 9; allowed are 1 to 8, the number of clients$"):
        draw(groups=9)
