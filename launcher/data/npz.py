"""The user's own data: a NumPy .npz file with arrays x, y and optionally one that names owners."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .arrays import codes, finite, npz_array, open_npz, root_of, targets, wrong
from .pool import Pool
from .table import CLIENT

if TYPE_CHECKING:
    from ..config.sections import DataSection

WHOLE = ("x", "y")
PARTS = ("train", "test")
SPLIT = ("x_train", "y_train", "x_test", "y_test")
COLOURS = (1, 3)


def load_npz(section: DataSection) -> Pool:
    """x: (n, features), (n, height, width), (n, height, width, channels) or (n, channels, height, width) with 1 or
    3 channels; bytes that are images run from 0 to 255; with data.series (n, steps, features). y: (n,), for regression
    also (n, targets). data.client: (n,), anything that sorts. x_train, x_test and so on are taken as one. Raises
    DataError.
    """
    path = root_of(section, "the .npz file")
    arrays, client = _read(path, section.client)
    x, scale = _inputs(path, arrays["x"], section.series)
    for name in arrays:
        if len(arrays[name]) != len(x):
            raise wrong(path, f"x has {len(x)} samples and {name} has {len(arrays[name])}")
    owners, owner = codes(path, client, arrays[client]) if client else (None, None)
    y, outputs = targets(path, "y", arrays["y"], section.task)
    names = None if owners is None else tuple(map(str, owners))
    return Pool(x, y, section.task, outputs, scale, owner, names)


def _read(path: Path, wanted: str | None) -> tuple[dict[str, np.ndarray], str]:
    """x, y and, where samples have owners, the array that names these; and what it is called, or ""."""
    with open_npz(path) as file:
        there = set(file.files)
        in_parts = set(SPLIT) <= there and not set(WHOLE) & there
        if not in_parts and not set(WHOLE) <= there:
            raise wrong(
                path,
                f"it holds arrays {', '.join(file.files) or '(none)'}; needed are {', '.join(WHOLE)} "
                f"(and {CLIENT}, if you like) or {', '.join(SPLIT)}",
            )

        def arrays_of(name: str) -> tuple[str, ...]:
            return tuple(f"{name}_{part}" for part in PARTS) if in_parts else (name,)

        client = (CLIENT if there.issuperset(arrays_of(CLIENT)) else "") if wanted is None else wanted
        if client in WHOLE or (client and not there.issuperset(arrays_of(client))):
            needed = " and ".join(arrays_of(client))
            raise wrong(path, f'data.client = "{client}": needed is {needed}; it holds arrays {", ".join(file.files)}')
        names = [*WHOLE, *filter(None, [client])]
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
    elif x.ndim == 4 and x.shape[3] in COLOURS and x.shape[1] not in COLOURS:
        x = np.moveaxis(x, 3, 1)
    if x.ndim not in (2, 4) or x.size == 0 or (x.ndim == 4 and x.shape[1] not in COLOURS):
        raise wrong(
            path,
            f"x has shape {x.shape}; allowed are (n, features), (n, height, width), "
            f"(n, height, width, channels) and (n, channels, height, width) with 1 or 3 channels",
        )
    if x.dtype == np.uint8:
        return x, 255.0 if x.ndim == 4 else 1.0
    return finite(path, "x", x), 1.0
