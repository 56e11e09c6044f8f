"""Tasks with a known structure: groups of clients whose linear models are similar."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...topology.randomness import generator
from .pool import DataError, Pool

if TYPE_CHECKING:
    from ..config.data import DataSection


def draw_synthetic(section: DataSection, seed: int, clients: int) -> Pool:
    """Client i of group g = i * groups // clients has parameters W_i of shape (outputs, dimensions),

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
    owners = np.repeat(np.arange(clients), shape.samples)
    return Pool(x, y, section.task, outputs, client=owners, groups=groups)
