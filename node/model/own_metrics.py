"""What is asked of a model's outputs beside accuracy: metrics of the user's own, and the confusion matrix."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from .. import own_code
from ..assignment import Assignment
from ..settings import MetricSettings


def key_of(number: int) -> str:
    return f"evaluation.metrics.{number}.use"


def value_of(metric: Callable[..., Any], options: Mapping[str, Any], z: np.ndarray, y: np.ndarray) -> float:
    """Raises TypeError where it returns no number, and whatever the metric raises."""
    found = metric(z, y, **options)
    try:
        if np.ndim(found) == 0 and not isinstance(found, str):
            return float(found)
    except TypeError:  # told below
        pass
    raise TypeError(f"returned {type(found).__name__}; it has to be a number")


def values_of(assignment: Assignment, z: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Returns {name: value} of all that are configured."""
    found = {}
    for number, metric in enumerate(assignment.evaluation.metrics):
        own = own_code.load_copy(metric.use, key_of(number), assignment.run.folder, assignment.run.code)
        found[metric.name] = value_of(own, metric.options, z, y)
    return found


def confusion_of(z: np.ndarray, y: np.ndarray) -> list[tuple[int, int, int]]:
    """Returns (class, predicted class, how many samples) of outputs (n, classes), where there are any."""
    found, counts = np.unique(np.stack([y, z.argmax(axis=1)], axis=1), axis=0, return_counts=True)
    return [(label, predicted, n) for (label, predicted), n in zip(found.tolist(), counts.tolist(), strict=True)]


def check_metric(settings: MetricSettings, number: int, shard: Path, outputs: int) -> None:
    """Tries it on the test targets of client 0, with outputs that are drawn. Raises CodeError."""
    use = own_code.Use.of(settings.use, key_of(number))
    metric = own_code.load(settings.use, use.key)
    if not callable(metric):
        raise use.error("is no function")
    with safe_open(shard, framework="numpy") as file:
        y = file.get_tensor("y_test")
    z = np.random.default_rng(0).normal(size=(len(y), outputs)).astype(np.float32)
    try:
        value_of(metric, settings.options, z, y)
    except Exception as error:
        told = own_code.blamed(error) or own_code.described(error)
        raise use.error(f"for outputs {z.shape} and targets {y.shape} of client 0: {told}") from error
