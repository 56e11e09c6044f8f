"""How the samples are spread over the clients."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafgossip.launcher.config.data import ClustersTable, DataSection
from sheafgossip.launcher.data.partition import split
from sheafgossip.launcher.data.pool import DataError, Pool

SEEDS = st.integers(0, 2**32)


def pool(samples, *, labels=3, client=None, task="classification"):
    """Sample k has class k mod labels."""
    y = np.arange(samples) % labels
    if task == "regression":
        return Pool(np.zeros((samples, 2)), y[:, None].astype(np.float32), task, outputs=1, client=client)
    return Pool(np.zeros((samples, 2)), y, task, outputs=labels, client=client)


def classes_held(y, owned):
    return [set(y[rows].tolist()) for rows in owned]


def clusters_of(owned, count):
    """The rows of each cluster's clients: contiguous blocks."""
    return [[rows for i, rows in enumerate(owned) if i * count // len(owned) == c] for c in range(count)]


@given(
    partition=st.sampled_from(["even", "dirichlet", "quantity"]),
    clients=st.integers(1, 30),
    spare=st.integers(0, 300),
    beta=st.floats(1e-3, 1e3),
    exponent=st.floats(0.01, 20),
    seed=SEEDS,
)
def test_every_sample_has_exactly_one_owner_and_every_client_four_samples(
    partition, clients, spare, beta, exponent, seed
):
    samples = 4 * clients + spare
    section = DataSection(partition=partition, beta=beta, exponent=exponent)
    owned = split(section, pool(samples), clients, seed)
    assert len(owned) == clients
    assert sorted(np.concatenate(owned).tolist()) == list(range(samples))
    sizes = [len(rows) for rows in owned]
    assert min(sizes) >= 4
    assert partition != "even" or max(sizes) - min(sizes) <= 1


@given(labels=st.integers(2, 12), per_client=st.integers(1, 12), clients=st.integers(1, 20), seed=SEEDS)
def test_classes_gives_every_client_its_number_of_classes_and_shares_all_of_them_fairly(
    labels, per_client, clients, seed
):
    per_client = min(per_client, labels)
    everyone = pool(labels * clients * 4, labels=labels)
    owned = split(DataSection(partition="classes", classes_per_client=per_client), everyone, clients, seed)
    held = classes_held(everyone.y, owned)
    assert {len(classes) for classes in held} == {per_client}
    holders = [sum(label in classes for classes in held) for label in range(labels)]
    assert max(holders) - min(holders) <= 1
    rows = np.concatenate(owned)
    assert len(set(rows.tolist())) == len(rows) == 4 * clients * np.count_nonzero(holders)
    for label in range(labels):
        shares = [np.count_nonzero(everyone.y[rows] == label) for rows in owned if label in everyone.y[rows]]
        assert not shares or max(shares) - min(shares) <= 1


@pytest.mark.parametrize("beta", [1e-3, 0.7, 1e3])
def test_dirichlet_shares_vary_as_the_distribution_says(beta):
    """Over K clients a share's variance is (K - 1) / (K^2 (K beta + 1))."""
    clients, samples = 5, 30_000
    everyone = pool(samples, labels=30)
    shares = []
    for seed in range(20):
        owned = split(DataSection(partition="dirichlet", beta=beta), everyone, clients, seed)
        shares += [np.bincount(everyone.y[rows], minlength=30) / (samples / 30) for rows in owned]
    variance = np.var(np.concatenate(shares))
    assert variance == pytest.approx((clients - 1) / (clients**2 * (clients * beta + 1)), rel=0.1)


def test_quantity_sizes_follow_the_power_law():
    owned = split(DataSection(partition="quantity", exponent=1.5), pool(100_000), 20, 0)
    sizes = sorted((len(rows) for rows in owned), reverse=True)
    law = np.arange(1, 21) ** -1.5
    assert np.allclose(sizes, 100_000 * law / law.sum(), atol=1)
    others = [split(DataSection(partition="quantity"), pool(1000), 20, seed) for seed in range(10)]
    assert len({max(range(20), key=lambda client: len(owned[client])) for owned in others}) > 1


def test_natural_with_fewer_clients_takes_some_owners_whole_and_in_sorted_order():
    owner = np.arange(60) % 10
    taken = set()
    for seed in range(20):
        owned = split(DataSection(partition="natural"), pool(60, client=owner), 3, seed)
        owners = [set(owner[rows].tolist()) for rows in owned]
        assert [len(rows) for rows in owned] == [6, 6, 6]
        assert [len(one) for one in owners] == [1, 1, 1]
        assert sorted(map(min, owners)) == list(map(min, owners))
        taken |= set.union(*owners)
    assert taken == set(range(10))


@pytest.mark.parametrize(("client", "same_as"), [(None, "even"), (np.arange(18) % 3, "natural")])
def test_auto_is_natural_where_samples_have_owners_and_else_even(client, same_as):
    everyone = pool(18, client=client)
    owned, expected = (split(DataSection(partition=name), everyone, 3, 0) for name in ("auto", same_as))
    assert all(map(np.array_equal, owned, expected))


def test_imbalance_bounds_the_shares_of_a_class_and_varies_them():
    everyone = pool(30_000)
    section = DataSection(partition="classes", classes_per_client=2, imbalance=0.5)
    owned = split(section, everyone, 30, 0)
    assert sorted(np.concatenate(owned).tolist()) == list(range(30_000))
    counts = np.array([np.bincount(everyone.y[rows], minlength=3) for rows in owned])
    shares = counts[counts > 0]
    assert {np.count_nonzero(row) for row in counts} == {2}
    assert shares.max() / shares.min() <= 3 * 1.02  # (1 + 0.5) / (1 - 0.5), and rounding
    assert shares.max() / shares.min() > 2


def test_five_classes_and_a_little_imbalance_give_the_sizes_that_the_page_on_data_tells():
    labels = np.repeat(np.arange(10), 6000)
    everyone = Pool(np.zeros((60_000, 1)), labels, "classification", outputs=10)
    section = DataSection(partition="classes", classes_per_client=5, imbalance=0.15)
    training = []
    for seed in range(5):
        owned = split(section, everyone, 30, seed)
        assert {len(classes) for classes in classes_held(labels, owned)} == {5}
        assert sum(map(len, owned)) == 60_000
        training += [len(rows) - round(len(rows) / 4) for rows in owned]
    assert (min(training), max(training)) == (1370, 1659)


@settings(deadline=None)
@given(clients=st.integers(1, 60), each=st.integers(4, 30), seed=SEEDS)
def test_overlapping_clients_hold_as_many_samples_as_asked_for_and_none_twice(clients, each, seed):
    owned = split(DataSection(partition="overlapping", samples_each=each), pool(30), clients, seed)
    assert [len(np.unique(rows)) for rows in owned] == [each] * clients


@pytest.mark.parametrize("partition", ["even", "classes", "dirichlet", "quantity", "overlapping"])
def test_the_seed_alone_decides_whatever_the_samples_look_like(partition):
    section, plain = DataSection(partition=partition), pool(500)
    shifted = replace(plain, x=plain.x + 1)
    first, again, other = (split(section, data, 6, seed) for data, seed in ((plain, 3), (shifted, 3), (plain, 4)))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


@given(count=st.integers(1, 5), per_cluster=st.integers(1, 3), clients=st.integers(5, 20), seed=SEEDS)
def test_clusters_have_classes_of_their_own_and_their_clients_share_the_samples_evenly(
    count, per_cluster, clients, seed
):
    everyone = pool(1500, labels=15)
    section = DataSection(partition="clusters", clusters=ClustersTable(count=count, classes=per_cluster))
    owned = split(section, everyone, clients, seed)
    seen = []
    for members in clusters_of(owned, count):
        held = set().union(*classes_held(everyone.y, members))
        assert len(held) == per_cluster
        seen += held
        sizes = list(map(len, members))
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) == 100 * per_cluster
    assert len(seen) == len(set(seen))


def test_with_overlap_each_cluster_shares_one_class_with_the_next_and_both_have_half_of_it():
    everyone = pool(1000, labels=10)
    section = DataSection(partition="clusters", clusters=ClustersTable(count=5, classes=3, overlap=1))
    owned = split(section, everyone, 20, 3)
    assert sorted(np.concatenate(owned).tolist()) == list(range(1000))
    labels = [everyone.y[np.concatenate(members)] for members in clusters_of(owned, 5)]
    for c in range(5):
        assert len(set(labels[c].tolist())) == 3
        (shared,) = set(labels[c].tolist()) & set(labels[(c + 1) % 5].tolist())
        assert (labels[c] == shared).sum() == 50
    assert not set(labels[0].tolist()) & set(labels[2].tolist())


def test_the_last_cluster_has_the_classes_that_are_left():
    everyone = pool(470, labels=47)
    owned = split(DataSection(partition="clusters", clusters=ClustersTable(count=10, classes=5)), everyone, 20, 0)
    held = [set().union(*classes_held(everyone.y, members)) for members in clusters_of(owned, 10)]
    assert [len(classes) for classes in held] == [5] * 9 + [2]


@given(exponent=st.sampled_from([0.2, 0.5, 1.0]), seed=SEEDS)
def test_clusters_with_an_exponent_have_sizes_by_a_power_law(exponent, seed):
    everyone = pool(3000, labels=4)
    clusters = ClustersTable(count=2, classes=2, exponent=exponent, smallest=20)
    owned = split(DataSection(partition="clusters", clusters=clusters), everyone, 20, seed)
    assert sorted(np.concatenate(owned).tolist()) == list(range(3000))
    for members in clusters_of(owned, 2):
        sizes = np.array(list(map(len, members)))
        growth = np.log(sizes - 20) / np.arange(1, 11) ** exponent  # b, of each client
        assert np.ptp(growth[2:]) < 0.15 * growth.mean()
        assert sizes.min() >= 20
        assert (np.diff(sizes) >= -1).all()


@pytest.mark.parametrize(
    ("keys", "samples", "complaint"),
    [
        ({"partition": "classes"}, pool(100, task="regression"), "= 'classes': .*no classes; allowed: even"),
        ({"partition": "dirichlet"}, pool(100, task="regression"), "= 'dirichlet': .*no classes; allowed: even"),
        ({"partition": "natural"}, pool(44, client=np.arange(44) % 3), "has 3 clients, the run has 11; .* are 1 to 3"),
        ({"partition": "classes", "classes_per_client": 1}, pool(44, labels=22), "client 0 with 2 samples: .* needed$"),
        (
            {"partition": "clusters", "clusters": ClustersTable(count=5, classes=4, overlap=1)},
            pool(1000, labels=10),
            "5 clusters of 4 classes, 1 of them shared",
        ),
    ],
)
def test_what_cannot_be_is_refused(keys, samples, complaint):
    """The others are in bad_inputs.txt."""
    with pytest.raises(DataError, match=complaint):
        split(DataSection(**keys), samples, 11, 0)
