"""Files of named columns: CSV, NumPy .npz, Parquet."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...topology.errors import install
from .arrays import first_line, npz_array, open_npz, wrong

if TYPE_CHECKING:
    import pandas

FORMATS = (".csv", ".csv.gz", ".npz", ".parquet")
_SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
_LONGEST_LINE = 1 << 20
_DECIMAL_COMMA = r"\s*[-+]?\d+,\d+\s*"


@dataclass(frozen=True)
class Column:
    """``values`` (n,): numbers, true and false, or text; where one is ``missing`` it is NaN, or "" among text."""

    values: np.ndarray
    missing: np.ndarray

    @property
    def is_text(self) -> bool:
        return self.values.dtype.kind not in "biuf"


@dataclass(frozen=True)
class Columns:
    """Those of a file, in its order; ``told`` is what was found out about its form."""

    by_name: dict[str, Column]
    told: tuple[str, ...] = ()


def read_columns(path: Path) -> Columns:
    """Raises DataError."""
    told: tuple[str, ...] = ()
    if path.name.endswith(".npz"):
        columns = _npz(path)
    elif path.name.endswith(FORMATS):
        frame, told = _frame(path)
        columns = {str(name): _plain(frame[name]) for name in frame.columns}
    else:
        raise wrong(path, f"allowed are files that end in {', '.join(FORMATS)}")
    if not columns or not len(next(iter(columns.values())).values):
        raise wrong(path, "it holds no rows")
    return Columns(columns, told)


def _npz(path: Path) -> dict[str, Column]:
    with open_npz(path) as file:
        columns = {name: npz_array(file, path, name) for name in file.files}
    rows = {name: len(column) for name, column in columns.items()}
    for name, column in columns.items():
        if column.ndim != 1:
            raise wrong(path, f"{name} has shape {column.shape}; a column is (n,)")
    if len(set(rows.values())) > 1:
        raise wrong(path, f"its columns differ in length: {', '.join(f'{name} {n}' for name, n in rows.items())}")
    return {name: _array(column) for name, column in columns.items()}


def _array(values: np.ndarray) -> Column:
    if values.dtype.kind == "f":
        return Column(values, np.isnan(values))
    if values.dtype.kind not in "biuUS":
        values = values.astype(str)  # dates, for example
    return Column(values, np.zeros(len(values), bool))


def _frame(path: Path) -> tuple[pandas.DataFrame, tuple[str, ...]]:
    import pandas

    if not path.is_file():
        raise wrong(path, "there is no such file")
    told: tuple[str, ...] = ()
    try:
        if path.suffix == ".parquet":
            frame = pandas.read_parquet(path)
        else:
            frame, told = _csv(path)
    except ImportError as error:
        raise wrong(path, f"Parquet needs pyarrow: {install('parquet')}, or use .csv or .npz") from error
    except Exception as error:  # whatever the parsers of pandas and pyarrow raise, the bytes are at fault
        raise wrong(path, f"it can't be read: {first_line(error)}") from error
    if not frame.columns.is_unique:
        raise wrong(path, f'it has two columns "{frame.columns[frame.columns.duplicated()][0]}"')
    return frame, told


def _csv(path: Path) -> tuple[pandas.DataFrame, tuple[str, ...]]:
    import pandas

    separator = _separator(path)
    if separator == ",":
        return pandas.read_csv(path), ()
    told = [f"{_SEPARATORS[separator]} stands between its columns"]
    frame = pandas.read_csv(path, sep=separator)
    if separator == ";" and any(_has_decimal_comma(frame[name]) for name in frame.columns):
        frame = pandas.read_csv(path, sep=separator, decimal=",")
        told.append("a comma in its numbers")
    return frame, (", ".join(told),)


def _separator(path: Path) -> str:
    """What stands most often in the first line, outside of quotes."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        outside = file.readline(_LONGEST_LINE).decode(errors="replace").split('"')[::2]
    return max(_SEPARATORS, key="".join(outside).count)  # a comma where none of them does


def _has_decimal_comma(column: pandas.Series) -> bool:
    """Whether these are numbers such as 0,5, or whole numbers among them."""
    from pandas.api.types import is_numeric_dtype

    if is_numeric_dtype(column.dtype):
        return False
    words = column.dropna().astype(str)
    return bool(words.str.fullmatch(_DECIMAL_COMMA).any() and words.str.fullmatch(r"[-+\d,\s]+").all())


def _plain(column: pandas.Series) -> Column:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    missing = column.isna().to_numpy()
    values: Any = None
    if is_bool_dtype(column.dtype) and not missing.any():
        values = column.to_numpy(dtype=bool)
    elif is_numeric_dtype(column.dtype):
        values = column.to_numpy(dtype=float, na_value=np.nan) if missing.any() else np.asarray(column)
    else:
        values = column.astype(str).mask(missing, "").to_numpy().astype(str)
    return Column(values, missing)
