"""Samples that a function of the user's returns."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...node import own_code
from ..config.data import DataSection
from .files import CLIENT, Source, first_line, pool_of
from .huggingface import SPLITS, pool_of_tables, tables_of
from .pool import DataError, Pool

_NAMES = ("x", "y", CLIENT)
_ALLOWED = "allowed are (x, y), (x, y, client), a dict, a data set"


@dataclass(frozen=True)
class _Returned(Source):
    """What the user's function has returned."""

    use: str = ""

    def wrong(self, what: str) -> DataError:
        return DataError(f"data.use = {self.use!r}: {what}")


def load_own(section: DataSection) -> Pool:
    """Takes (x, y) or (x, y, client); {"x": ..., "y": ..., "client": ...}, or such with x_train, x_test and so on;
    {"train": ..., "validation": ..., "test": ...} of such tuples; in place of a tuple a data set whose items are such
    tuples, as torch has them; and data sets of Hugging Face. Arrays are as load_npz says."""
    source = _Returned(Path(), section.use)
    found = _called(source, section.options)
    if tables := tables_of(found):
        return pool_of_tables(section, source, tables)
    if isinstance(found, Mapping) and found.keys() > {"train"} and found.keys() <= set(SPLITS):
        found = _split(source, {part: _columns(source, found[part]) for part in SPLITS if part in found})
    columns = found if isinstance(found, Mapping) else _columns(source, found)
    arrays = {name: _array(source, name, values) for name, values in columns.items()}
    return pool_of(section, source, arrays, arrays.__getitem__)


def _called(source: _Returned, options: Mapping[str, Any]) -> Any:
    make = own_code.load(source.use, "data.use")
    if not callable(make):
        raise source.wrong("is no function that returns samples")
    try:
        with own_code.seeded():
            return make(**options)
    except TypeError as error:
        if own_code.blamed(error):
            raise
        called = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise source.wrong(f"cannot be called with ({called}): {error}") from error


def _split(source: Source, parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns {name_train: ..., name_test: ...}; samples for validation are for training where others are for testing,
    else for testing."""
    last = list(parts)[-1]
    found: dict[str, Any] = {}
    for part, columns in parts.items():
        for name, values in columns.items():
            key = f"{name}_{'test' if part == last else 'train'}"
            found[key] = np.concatenate([found[key], _array(source, name, values)]) if key in found else values
    return found


def _columns(source: Source, found: Any) -> dict[str, Any]:
    if isinstance(found, tuple) and len(found) in (2, 3):
        return dict(zip(_NAMES, found, strict=False))
    if isinstance(found, Mapping | Sequence) or not (hasattr(found, "__len__") and hasattr(found, "__getitem__")):
        raise source.wrong(f"returned {type(found).__name__}; {_ALLOWED}")
    torch_data = sys.modules.get("torch.utils.data")  # without it there is no data set of its kinds
    if torch_data and isinstance(found, torch_data.TensorDataset):
        items = found.tensors
    elif torch_data and isinstance(found, torch_data.Subset) and isinstance(found.dataset, torch_data.TensorDataset):
        items = tuple(tensor[found.indices] for tensor in found.dataset.tensors)
    else:
        samples = _samples(source, found)
        lengths = {len(each) if isinstance(each, tuple | list) else 0 for each in samples}
        columns = zip(*samples, strict=True) if len(lengths) == 1 and lengths <= {2, 3} else ()
        items = tuple([np.asarray(value) for value in column] for column in columns)
    if len(items) not in (2, 3):
        raise source.wrong(f"returned {type(found).__name__}, whose items must be (x, y) or (x, y, client)")
    return dict(zip(_NAMES, items, strict=False))


def _samples(source: Source, found: Any) -> list[Any]:
    try:
        return [found[number] for number in range(len(found))]
    except Exception as error:  # whatever a data set raises, it cannot be read
        if own_code.blamed(error):
            raise
        raise source.wrong(f"samples of {type(found).__name__} can't be read: {own_code.described(error)}") from error


def _array(source: Source, name: str, values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise source.wrong(f"{name} is no array: {first_line(error)}") from error
    if array.ndim == 0 or array.dtype.kind == "O":
        found = f"{name} is {array.dtype} of shape {array.shape}"
        raise source.wrong(f"{found}; it must be an array of numbers or text, its first axis over the samples")
    return array
