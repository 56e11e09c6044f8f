"""Training samples of an attacker that lies in its data: false labels, or a backdoor's trigger (Gu, Dolan-Gavitt, Garg
2017). Arrays are numpy's or torch's."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...topology.randomness import generator
from ..assignment import Assignment
from ..attack_settings import Attack

ON_DATA = ("label-flip", "backdoor")
SUCCESS = "backdoor_success"  # the name of the metric


def places_of(attack: Attack, shape: Sequence[int]) -> list[int]:
    """Returns where a sample of that shape shows the trigger: places in the order in which its numbers lie."""
    if attack.trigger:
        return list(attack.trigger)
    size = math.prod(shape)
    if len(shape) < 2:
        return list(range(size - max(1, size // 10), size))
    height, width = shape[-2:]
    corner = np.zeros(tuple(shape), bool)
    corner[..., height - max(1, height // 4) :, width - max(1, width // 4) :] = True
    return np.flatnonzero(corner).tolist()


def with_trigger(x: Any, attack: Attack, shape: Sequence[int]) -> Any:
    """Returns a copy of samples that all show it; a sample has that ``shape``, though it may lie flat."""
    shown = _copy(x)
    shown.reshape(len(x), -1)[:, places_of(attack, shape)] = attack.value
    return shown


def poisoned(assignment: Assignment, x: Any, y: Any) -> tuple[Any, Any]:
    """Returns what an attacker learns from in place of the samples x with the classes y."""
    attack, labels = assignment.attack, _copy(y)
    if attack.kind == "label-flip":
        classes = assignment.architecture.outputs
        for label, told in enumerate(attack.labels or range(classes - 1, -1, -1)):
            labels[y == label] = told
        return x, labels
    count = int(attack.share * len(x) + 0.5)
    chosen = generator(assignment.run.seed, "backdoor", assignment.node).permutation(len(x))[:count]
    samples = _copy(x)
    samples[chosen] = with_trigger(x[chosen], attack, assignment.architecture.input_shape)
    labels[chosen] = attack.target
    return samples, labels


def success_of(attack: Attack, z: np.ndarray, y: np.ndarray) -> float:
    """Returns the share of samples of other classes than the target that are taken for it, of outputs z for samples
    with the trigger; nan where there are none."""
    others = z[y != attack.target]
    return float(np.mean(others.argmax(axis=1) == attack.target)) if len(others) else math.nan


def _copy(array: Any) -> Any:
    return array.copy() if isinstance(array, np.ndarray) else array.clone().contiguous()
