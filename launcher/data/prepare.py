"""From the configuration to one shard file a client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .constant import ConstantPredictor
from .pool import Task
from .sets import load
from .shards import cut, write

if TYPE_CHECKING:
    from ..config import DataSection


@dataclass(frozen=True)
class ClientSummary:
    train_samples: int
    test_samples: int
    group: int
    features: tuple[int, ...] | None
    """Input features that it sees; None for all."""
    outputs: int
    """Of its model."""
    classes: tuple[int, ...] = ()
    """Classification: those of its training samples, ascending."""


@dataclass(frozen=True)
class DataSummary:
    """What is known of the data without opening a shard."""

    input_shape: tuple[int, ...]
    """Of one sample: (channels, height, width) or (features,)."""
    outputs: int
    """Of the first client's model; only data.tasks gives others another number."""
    task: Task
    clients: tuple[ClientSummary, ...]
    constant_metric: float | None = None
    """The mean test metric of clients that predict the same for every sample."""


def shard_path(folder: Path, client: int) -> Path:
    return folder / f"node-{client:04d}.safetensors"


def prepare(section: DataSection, clients: int, seed: int, folder: Path) -> DataSummary:
    """Writes the shard of every client into ``folder``, one in memory at a time. Raises DataError."""
    pool = load(section, seed, clients)
    shards = cut(section, pool, clients, seed)
    folder.mkdir(parents=True, exist_ok=True)
    summaries, constant = [], ConstantPredictor(section.tasks)
    for client, shard in enumerate(shards):
        write(shard, shard_path(folder, client))
        constant.add(shard)
        classes = tuple(np.unique(shard.y_train).tolist()) if pool.task == "classification" else ()
        sizes = len(shard.x_train), len(shard.x_test)
        summaries.append(ClientSummary(*sizes, shard.group, shard.features, shard.outputs, classes))
    return DataSummary(pool.input_shape, summaries[0].outputs, pool.task, tuple(summaries), constant.metric())
