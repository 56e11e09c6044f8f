"""The user's own data: a NumPy .npz file with arrays x, y and optionally client."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.npyio import NpzFile

from .errors import DataError
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
    path = section.root
    if path is None:
        raise DataError('data.root is missing: data.dataset = "npz" needs it to name the .npz file')
    arrays = _read(path)
    x, scale = _inputs(path, arrays["x"])
    owners = arrays.get("client")
    for name in ("y", "client"):
        if name in arrays and len(arrays[name]) != len(x):
            raise _wrong(path, f"x has {len(x)} samples and {name} has {len(arrays[name])}")
    client = None if owners is None else _codes(path, "client", owners)[1]
    if section.task == "regression":
        y = _targets(path, arrays["y"])
        return Pool(x, y, "regression", outputs=y.shape[1], scale=scale, client=client)
    classes, y = _codes(path, "y", arrays["y"])
    if len(classes) < 2:
        raise _wrong(path, 'y holds one class only; data.task = "classification" needs at least two')
    return Pool(x, y, "classification", outputs=len(classes), scale=scale, client=client)


def _read(path: Path) -> dict[str, np.ndarray]:
    """x, y and, where the file has it, client."""
    with _open(path) as file:
        names = set(file.files)
        if set(SPLIT) <= names and not set(WHOLE) & names:
            return {name: _join(path, name, [_array(file, path, f"{name}_{part}") for part in PARTS]) for name in WHOLE}
        if not set(WHOLE) <= names:
            raise _wrong(
                path,
                f"it holds arrays {', '.join(file.files) or '(none)'}; needed are {', '.join(WHOLE)} "
                f"(and client, if you like) or {', '.join(SPLIT)}",
            )
        return {name: _array(file, path, name) for name in (*WHOLE, "client") if name in names}


def _open(path: Path) -> NpzFile:
    if not path.is_file():
        raise _wrong(path, "there is no such file")
    try:
        file = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise _wrong(path, "this is not an .npz file") from error
    if not isinstance(file, NpzFile):
        raise _wrong(path, "this is a file of one array, not an .npz file")
    return file


def _array(file: NpzFile, path: Path, name: str) -> np.ndarray:
    try:
        array = file[name]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        # NumPy's own words here advise to allow pickles, which can run any code.
        raise _wrong(path, f"{name} is damaged or holds Python objects; allowed are plain arrays") from error
    if np.ndim(array) == 0:
        raise _wrong(path, f"{name} is a single value; its first axis must run over the samples")
    return array


def _join(path: Path, name: str, parts: list[np.ndarray]) -> np.ndarray:
    train, test = parts
    if train.shape[1:] != test.shape[1:]:
        raise _wrong(path, f"{name}_train has shape {train.shape}, which does not fit {name}_test, {test.shape}")
    return np.concatenate(parts)


def _wrong(path: Path, what: str) -> DataError:
    return DataError(f'data.root = "{path}": {what}')


def _inputs(path: Path, x: np.ndarray) -> tuple[np.ndarray, float]:
    """x with its axes in our order, and its scale."""
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in COLOURS and x.shape[1] not in COLOURS:
        x = np.moveaxis(x, 3, 1)
    if x.ndim not in (2, 4) or x.size == 0 or (x.ndim == 4 and x.shape[1] not in COLOURS):
        raise _wrong(
            path,
            f"x has shape {x.shape}; allowed are (n, features), (n, height, width), "
            f"(n, height, width, channels) and (n, channels, height, width) with 1 or 3 channels",
        )
    if x.dtype == np.uint8:
        return x, 255.0 if x.ndim == 4 else 1.0
    return _finite(path, "x", x), 1.0


def _targets(path: Path, y: np.ndarray) -> np.ndarray:
    if y.ndim > 2 or y.size == 0:
        raise _wrong(path, f"y has shape {y.shape}; regression allows (n,) and (n, targets)")
    return _finite(path, "y", y).reshape(len(y), -1)


def _finite(path: Path, name: str, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "biuf":
        raise _wrong(path, f"{name} has type {values.dtype}; allowed are whole and real numbers")
    with np.errstate(over="ignore"):  # too large for float32 becomes inf, which is refused just below
        numbers = values.astype(np.float32)
    bad = ~np.isfinite(numbers)
    if bad.any():
        row = np.argwhere(bad)[0, 0]
        raise _wrong(path, f"{name} holds NaN, an infinity or a number beyond float32 in row {row}")
    return numbers


def _codes(path: Path, name: str, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct labels, sorted, and each label's place among them, int64 (n,)."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "biufUS":
        raise _wrong(
            path, f"{name} has shape {labels.shape} and type {labels.dtype}; allowed is (n,) of whole numbers or text"
        )
    if labels.dtype.kind == "f":
        # NaN differs from its own floor too.
        fractions = np.flatnonzero(labels != np.floor(labels))
        if len(fractions):
            raise _wrong(path, f"{name} holds {labels[fractions[0]]} in row {fractions[0]}; allowed are whole numbers")
    distinct, codes = np.unique(labels, return_inverse=True)
    return distinct, codes.astype(np.int64)
