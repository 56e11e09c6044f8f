"""Data sets in files of arrays: the user's own .npz, UCI HAR, MATLAB files with a task a client, series of sensors."""

from pathlib import Path
from typing import Literal

import numpy as np

from ..config.data import DataSection
from .pool import (
    DataError,
    Pool,
    codes,
    finite,
    first_line,
    npz_array,
    open_npz,
    owned_by,
    require_file,
    root_of,
    targets,
    wrong,
)
from .table import CLIENT, read_columns, values_of

_PARTS = ("train", "test")
_WHOLE = ("x", "y")
_SPLIT = ("x_train", "y_train", "x_test", "y_test")
_COLOURS = (1, 3)
_ACTIVITIES = 6
_HAR_FILES = tuple(f"{part}/{kind}_{part}.txt" for part in _PARTS for kind in ("X", "y", "subject"))
_SERIES = ("values", "data")
_TIME = "time"


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
    owned = owned_by(path, client, arrays[client]) if client else {}
    y, outputs = targets(path, "y", arrays["y"], section.task)
    return Pool(x, y, section.task, outputs, scale, **owned)


def _read_npz(path: Path, wanted: str | None) -> tuple[dict[str, np.ndarray], str]:
    """x, y and, where samples have owners, the array that names these; and what it is called, or ""."""
    with open_npz(path) as file:
        there, holds = set(file.files), f"it holds arrays {', '.join(file.files) or '(none)'}"
        parts = [f"_{part}" for part in _PARTS] if there.issuperset(_SPLIT) and not there & {*_WHOLE} else [""]
        if parts == [""] and not there.issuperset(_WHOLE):
            needed = f"{', '.join(_WHOLE)} (and {CLIENT}, if you like) or {', '.join(_SPLIT)}"
            raise wrong(path, f"{holds}; needed are {needed}")
        client = wanted
        if client is None:
            client = CLIENT if there.issuperset(f"{CLIENT}{part}" for part in parts) else ""
        needed = " and ".join(f"{client}{part}" for part in parts)
        if client in _WHOLE or (client and not there.issuperset(needed.split(" and "))):
            raise wrong(path, f'data.client = "{client}": needed is {needed}; {holds}')
        arrays = {}
        for name in filter(None, (*_WHOLE, client)):
            first, *others = [npz_array(file, path, f"{name}{part}") for part in parts]
            if others and first.shape[1:] != others[0].shape[1:]:
                fits = f"does not fit {name}{parts[1]}, {others[0].shape}"
                raise wrong(path, f"{name}{parts[0]} has shape {first.shape}, which {fits}")
            arrays[name] = np.concatenate([first, *others]) if others else first
        return arrays, client


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
        images = "(n, height, width, channels) and (n, channels, height, width) with 1 or 3 channels"
        raise wrong(path, f"x has shape {x.shape}; allowed are (n, features), (n, height, width), {images}")
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
    parts = [_read_har(*(folder / name for name in _HAR_FILES[at : at + 3])) for at in (0, 3)]
    (train, *_), (test, *_) = parts
    if train.shape[1] != test.shape[1]:
        raise wrong(root, f"training samples have {train.shape[1]} features, test samples {test.shape[1]}")
    x, y, subject = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Pool(x, y, "classification", outputs=_ACTIVITIES, **owned_by(root, "subject", subject))


def _read_har(x_file: Path, y_file: Path, subject_file: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x float32 (n, features); activities 0 to 5 and subjects, int64 (n,)."""

    def numbers(path: Path, kind: type[np.generic], dimensions: Literal[1, 2]) -> np.ndarray:
        try:
            return np.loadtxt(path, dtype=kind, ndmin=dimensions)
        except (OSError, ValueError) as error:
            raise DataError(f"{path} can't be read: {first_line(error)}") from error

    x = finite(x_file, "X", numbers(x_file, np.float32, 2))
    y, subject = (numbers(file, np.int64, 1) for file in (y_file, subject_file))
    for file, values in ((y_file, y), (subject_file, subject)):
        if len(values) != len(x):
            raise DataError(f"{x_file} has {len(x)} lines, {file} has {len(values)}")
    if unknown := sorted(set(y.tolist()) - set(range(1, _ACTIVITIES + 1))):
        raise DataError(f"{y_file} holds activity {unknown[0]}: activities are 1 to {_ACTIVITIES}")
    return x, y - 1, subject


def load_matlab(section: DataSection) -> Pool:
    """Multi-task data as it is handed around, a task a client.

    school: examination results of 15,362 students in 139 schools of London, 28 features of which the last is constant,
    scores from 1 to 70 as they are (school.mat of MALSAR). vehicle: which of two vehicles passed, told by 23 road-side
    sensors, 50 features of sound and 50 of vibration. gleam: whether each of 38 wearers of a Google Glass is eating,
    180 statistics of its motion sensors a minute.

    data.root is the file, or the folder with a file of the data set's name. It holds cell arrays X and Y, with an entry
    a task: X{t} is (n_t, features), Y{t} holds n_t numbers; of two labels, -1 and 1 in the published files, the smaller
    one is class 0. Raises DataError.
    """
    root = root_of(section, f"{section.dataset}.mat, or the folder with it")
    path = root / f"{section.dataset}.mat" if root.is_dir() else root
    inputs, outcomes = _read_cells(path)
    if len(inputs) != len(outcomes):
        raise wrong(path, f"X has {len(inputs)} cells and Y has {len(outcomes)}")
    features = inputs[0].shape[-1]
    for task, (x, y) in enumerate(zip(inputs, outcomes, strict=True), start=1):
        if x.ndim != 2 or x.shape[1] != features or x.size == 0:
            raise wrong(path, f"X{{{task}}} has shape {x.shape}; needed is (samples, {features}), as in X{{1}}")
        if y.size != len(x) or max(y.shape) != y.size:
            raise wrong(path, f"Y{{{task}}} has shape {y.shape}, but X{{{task}}} has {len(x)} samples")
    owner = np.repeat(np.arange(len(inputs)), [len(x) for x in inputs])
    x, y = finite(path, "X", np.concatenate(inputs)), np.concatenate([y.reshape(-1) for y in outcomes])
    if section.dataset == "school":
        return Pool(x, finite(path, "Y", y)[:, None], "regression", outputs=1, client=owner)
    labels, classes = codes(path, "Y", y)
    if len(labels) != 2:
        raise wrong(path, f"Y holds {len(labels)} different labels; needed are two, like -1 and 1")
    return Pool(x, classes, "classification", outputs=2, client=owner)


def _read_cells(path: Path) -> list[list[np.ndarray]]:
    """X and Y: rows or columns of cells, each an array of numbers."""
    from scipy.io import loadmat

    require_file(path)
    names = ("X", "Y")
    try:
        found = loadmat(path, appendmat=False, variable_names=names)
    except NotImplementedError as error:
        raise wrong(path, "this is a MATLAB file of version 7.3; save it with -v7") from error
    except Exception as error:  # whatever the parser raises, the bytes are at fault
        raise wrong(path, "this is not a MATLAB file, or it is damaged") from error
    if missing := [name for name in names if name not in found]:
        raise wrong(path, f"it lacks {' and '.join(missing)}; needed are cells X and Y")
    for name in names:
        cells = found[name]
        if cells.dtype != object or cells.size == 0 or max(cells.shape) != cells.size:
            is_now = f"{name} has shape {cells.shape} and type {cells.dtype}"
            raise wrong(path, f"{is_now}; needed is a row of cells, one a task")
        for task, entry in enumerate(cells.flat, start=1):
            if not isinstance(entry, np.ndarray) or entry.dtype.kind not in "biuf":
                raise wrong(path, f"{name}{{{task}}} is not an array of whole or real numbers")
    return [list(found[name].flat) for name in names]


def load_sensors(section: DataSection) -> Pool:
    """Series of many sensors, each a client. A sample is (window,) past values of one sensor, oldest first, with the
    (horizon,) values that follow.

    The file: .csv or .parquet with a column a sensor and a row a moment (a column named time is left out), or .npz with
    an array values or data of shape (moments, sensors) or (moments, sensors, channels), of which the first channel is
    read. Values are taken as they are. Raises DataError.
    """
    path = root_of(section, "the .csv, .npz or .parquet file")
    names = None
    if path.name.endswith(".npz"):
        with open_npz(path) as file:
            name = next((name for name in _SERIES if name in file.files), None)
            if name is None:
                holds = f"it holds arrays {', '.join(file.files) or '(none)'}"
                raise wrong(path, f"{holds}; needed is {' or '.join(_SERIES)}")
            values = npz_array(file, path, name)
        if values.ndim not in (2, 3) or values.size == 0:
            raise wrong(path, f"{name} has shape {values.shape}; allowed are (moments, sensors) and (.., channels)")
        values = finite(path, name, values if values.ndim == 2 else values[:, :, 0])
    else:
        frame = read_columns(path)[0].drop(columns=_TIME, errors="ignore")
        if not len(frame.columns):
            raise wrong(path, "it has no column of a sensor")
        names = tuple(frame)
        values = np.stack([finite(path, name, values_of(frame[name])) for name in names], axis=1)
    moments, sensors = values.shape
    length = section.window + section.horizon
    if moments < length:
        taken = f"data.window and data.horizon together take {length} of them"
        raise wrong(path, f"it holds {moments} moments, but {taken}")
    # Moment by moment and then sensor by sensor, so that the rows are in the order of time.
    spans = np.lib.stride_tricks.sliding_window_view(values, length, axis=0).reshape(-1, length)
    owner = np.tile(np.arange(sensors), moments - length + 1)
    x, y = np.ascontiguousarray(spans[:, : section.window]), np.ascontiguousarray(spans[:, section.window :])
    return Pool(x, y, "regression", outputs=section.horizon, client=owner, owners=names, in_time_order=True)
