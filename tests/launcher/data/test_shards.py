"""What ends up in the shard of a client."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from sheafgossip.launcher.config.data import ClustersTable, DataSection, DriftTable
from sheafgossip.launcher.data import DataError, Pool, Shard, cut, prepare, shard_path, write
from sheafgossip.launcher.data.prepare import Targets, constant_metric


def numbered(samples, *, shape=(1,), client=None):
    """Every feature of sample k is k; two classes in turn."""
    x = np.broadcast_to(np.arange(samples).reshape(-1, *[1] * len(shape)), (samples, *shape)).astype(np.float32)
    return Pool(x, np.arange(samples) % 2, "classification", outputs=2, client=client)


def corners(samples):
    """Images of 2x2 pixels 0 1 / 2 3."""
    x = np.tile(np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2), (samples, 1, 1, 1))
    return Pool(x, np.arange(samples) % 2, "classification", outputs=2)


def shards_of(pool, clients, seed=0, **keys):
    return list(cut(DataSection(**keys), pool, clients, seed))


def ids(x):
    return set(x[:, 0].astype(int).tolist())


@given(
    sizes=st.lists(st.integers(4, 60), min_size=1, max_size=8),
    test_fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**32),
)
def test_every_sample_of_a_client_is_trained_on_or_tested_with_and_neither_is_empty(sizes, test_fraction, seed):
    owner = np.repeat(np.arange(len(sizes)), sizes)
    pool = numbered(len(owner), client=owner)
    for client, shard in enumerate(shards_of(pool, len(sizes), seed, partition="natural", test_fraction=test_fraction)):
        train, test = ids(shard.x_train), ids(shard.x_test)
        assert train
        assert test
        assert not train & test
        assert train | test == set(np.flatnonzero(owner == client).tolist())
        assert len(test) == pytest.approx(test_fraction * sizes[client], abs=1)
        for x, y in ((shard.x_train, shard.y_train), (shard.x_test, shard.y_test)):
            assert np.array_equal(x[:, 0] % 2, y)


def test_samples_are_shuffled_before_they_are_split():
    (shard,) = shards_of(numbered(400, client=np.zeros(400, int)), 1, partition="natural")
    assert 150 < shard.x_test.mean() < 250
    assert np.any(np.diff(shard.x_train[:, 0]) < 0)


def test_a_clients_split_does_not_depend_on_how_many_others_there_are():
    owner = np.repeat([0, 1, 2], 20)
    three = shards_of(numbered(60, client=owner), 3, partition="natural")
    two = shards_of(numbered(40, client=owner[:40]), 2, partition="natural")
    assert np.array_equal(three[1].x_train, two[1].x_train)


def test_groups_of_equal_size_turn_their_images_counter_clockwise():
    shards = shards_of(corners(80), 8, rotations=(0, 90, 180, 270))
    assert [shard.group for shard in shards] == [0, 0, 1, 1, 2, 2, 3, 3]
    turned = {0: [[0, 1], [2, 3]], 1: [[1, 3], [0, 2]], 2: [[3, 2], [1, 0]], 3: [[2, 0], [3, 1]]}
    for shard in shards:
        assert np.all(shard.x_train == turned[shard.group])
        assert np.all(shard.x_test == turned[shard.group])


def test_a_task_that_changes_turns_the_same_images_by_another_angle():
    drift = DriftTable(at_round=7, rotations=(0, 180))
    before, after = (shards_of(numbered(80, shape=(1, 2, 2)), 4, **more) for more in ({}, {"rotations": (0, 180)}))
    for shard, plain, turned in zip(
        shards_of(numbered(80, shape=(1, 2, 2)), 4, rotations=(0, 0), drift=drift), before, after, strict=True
    ):
        assert np.array_equal(shard.x_train, plain.x_train)
        assert shard.drifted is not None
        assert np.array_equal(shard.drifted[0], turned.x_train)
        assert np.array_equal(shard.drifted[1], turned.x_test)
    assert all(shard.drifted is None for shard in before)


def test_half_of_the_clients_keep_a_fifth_of_their_training_data_and_all_of_their_test_data():
    full = shards_of(numbered(400), 10)
    reduced = shards_of(numbered(400), 10, reduced_clients=0.5, reduced_to=0.2)
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
    plain = shards_of(numbered(400), 8, **options)
    tuning = shards_of(numbered(400), 8, evaluate_on="validation", **options)
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


def test_standardize_uses_a_clients_own_training_samples():
    rng = np.random.default_rng(0)
    pool = Pool(rng.normal([5, -3], [10, 0.1], (300, 2)).astype(np.float32), np.arange(300) % 2, "classification", 2)
    raw, own = (shards_of(pool, 3, reduced_clients=0.5, standardize=on) for on in (False, True))
    for before, after in zip(raw, own, strict=True):
        mean, deviation = before.x_train.mean(axis=0), before.x_train.std(axis=0)
        assert np.allclose(after.x_train.mean(axis=0), 0, atol=1e-5)
        assert np.allclose(after.x_train.std(axis=0), 1, atol=1e-5)
        assert np.allclose(after.x_test, (before.x_test - mean) / deviation, atol=1e-3)
        assert after.x_train.dtype == np.float32


def test_standardize_only_shifts_a_feature_that_never_varies():
    x = np.column_stack([np.full(40, 0.1), np.arange(40)]).astype(np.float32)
    (shard,) = shards_of(Pool(x, np.arange(40) % 2, "classification", 2), 1, standardize=True)
    assert np.allclose(shard.x_train[:, 0], 0, atol=1e-6)
    assert np.allclose(shard.x_test[:, 0], 0, atol=1e-6)


def classes_of_ten(samples):
    """Feature and class of sample k are k % 10."""
    classes = np.arange(samples) % 10
    return Pool(classes[:, None].astype(np.float32), classes, "classification", outputs=10)


def test_tasks_are_dealt_in_turn_and_answer_the_same_samples_differently():
    shards = shards_of(classes_of_ten(200), 6, tasks=("classes", "parity", "halves"))
    assert [shard.outputs for shard in shards] == [10, 2, 2, 10, 2, 2]
    assert [shard.group for shard in shards] == [0, 1, 2, 0, 1, 2]
    for client, shard in enumerate(shards):
        seen = shard.x_train[:, 0].astype(int)
        expected = [seen, seen % 2, seen >= 5][client % 3]
        assert np.array_equal(shard.y_train, expected)
        assert shard.y_train.dtype == np.int64


def test_tasks_and_rotations_make_groups_of_both_and_leave_the_partition_as_it_is():
    images = replace(corners(80), y=np.arange(80) % 10, outputs=10)
    groups = [shard.group for shard in shards_of(images, 8, rotations=(0, 90), tasks=("classes", "parity"))]
    assert groups == [0, 1, 0, 1, 2, 3, 2, 3]
    twice = shards_of(classes_of_ten(200), 6, tasks=("parity", "parity", "classes"))
    assert [(shard.outputs, shard.group) for shard in twice] == [(2, 0), (2, 0), (10, 1)] * 2
    options = {"partition": "classes", "classes_per_client": 3}
    for one, other in zip(
        shards_of(classes_of_ten(200), 4, **options),
        shards_of(classes_of_ten(200), 4, tasks=("parity", "classes"), **options),
        strict=True,
    ):
        assert np.array_equal(one.x_train, other.x_train)


def test_a_shard_that_fails_to_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    def disk_full(path, target):
        raise OSError("disk full")

    path = tmp_path / "shard.safetensors"
    path.write_bytes(b"old")
    monkeypatch.setattr(Path, "replace", disk_full)
    with pytest.raises(OSError, match="disk full"):
        write(shards_of(corners(40), 4)[0], path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_prepare_writes_a_file_a_client_and_says_what_is_in_them(tmp_path):
    section = DataSection(partition="quantity", rotations=(0, 180), reduced_clients=0.3)
    summary = prepare(section, 12, 5, tmp_path / "shards")
    assert (summary.input_shape, summary.outputs, summary.task) == ((1, 8, 8), 10, "classification")
    assert sorted(path.name for path in (tmp_path / "shards").iterdir()) == [
        f"node-{client:04d}.safetensors" for client in range(12)
    ]
    for client, told in enumerate(summary.clients):
        with safe_open(shard_path(tmp_path / "shards", client), "np") as file:
            assert file.get_slice("x_train").get_shape() == [told.train_samples, 1, 8, 8]
            assert file.get_slice("y_test").get_shape() == [told.test_samples]
            assert {file.get_tensor("x_train").dtype, file.get_tensor("x_test").dtype} == {np.dtype(np.float32)}
            assert {file.get_tensor("y_train").dtype, file.get_tensor("y_test").dtype} == {np.dtype(np.int64)}
            about = {"task": "classification", "outputs": "10", "group": str(told.group)}
            assert file.metadata().items() >= about.items()


def test_standardized_targets_have_mean_0_and_deviation_1_over_each_clients_own_training_samples():
    y = np.arange(40, dtype=np.float32)[:, None]
    pool = Pool(y.copy(), y, "regression", outputs=1)
    for raw, shard in zip(shards_of(pool, 3), shards_of(pool, 3, standardize_targets=True), strict=True):
        mean, deviation = raw.y_train.mean(), raw.y_train.std()
        assert np.allclose(shard.y_train, (raw.y_train - mean) / deviation, atol=1e-6)
        assert np.allclose(shard.y_test, (raw.y_test - mean) / deviation, atol=1e-6)
        assert np.array_equal(shard.x_train, raw.x_train)


def test_a_client_is_in_the_group_of_its_owner_even_where_only_some_owners_take_part():
    owner = np.repeat(np.arange(6), 5)
    pool = replace(numbered(30, client=owner), groups=np.array([0, 1, 0, 1, 2, 2]))
    for seed in range(5):
        for shard in shards_of(pool, 3, seed):
            assert shard.group == pool.groups[owner[min(ids(shard.x_train))]]


def test_the_group_of_a_client_is_its_cluster():
    pool = Pool(np.zeros((120, 2)), np.arange(120) % 6, "classification", outputs=6)
    shards = shards_of(pool, 6, partition="clusters", clusters=ClustersTable(count=3))
    assert [shard.group for shard in shards] == [0, 0, 1, 1, 2, 2]


def test_a_mask_blanks_one_square_of_all_images_of_a_client_at_a_place_of_its_own():
    pool = Pool(np.ones((400, 2, 6, 5)), np.arange(400) % 2, "classification", outputs=2)
    places = set()
    for shard in shards_of(pool, 10, mask=2):
        images = np.concatenate([shard.x_train, shard.x_test])
        assert (images == images[0, 0]).all()
        rows, columns = np.nonzero(images[0, 0] == 0)
        assert len(rows) == 4
        assert np.ptp(rows) == np.ptp(columns) == 1
        places.add((rows.min(), columns.min()))
    assert len(places) > 3


def test_the_mask_stays_where_it_is_when_the_images_are_turned():
    pool = Pool(np.ones((400, 1, 6, 6)), np.arange(400) % 2, "classification", outputs=2)
    straight, turned = (shards_of(pool, 4, mask=3, rotations=(angle,)) for angle in (0, 90))
    for one, other in zip(straight, turned, strict=True):
        assert np.array_equal(one.x_test == 0, other.x_test == 0)


OBLONG, ROWS = (numbered(40, shape=shape) for shape in ((1, 2, 3), (2,)))
TARGETS = Pool(np.ones((40, 1)), np.ones((40, 1), np.float32), "regression", 1)


@pytest.mark.parametrize(
    ("pool", "keys", "complaint"),
    [
        (OBLONG, {"rotations": (0, 90)}, r"^data\.rotations is \[0, 90\], but images of 2x3 allow 0 and 180 only"),
        (numbered(40, shape=(1, 6, 4)), {"mask": 5}, r"^data\.mask is 5.*allow 0 to 4"),
        (ROWS, {"tasks": ("classes",) * 3}, r"^data\.tasks names 3 tasks; allowed are 1 to 2"),
        (TARGETS, {"tasks": ("parity",)}, r"^data\.tasks is .*no classes"),
        (ROWS, {"standardize_targets": True}, r"^data\.standardize_targets is true, .*allowed is false$"),
        (
            ROWS,
            {"evaluate_on": "validation", "reduced_clients": 1, "reduced_to": 0.001},
            r"^data\.evaluate_on is 'validation', but client 0 has one training sample",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_cut(pool, keys, complaint):
    """The others are in bad_inputs.txt."""
    with pytest.raises(DataError, match=complaint):
        cut(DataSection(**keys), pool, 2, 0)


def test_images_that_are_not_square_may_be_turned_upside_down():
    (shard,) = shards_of(OBLONG, 1, rotations=(180,))
    assert shard.x_train.shape == (30, 1, 2, 3)


def constant(task, *clients, tasks=("classes",)):
    """Of clients with these targets to train on and to test with; classes are 0 to 2."""
    kind, shape = (np.int64, -1) if task == "classification" else (np.float32, (-1, 1))
    shards = []
    for targets in clients:
        train, test = (np.array(y, kind).reshape(shape) for y in targets)
        shards.append(Shard(np.zeros((len(train), 1)), train, np.zeros((len(test), 1)), test, task, 3, 0))
    return constant_metric(tasks, [Targets.of(shard) for shard in shards])


def test_a_constant_prediction_is_the_most_frequent_class_or_the_mean_target_of_all():
    classes = ([0, 2, 2], [2, 2, 0, 1]), ([1, 2, 1], [1, 1, 1, 2])
    assert constant("classification", *classes) == pytest.approx((0.5 + 0.25) / 2)  # class 2, by 3 to 2
    targets = ([1, 3], [2, 4]), ([5, 7, 9], [5])
    assert constant("regression", *targets) == pytest.approx(np.mean([np.mean([9, 1]), 0]))  # the mean is 5
    assert constant("classification", ([0], [0]), tasks=("parity", "halves")) is None
