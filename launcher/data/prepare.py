"""From the configuration to one shard file a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .partition import Owners, chosen, count_owners
from .pool import Task
from .sets import load
from .shards import Shard, cut, write

if TYPE_CHECKING:
    from ..config.data import DataSection


@dataclass(frozen=True)
class ClientSummary:
    train_samples: int
    test_samples: int
    group: int
    features: tuple[int, ...] | None
    """Input features that it sees; None for all."""
    outputs: int
    """How many outputs its model has."""
    classes: tuple[int, ...] = ()
    """Classification: those of its training samples, ascending."""
    owner: str = ""
    """Whose samples it has; "" where nobody with a name owns them."""


@dataclass(frozen=True)
class DataSummary:
    """What is known of the data without opening a shard."""

    samples: int
    """Before they were split."""
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
    everyone = Owners.of(pool, section.min_samples) if owned else Owners([], ())
    shards = cut(section, pool, clients, seed)
    folder.mkdir(parents=True, exist_ok=True)
    summaries, constant = [], ConstantPredictor(section.tasks)
    for client, shard in enumerate(shards):
        write(shard, shard_path(folder, client))
        constant.add(shard)
        classes = tuple(np.unique(shard.y_train).tolist()) if pool.task == "classification" else ()
        sizes = len(shard.x_train), len(shard.x_test)
        summaries.append(ClientSummary(*sizes, shard.group, shard.features, shard.outputs, classes, shard.owner))
    return DataSummary(
        samples=len(pool),
        partition=partition,
        owners=len(everyone.rows),
        left_out=everyone.left_out,
        told=pool.told,
        input_shape=pool.input_shape,
        outputs=summaries[0].outputs,
        task=pool.task,
        clients=tuple(summaries),
        constant_metric=constant.metric(),
    )


class ConstantPredictor:
    """A prediction that is the same for every sample of every client: the mean of all training targets, or the most
    frequent class among them. A model that learns is better. Shards are summed up one at a time."""

    def __init__(self, tasks: Sequence[str]):
        """``tasks`` are those of data.tasks; where there are several, classes do not mean the same for all."""
        self._comparable = len(set(tasks)) == 1
        self._train: list[tuple[int, np.ndarray]] = []
        self._test: list[tuple[np.ndarray, np.ndarray]] = []
        self._regression = False

    def add(self, shard: Shard) -> None:
        self._regression = shard.task == "regression"
        train, test = (self._as_columns(y, shard.outputs) for y in (shard.y_train, shard.y_test))
        self._train.append((len(train), train.sum(axis=0)))
        self._test.append((test.mean(axis=0), test.var(axis=0)))

    def _as_columns(self, y: np.ndarray, outputs: int) -> np.ndarray:
        """(n, outputs) float64: targets, or 1 for the sample's class."""
        return np.asarray(y, np.float64).reshape(len(y), -1) if self._regression else np.eye(outputs)[y]

    def metric(self) -> float | None:
        """Mean over clients of its MSE or accuracy on their test samples."""
        if not self._comparable or len({len(total) for _, total in self._train}) > 1:
            return None
        mean = sum(total for _, total in self._train) / max(1, sum(count for count, _ in self._train))
        if not self._regression:
            return float(np.mean([means[np.argmax(mean)] for means, _ in self._test]))
        return float(np.mean([np.mean(variance + (means - mean) ** 2) for means, variance in self._test]))
