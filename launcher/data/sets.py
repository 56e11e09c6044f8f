"""The data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ...topology.randomness import generator
from .files import load_har, load_npz
from .images import load_cifar10, load_digits, load_fashion_mnist, load_mnist
from .matlab import load_gleam, load_school, load_vehicle
from .pool import DataError, Pool
from .sensors import load_sensors
from .synthetic import draw_synthetic
from .table import load_table

if TYPE_CHECKING:
    from ..config.data import DataSection

LOADERS: dict[str, Callable[[DataSection], Pool]] = {
    "digits": load_digits,
    "mnist": load_mnist,
    "fashion-mnist": load_fashion_mnist,
    "cifar10": load_cifar10,
    "school": load_school,
    "har": load_har,
    "vehicle": load_vehicle,
    "gleam": load_gleam,
    "sensors": load_sensors,
    "npz": load_npz,
    "table": load_table,
}


def load(section: DataSection, seed: int, clients: int = 1) -> Pool:
    """The chosen data set, or ``section.samples`` of it in their original order. Raises DataError.

    What is drawn instead of read has a task for each of ``clients``.
    """
    drawn = section.dataset == "synthetic"
    pool = draw_synthetic(section, seed, clients) if drawn else LOADERS[section.dataset](section)
    if section.samples > len(pool):
        raise DataError(f"data.samples is {section.samples}, but {section.dataset} holds {len(pool)}: 0 takes them all")
    if section.samples == 0:
        return pool
    chosen = generator(seed, "samples").choice(len(pool), section.samples, replace=False)
    return pool.take(np.sort(chosen))
