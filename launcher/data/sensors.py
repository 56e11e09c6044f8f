"""Time series of many sensors, each a client that predicts its own next values from its past ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .arrays import finite, npz_array, open_npz, root_of, wrong
from .columns import read_columns
from .pool import Pool

if TYPE_CHECKING:
    from ..config.data import DataSection

ARRAYS = ("values", "data")
TIME = "time"


def load_sensors(section: DataSection) -> Pool:
    """A sample is (window,) past values of one sensor, oldest first, with the (horizon,) values that follow.

    The file: .csv or .parquet with a column a sensor and a row a moment (a column named time is left out), or .npz with
    an array values or data of shape (moments, sensors) or (moments, sensors, channels), of which the first channel is
    read. Values are taken as they are. Raises DataError.
    """
    path = root_of(section, "the .csv, .npz or .parquet file")
    values, names = _values(path)
    moments, sensors = values.shape
    length = section.window + section.horizon
    if moments < length:
        raise wrong(
            path, f"it holds {moments} moments, but data.window and data.horizon together take {length} of them"
        )
    # Moment by moment and then sensor by sensor, so that the rows are in the order of time.
    spans = np.lib.stride_tricks.sliding_window_view(values, length, axis=0).reshape(-1, length)
    owners = np.tile(np.arange(sensors), moments - length + 1)
    x, y = np.ascontiguousarray(spans[:, : section.window]), np.ascontiguousarray(spans[:, section.window :])
    return Pool(x, y, "regression", outputs=section.horizon, client=owners, owners=names, in_time_order=True)


def _values(path: Path) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """float32 (moments, sensors), and what the sensors are called."""
    if not path.name.endswith(".npz"):
        columns = {name: column for name, column in read_columns(path).by_name.items() if name != TIME}
        if not columns:
            raise wrong(path, "it has no column of a sensor")
        values = np.stack([finite(path, name, column.values) for name, column in columns.items()], axis=1)
        return values, tuple(columns)
    with open_npz(path) as file:
        name = next((name for name in ARRAYS if name in file.files), None)
        if name is None:
            raise wrong(path, f"it holds arrays {', '.join(file.files) or '(none)'}; needed is {' or '.join(ARRAYS)}")
        values = npz_array(file, path, name)
    if values.ndim not in (2, 3) or values.size == 0:
        raise wrong(path, f"{name} has shape {values.shape}; allowed are (moments, sensors) and (.., channels)")
    return finite(path, name, values if values.ndim == 2 else values[:, :, 0]), None
