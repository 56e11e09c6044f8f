"""What one client alone may read: its samples for training and for the evaluation, in a file each."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from ...node.number_file import NumberFile
from ...topology.randomness import generator
from ...transport.array_file import ArrayFile, DamagedFile, digest_of
from ..config.data import DataSection, Task
from .pool import DataError, Partition, Pool, chosen, cluster_of, owners_of, split
from .sets import load

_KEEP_SPLIT = ("folders", "huggingface", "leaf", "own")  # their official split is kept, unless data.split says else


@dataclass(frozen=True)
class ClientSummary:
    train_samples: int
    test_samples: int
    outputs: int  # of its model
    group: int  # which rotation its images have and which task is its own, or the group that the data set puts it in
    features: tuple[int, ...] | None  # the input features that it sees, ascending; None for all
    classes: tuple[int, ...]  # classification: those of its training samples, ascending
    owner: str  # who owns its samples, where somebody with a name does


@dataclass(frozen=True)
class Shard:
    """x float32; y int64 (n,) or, for regression, float32 (n, outputs). "test" are the samples of the evaluation: with
    data.evaluate_on = "validation", training samples held out."""

    about: ClientSummary
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    drifted: Sequence[np.ndarray] | None = None  # x_train and x_test once the task has changed, if it ever does


@dataclass(frozen=True)
class DataSummary:
    samples: int  # before they were split
    partition: str  # how they were split; never "auto"
    owners: int  # who could each have been a client; 0 where samples were not left with their owners
    left_out: tuple[str, ...]  # owners that have too few samples, with how many
    told: tuple[str, ...]  # how the data set's files were read
    input_shape: tuple[int, ...]  # of one sample: (channels, height, width), (features,) or (steps, features)
    outputs: int  # how many outputs the first client's model has; only data.tasks gives others another number
    task: Task
    clients: tuple[ClientSummary, ...]
    constant_metric: float | None = None  # the mean test metric of clients that predict the same for every sample


def shard_path(folder: Path, client: int) -> Path:
    return folder / f"node-{client:04d}.safetensors"


@lru_cache(maxsize=16)  # the runs of a file, and of a sweep, mostly have one data set
def count_clients(section: DataSection, seed: int) -> int:
    """Counts the clients that the data set names, as owners of its samples. Raises DataError."""
    pool = load(section, seed)
    if chosen(section, pool) == "natural":
        return section.clients_per_owner * len(owners_of(pool, section.min_samples)[0])
    why = "names none" if pool.client is None else f'is split by data.partition = "{section.partition}"'
    owners = f'clients = "all" stands for the owners of the samples, but data.dataset = "{section.dataset}"'
    raise DataError(f"{owners} {why}; write a number")


def prepare(section: DataSection, clients: int, seed: int, folder: Path) -> DataSummary:
    """Writes the shard of every client into ``folder``, one in memory at a time. Raises DataError."""
    pool = load(section, seed, clients)
    partition = chosen(section, pool)
    shards = cut(section, pool, clients, seed)
    owners, left_out = owners_of(pool, section.min_samples) if partition == "natural" else ([], ())
    folder.mkdir(parents=True, exist_ok=True)
    summaries, targets = [], []
    for client, shard in enumerate(shards):
        write(shard, pool.task, shard_path(folder, client))
        targets.append((shard.y_train, shard.y_test))
        summaries.append(shard.about)
    return DataSummary(
        samples=len(pool),
        partition=partition,
        owners=len(owners),
        left_out=left_out,
        told=pool.told,
        input_shape=pool.input_shape,
        outputs=summaries[0].outputs,
        task=pool.task,
        clients=tuple(summaries),
        constant_metric=constant_metric(section.tasks, pool.task, targets),
    )


def cut(section: DataSection, pool: Pool, clients: int, seed: int) -> Iterator[Shard]:
    """Returns the shards of clients 0, 1, ..., each made when it is asked for. Raises DataError at once. Client i is in
    rotation group i * groups // clients. Samples in time order stay in it: a client's latest are its test samples, and
    reduced training data is what comes right before them."""
    _check(section, pool, clients)
    owned = split(section, pool, clients, seed)
    divided = _divisions(section, pool, owned, seed)
    tasks, natural, every = list(dict.fromkeys(section.tasks)), chosen(section, pool) == "natural", pool.x[0].size
    given = given_features(section.features_from, clients, every) if section.features_from else None

    def shard(client: int) -> Shard:
        task, parts = section.tasks[client % len(section.tasks)], divided[client]
        block, features = client * len(section.rotations) // clients, None
        group = block * len(tasks) + tasks.index(task)
        if section.partition == "clusters":
            group = cluster_of(client, clients, section.clusters.count)
        elif natural and pool.groups is not None and pool.client is not None:
            group = int(pool.groups[pool.client[owned[client][0]]])
        if given is not None:
            features = given[client]
        elif section.features_held < 1:
            order = generator(seed, "features held", client).permutation(every)
            features = tuple(sorted(order[: max(1, round(section.features_held * every))].tolist()))

        def inputs(degrees: int) -> list[np.ndarray]:
            """Returns x_train and x_test as the client sees them, turned counter-clockwise."""
            seen = [turned(pool.inputs(rows), degrees) for rows in parts]
            if section.mask:
                seen = _masked(seen, section.mask, generator(seed, "mask", client))
            if section.standardize:
                seen = _standardize(*seen)
            return seen if features is None else [x.reshape(len(x), -1)[:, features] for x in seen]

        y_train, y_test = (_targets(task, pool.y[rows], pool.outputs, section.one_class) for rows in parts)
        if section.standardize_targets:
            y_train, y_test = _standardize(y_train, y_test)
        x_train, x_test = inputs(section.rotations[block])
        drifted = None if section.drift is None else inputs(section.drift.rotations[block])
        outputs = {"classes": pool.outputs, "pairs": (pool.outputs + 1) // 2}.get(task, 2)
        # np.unique would import numpy.ma, which nothing else here needs
        classes = tuple(sorted(set(y_train.tolist()))) if pool.task == "classification" else ()
        owner = pool.owner(owned[client]) if natural and pool.owners is not None else ""
        about = ClientSummary(len(x_train), len(x_test), outputs, group, features, classes, owner)
        return Shard(about, x_train, y_train, x_test, y_test, drifted)

    return map(shard, range(clients))


def given_features(path: Path, clients: int, features: int) -> list[tuple[int, ...]]:
    """Returns those of each client, ascending. Raises UserError."""
    file, found = NumberFile(path, "data.features_from", ("client", "feature")), [set[int]() for _ in range(clients)]
    for line, row in file.rows():
        client, feature = file.whole(row, "client", line, clients), file.whole(row, "feature", line, features)
        if feature in found[client]:
            raise file.error(f"feature {feature} of client {client} stands there twice", line)
        found[client].add(feature)
    if lacking := [client for client, held in enumerate(found) if not held]:
        raise file.error(f"gives client {lacking[0]} no feature; each of the {clients} clients needs one at least")
    return [tuple(sorted(held)) for held in found]


def turned(images: np.ndarray, degrees: int) -> np.ndarray:
    """Returns images (n, channels, height, width) turned counter-clockwise; between pixels they are bilinear."""
    if not degrees % 90:
        return np.rot90(images, degrees // 90, axes=(-2, -1))
    from scipy.ndimage import rotate  # 0.1 s, where it is needed alone

    return rotate(images, degrees, axes=(-1, -2), reshape=False, order=1)


def _targets(task: str, y: np.ndarray, classes: int, one: int) -> np.ndarray:
    match task:
        case "pairs":
            return y // 2
        case "one":
            return (y == one).astype(y.dtype)
        case "parity":
            return y % 2
        case "halves":
            return (2 * y >= classes).astype(y.dtype)
    return y


def _check(section: DataSection, pool: Pool, clients: int) -> None:
    angles, size = list(section.rotations), pool.input_shape[1:]
    for key, named in (("data.rotations", angles), ("data.tasks", section.tasks)):
        if not 1 <= len(named) <= clients:
            raise DataError.of(key, named, f"clients = {clients}", f"1 to {clients} entries")
    if section.drift is not None:
        turned = section.drift.rotations
        if len(turned) != len(angles):
            raise DataError.of("data.drift.rotations", turned, f"data.rotations has {len(angles)} entries", "as many")
        angles += turned
    if any(angles) and pool.x.ndim != 4:
        raise DataError.of("data.rotations", angles, "the samples are not images", [0])
    if set(angles) - {0, 180} and size[0] != size[1]:
        raise DataError.of("data.rotations", angles, f"images are {size[0]}x{size[1]}", "0 and 180")
    if section.mask and pool.x.ndim != 4:
        raise DataError.of("data.mask", section.mask, "the samples are not images", 0)
    if section.mask and section.mask > min(size):
        raise DataError.of("data.mask", section.mask, f"images are {size[0]}x{size[1]}", f"0 to {min(size)}")
    if section.tasks != ("classes",) and pool.task != "classification":
        raise DataError.of("data.tasks", section.tasks, "the samples have no classes", ["classes"])
    if section.one_class and ("one" not in section.tasks or section.one_class >= pool.outputs):
        there = f'0 to {pool.outputs - 1}, with "one" among data.tasks'
        raise DataError.of("data.one_class", section.one_class, f"the samples have {pool.outputs} classes", there)
    if section.standardize_targets and pool.task != "regression":
        raise DataError.of("data.standardize_targets", True, "the targets are classes", "false")


def _divisions(section: DataSection, pool: Pool, owned: Partition, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    order = generator(seed, "reduced").permutation(len(owned)).tolist()
    reduced = set(order[: round(section.reduced_clients * len(owned))])
    divided = []
    kept = (
        section.split == "auto"
        and section.dataset in ("folders", "huggingface", "leaf", "own")
        and pool.tests is not None
    )
    official = kept or section.split == "official"
    if official and pool.tests is None:
        why = f"data.dataset = {section.dataset!r} does not tell which samples are for testing"
        raise DataError.of("data.split", "official", why, "'random'")
    for client, rows in enumerate(owned):
        rows = np.sort(rows)[::-1] if pool.in_time_order else generator(seed, "split", client).permutation(rows)
        share = section.reduced_to if client in reduced else 1.0
        if official:
            assert pool.tests is not None
            train, test = rows[~pool.tests[rows]], rows[pool.tests[rows]]
            if not len(train) or not len(test):
                lacks = f"client {client} has no {'test' if len(train) else 'training'} samples of the official split"
                raise DataError.of("data.split", section.split, lacks, "'random', or fewer clients")
            train = train[: max(round(share * len(train)), 1)]
        else:
            train, test = _divide(rows, section.test_fraction, share)
        if section.evaluate_on == "validation":
            if len(train) < 2:
                raise DataError.of("data.evaluate_on", "validation", f"client {client} has one training sample", "test")
            train, test = _divide(train, section.test_fraction, 1.0)
        divided.append((train, test))
    return divided


def _divide(rows: np.ndarray, test_fraction: float, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns training rows, of which a ``share`` stays, and test rows: at least one of each."""
    tests = min(max(round(test_fraction * len(rows)), 1), len(rows) - 1)
    trains = max(round(share * (len(rows) - tests)), 1)
    return rows[tests : tests + trains], rows[:tests]


def _masked(parts: list[np.ndarray], side: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Returns images (n, channels, height, width) without a square at one place, drawn here."""
    top, left = (int(rng.integers(length - side + 1)) for length in parts[0].shape[-2:])
    masked = [images.copy() for images in parts]
    for images in masked:
        images[..., top : top + side, left : left + side] = 0
    return masked


def _standardize(x_train: np.ndarray, x_test: np.ndarray) -> list[np.ndarray]:
    mean, deviation = x_train.mean(axis=0, dtype=np.float64), x_train.std(axis=0, dtype=np.float64)
    # A feature that never varies is only shifted; rounding may give it a tiny deviation instead of 0.
    deviation[x_train.min(axis=0) == x_train.max(axis=0)] = 1.0
    return [((x - mean) / deviation).astype(np.float32) for x in (x_train, x_test)]


def write(shard: Shard, task: Task, path: Path) -> None:
    """Writes it whole or not at all. A sound file that is there stays as it is. Raises DataError where it holds
    something else: what the run has learnt from is not to be had any more."""
    arrays = {name: getattr(shard, name) for name in ("x_train", "y_train", "x_test", "y_test")}
    if shard.drifted is not None:
        arrays |= dict(zip(("x_train_drifted", "x_test_drifted"), shard.drifted, strict=True))
    file = ArrayFile(arrays, {"task": task, "outputs": str(shard.about.outputs), "group": str(shard.about.group)})
    there = None
    with suppress(FileNotFoundError, DamagedFile):
        there = digest_of(path)
    if there is None:
        file.save(path)
    elif there != file.digest:
        raise DataError(f"{path}: the data set gives other samples now than when this run began")


def constant_metric(tasks: Sequence[str], task: Task, targets: Sequence[tuple[np.ndarray, np.ndarray]]) -> float | None:
    """Returns the mean over clients of the MSE or accuracy of one prediction for all test samples: the mean of all
    training targets, or the most frequent class. None where data.tasks gives classes several meanings."""
    if len(set(tasks)) > 1:
        return None
    if task == "classification":
        frequent = np.bincount(np.concatenate([train for train, _ in targets])).argmax()
        return float(np.mean([np.mean(test == frequent) for _, test in targets]))
    doubles = [(train.astype(np.float64), test.astype(np.float64)) for train, test in targets]
    mean = sum(train.sum(axis=0) for train, _ in doubles) / sum(len(train) for train, _ in doubles)
    return float(np.mean([np.mean(test.var(axis=0) + (test.mean(axis=0) - mean) ** 2) for _, test in doubles]))
