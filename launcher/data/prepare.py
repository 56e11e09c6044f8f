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


@dataclass(frozen=True)
class ClientSummary:
    train_samples: int
    test_samples: int
    group: int
    features: tuple[int, ...] | None  # input features that it sees; None for all
    outputs: int  # of its model
    classes: tuple[int, ...] = ()
    """Classification: those of its training samples, ascending."""
    owner: str = ""
    """Whose samples it has; "" where nobody with a name owns them."""


@dataclass(frozen=True)
class DataSummary:
    """What is known of the data without opening a shard."""

    samples: int  # before they were split
    partition: str
    """How they were split; never "auto"."""
    owners: int
    """Who could each have been a client; 0 where samples were not left with their owners."""
    left_out: tuple[str, ...]
    """Owners that have too few samples, with how many."""
    told: tuple[str, ...]
    """How the data set's files were read."""

    input_shape: tuple[int, ...]
    """The shape of one sample: (channels, height, width), (features,) or (steps, features)."""
    outputs: int
    """How many outputs the first client's model has; only data.tasks gives others another number."""
    task: Task
    clients: tuple[ClientSummary, ...]
    constant_metric: float | None = None
    """The mean test metric of clients that predict the same for every sample."""


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
    summaries, targets = [], []
    for client, shard in enumerate(shards):
        write(shard, shard_path(folder, client))
        targets.append(Targets.of(shard))
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
        constant_metric=constant_metric(section.tasks, targets),
    )


@dataclass(frozen=True)
class Targets:
    """What a constant prediction is judged by: moments of a shard's targets, or of 1 for the sample's class."""

    is_regression: bool
    count: int
    total: np.ndarray  # of the training samples, (outputs,)
    mean: np.ndarray  # of the test samples, as is the variance
    variance: np.ndarray

    @classmethod
    def of(cls, shard: Shard) -> "Targets":
        def columns(y: np.ndarray) -> np.ndarray:
            return np.asarray(y, np.float64).reshape(len(y), -1) if regression else np.eye(shard.outputs)[y]

        regression = shard.task == "regression"
        train, test = columns(shard.y_train), columns(shard.y_test)
        return cls(regression, len(train), train.sum(axis=0), test.mean(axis=0), test.var(axis=0))


def constant_metric(tasks: Sequence[str], clients: Sequence[Targets]) -> float | None:
    """Mean over clients of the MSE or accuracy of one prediction for all test samples: the mean of all training
    targets, or the most frequent class among them. None where data.tasks gives classes several meanings."""
    if len(set(tasks)) > 1 or len({len(each.total) for each in clients}) > 1:
        return None
    mean = sum(each.total for each in clients) / max(1, sum(each.count for each in clients))
    if clients[0].is_regression:
        return float(np.mean([np.mean(each.variance + (each.mean - mean) ** 2) for each in clients]))
    return float(np.mean([each.mean[np.argmax(mean)] for each in clients]))
