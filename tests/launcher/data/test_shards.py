"""What ends up in the shard of a client."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from sheafgossip.launcher.config.data import ClustersTable, DataSection, DriftTable
from sheafgossip.launcher.data.pool import Pool
from sheafgossip.launcher.data.shards import constant_metric, cut, prepare, shard_path


def numbered(samples, *, shape=(1,), client=None, classes=2):
    """Every feature of sample k is k, its class k % classes."""
    x = np.broadcast_to(np.arange(samples).reshape(-1, *[1] * len(shape)), (samples, *shape)).astype(np.float32)
    return Pool(x, np.arange(samples) % classes, "classification", outputs=classes, client=client)


def corners(samples):
    """Images of 2x2 pixels 0 1 / 2 3."""
    return replace(numbered(samples), x=np.tile(np.arange(4, dtype=np.float32).reshape(1, 2, 2), (samples, 1, 1, 1)))


def shards_of(pool, clients, seed=0, **keys):
    return list(cut(DataSection(**keys), pool, clients, seed))


def ids(x):
    return set(x[:, 0].astype(int).tolist())


OBLONG = numbered(40, shape=(1, 2, 3))
TARGETS = Pool(np.ones((40, 1)), np.ones((40, 1), np.float32), "regression", 1)
TWO_TASKS = ("parity", "classes")


@given(
    sizes=st.lists(st.integers(4, 60), min_size=1, max_size=8),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**32),
)
def test_every_sample_of_a_client_is_trained_on_or_tested_with_and_neither_is_empty(sizes, fraction, seed):
    owner = np.repeat(np.arange(len(sizes)), sizes)
    pool = numbered(len(owner), client=owner)
    for client, shard in enumerate(shards_of(pool, len(sizes), seed, partition="natural", test_fraction=fraction)):
        train, test = ids(shard.x_train), ids(shard.x_test)
        assert min(len(train), len(test)) > 0
        assert not train & test
        assert train | test == set(np.flatnonzero(owner == client).tolist())
        assert len(test) == pytest.approx(fraction * sizes[client], abs=1)
        assert np.array_equal(shard.x_train[:, 0] % 2, shard.y_train)
        assert np.array_equal(shard.x_test[:, 0] % 2, shard.y_test)


def test_samples_are_shuffled_before_they_are_split_whatever_other_clients_there_are():
    owner = np.repeat([0, 1, 2], 400)
    three = shards_of(numbered(1200, client=owner), 3, partition="natural")
    two = shards_of(numbered(800, client=owner[:800]), 2, partition="natural")
    assert np.array_equal(three[1].x_train, two[1].x_train)
    assert 150 < three[0].x_test.mean() < 250
    assert np.any(np.diff(three[0].x_train[:, 0]) < 0)


def test_groups_of_equal_size_turn_their_images_counter_clockwise():
    shards = shards_of(corners(80), 8, rotations=(0, 90, 180, 270))
    assert [shard.about.group for shard in shards] == [0, 0, 1, 1, 2, 2, 3, 3]
    turned = [[0, 1], [2, 3]], [[1, 3], [0, 2]], [[3, 2], [1, 0]], [[2, 0], [3, 1]]
    for shard in shards:
        assert np.all(shard.x_train == turned[shard.about.group])
        assert np.all(shard.x_test == turned[shard.about.group])
    (oblong,) = shards_of(OBLONG, 1, rotations=(180,))
    assert oblong.x_train.shape == (30, 1, 2, 3)


def test_a_task_that_changes_turns_the_same_images_by_another_angle():
    images, drift = numbered(80, shape=(1, 2, 2)), DriftTable(at_round=7, rotations=(0, 180))
    options = {}, {"rotations": (0, 180)}, {"rotations": (0, 0), "drift": drift}
    for plain, turned, shard in zip(*(shards_of(images, 4, **more) for more in options), strict=True):
        assert np.array_equal(shard.x_train, plain.x_train)
        assert np.array_equal(shard.drifted[0], turned.x_train)
        assert np.array_equal(shard.drifted[1], turned.x_test)
        assert plain.drifted is None


def test_half_of_the_clients_keep_a_fifth_of_their_training_data_and_all_of_their_test_data():
    full, reduced = (shards_of(numbered(400), 10, reduced_clients=share, reduced_to=0.2) for share in (0, 0.5))
    assert sorted(len(shard.x_train) for shard in reduced) == [6] * 5 + [30] * 5
    for before, after in zip(full, reduced, strict=True):
        assert ids(after.x_train) <= ids(before.x_train)
        assert np.array_equal(after.x_test, before.x_test)
    chosen = [shards_of(numbered(400), 10, seed, reduced_clients=0.5) for seed in range(5)]
    assert len({tuple(len(shard.x_train) < 30 for shard in shards) for shards in chosen}) > 1
    (least,) = shards_of(numbered(4), 1, reduced_clients=1, reduced_to=0.001)
    assert len(least.x_train) == 1


@pytest.mark.parametrize("reduced", [0, 0.5])
def test_validation_holds_out_training_samples_and_leaves_the_test_samples_out_of_the_shard(reduced):
    options = {"partition": "dirichlet", "reduced_clients": reduced, "test_fraction": 0.3}
    plain, tuning = (shards_of(numbered(400), 8, evaluate_on=on, **options) for on in ("test", "validation"))
    for before, after in zip(plain, tuning, strict=True):
        train, validation = ids(after.x_train), ids(after.x_test)
        assert train | validation == ids(before.x_train)
        assert not train & validation
        assert len(validation) == max(round(0.3 * len(before.x_train)), 1)
        assert np.array_equal(after.x_test[:, 0] % 2, after.y_test)


def test_validation_samples_of_a_time_series_are_its_latest_before_the_test_samples():
    pool = replace(numbered(100), in_time_order=True)
    (shard,) = shards_of(pool, 1, evaluate_on="validation")
    assert (ids(shard.x_train), ids(shard.x_test)) == (set(range(56)), set(range(56, 75)))
    (shard,) = shards_of(pool, 1, evaluate_on="validation", standardize=True)
    assert np.allclose(shard.x_train.mean(), 0, atol=1e-6)


@pytest.mark.parametrize(("what", "other", "key"), [("x", "y", "standardize"), ("y", "x", "standardize_targets")])
def test_standardizing_uses_a_clients_own_training_samples_and_only_shifts_what_never_varies(what, other, key):
    values = np.random.default_rng(0).normal([5, -3, 0.1], [10, 0.1, 0], (300, 3)).astype(np.float32)
    pool = Pool(values, values, "regression", outputs=3)
    raw, own = (shards_of(pool, 3, reduced_clients=0.5, **{key: on}) for on in (False, True))
    for before, after in zip(raw, own, strict=True):
        train = getattr(before, f"{what}_train").astype(np.float64)
        mean, deviation = train.mean(axis=0), np.append(train.std(axis=0)[:2], 1)
        for part in ("train", "test"):
            got = getattr(after, f"{what}_{part}")
            assert got.dtype == np.float32
            assert np.allclose(got, (getattr(before, f"{what}_{part}") - mean) / deviation, atol=1e-5)
            assert np.array_equal(getattr(after, f"{other}_{part}"), getattr(before, f"{other}_{part}"))


def test_tasks_are_dealt_in_turn_and_answer_the_same_samples_differently():
    samples, images = numbered(200, classes=10), replace(corners(80), y=np.arange(80) % 10, outputs=10)
    shards = shards_of(samples, 6, tasks=("classes", "parity", "halves"))
    assert [(shard.about.outputs, shard.about.group) for shard in shards] == [(10, 0), (2, 1), (2, 2)] * 2
    for client, shard in enumerate(shards):
        seen = shard.x_train[:, 0].astype(int) % 10
        assert np.array_equal(shard.y_train, [seen, seen % 2, seen >= 5][client % 3])
        assert shard.y_train.dtype == np.int64
    twice = shards_of(samples, 6, tasks=("parity", "parity", "classes"))
    assert [(shard.about.outputs, shard.about.group) for shard in twice] == [(2, 0), (2, 0), (10, 1)] * 2
    turned = shards_of(images, 8, rotations=(0, 90), tasks=("classes", "parity"))  # groups of both
    assert [shard.about.group for shard in turned] == [0, 1, 0, 1, 2, 3, 2, 3]
    options = {"partition": "classes", "classes_per_client": 3}
    alone, mixed = (shards_of(samples, 4, **options, **more) for more in ({}, {"tasks": TWO_TASKS}))
    assert all(np.array_equal(one.x_train, other.x_train) for one, other in zip(alone, mixed, strict=True))


def test_the_group_of_a_client_is_that_of_its_owner_or_its_cluster():
    owner = np.repeat(np.arange(6), 5)
    pool = replace(numbered(30, client=owner), groups=np.array([0, 1, 0, 1, 2, 2]))
    for seed in range(5):  # only some owners take part
        for shard in shards_of(pool, 3, seed):
            assert shard.about.group == pool.groups[owner[min(ids(shard.x_train))]]
    shards = shards_of(numbered(120, classes=6), 6, partition="clusters", clusters=ClustersTable(count=3))
    assert [shard.about.group for shard in shards] == [0, 0, 1, 1, 2, 2]


def test_a_mask_blanks_one_square_of_all_images_of_a_client_at_a_place_of_its_own_however_they_are_turned():
    pool = Pool(np.ones((400, 2, 6, 6)), np.arange(400) % 2, "classification", outputs=2)
    straight, turned = (shards_of(pool, 10, mask=2, rotations=(angle,)) for angle in (0, 90))
    places = set()
    for one, other in zip(straight, turned, strict=True):
        assert np.array_equal(one.x_test, other.x_test)
        images = np.concatenate([one.x_train, one.x_test])
        assert (images == images[0, 0]).all()
        rows, columns = np.nonzero(images[0, 0] == 0)
        assert (len(rows), np.ptp(rows), np.ptp(columns)) == (4, 1, 1)
        places.add((rows.min(), columns.min()))
    assert len(places) > 3


def test_prepare_writes_a_file_a_client_and_says_what_is_in_them(tmp_path):
    section = DataSection(partition="quantity", rotations=(0, 180), reduced_clients=0.3)
    summary = prepare(section, 12, 5, tmp_path / "shards")
    assert (summary.input_shape, summary.outputs, summary.task) == ((1, 8, 8), 10, "classification")
    assert len(list((tmp_path / "shards").iterdir())) == 12
    for client, told in enumerate(summary.clients):
        with safe_open(shard_path(tmp_path / "shards", client), "np") as file:
            x_train, y_train, x_test, y_test = map(file.get_tensor, ("x_train", "y_train", "x_test", "y_test"))
            about = file.metadata()
        assert (x_train.shape, y_test.shape) == ((told.train_samples, 1, 8, 8), (told.test_samples,))
        assert [x_train.dtype, x_test.dtype, y_train.dtype, y_test.dtype] == [np.float32] * 2 + [np.int64] * 2
        assert about.items() >= {"task": "classification", "outputs": "10", "group": str(told.group)}.items()


def test_a_constant_prediction_is_the_most_frequent_class_or_the_mean_target_of_all():
    classes = [([0, 2, 2], [2, 2, 0, 1]), ([1, 2, 1], [1, 1, 1, 2])]
    of_classes = [(np.array(train), np.array(test)) for train, test in classes]
    assert constant_metric(("classes",), "classification", of_classes) == (0.5 + 0.25) / 2  # class 2, by 3 to 2
    assert constant_metric(TWO_TASKS, "classification", of_classes) is None
    targets = [([[1], [3]], [[2], [4]]), ([[5], [7], [9]], [[5]])]
    of_targets = [(np.array(train, np.float32), np.array(test, np.float32)) for train, test in targets]
    assert constant_metric((), "regression", of_targets) == pytest.approx((5 + 0) / 2)  # the mean is 5
