"""How the samples are spread over the clients, and what ends up in the shard of each."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, strategies as st
from safetensors import safe_open

from sheafgossip.launcher.config.data import ClustersTable, DataSection, DriftTable
from sheafgossip.launcher.data.pool import Pool, split
from sheafgossip.launcher.data.shards import constant_metric, cut, prepare, shard_path, turned

SEEDS = st.integers(0, 2**32)


def numbered(samples, *, shape=(1,), client=None, classes=2):
    """Every feature of sample k is k, its class k % classes."""
    x = np.broadcast_to(np.arange(samples).reshape(-1, *[1] * len(shape)), (samples, *shape)).astype(np.float32)
    return Pool(x, np.arange(samples) % classes, "classification", outputs=classes, client=client)


def spread(partition, everyone, clients, seed=0, **keys):
    return split(DataSection(partition=partition, **keys), everyone, clients, seed)


def clusters(everyone, clients, seed=0, **keys):
    """The rows of each cluster's clients: contiguous blocks."""
    table = ClustersTable(**keys)
    owned = spread("clusters", everyone, clients, seed, clusters=table)
    return [[rows for i, rows in enumerate(owned) if i * table.count // clients == c] for c in range(table.count)]


def classes_held(everyone, owned):
    return [set(everyone.y[rows].tolist()) for rows in owned]


def sizes(owned):
    return np.array([len(rows) for rows in owned])


def are_all(owned, samples):
    return sorted(np.concatenate(owned).tolist()) == list(range(samples))


@given(
    partition=st.sampled_from(["even", "dirichlet", "quantity"]),
    clients=st.integers(1, 30),
    spare=st.integers(0, 300),
    beta=st.floats(1e-3, 1e3),
    exponent=st.floats(0.01, 20),
    seed=SEEDS,
)
def test_every_sample_has_one_owner_and_every_client_four_samples(partition, clients, spare, beta, exponent, seed):
    samples = 4 * clients + spare
    owned = spread(partition, numbered(samples), clients, seed, beta=beta, exponent=exponent)
    assert are_all(owned, samples)
    assert (len(owned), sizes(owned).min() >= 4) == (clients, True)
    assert partition != "even" or np.ptp(sizes(owned)) <= 1


@given(labels=st.integers(2, 12), per_client=st.integers(1, 12), clients=st.integers(1, 20), seed=SEEDS)
def test_clients_have_their_number_of_classes_and_share_them_fairly(labels, per_client, clients, seed):
    per_client = min(per_client, labels)
    everyone = numbered(labels * clients * 4, classes=labels)
    owned = spread("classes", everyone, clients, seed, classes_per_client=per_client)
    held = np.array([np.bincount(everyone.y[rows], minlength=labels) for rows in owned])
    assert set(np.count_nonzero(held, axis=1)) == {per_client}
    holders = np.count_nonzero(held, axis=0)
    assert np.ptp(holders) <= 1
    assert len(np.unique(np.concatenate(owned))) == sizes(owned).sum() == 4 * clients * np.count_nonzero(holders)
    assert all(np.ptp(shares[shares > 0]) <= 1 for shares in held.T if shares.any())


@pytest.mark.parametrize("beta", [1e-3, 0.7, 1e3])
def test_dirichlet_shares_vary_as_the_distribution_says(beta):
    """Over K clients a share's variance is (K - 1) / (K^2 (K beta + 1))."""
    clients, samples = 5, 30_000
    everyone, shares = numbered(samples, classes=30), []
    for seed in range(20):
        owned = spread("dirichlet", everyone, clients, seed, beta=beta)
        shares += [np.bincount(everyone.y[rows], minlength=30) / (samples / 30) for rows in owned]
    variance = np.var(np.concatenate(shares))
    assert variance == pytest.approx((clients - 1) / (clients**2 * (clients * beta + 1)), rel=0.1)


def test_quantity_sizes_follow_the_power_law():
    law = np.arange(1, 21) ** -1.5
    found = sizes(spread("quantity", numbered(100_000), 20, exponent=1.5))
    assert np.allclose(sorted(found, reverse=True), 100_000 * law / law.sum(), atol=1)
    assert len({sizes(spread("quantity", numbered(1000), 20, seed)).argmax() for seed in range(10)}) > 1


def test_natural_with_fewer_clients_takes_some_owners_whole_and_in_order():
    owner, taken = np.arange(60) % 10, set()
    for seed in range(20):
        owners = [set(owner[rows]) for rows in spread("natural", numbered(60, client=owner), 3, seed) if len(rows) == 6]
        assert [len(one) for one in owners] == [1, 1, 1]
        assert sorted(map(min, owners)) == list(map(min, owners))
        taken |= set.union(*owners)
    assert taken == set(range(10))


def test_five_classes_and_a_little_imbalance_give_the_sizes_that_the_page_on_data_tells():
    everyone = Pool(np.zeros((60_000, 1)), np.repeat(np.arange(10), 6000), "classification", outputs=10)
    training = []
    for seed in range(5):
        owned = spread("classes", everyone, 30, seed, classes_per_client=5, imbalance=0.15)
        assert {len(classes) for classes in classes_held(everyone, owned)} == {5}
        assert sizes(owned).sum() == 60_000
        training += [len(rows) - round(len(rows) / 4) for rows in owned]
    assert (min(training), max(training)) == (1370, 1659)


@given(clients=st.integers(1, 60), each=st.integers(4, 30), seed=SEEDS)
def test_overlapping_clients_hold_as_many_samples_as_asked_for_and_none_twice(clients, each, seed):
    owned = spread("overlapping", numbered(30), clients, seed, samples_each=each)
    assert [len(np.unique(rows)) for rows in owned] == [each] * clients


@pytest.mark.parametrize("partition", ["even", "classes", "dirichlet", "quantity", "overlapping"])
def test_the_seed_alone_decides_whatever_the_samples_look_like(partition):
    plain = numbered(500)
    shifted = replace(plain, x=plain.x + 1)
    first, again, other = (spread(partition, data, 6, seed) for data, seed in ((plain, 3), (shifted, 3), (plain, 4)))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


@given(count=st.integers(1, 5), per_cluster=st.integers(1, 3), clients=st.integers(5, 20), seed=SEEDS)
def test_clusters_have_classes_of_their_own_and_share_the_samples_evenly(count, per_cluster, clients, seed):
    everyone, seen = numbered(1500, classes=15), []
    for members in clusters(everyone, clients, seed, count=count, classes=per_cluster):
        held = set().union(*classes_held(everyone, members))
        assert len(held) == per_cluster
        seen += held
        assert np.ptp(sizes(members)) <= 1
        assert sizes(members).sum() == 100 * per_cluster
    assert len(seen) == len(set(seen))


def test_each_cluster_shares_half_of_one_class_with_the_next_or_the_last_has_the_classes_that_are_left():
    everyone = numbered(1000, classes=10)
    rows = [np.concatenate(members) for members in clusters(everyone, 20, 3, count=5, classes=3, overlap=1)]
    assert are_all(rows, 1000)
    held = classes_held(everyone, rows)
    for c in range(5):
        assert len(held[c]) == 3
        (shared,) = held[c] & held[(c + 1) % 5]
        assert (everyone.y[rows[c]] == shared).sum() == 50
    assert not held[0] & held[2]
    everyone = numbered(470, classes=47)
    rows = [np.concatenate(members) for members in clusters(everyone, 20, count=10, classes=5)]
    assert [len(classes) for classes in classes_held(everyone, rows)] == [5] * 9 + [2]


def test_related_clusters_have_the_classes_of_a_family_and_without_families_consecutive_ones():
    everyone = numbered(600, classes=6)
    families = replace(everyone, families=np.array([1, 0, 1, 0, 2, 2]))
    for pool, expected in ((families, [{1, 3}, {0, 2}, {4, 5}]), (everyone, [{0, 1}, {2, 3}, {4, 5}])):
        owned = [np.concatenate(each) for each in clusters(pool, 6, count=3, classes=2, related=True)]
        assert classes_held(everyone, owned) == expected
        assert sizes(owned).tolist() == [200] * 3


def test_an_owners_samples_can_be_split_among_several_clients():
    owner = np.repeat(np.arange(3), [40, 60, 81])
    owned = spread("natural", numbered(181, client=owner), 6, clients_per_owner=2)
    assert are_all(owned, 181)
    assert [set(owner[rows].tolist()) for rows in owned] == [{0}, {0}, {1}, {1}, {2}, {2}]
    assert sizes(owned).tolist() == [20, 20, 30, 30, 41, 40]


@given(exponent=st.sampled_from([0.2, 0.5, 1.0]), seed=SEEDS)
def test_clusters_with_an_exponent_have_sizes_by_a_power_law(exponent, seed):
    found = clusters(numbered(3000, classes=4), 20, seed, count=2, classes=2, exponent=exponent, smallest=20)
    assert are_all([np.concatenate(members) for members in found], 3000)
    for members in map(sizes, found):
        growth = np.log(members - 20) / np.arange(1, 11) ** exponent  # b, of each client
        assert np.ptp(growth[2:]) < 0.15 * growth.mean()
        assert members.min() >= 20
        assert (np.diff(members) >= -1).all()


# -- shards -----------------------------------------------------------------------------------------------------------


def corners(samples):
    """Images of 2x2 pixels 0 1 / 2 3."""
    return replace(numbered(samples), x=np.tile(np.arange(4, dtype=np.float32).reshape(1, 2, 2), (samples, 1, 1, 1)))


def shards_of(pool, clients, seed=0, **keys):
    return list(cut(DataSection(**keys), pool, clients, seed))


def ids(x):
    return set(x[:, 0].astype(int).tolist())


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
        for x, y in ((shard.x_train, shard.y_train), (shard.x_test, shard.y_test)):
            assert np.array_equal(x[:, 0] % 2, y)


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
        assert np.all(np.concatenate([shard.x_train, shard.x_test]) == turned[shard.about.group])
    (oblong,) = shards_of(numbered(40, shape=(1, 2, 3)), 1, rotations=(180,))
    assert oblong.x_train.shape == (30, 1, 2, 3)


@pytest.mark.parametrize("degrees", [17, 45, 137, 290])
def test_other_angles_turn_counter_clockwise_too_and_interpolate(degrees):
    """Pixel by pixel: where it comes from, and the four pixels around that place, weighed by their nearness."""
    image, size = np.random.default_rng(degrees).random((5, 5)), 5
    a, expected = np.radians(degrees), np.zeros((size, size))
    framed = np.pad(image, 1)  # what is outside is 0
    for row, column in product(range(size), repeat=2):
        up, right = 2 - row, column - 2
        from_right, from_up = right * np.cos(a) + up * np.sin(a), up * np.cos(a) - right * np.sin(a)
        y, x = 2 - from_up, 2 + from_right
        if not (0 <= y <= size - 1 and 0 <= x <= size - 1):
            continue
        top, left = int(y), int(x)
        for i, j in product((0, 1), repeat=2):
            expected[row, column] += abs(1 - i - y + top) * abs(1 - j - x + left) * framed[top + i + 1, left + j + 1]
    found = turned(np.tile(image, (2, 3, 1, 1)), degrees)
    assert found.shape == (2, 3, 5, 5)
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), atol=1e-12)


def test_a_task_that_changes_turns_the_same_images_by_another_angle():
    images, drift = numbered(80, shape=(1, 2, 2)), DriftTable(at_round=7, rotations=(0, 180))
    options = {}, {"rotations": (0, 180)}, {"rotations": (0, 0), "drift": drift}
    for plain, other, shard in zip(*(shards_of(images, 4, **more) for more in options), strict=True):
        assert np.array_equal(shard.x_train, plain.x_train)
        assert np.array_equal(shard.drifted[0], other.x_train)
        assert np.array_equal(shard.drifted[1], other.x_test)
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
    pair, one = shards_of(numbered(200, classes=9), 2, tasks=("pairs", "one"), one_class=8)
    assert (pair.about.outputs, one.about.outputs) == (5, 2)
    assert np.array_equal(pair.y_train, pair.x_train[:, 0].astype(int) % 9 // 2)
    assert np.array_equal(one.y_train, one.x_train[:, 0].astype(int) % 9 == 8)
    turned = shards_of(images, 8, rotations=(0, 90), tasks=("classes", "parity"))  # groups of both
    assert [shard.about.group for shard in turned] == [0, 1, 0, 1, 2, 3, 2, 3]
    options = {"partition": "classes", "classes_per_client": 3}
    alone, mixed = (shards_of(samples, 4, **options, **more) for more in ({}, {"tasks": ("parity", "classes")}))
    assert all(np.array_equal(one.x_train, other.x_train) for one, other in zip(alone, mixed, strict=True))


def test_the_group_of_a_client_is_that_of_its_owner_or_its_cluster_and_unknown_where_samples_are_mixed():
    owner = np.repeat(np.arange(6), 5)
    pool = replace(numbered(30, client=owner), groups=np.array([0, 1, 0, 1, 2, 2]))
    for seed in range(5):  # only some owners take part
        for shard in shards_of(pool, 3, seed):
            assert shard.about.group == pool.groups[owner[min(ids(shard.x_train))]]
    assert {shard.about.group for shard in shards_of(pool, 3, partition="even")} == {0}
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
    assert constant_metric(("parity", "classes"), "classification", of_classes) is None
    targets = [([[1], [3]], [[2], [4]]), ([[5], [7], [9]], [[5]])]
    of_targets = [(np.array(train, np.float32), np.array(test, np.float32)) for train, test in targets]
    assert constant_metric((), "regression", of_targets) == pytest.approx((5 + 0) / 2)  # the mean is 5
