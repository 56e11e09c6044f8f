"""Series of sensors, in tables, arrays or HDF5."""

import numpy as np

from ..config.data import DataSection
from .climdiv import NAME, find, read_climdiv
from .files import Source, read_columns, values_of
from .hdf5 import SUFFIXES, read_frame
from .pool import DataError, Pool, some


def load_sensors(section: DataSection) -> Pool:
    """Series of many sensors, each a client. A sample is (window,) past values of one sensor, oldest first, with the
    (horizon,) values that follow. .csv or .parquet: a column a sensor, a row a moment (column time is left out); .h5:
    such a frame as pandas writes it; .npz: an array values or data of shape (moments, sensors) or (moments, sensors,
    channels), of which the first is read."""
    source, names = find(Source.of(section, "the .csv, .npz, .parquet, .h5 or climdiv-tmpcst file")), None
    told: list[str] = []
    if section.years and not source.path.name.startswith(NAME):
        raise DataError.of("data.years", list(section.years), f"{source.path.name} is no file {NAME}-..", "none")
    if source.path.name.startswith(NAME):
        values, names = read_climdiv(source, section.years)
    elif source.path.suffix == ".npz":
        with source.npz() as file:
            name = next((name for name in ("values", "data") if name in file.files), None)
            if name is None:
                raise source.wrong(f"it holds arrays {', '.join(file.files) or '(none)'}; needed is values or data")
            values = source.array(file, name)
        if values.ndim not in (2, 3) or values.size == 0:
            raise source.wrong(f"{name} has shape {values.shape}; allowed are (moments, sensors) and (.., channels)")
        values = source.finite(name, values if values.ndim == 2 else values[:, :, 0])
    elif source.path.suffix in SUFFIXES:
        values, names = read_frame(source)
        told.append(f"sensors: {some(names)}")
    else:
        frame, told = read_columns(source)
        frame = frame.drop(columns="time", errors="ignore")
        if not len(frame.columns):
            raise source.wrong("it has no column of a sensor")
        names = tuple(frame)
        told.append(f"sensors: {some(names)}")
        values = np.stack([source.finite(name, values_of(frame[name])) for name in names], axis=1)
    moments, sensors = values.shape
    length = section.window + section.horizon
    if moments < length:
        taken = f"data.window and data.horizon together take {length} of them"
        raise source.wrong(f"it holds {moments} moments, but {taken}")
    source.require_room("what its windows show", 2 * values.itemsize * (moments - length + 1) * sensors * length)
    # Moment by moment and then sensor by sensor, so that the rows are in the order of time.
    spans = np.lib.stride_tricks.sliding_window_view(values, length, axis=0).reshape(-1, length)
    owner = np.tile(np.arange(sensors), moments - length + 1)
    x, y = np.ascontiguousarray(spans[:, : section.window]), np.ascontiguousarray(spans[:, section.window :])
    return Pool(
        x, y, "regression", outputs=section.horizon, client=owner, owners=names, in_time_order=True, told=tuple(told)
    )
