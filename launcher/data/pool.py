"""All samples of a run, and how they are split among the clients."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...topology.randomness import generator
from ..config.data import ConfigError, DataSection, Task

MINIMUM = 4  # samples of the smallest client: three to train on and one to test with, at a quarter for testing
Partition = list[np.ndarray]  # a client's rows each; no row twice, except where clients may hold the same samples


class DataError(ConfigError):
    """The user's data is wrong: the key or the file, its value, and what is allowed, in one line."""


@dataclass(frozen=True)
class Pool:
    """Samples in the number type of their files: 70,000 images as bytes take 55 MB, as floats 220 MB."""

    x: np.ndarray  # images (n, channels, height, width), features (n, features) or series (n, steps, features)
    y: np.ndarray  # classification: class numbers 0 .. outputs - 1, int64 (n,); regression: float32 (n, outputs)
    task: Task
    outputs: int  # classes, or regression targets
    scale: float = 1.0  # a model sees x / scale as float32
    client: np.ndarray | None = None  # owner 0, 1, ... of each sample, int64 (n,), where the data set says who that is
    owners: tuple[str, ...] | None = None  # the names of owners 0, 1, ..., where they have any
    groups: np.ndarray | None = None  # of each owner, int64 (owners,), where it is known whose data are similar
    families: np.ndarray | None = None  # of each class, the number of those that it is like, int64 (outputs,)
    in_time_order: bool = False  # whether samples are: then the latest of a client's are its test samples
    tests: np.ndarray | None = None  # bool (n,): those that the data set has for testing, where it says so
    told: tuple[str, ...] = ()  # what there is to tell of how the samples were read

    def __len__(self) -> int:
        return len(self.x)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.x.shape[1:]

    def owner(self, rows: np.ndarray) -> str:
        assert self.client is not None
        number = int(self.client[rows[0]])
        name = f"{number}" if self.owners is None else self.owners[number]
        return name if len(name) <= 80 else f"{name[:80]}…"

    def inputs(self, rows: np.ndarray) -> np.ndarray:
        return np.divide(self.x[rows], np.float32(self.scale), dtype=np.float32)


def some(names: Sequence[str], most: int = 10) -> str:
    """Lists all, or the first of them and how many there are more."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def split(section: DataSection, pool: Pool, clients: int, seed: int) -> Partition:
    """Gives each client at least MINIMUM samples. Raises DataError where that can't be."""
    name = chosen(section, pool)
    for key, none in (("min_samples", 0), ("clients_per_owner", 1)):
        if (value := getattr(section, key)) != none and name != "natural":
            raise DataError.of(f"data.{key}", value, f"samples are split {name!r}, not by owner", none)
    if name != "overlapping" and len(pool) < MINIMUM * clients:
        needed = f"{clients} clients need {MINIMUM * clients} samples ({MINIMUM} each)"
        remedy = 'data.partition = "overlapping" lets clients hold the same samples'
        raise DataError(f'{needed}, but data.dataset = "{section.dataset}" gives {len(pool)}; {remedy}')
    owned = _PARTITIONS[name](section, pool, clients, generator(seed, "partition"))
    sizes = list(map(len, owned))
    if min(sizes) < MINIMUM:
        left = f'data.partition = "{name}" leaves client {np.argmin(sizes)} with {min(sizes)} samples'
        few = some(owners_of(pool, MINIMUM)[1]) if name == "natural" else ""
        way_out = few and f"; data.min_samples = {MINIMUM} leaves out {few}"
        raise DataError(f"{left}: at least {MINIMUM} are needed{way_out}")
    return owned


def chosen(section: DataSection, pool: Pool) -> str:
    if section.partition == "auto":
        return "even" if pool.client is None else "natural"
    return section.partition


def even(section: DataSection, pool: Pool, clients: int, rng: np.random.Generator) -> Partition:
    return np.array_split(rng.permutation(len(pool)), clients)


def classes(section: DataSection, pool: Pool, clients: int, rng: np.random.Generator) -> Partition:
    """The holders of a class share its samples evenly, or in proportion to weights drawn uniformly from
    [1 - imbalance, 1 + imbalance]. Numbers of holders of two classes differ by at most one: a class is left out only
    where there are more than clients * classes_per_client."""
    rows_of_class = _rows_by_class(section, pool, rng)
    there, per_client = len(rows_of_class), section.classes_per_client
    if per_client > there:
        why = f"the samples have {there} classes"
        raise DataError.of("data.classes_per_client", per_client, why, f"1 to {there}")
    holders: list[list[int]] = [[] for _ in rows_of_class]
    for client in rng.permutation(clients):
        order = rng.permutation(there)
        for label in sorted(order, key=lambda label: len(holders[label]))[:per_client]:
            holders[label].append(client)
    owned: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for rows, sharing in zip(rows_of_class, holders, strict=True):
        shares = np.array_split(rows, len(sharing) or 1)  # a class that nobody holds is left out
        if sharing and section.imbalance:
            weights = rng.uniform(1 - section.imbalance, 1 + section.imbalance, len(sharing))
            shares = _deal(rows, weights / weights.sum())
        for client, share in zip(sharing, shares, strict=False):
            owned[client].append(share)
    return [np.concatenate(shares) for shares in owned]


def clusters(section: DataSection, pool: Pool, clients: int, rng: np.random.Generator) -> Partition:
    """Cluster c has the classes from place c (classes - overlap) on, in a random order or that of relation. Those who
    share a class have equal shares of its samples. A cluster's samples are dealt to its clients, evenly or in sizes by
    a power law."""
    wanted, rows_of_class = section.clusters, _rows_by_class(section, pool, rng)
    count, stride, there = wanted.count, wanted.classes - wanted.overlap, len(rows_of_class)
    if count > clients:
        raise DataError.of("data.clusters.count", count, f"clients = {clients}", f"1 to {clients}")
    if stride < 1:
        why = f"data.clusters.classes is {wanted.classes}"
        raise DataError.of("data.clusters.overlap", wanted.overlap, why, f"0 to {wanted.classes - 1}")
    if stride * (count - 1) >= there or (wanted.overlap and stride * count > there):
        asked = f"{count} clusters of {wanted.classes} classes, {wanted.overlap} of them shared"
        needed = f"need more than the {there} classes that the samples have; lower count or classes"
        raise DataError(f"data.clusters: {asked}, {needed}")
    order = rng.permutation(there).tolist()
    if wanted.related:
        numbers = [int(pool.y[rows[0]]) for rows in rows_of_class]
        order = sorted(range(there), key=lambda c: (0 if pool.families is None else pool.families[numbers[c]], c))
    places = (range(c * stride, c * stride + wanted.classes) for c in range(count))
    last = there if wanted.overlap == 0 else math.inf
    classes_of = [{order[place % there] for place in own if place < last} for own in places]
    parts: list[list[np.ndarray]] = [[] for _ in range(count)]
    for label, rows in enumerate(rows_of_class):
        holders = [c for c, held in enumerate(classes_of) if label in held]
        for c, share in zip(holders, np.array_split(rows, len(holders) or 1), strict=False):
            parts[c].append(share)
    owned: Partition = []
    for c, shares in enumerate(parts):
        members = sum(cluster_of(client, clients, count) == c for client in range(clients))
        rows = rng.permutation(np.concatenate(shares))
        if wanted.exponent:
            sizes = _power_law_sizes(len(rows), members, wanted.smallest, wanted.exponent)
            owned += _deal(rows, sizes / sizes.sum())
        else:
            owned += np.array_split(rows, members)
    return owned


def cluster_of(client: int, clients: int, count: int) -> int:
    return client * count // clients


def _power_law_sizes(samples: int, members: int, smallest: int, exponent: float) -> np.ndarray:
    """smallest + exp(b m**exponent) of member m = 1, 2, ..., with the b at which they add up to ``samples``."""
    if members * (smallest + 1) > samples:
        why = f"a cluster has {samples} samples for {members} clients"
        raise DataError.of("data.clusters.smallest", smallest, why, f"1 to {samples // members - 1}")
    powers = np.arange(1, members + 1, dtype=float) ** exponent
    low, high = 0.0, math.log(samples) / powers[-1]
    for _ in range(100):  # scipy's root finders end on other bits
        b = (low + high) / 2
        low, high = (b, high) if (smallest + np.exp(b * powers)).sum() < samples else (low, b)
    return smallest + np.exp(high * powers)


def dirichlet(section: DataSection, pool: Pool, clients: int, rng: np.random.Generator) -> Partition:
    """The samples of each class are dealt in proportions drawn from Dirichlet(beta, ..., beta) over the clients."""
    every = _rows_by_class(section, pool, rng)
    dealt = [_deal(rows, rng.dirichlet(np.full(clients, section.beta))) for rows in every]
    return _top_up([np.concatenate(parts) for parts in zip(*dealt, strict=True)], rng)


def quantity(section: DataSection, pool: Pool, clients: int, rng: np.random.Generator) -> Partition:
    """The k-th client of a random order gets a share proportional to k**-exponent, k = 1, 2, ..."""
    share_of_rank = np.arange(1, clients + 1, dtype=float) ** -section.exponent
    shares = rng.permutation(share_of_rank / share_of_rank.sum())
    return _top_up(_deal(rng.permutation(len(pool)), shares), rng)


def overlapping(section: DataSection, pool: Pool, clients: int, rng: np.random.Generator) -> Partition:
    there, wanted = len(pool), section.samples_each
    if not MINIMUM <= wanted <= there:
        why = f'data.dataset = "{section.dataset}" has {there} samples'
        raise DataError.of("data.samples_each", wanted, why, f"{MINIMUM} to {there}")
    return [rng.choice(there, wanted, replace=False) for _ in range(clients)]


def natural(section: DataSection, pool: Pool, clients: int, rng: np.random.Generator) -> Partition:
    """Owners in sorted order are clients 0, 1, ...; where there are more of them than clients, a random choice is."""
    if pool.client is None:
        raise DataError(f'data.partition = "natural" needs clients, and data.dataset = "{section.dataset}" has none')
    owners, left_out = owners_of(pool, section.min_samples)
    if section.clients_per_owner > 1:
        owners = [part for rows in owners for part in np.array_split(rng.permutation(rows), section.clients_per_owner)]
    there = len(owners)
    if clients > there:
        without = f" without {len(left_out)} below data.min_samples" if left_out else ""
        why = f'data.partition = "natural": the data has {there} clients{without}'
        raise DataError(f'{why}, the run has {clients}; allowed are 1 to {there}, or clients = "all"')
    return [owners[taken] for taken in np.sort(rng.permutation(there)[:clients])]


_PARTITIONS: dict[str, Callable[[DataSection, Pool, int, np.random.Generator], Partition]] = {
    each.__name__: each for each in (even, classes, clusters, dirichlet, quantity, overlapping, natural)
}


def owners_of(pool: Pool, least: int) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Returns the rows of each owner with at least so many samples, in order; and who has fewer, with how many."""
    assert pool.client is not None
    every = _group(np.unique(pool.client, return_inverse=True)[1])
    few = tuple(f"{pool.owner(rows)} ({len(rows)})" for rows in every if len(rows) < least)
    return [rows for rows in every if len(rows) >= least], few


def _rows_by_class(section: DataSection, pool: Pool, rng: np.random.Generator) -> list[np.ndarray]:
    if pool.task != "classification":
        why = f'data.task is "{pool.task}", and there are no classes'
        raise DataError.of("data.partition", section.partition, why, "even, quantity and natural")
    return [rng.permutation(rows) for rows in _group(pool.y) if len(rows)]


def _group(code: np.ndarray) -> list[np.ndarray]:
    """Returns the rows that carry code 0, code 1, ..."""
    return np.split(np.argsort(code, kind="stable"), np.cumsum(np.bincount(code))[:-1])


def _deal(rows: np.ndarray, shares: np.ndarray) -> list[np.ndarray]:
    """Cuts consecutive pieces of the given relative sizes (they sum to 1), each off by less than one row."""
    return np.split(rows, np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(int))


def _top_up(owned: Partition, rng: np.random.Generator) -> Partition:
    """Clients below MINIMUM are given what they lack, at random, by the largest client of the moment. Drawing again
    instead until nobody is short hardly ever ends with many clients and a strong skew."""
    sizes = np.array([len(rows) for rows in owned])
    for poor in np.flatnonzero(sizes < MINIMUM):
        while sizes[poor] < MINIMUM:
            rich = int(np.argmax(sizes))
            given = rng.integers(sizes[rich])
            owned[poor] = np.append(owned[poor], owned[rich][given])
            owned[rich] = np.delete(owned[rich], given)
            sizes[poor] += 1
            sizes[rich] -= 1
    return owned
