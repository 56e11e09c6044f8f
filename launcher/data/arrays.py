"""Arrays out of the user's files, checked before they become a pool."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
from numpy.lib.npyio import NpzFile

from .pool import DataError, Task

if TYPE_CHECKING:
    from ..config.data import DataSection


_DAMAGED = (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def wrong(path: Path, what: str) -> DataError:
    return DataError(f'data.root = "{path}": {what}')


def first_line(error: Exception) -> str:
    """Returns the first line of its message; its name where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def some(names: Sequence[str], most: int = 10) -> str:
    """Names for a line: all, or the first of them and how many there are more."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def root_of(section: DataSection, wanted: str) -> Path:
    """data.root, which these data sets cannot do without."""
    if section.root is None:
        raise DataError(f'data.root is missing: data.dataset = "{section.dataset}" needs it to name {wanted}')
    return section.root


def open_npz(path: Path) -> NpzFile:
    if not path.is_file():
        raise wrong(path, "there is no such file")
    try:
        file = np.load(path, allow_pickle=False)
    except (*_DAMAGED, NotImplementedError) as error:
        raise wrong(path, "this is not an .npz file") from error
    if not isinstance(file, NpzFile):
        raise wrong(path, "this is a file of one array, not an .npz file")
    return file


def _announced(file: NpzFile, name: str) -> int:
    """Bytes of an array by its header, of which it has more in a file that is damaged. Raises ValueError where it has.

    NumPy takes the memory first and then looks what is there.
    """
    assert file.zip is not None  # it is open
    part = next((part for part in (f"{name}.npy", name) if part in file.zip.namelist()), name)
    with file.zip.open(part) as member:
        version = np.lib.format.read_magic(member)
        if version not in _HEADERS:
            raise ValueError(f"version {version}")
        shape, _, dtype = _HEADERS[version](member)
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size > file.zip.getinfo(part).file_size:
        raise ValueError("its header announces more than the file holds")
    return size


def npz_array(file: NpzFile, path: Path, name: str) -> np.ndarray:
    try:
        size = _announced(file, name)
        if size > psutil.virtual_memory().available:
            raise wrong(path, f"{name} takes {size / 1e9:,.1f} GB, more than the memory that is free")
        array = file[name]
    except DataError:
        raise
    except (*_DAMAGED, NotImplementedError, RuntimeError, MemoryError) as error:
        # NumPy's own words here advise to allow pickles, which can run any code.
        raise wrong(path, f"{name} is damaged or holds Python objects; allowed are plain arrays") from error
    if np.ndim(array) == 0:
        raise wrong(path, f"{name} is a single value; its first axis must run over the samples")
    return array


def targets(path: Path, name: str, y: np.ndarray, task: Task) -> tuple[np.ndarray, int]:
    """What a pool calls y and outputs."""
    if task == "regression":
        if y.ndim > 2 or y.size == 0:
            raise wrong(path, f"{name} has shape {y.shape}; regression allows (n,) and (n, targets)")
        if y.dtype.kind in "US":
            raise wrong(path, f'{name} is text (such as "{y[0]}"); write data.task = "classification"')
        values = finite(path, name, y).reshape(len(y), -1)
        return values, values.shape[1]
    classes, numbers = codes(path, name, y, ', or data.task = "regression"')
    if len(classes) < 2:
        raise wrong(path, f'{name} holds one class only; data.task = "classification" needs at least two')
    return numbers, len(classes)


def finite(path: Path, name: str, values: np.ndarray) -> np.ndarray:
    """As float32, of the same shape."""
    if values.dtype.kind not in "biuf":
        raise wrong(path, f"{name} has type {values.dtype}; allowed are whole and real numbers")
    with np.errstate(over="ignore"):  # too large for float32 becomes inf, which is refused just below
        numbers = values.astype(np.float32)
    bad = ~np.isfinite(numbers)
    if bad.any():
        row = np.argwhere(bad)[0, 0]
        raise wrong(path, f"{name} holds NaN, an infinity or a number beyond float32 in row {row}")
    return numbers


def codes(path: Path, name: str, labels: np.ndarray, or_else: str = "") -> tuple[np.ndarray, np.ndarray]:
    """The distinct labels, sorted, and each label's place among them, int64 (n,); ``or_else``: what else helps with
    fractions."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "biufUS":
        raise wrong(
            path, f"{name} has shape {labels.shape} and type {labels.dtype}; allowed is (n,) of whole numbers or text"
        )
    if labels.dtype.kind == "f":
        # NaN differs from its own floor too.
        fractions = np.flatnonzero(labels != np.floor(labels))
        if len(fractions):
            found = f"{name} holds {labels[fractions[0]]} in row {fractions[0]}"
            raise wrong(path, f"{found}; allowed are whole numbers{or_else}")
    distinct, codes = np.unique(labels, return_inverse=True)
    return distinct, codes.astype(np.int64)
