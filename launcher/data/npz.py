"""The user's own data: a NumPy .npz file with arrays x, y and optionally client."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .arrays import codes, finite, npz_array, open_npz, root_of, targets, wrong
from .pool import Pool

if TYPE_CHECKING:
    from ..config import DataSection

WHOLE = ("x", "y")
PARTS = ("train", "test")
SPLIT = ("x_train", "y_train", "x_test", "y_test")
COLOURS = (1, 3)


def load_npz(section: DataSection) -> Pool:
    """x: (n, features), (n, height, width), (n, height, width, channels) or (n, channels, height, width) with 1 or
    3 channels; bytes that are images run from 0 to 255. y: (n,), for regression also (n, targets).
    client: (n,), anything that sorts. x_train, y_train, x_test, y_test are taken as one x, y. Raises DataError.
    """
    path = root_of(section, "the .npz file")
    arrays = _read(path)
    x, scale = _inputs(path, arrays["x"])
    owners = arrays.get("client")
    for name in ("y", "client"):
        if name in arrays and len(arrays[name]) != len(x):
            raise wrong(path, f"x has {len(x)} samples and {name} has {len(arrays[name])}")
    client = None if owners is None else codes(path, "client", owners)[1]
    y, outputs = targets(path, "y", arrays["y"], section.task)
    return Pool(x, y, section.task, outputs, scale, client)


def _read(path: Path) -> dict[str, np.ndarray]:
    """x, y and, where the file has it, client."""
    with open_npz(path) as file:
        names = set(file.files)
        if set(SPLIT) <= names and not set(WHOLE) & names:
            return {
                name: _join(path, name, [npz_array(file, path, f"{name}_{part}") for part in PARTS]) for name in WHOLE
            }
        if not set(WHOLE) <= names:
            raise wrong(
                path,
                f"it holds arrays {', '.join(file.files) or '(none)'}; needed are {', '.join(WHOLE)} "
                f"(and client, if you like) or {', '.join(SPLIT)}",
            )
        return {name: npz_array(file, path, name) for name in (*WHOLE, "client") if name in names}


def _join(path: Path, name: str, parts: list[np.ndarray]) -> np.ndarray:
    train, test = parts
    if train.shape[1:] != test.shape[1:]:
        raise wrong(path, f"{name}_train has shape {train.shape}, which does not fit {name}_test, {test.shape}")
    return np.concatenate(parts)


def _inputs(path: Path, x: np.ndarray) -> tuple[np.ndarray, float]:
    """x with its axes in our order, and its scale."""
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
