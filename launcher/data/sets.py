"""The data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ...topology.randomness import generator
from .cifar import load_cifar10
from .digits import load_digits
from .errors import DataError
from .gleam import load_gleam
from .har import load_har
from .mnist import load_fashion_mnist, load_mnist
from .npz import load_npz
from .pool import Pool
from .school import load_school
from .sensors import load_sensors
from .synthetic import draw_synthetic
from .table import load_table
from .vehicle import load_vehicle

if TYPE_CHECKING:
    from ..config.sections import DataSection

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
