"""Data sets in files of arrays: the user's own .npz, and UCI HAR."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from .arrays import codes, finite, first_line, npz_array, open_npz, root_of, targets, wrong
from .pool import DataError, Pool
from .table import CLIENT

if TYPE_CHECKING:
    from ..config.data import DataSection

_PARTS = ("train", "test")
_WHOLE = ("x", "y")
_SPLIT = ("x_train", "y_train", "x_test", "y_test")
_COLOURS = (1, 3)
_ACTIVITIES = 6
_HAR_FILES = tuple(f"{part}/{kind}_{part}.txt" for part in _PARTS for kind in ("X", "y", "subject"))


def load_npz(section: DataSection) -> Pool:
    """The user's own arrays.

    x: (n, features), (n, height, width), (n, height, width, channels) or (n, channels, height, width) with 1 or 3
    channels; bytes that are images run from 0 to 255; with data.series (n, steps, features). y: (n,), for regression
    also (n, targets). data.client: (n,), anything that sorts. x_train, x_test and so on are taken as one. Raises
    DataError.
    """
    path = root_of(section, "the .npz file")
    arrays, client = _read_npz(path, section.client)
    x, scale = _inputs(path, arrays["x"], section.series)
    for name in arrays:
        if len(arrays[name]) != len(x):
            raise wrong(path, f"x has {len(x)} samples and {name} has {len(arrays[name])}")
    owners, owner = codes(path, client, arrays[client]) if client else (None, None)
    y, outputs = targets(path, "y", arrays["y"], section.task)
    names = None if owners is None else tuple(map(str, owners))
    return Pool(x, y, section.task, outputs, scale, owner, names)


def _read_npz(path: Path, wanted: str | None) -> tuple[dict[str, np.ndarray], str]:
    """x, y and, where samples have owners, the array that names these; and what it is called, or ""."""
    with open_npz(path) as file:
        there = set(file.files)
        in_parts = set(_SPLIT) <= there and not set(_WHOLE) & there
        if not in_parts and not set(_WHOLE) <= there:
            raise wrong(
                path,
                f"it holds arrays {', '.join(file.files) or '(none)'}; needed are {', '.join(_WHOLE)} "
                f"(and {CLIENT}, if you like) or {', '.join(_SPLIT)}",
            )

        def arrays_of(name: str) -> tuple[str, ...]:
            return tuple(f"{name}_{part}" for part in _PARTS) if in_parts else (name,)

        client = (CLIENT if there.issuperset(arrays_of(CLIENT)) else "") if wanted is None else wanted
        if client in _WHOLE or (client and not there.issuperset(arrays_of(client))):
            needed = " and ".join(arrays_of(client))
            raise wrong(path, f'data.client = "{client}": needed is {needed}; it holds arrays {", ".join(file.files)}')
        names = [*_WHOLE, *filter(None, [client])]
        return {name: _join(path, [(n, npz_array(file, path, n)) for n in arrays_of(name)]) for name in names}, client


def _join(path: Path, parts: list[tuple[str, np.ndarray]]) -> np.ndarray:
    (first, array), *others = parts
    for name, other in others:
        if array.shape[1:] != other.shape[1:]:
            raise wrong(path, f"{first} has shape {array.shape}, which does not fit {name}, {other.shape}")
    return np.concatenate([array for _, array in parts]) if others else array


def _inputs(path: Path, x: np.ndarray, series: bool) -> tuple[np.ndarray, float]:
    """x with its axes in our order, and its scale."""
    if series:
        if x.ndim != 3 or x.size == 0:
            raise wrong(path, f"x has shape {x.shape}; data.series = true needs (n, steps, features)")
        return finite(path, "x", x), 1.0
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in _COLOURS and x.shape[1] not in _COLOURS:
        x = np.moveaxis(x, 3, 1)
    if x.ndim not in (2, 4) or x.size == 0 or (x.ndim == 4 and x.shape[1] not in _COLOURS):
        raise wrong(
            path,
            f"x has shape {x.shape}; allowed are (n, features), (n, height, width), "
            f"(n, height, width, channels) and (n, channels, height, width) with 1 or 3 channels",
        )
    if x.dtype == np.uint8:
        return x, 255.0 if x.ndim == 4 else 1.0
    return finite(path, "x", x), 1.0


def load_har(section: DataSection) -> Pool:
    """UCI HAR: which of six activities a smartphone feels, for 30 people, each a client: 561 features between -1 and 1;
    official training and test samples together. Raises DataError."""
    root = root_of(section, "the folder of the unpacked archive")
    folder = next((at for at in (root, root / "UCI HAR Dataset") if (at / _HAR_FILES[0]).is_file()), root)
    if missing := [name for name in _HAR_FILES if not (folder / name).is_file()]:
        raise wrong(root, f"it lacks {', '.join(missing)}")
    parts = [_read_har(folder / part, part) for part in _PARTS]
    (train, *_), (test, *_) = parts
    if train.shape[1] != test.shape[1]:
        raise wrong(root, f"training samples have {train.shape[1]} features, test samples {test.shape[1]}")
    x, y, subject = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    people, owner = np.unique(subject, return_inverse=True)
    return Pool(x, y, "classification", outputs=_ACTIVITIES, client=owner, owners=tuple(map(str, people)))


def _read_har(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x float32 (n, features); activities 0 to 5 and subjects, int64 (n,)."""
    x_file, y_file, subject_file = (folder / f"{kind}_{part}.txt" for kind in ("X", "y", "subject"))
    x = finite(x_file, "X", _text_numbers(x_file, np.float32, dimensions=2))
    y, subject = (_text_numbers(file, np.int64, dimensions=1) for file in (y_file, subject_file))
    for file, values in ((y_file, y), (subject_file, subject)):
        if len(values) != len(x):
            raise DataError(f"{x_file} has {len(x)} lines, {file} has {len(values)}")
    if wrong_ones := sorted(set(y.tolist()) - set(range(1, _ACTIVITIES + 1))):
        raise DataError(f"{y_file} holds activity {wrong_ones[0]}: activities are 1 to {_ACTIVITIES}")
    return x, y - 1, subject


def _text_numbers(path: Path, kind: type[np.generic], dimensions: Literal[1, 2]) -> np.ndarray:
    try:
        return np.loadtxt(path, dtype=kind, ndmin=dimensions)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DataError(f"{path} can't be read: {first_line(error)}") from error
