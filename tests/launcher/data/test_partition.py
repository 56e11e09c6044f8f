"""How the samples are spread over the clients."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafgossip.launcher.config.data import ClustersTable, DataSection
from sheafgossip.launcher.data.partition import split
from sheafgossip.launcher.data.pool import Pool

SEEDS = st.integers(0, 2**32)


def pool(samples, *, labels=3, client=None):
    """Sample k has class k mod labels."""
    return Pool(np.zeros((samples, 2)), np.arange(samples) % labels, "classification", outputs=labels, client=client)


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
    owned = spread(partition, pool(samples), clients, seed, beta=beta, exponent=exponent)
    assert len(owned) == clients
    assert are_all(owned, samples)
    assert sizes(owned).min() >= 4
    assert partition != "even" or np.ptp(sizes(owned)) <= 1


@given(labels=st.integers(2, 12), per_client=st.integers(1, 12), clients=st.integers(1, 20), seed=SEEDS)
def test_clients_have_their_number_of_classes_and_share_them_fairly(labels, per_client, clients, seed):
    per_client = min(per_client, labels)
    everyone = pool(labels * clients * 4, labels=labels)
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
    everyone, shares = pool(samples, labels=30), []
    for seed in range(20):
        owned = spread("dirichlet", everyone, clients, seed, beta=beta)
        shares += [np.bincount(everyone.y[rows], minlength=30) / (samples / 30) for rows in owned]
    variance = np.var(np.concatenate(shares))
    assert variance == pytest.approx((clients - 1) / (clients**2 * (clients * beta + 1)), rel=0.1)


def test_quantity_sizes_follow_the_power_law():
    law = np.arange(1, 21) ** -1.5
    found = sizes(spread("quantity", pool(100_000), 20, exponent=1.5))
    assert np.allclose(sorted(found, reverse=True), 100_000 * law / law.sum(), atol=1)
    assert len({sizes(spread("quantity", pool(1000), 20, seed)).argmax() for seed in range(10)}) > 1


def test_natural_with_fewer_clients_takes_some_owners_whole_and_in_order():
    owner, taken = np.arange(60) % 10, set()
    for seed in range(20):
        owners = [set(owner[rows]) for rows in spread("natural", pool(60, client=owner), 3, seed) if len(rows) == 6]
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


@settings(deadline=None)
@given(clients=st.integers(1, 60), each=st.integers(4, 30), seed=SEEDS)
def test_overlapping_clients_hold_as_many_samples_as_asked_for_and_none_twice(clients, each, seed):
    owned = spread("overlapping", pool(30), clients, seed, samples_each=each)
    assert [len(np.unique(rows)) for rows in owned] == [each] * clients


@pytest.mark.parametrize("partition", ["even", "classes", "dirichlet", "quantity", "overlapping"])
def test_the_seed_alone_decides_whatever_the_samples_look_like(partition):
    plain = pool(500)
    shifted = replace(plain, x=plain.x + 1)
    first, again, other = (spread(partition, data, 6, seed) for data, seed in ((plain, 3), (shifted, 3), (plain, 4)))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


@given(count=st.integers(1, 5), per_cluster=st.integers(1, 3), clients=st.integers(5, 20), seed=SEEDS)
def test_clusters_have_classes_of_their_own_and_share_the_samples_evenly(count, per_cluster, clients, seed):
    everyone, seen = pool(1500, labels=15), []
    for members in clusters(everyone, clients, seed, count=count, classes=per_cluster):
        held = set().union(*classes_held(everyone, members))
        assert len(held) == per_cluster
        seen += held
        assert np.ptp(sizes(members)) <= 1
        assert sizes(members).sum() == 100 * per_cluster
    assert len(seen) == len(set(seen))


def test_with_overlap_each_cluster_shares_one_class_with_the_next_and_both_have_half_of_it():
    everyone = pool(1000, labels=10)
    rows = [np.concatenate(members) for members in clusters(everyone, 20, 3, count=5, classes=3, overlap=1)]
    assert are_all(rows, 1000)
    held = classes_held(everyone, rows)
    for c in range(5):
        assert len(held[c]) == 3
        (shared,) = held[c] & held[(c + 1) % 5]
        assert (everyone.y[rows[c]] == shared).sum() == 50
    assert not held[0] & held[2]


def test_the_last_cluster_has_the_classes_that_are_left():
    everyone = pool(470, labels=47)
    rows = [np.concatenate(members) for members in clusters(everyone, 20, count=10, classes=5)]
    assert [len(classes) for classes in classes_held(everyone, rows)] == [5] * 9 + [2]


@given(exponent=st.sampled_from([0.2, 0.5, 1.0]), seed=SEEDS)
def test_clusters_with_an_exponent_have_sizes_by_a_power_law(exponent, seed):
    found = clusters(pool(3000, labels=4), 20, seed, count=2, classes=2, exponent=exponent, smallest=20)
    assert are_all([np.concatenate(members) for members in found], 3000)
    for members in map(sizes, found):
        growth = np.log(members - 20) / np.arange(1, 11) ** exponent  # b, of each client
        assert np.ptp(growth[2:]) < 0.15 * growth.mean()
        assert members.min() >= 20
        assert (np.diff(members) >= -1).all()
