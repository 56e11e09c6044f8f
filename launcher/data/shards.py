"""What one client alone may read: the samples that it trains on, and those that it is evaluated on."""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...topology.randomness import generator
from ...transport.array_file import ArrayFile, DamagedFile, digest_of
from ..config.data import DataSection, Task
from .partition import Partition, chosen, cluster_of, split
from .pool import DataError, Pool


@dataclass(frozen=True)
class Shard:
    """x float32; y int64 (n,) or, for regression, float32 (n, outputs).

    "test" are the samples of the evaluation: with data.evaluate_on = "validation", training samples held out.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    task: Task
    outputs: int
    group: int
    """Which rotation this client's images have and which task is its own, or the group that the data set puts it in."""
    features: tuple[int, ...] | None = None  # the input features that this client sees, ascending; None for all
    drifted: tuple[np.ndarray, np.ndarray] | None = None
    """x_train and x_test as they are once the task has changed; None where it never does."""
    owner: str = ""
    """Who owns its samples, where somebody with a name does."""


def cut(section: DataSection, pool: Pool, clients: int, seed: int) -> Iterator[Shard]:
    """The shards of clients 0, 1, ..., each made when it is asked for. Raises DataError at once.

    Client i belongs to rotation group i * groups // clients: contiguous blocks of clients. Samples in time order stay
    in it: a client's latest are its test samples, and reduced training data is what comes right before them.
    """
    _check(section, pool, clients)
    owned = split(section, pool, clients, seed)
    divided = _divisions(section, pool, owned, seed)
    groups = _groups(section, pool, owned)
    named = pool.owners is not None and chosen(section, pool) == "natural"
    tasks = list(dict.fromkeys(section.tasks))

    def shard(client: int) -> Shard:
        parts, angle = divided[client], client * len(section.rotations) // clients
        task = section.tasks[client % len(section.tasks)]
        y_train, y_test = (_of_task(task, pool.y[rows], pool.outputs) for rows in parts)
        if section.standardize_targets:
            y_train, y_test = _standardize(y_train, y_test)
        features = None
        if section.features_held < 1:
            every = math.prod(pool.input_shape)
            order = generator(seed, "features held", client).permutation(every)
            features = tuple(sorted(order[: max(1, round(section.features_held * every))].tolist()))

        def inputs(degrees: int) -> tuple[np.ndarray, np.ndarray]:
            """x_train and x_test as the client sees them, turned counter-clockwise."""
            seen = [np.rot90(pool.inputs(rows), degrees // 90, axes=(-2, -1)) for rows in parts]
            if section.mask:
                seen = _masked(seen, section.mask, generator(seed, "mask", client))
            if section.standardize:
                seen = _standardize(*seen)
            x_train, x_test = seen if features is None else [x.reshape(len(x), -1)[:, features] for x in seen]
            return x_train, x_test

        x_train, x_test = inputs(section.rotations[angle])
        return Shard(
            x_train,
            y_train,
            x_test,
            y_test,
            pool.task,
            outputs=pool.outputs if task == "classes" else 2,
            group=angle * len(tasks) + tasks.index(task) if groups is None else int(groups[client]),
            features=features,
            drifted=None if section.drift is None else inputs(section.drift.rotations[angle]),
            owner=pool.owner(owned[client]) if named else "",
        )

    return map(shard, range(clients))


def _check(section: DataSection, pool: Pool, clients: int) -> None:
    angles, tasks, size = list(section.rotations), list(section.tasks), pool.input_shape[1:]
    if not 1 <= len(angles) <= clients:
        raise DataError(f"data.rotations names {len(angles)} angles; allowed are 1 to {clients}, the number of clients")
    if section.drift is not None:
        if len(section.drift.rotations) != len(angles):
            named = f"data.drift.rotations names {len(section.drift.rotations)} angles"
            raise DataError(f"{named}; allowed are {len(angles)}, as many as data.rotations")
        angles += section.drift.rotations
    if any(angles) and not pool.holds_images:
        raise DataError(f"data.rotations is {angles}, but the samples are not images: allowed is [0]")
    if {90, 270} & set(angles) and size[0] != size[1]:
        raise DataError(f"data.rotations is {angles}, but images of {size[0]}x{size[1]} allow 0 and 180 only")
    if section.mask and not pool.holds_images:
        raise DataError(f"data.mask is {section.mask}, but the samples are not images: allowed is 0")
    if section.mask and section.mask > min(size):
        raise DataError(f"data.mask is {section.mask}: images of {size[0]}x{size[1]} allow 0 to {min(size)}")
    if not 1 <= len(tasks) <= clients:
        raise DataError(f"data.tasks names {len(tasks)} tasks; allowed are 1 to {clients}, the number of clients")
    if tasks != ["classes"] and pool.task != "classification":
        raise DataError(f"data.tasks is {tasks}, but the samples have no classes: allowed is ['classes']")
    if section.standardize_targets and pool.task != "regression":
        raise DataError("data.standardize_targets is true, but the targets are classes: allowed is false")


def _divisions(section: DataSection, pool: Pool, owned: Partition, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each client's rows to train on, and those of the evaluation."""
    order = generator(seed, "reduced").permutation(len(owned)).tolist()
    reduced = set(order[: round(section.reduced_clients * len(owned))])
    divided = []
    for client, rows in enumerate(owned):
        rows = np.sort(rows)[::-1] if pool.in_time_order else generator(seed, "split", client).permutation(rows)
        train, test = _divide(rows, section.test_fraction, section.reduced_to if client in reduced else 1.0)
        if section.evaluate_on == "validation":
            if len(train) < 2:
                raise DataError(
                    f"data.evaluate_on is 'validation', but client {client} has one training sample only: "
                    "allowed is 'test'"
                )
            train, test = _divide(train, section.test_fraction, 1.0)
        divided.append((train, test))
    return divided


def _divide(rows: np.ndarray, test_fraction: float, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Training rows, of which a ``share`` stays, and test rows: at least one of each."""
    tests = min(max(round(test_fraction * len(rows)), 1), len(rows) - 1)
    trains = max(round(share * (len(rows) - tests)), 1)
    return rows[tests : tests + trains], rows[:tests]


def _groups(section: DataSection, pool: Pool, owned: Partition) -> np.ndarray | None:
    """The group of each client, where clusters or owners with groups make some."""
    partition, clients = chosen(section, pool), len(owned)
    if partition == "clusters":
        return np.array([cluster_of(client, clients, section) for client in range(clients)])
    if pool.groups is None or pool.client is None or partition != "natural":
        return None
    return pool.groups[pool.client[[rows[0] for rows in owned]]]


def _of_task(task: str, y: np.ndarray, classes: int) -> np.ndarray:
    """The targets of a task for samples of these classes."""
    if task == "parity":
        return y % 2
    return (2 * y >= classes).astype(y.dtype) if task == "halves" else y


def _masked(parts: list[np.ndarray], side: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Images (n, channels, height, width) without a square at one place, drawn here."""
    top, left = (int(rng.integers(length - side + 1)) for length in parts[0].shape[-2:])
    masked = [images.copy() for images in parts]
    for images in masked:
        images[..., top : top + side, left : left + side] = 0
    return masked


def _standardize(x_train: np.ndarray, x_test: np.ndarray) -> list[np.ndarray]:
    """Every feature, or target, shifted by its mean and divided by its standard deviation over ``x_train``."""
    mean = x_train.mean(axis=0, dtype=np.float64)
    deviation = x_train.std(axis=0, dtype=np.float64)
    # A feature that never varies is only shifted; rounding may give it a tiny deviation instead of 0.
    deviation[x_train.min(axis=0) == x_train.max(axis=0)] = 1.0
    return [((x - mean) / deviation).astype(np.float32) for x in (x_train, x_test)]


def write(shard: Shard, path: Path) -> None:
    """A file that is there whole or not at all. One that is there already, and sound, stays as it is.

    Raises DataError where it holds something else: what the run has learnt from is not to be had any more.
    """
    arrays = {name: getattr(shard, name) for name in ("x_train", "y_train", "x_test", "y_test")}
    if shard.drifted is not None:
        arrays |= dict(zip(("x_train_drifted", "x_test_drifted"), shard.drifted, strict=True))
    file = ArrayFile(arrays, {"task": shard.task, "outputs": str(shard.outputs), "group": str(shard.group)})
    there = None
    with suppress(FileNotFoundError, DamagedFile):
        there = digest_of(path)
    if there is None:
        file.save(path)
    elif there != file.digest:
        raise DataError(f"{path}: the data set gives other samples now than when this run began")
