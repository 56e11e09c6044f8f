"""Samples that a function of the user's returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...node import own_code
from ..config.data import DataSection
from .files import CLIENT, Source, first_line, pool_of
from .pool import DataError, Pool


@dataclass(frozen=True)
class _Returned(Source):
    """What the user's function has returned."""

    use: str = ""

    def wrong(self, what: str) -> DataError:
        return DataError(f"data.use = {self.use!r}: {what}")


def load_own(section: DataSection) -> Pool:
    """Takes (x, y) or (x, y, client); {"x": ..., "y": ..., "client": ...}, or such with x_train, x_test and so on;
    {"train": ..., "test": ...} of such tuples; and in place of a tuple a data set whose items are (x, y), as torch has
    them. Arrays are as load_npz says."""
    source = _Returned(Path(), section.use)
    found = own_code.load(section.use, "data.use")
    if not callable(found):
        raise source.wrong("is no function that returns samples")
    found = found()
    if isinstance(found, Mapping) and set(found) == {"train", "test"}:
        parts = {part: _columns(source, found[part]) for part in ("train", "test")}
        found = {f"{name}_{part}": values for part, columns in parts.items() for name, values in columns.items()}
    columns = found if isinstance(found, Mapping) else _columns(source, found)
    arrays = {name: _array(source, name, values) for name, values in columns.items()}
    return pool_of(section, source, arrays, arrays.__getitem__)


def _columns(source: Source, found: Any) -> dict[str, Any]:
    if isinstance(found, tuple) and len(found) in (2, 3):
        return dict(zip(("x", "y", CLIENT), found, strict=False))
    if isinstance(found, Sequence) or not (hasattr(found, "__len__") and hasattr(found, "__getitem__")):
        raise source.wrong(f"returned {type(found).__name__}; allowed are (x, y), (x, y, client), a dict, a data set")
    items = [found[number] for number in range(len(found))]
    if not items or not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise source.wrong(f"returned {type(found).__name__}, whose items must be pairs (x, y)")
    return {"x": [np.asarray(x) for x, _ in items], "y": [np.asarray(y) for _, y in items]}


def _array(source: Source, name: str, values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise source.wrong(f"{name} is no array: {first_line(error)}") from error
    if array.ndim == 0 or array.dtype.kind == "O":
        found = f"{name} is {array.dtype} of shape {array.shape}"
        raise source.wrong(f"{found}; it must be an array of numbers or text, its first axis over the samples")
    return array
