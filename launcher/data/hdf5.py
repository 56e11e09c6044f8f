"""Frames that pandas has written to HDF5, read by h5py alone: pandas would need PyTables, which unpickles."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ...topology.errors import install
from .files import Source, first_line
from .pool import DataError, some

if TYPE_CHECKING:
    import h5py

SUFFIXES = (".h5", ".hdf5")


def read_frame(source: Source) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns the values, float32 (rows, columns), and the names of the columns of the one frame in a file of
    DataFrame.to_hdf (format "fixed"), which has, in a group of its key,

        axis0 (columns,)    axis1 (rows,)    block0_items (columns,)    block0_values (rows, columns)

    metr-la.h5 has the key df, and pems-bay.h5 speed (github.com/liyaguang/DCRNN). Raises DataError."""
    source.require_file()
    try:
        import h5py
    except ImportError as error:
        raise source.wrong(f"it takes h5py to read HDF5: {install('hdf5')}") from error
    try:
        with h5py.File(source.path, "r") as file:
            frames = [name for name in file if _own(file, name) and isinstance(file[name], h5py.Group)]
            if len(frames) != 1:
                raise source.wrong(f"it must hold one frame of pandas; it holds {some(list(file)) or 'nothing'}")
            return _frame(source, file[frames[0]])
    except DataError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, MemoryError) as error:
        raise source.wrong(f"it can't be read as HDF5: {first_line(error)}") from error


def _frame(source: Source, group: "h5py.Group") -> tuple[np.ndarray, tuple[str, ...]]:
    where = (group.name or "").lstrip("/")
    if lacking := [name for name in ("block0_items", "block0_values") if not _own(group, name)]:
        held = some(list(group)) or "nothing"
        raise source.wrong(f'"{where}" lacks {lacking[0]} of a frame in the format "fixed" of pandas; it holds {held}')
    if "block1_values" in group:
        raise source.wrong(f'the columns of "{where}" have several types; all must be numbers of one')
    names, values = (_array(source, group[f"block0_{part}"], of) for part, of in (("items", "Siu"), ("values", "fiu")))
    if values.ndim != 2 or not values.size or names.shape != values.shape[1:]:
        raise source.wrong(f'"{where}" has values of shape {values.shape} for columns {names.shape}')
    texts = [name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in names.tolist()]
    return source.finite(f'"{where}"', values), tuple(texts)


def _own(group: "h5py.Group", name: str) -> bool:
    """Tells whether it is in this very file: a link may name any other."""
    import h5py

    return name in group and isinstance(group.get(name, getlink=True), h5py.HardLink)


def _array(source: Source, found: Any, kinds: str) -> np.ndarray:
    import h5py

    if not isinstance(found, h5py.Dataset) or found.dtype.kind not in kinds:
        raise source.wrong(f"{found.name} is no array of {'numbers' if kinds == 'fiu' else 'names'}")
    if found.is_virtual or found.external:
        raise source.wrong(f"{found.name} is kept in other files")
    for shape in filter(None, (found.shape, found.chunks)):  # either is only announced
        source.require_room(found.name, math.prod(shape) * found.dtype.itemsize)
    return np.asarray(found[()])
