"""From the configuration to one shard file a client."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from ..config.data import DataSection, Task
from .partition import chosen, count_owners, owners_of
from .sets import load
from .shards import Shard, cut, write

Moments = tuple[int, np.ndarray, np.ndarray, np.ndarray]
"""Number and sum of a client's training targets, mean and variance of its test targets, each (outputs,); of classes:
those of 1 for the sample's class."""


@dataclass(frozen=True)
class ClientSummary:
    train_samples: int
    test_samples: int
    group: int
    features: tuple[int, ...] | None  # input features that it sees; None for all
    outputs: int  # of its model
    classes: tuple[int, ...] = ()  # Classification: those of its training samples, ascending
    owner: str = ""
    """Whose samples it has; "" where nobody with a name owns them."""


@dataclass(frozen=True)
class DataSummary:
    """What is known of the data without opening a shard."""

    samples: int  # before they were split
    partition: str
    """How they were split; never "auto"."""
    owners: int  # who could each have been a client; 0 where samples were not left with their owners
    left_out: tuple[str, ...]  # owners that have too few samples, with how many
    told: tuple[str, ...]  # how the data set's files were read

    input_shape: tuple[int, ...]
    """The shape of one sample: (channels, height, width), (features,) or (steps, features)."""
    outputs: int  # how many outputs the first client's model has; only data.tasks gives others another number
    task: Task
    clients: tuple[ClientSummary, ...]
    constant_metric: float | None = None  # the mean test metric of clients that predict the same for every sample


def shard_path(folder: Path, client: int) -> Path:
    return folder / f"node-{client:04d}.safetensors"


@lru_cache(maxsize=16)  # the runs of a file, and of a sweep, mostly have one data set
def count_clients(section: DataSection, seed: int) -> int:
    """How many clients the data set names, as owners of its samples. Raises DataError."""
    return count_owners(section, load(section, seed))


def prepare(section: DataSection, clients: int, seed: int, folder: Path) -> DataSummary:
    """Writes the shard of every client into ``folder``, one in memory at a time. Raises DataError."""
    pool = load(section, seed, clients)
    partition = chosen(section, pool)
    owned = partition == "natural" and pool.client is not None
    owners, left_out = owners_of(pool, section.min_samples) if owned else ([], ())
    shards = cut(section, pool, clients, seed)
    folder.mkdir(parents=True, exist_ok=True)
    summaries, moments = [], []
    for client, shard in enumerate(shards):
        write(shard, shard_path(folder, client))
        moments.append(moments_of(shard))
        classes = tuple(np.unique(shard.y_train).tolist()) if pool.task == "classification" else ()
        sizes = len(shard.x_train), len(shard.x_test)
        summaries.append(ClientSummary(*sizes, shard.group, shard.features, shard.outputs, classes, shard.owner))
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
        constant_metric=constant_metric(section.tasks, pool.task, moments),
    )


def moments_of(shard: Shard) -> Moments:
    train, test = (
        np.asarray(y, np.float64).reshape(len(y), -1) if shard.task == "regression" else np.eye(shard.outputs)[y]
        for y in (shard.y_train, shard.y_test)
    )
    return len(train), train.sum(axis=0), test.mean(axis=0), test.var(axis=0)


def constant_metric(tasks: Sequence[str], task: Task, clients: Sequence[Moments]) -> float | None:
    """Mean over clients of the MSE or accuracy of one prediction for all test samples: the mean of all training
    targets, or the most frequent class among them. None where data.tasks gives classes several meanings."""
    counts, totals, means, variances = zip(*clients, strict=True)
    if len(set(tasks)) > 1 or len(set(map(len, totals))) > 1:
        return None
    mean = sum(totals) / max(1, sum(counts))
    if task == "classification":
        return float(np.mean([each[np.argmax(mean)] for each in means]))
    errors = [np.mean(variance + (each - mean) ** 2) for each, variance in zip(means, variances, strict=True)]
    return float(np.mean(errors))
