"""The data sets by name, and the one that is drawn instead of read."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...topology.randomness import generator
from ..config.data import DataSection
from .files import load_har, load_matlab, load_npz, load_sensors
from .images import load_cifar10, load_digits, load_mnist
from .pool import DataError, Pool
from .table import load_table

LOADERS: dict[str, Callable[[DataSection], Pool]] = {
    "digits": load_digits,
    "mnist": load_mnist,
    "fashion-mnist": load_mnist,
    "cifar10": load_cifar10,
    "school": load_matlab,
    "har": load_har,
    "vehicle": load_matlab,
    "gleam": load_matlab,
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
    rows = np.sort(generator(seed, "samples").choice(len(pool), section.samples, replace=False))
    return replace(pool, x=pool.x[rows], y=pool.y[rows], client=None if pool.client is None else pool.client[rows])


def draw_synthetic(section: DataSection, seed: int, clients: int) -> Pool:
    """Groups of clients whose linear models are similar. Client i of group g = i * groups // clients has parameters W_i
    of shape (outputs, dimensions),

        W_i = (U_g + deviation * V_i) / sqrt(dimensions),    U_g, V_i ~ N(0, 1), all entries independent,

    and its samples are x ~ N(0, I) with scores s = W_i x + noise * e, e ~ N(0, I).
    Regression: y = s, with one output. Classification: y = argmax s, with one score a class. Raises DataError.
    """
    shape = section.synthetic
    if shape.groups > clients:
        raise DataError(f"data.synthetic.groups is {shape.groups}; allowed are 1 to {clients}, the number of clients")
    outputs = 1 if section.task == "regression" else shape.classes
    groups = np.arange(clients) * shape.groups // clients
    inputs, scores = [], []
    for client, group in enumerate(groups.tolist()):
        common = generator(seed, "synthetic group", group).standard_normal((outputs, shape.dimensions))
        rng = generator(seed, "synthetic client", client)
        own = rng.standard_normal(common.shape)
        parameters = (common + shape.deviation * own) / np.sqrt(shape.dimensions)
        x = rng.standard_normal((shape.samples, shape.dimensions))
        inputs.append(x.astype(np.float32))
        scores.append(x @ parameters.T + shape.noise * rng.standard_normal((shape.samples, outputs)))
    x, s = np.concatenate(inputs), np.concatenate(scores)
    y = s.astype(np.float32) if section.task == "regression" else s.argmax(axis=1)
    owner = np.repeat(np.arange(clients), shape.samples)
    return Pool(x, y, section.task, outputs, client=owner, groups=groups)
