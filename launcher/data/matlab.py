"""Multi-task data in MATLAB files, a task a client: School, Vehicle and GLEAM as they are handed around."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .arrays import codes, finite, root_of, wrong
from .pool import Pool

if TYPE_CHECKING:
    from ..config.data import DataSection

_CELL_ARRAYS = ("X", "Y")


def load_school(section: DataSection) -> Pool:
    """Examination results of 15,362 students in 139 schools of London: 28 features, the last one constant; scores from
    1 to 70, as they are. school.mat as distributed with MALSAR."""
    path, x, y, owners = _load(section, "school.mat")
    return Pool(finite(path, "X", x), finite(path, "Y", y)[:, None], "regression", outputs=1, client=owners)


def load_vehicle(section: DataSection) -> Pool:
    """Which of two vehicles passed, told by 23 road-side sensors: 50 features of sound and 50 of vibration."""
    return _two_classes(section, "vehicle.mat")


def load_gleam(section: DataSection) -> Pool:
    """Whether each of 38 wearers of a Google Glass is eating: 180 statistics of its motion sensors a minute."""
    return _two_classes(section, "gleam.mat")


def _two_classes(section: DataSection, file_name: str) -> Pool:
    """Labels are two different numbers, -1 and 1 in the published files; the smaller one is class 0."""
    path, x, y, owners = _load(section, file_name)
    labels, classes = codes(path, "Y", y)
    if len(labels) != 2:
        raise wrong(path, f"Y holds {len(labels)} different labels; needed are two, like -1 and 1")
    return Pool(finite(path, "X", x), classes, "classification", outputs=2, client=owners)


def _load(section: DataSection, file_name: str) -> tuple[Path, np.ndarray, np.ndarray, np.ndarray]:
    """The file, and all tasks one after the other: x (n, features), y (n,), owners (n,), numbered as in the file.

    data.root is the file, or the folder with a file of that name. It holds cell arrays X and Y with an entry a task:
    X{t} is (n_t, features), Y{t} holds n_t numbers. Raises DataError.
    """
    root = root_of(section, f"{file_name}, or the folder with it")
    path = root / file_name if root.is_dir() else root
    inputs, targets = (_entries(path, name, cells) for name, cells in _read(path).items())
    if len(inputs) != len(targets):
        raise wrong(path, f"X has {len(inputs)} cells and Y has {len(targets)}")
    features = inputs[0].shape[-1]
    for task, (x, y) in enumerate(zip(inputs, targets, strict=True), start=1):
        if x.ndim != 2 or x.shape[1] != features or x.size == 0:
            raise wrong(path, f"X{{{task}}} has shape {x.shape}; needed is (samples, {features}), as in X{{1}}")
        if y.size != len(x) or max(y.shape) != y.size:
            raise wrong(path, f"Y{{{task}}} has shape {y.shape}, but X{{{task}}} has {len(x)} samples")
    owners = np.repeat(np.arange(len(inputs)), [len(x) for x in inputs])
    return path, np.concatenate(inputs), np.concatenate([y.reshape(-1) for y in targets]), owners


def _read(path: Path) -> dict[str, np.ndarray]:
    """X and Y, in this order."""
    from scipy.io import loadmat

    if not path.is_file():
        raise wrong(path, "there is no such file")
    try:
        found = loadmat(path, appendmat=False, variable_names=_CELL_ARRAYS)
    except NotImplementedError as error:
        raise wrong(path, "this is a MATLAB file of version 7.3; save it with -v7") from error
    except Exception as error:  # whatever the parser raises, the bytes are at fault
        raise wrong(path, "this is not a MATLAB file, or it is damaged") from error
    if missing := [name for name in _CELL_ARRAYS if name not in found]:
        raise wrong(path, f"it lacks {' and '.join(missing)}; needed are cells X and Y")
    return {name: found[name] for name in _CELL_ARRAYS}


def _entries(path: Path, name: str, cells: np.ndarray) -> list[np.ndarray]:
    """A row or a column of cells, each an array of numbers."""
    if cells.dtype != object or cells.size == 0 or max(cells.shape) != cells.size:
        raise wrong(
            path, f"{name} has shape {cells.shape} and type {cells.dtype}; needed is a row of cells, one a task"
        )
    entries = list(cells.reshape(-1))
    for task, entry in enumerate(entries, start=1):
        if not isinstance(entry, np.ndarray) or entry.dtype.kind not in "biuf":
            raise wrong(path, f"{name}{{{task}}} is not an array of whole or real numbers")
    return entries
