"""Files of named columns: CSV, NumPy .npz, Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .arrays import first_line, npz_array, open_npz, wrong

if TYPE_CHECKING:
    import pandas

FORMATS = (".csv", ".csv.gz", ".npz", ".parquet")


def read_columns(path: Path) -> dict[str, np.ndarray]:
    """Columns of numbers or of text, all (n,), in the order of the file. Raises DataError."""
    if path.name.endswith(".npz"):
        columns = _npz(path)
    elif path.name.endswith(FORMATS):
        frame = _frame(path)
        columns = {str(name): _plain(path, str(name), frame[name]) for name in frame.columns}
    else:
        raise wrong(path, f"allowed are files that end in {', '.join(FORMATS)}")
    if not columns or not len(next(iter(columns.values()))):
        raise wrong(path, "it holds no rows")
    return columns


def _npz(path: Path) -> dict[str, np.ndarray]:
    with open_npz(path) as file:
        columns = {name: npz_array(file, path, name) for name in file.files}
    rows = {name: len(column) for name, column in columns.items()}
    for name, column in columns.items():
        if column.ndim != 1:
            raise wrong(path, f"{name} has shape {column.shape}; a column is (n,)")
    if len(set(rows.values())) > 1:
        raise wrong(path, f"its columns differ in length: {', '.join(f'{name} {n}' for name, n in rows.items())}")
    return columns


def _frame(path: Path) -> pandas.DataFrame:
    import pandas

    if not path.is_file():
        raise wrong(path, "there is no such file")
    try:
        frame = pandas.read_parquet(path) if path.suffix == ".parquet" else pandas.read_csv(path)
    except ImportError as error:
        raise wrong(path, "Parquet needs pyarrow: pip install 'sheafgossip[parquet]', or use .csv or .npz") from error
    except Exception as error:  # whatever the parsers of pandas and pyarrow raise, the bytes are at fault
        raise wrong(path, f"it can't be read: {first_line(error)}") from error
    if not frame.columns.is_unique:
        raise wrong(path, f'it has two columns "{frame.columns[frame.columns.duplicated()][0]}"')
    return frame


def _plain(path: Path, name: str, column: pandas.Series) -> np.ndarray:
    """Numbers as they are, with NaN for what is missing; anything else as text, where nothing may be missing."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    missing = np.flatnonzero(column.isna())
    if is_bool_dtype(column.dtype) and not len(missing):
        return column.to_numpy(dtype=bool)
    if is_numeric_dtype(column.dtype):
        return column.to_numpy(dtype=float, na_value=np.nan) if len(missing) else np.asarray(column)
    if len(missing):
        raise wrong(path, f"{name} is empty in row {missing[0]}")
    return column.astype(str).to_numpy().astype(str)
