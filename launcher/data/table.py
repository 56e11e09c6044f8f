"""The user's own table, in CSV, .npz or Parquet: one row a sample, with columns for features, target, client."""

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...topology.errors import install
from ..config.data import DataSection
from .pool import Pool, finite, first_line, npz_array, open_npz, owned_by, require_file, root_of, some, targets, wrong

if TYPE_CHECKING:
    from pandas import DataFrame, Series  # takes longer to import than a small table to read

CLIENT = "client"
"""The column, or array, that names owners where data.client does not say."""

_FORMATS = (".csv", ".csv.gz", ".npz", ".parquet")
_SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
_LONGEST_LINE = 1 << 20
_DECIMAL_COMMA = r"\s*[-+]?\d+,\d+\s*"
_MOST_TEXTS = 64
_NAMELESS = "Unnamed: "  # as pandas calls what has no name, with its number


def load_table(section: DataSection) -> Pool:
    """Columns data.target and, unless it is "", data.client; the others, or data.features, are features.

    A column of text gives one feature for each text, 0 or 1. Raises DataError.
    """
    path = root_of(section, "the .csv, .npz or .parquet file")
    frame, told = read_columns(path)
    client = (CLIENT if CLIENT in frame else "") if section.client is None else section.client
    taken = {"data.target": section.target} | ({"data.client": client} if client else {})
    for key, name in taken.items():
        _require_column(path, frame, key, name)
    if section.target == client:
        raise wrong(path, f'data.target and data.client are both "{client}"; they must be two columns')
    features = _chosen(section, path, frame, list(taken.values()))
    used = frame[[*taken.values(), *features]]
    if complaints := [*_nameless(features), *_texts(section, used[features]), *_missing(section, used)]:
        raise wrong(path, "; ".join(complaints))
    whole = used.dropna()
    if whole.empty:
        raise wrong(path, "no row has a value in every column; name some of them in data.drop")
    x: dict[str, np.ndarray] = {}
    for name in features:
        values = values_of(whole[name])
        if values.dtype.kind == "U":
            x |= {f"{name}={text}": (values == text).astype(np.float32) for text in np.unique(values)}
        else:
            x[name] = finite(path, name, values)
    y, outputs = targets(path, section.target, values_of(whole[section.target]), section.task)
    owned = owned_by(path, client, values_of(whole[client])) if client else {}
    if left_out := len(frame) - len(whole):
        told.append(f"{left_out:,} of {len(frame):,} rows left out, in which a value is missing")
    told.append(f"features: {some(list(x))}")
    return Pool(np.stack(list(x.values()), axis=1), y, section.task, outputs, told=tuple(told), **owned)


def read_columns(path: Path) -> tuple["DataFrame", list[str]]:
    """A file's columns, and what was found out about its form. Raises DataError."""
    if not path.name.endswith(_FORMATS):
        raise wrong(path, f"allowed are files that end in {', '.join(_FORMATS)}")
    require_file(path)
    arrays = _npz(path) if path.suffix == ".npz" else None
    import pandas

    told: list[str] = []
    try:
        if arrays is not None:
            frame = pandas.DataFrame(arrays)
        elif path.suffix == ".parquet":
            frame = pandas.read_parquet(path).rename(columns=str)
        else:
            frame, told = _csv(path)
    except ImportError as error:
        raise wrong(path, f"Parquet needs pyarrow: {install('parquet')}, or use .csv or .npz") from error
    except Exception as error:  # whatever the parsers of pandas and pyarrow raise, the bytes are at fault
        raise wrong(path, f"it can't be read: {first_line(error)}") from error
    if not frame.columns.is_unique:
        raise wrong(path, f'it has two columns "{frame.columns[frame.columns.duplicated()][0]}"')
    if frame.empty:
        raise wrong(path, "it holds no rows")
    return frame, told


def _npz(path: Path) -> dict[str, np.ndarray]:
    with open_npz(path) as file:
        columns = {name: npz_array(file, path, name) for name in file.files}
    for name, column in columns.items():
        if column.ndim != 1:
            raise wrong(path, f"{name} has shape {column.shape}; a column is (n,)")
    if len(set(map(len, columns.values()))) > 1:
        lengths = ", ".join(f"{name} {len(column)}" for name, column in columns.items())
        raise wrong(path, f"its columns differ in length: {lengths}")
    return columns


def _csv(path: Path) -> tuple["DataFrame", list[str]]:
    """The separator is what stands most often in the first line, outside of quotes."""
    import pandas

    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        outside = file.readline(_LONGEST_LINE).decode(errors="replace").split('"')[::2]
    separator = max(_SEPARATORS, key="".join(outside).count)  # a comma where none of them does
    frame, told = pandas.read_csv(path, sep=separator), f"{_SEPARATORS[separator]} stands between its columns"
    if separator == ";" and any(_has_decimal_comma(frame[name]) for name in frame):
        return pandas.read_csv(path, sep=separator, decimal=","), [f"{told}, a comma in its numbers"]
    return frame, [] if separator == "," else [told]


def _has_decimal_comma(column: "Series") -> bool:
    """Whether these are numbers such as 0,5, or whole numbers among them."""
    if not is_text(column):
        return False
    words = column.dropna().astype(str).str
    return bool(words.fullmatch(_DECIMAL_COMMA).any() and words.fullmatch(r"[-+\d,\s]+").all())


def is_text(column: "Series") -> bool:
    """Whether it holds anything but numbers, true and false."""
    from pandas.api.types import is_numeric_dtype

    return not is_numeric_dtype(column.dtype)


def values_of(column: "Series") -> np.ndarray:
    """Numbers, true and false, or text."""
    return column.astype(str).to_numpy().astype(str) if is_text(column) else column.to_numpy()


def _require_column(path: Path, frame: "DataFrame", key: str, name: str) -> None:
    if name not in frame:
        raise wrong(path, f'there is no column "{name}" ({key}); its columns are {", ".join(frame)}')


def _chosen(section: DataSection, path: Path, frame: "DataFrame", taken: Sequence[str]) -> list[str]:
    """The names of the features' columns. Raises DataError."""
    if section.features and section.drop:
        raise wrong(path, "data.features and data.drop are both set; write one of them")
    key, named = ("data.features", section.features) if section.features else ("data.drop", section.drop)
    for name in named:
        _require_column(path, frame, key, name)
        if name in taken:
            raise wrong(path, f'{key} names "{name}", which is data.target or data.client')
    chosen = [name for name in frame if name not in taken and (name in named) == bool(section.features)]
    if not chosen:
        raise wrong(path, "it has no column of features")
    return chosen


def _nameless(features: Iterable[str]) -> Iterator[str]:
    """Most often row numbers: nothing to learn from."""
    numbers = {name: name.removeprefix(_NAMELESS) for name in features if name.startswith(_NAMELESS)}
    if numbers:
        places = [str(int(number) + 1) for number in numbers.values() if number.isdecimal()]
        yield f"no name above column {some(places)}: write {_without(numbers)}"


def _texts(section: DataSection, features: "DataFrame") -> Iterator[str]:
    texts = {name: features[name].dropna().astype(str) for name in features if is_text(features[name])}
    many = [name for name, values in texts.items() if values.nunique() > _MOST_TEXTS]
    refused = many if section.text == "one-hot" else list(texts)
    if not refused:
        return
    shown = some([f'{name} (such as "{next(filter(None, texts[name]), "")[:40]}")' for name in refused])
    if section.text == "one-hot":
        yield f"more than {_MOST_TEXTS} different texts in {shown}: write {_without(many)}"
    else:
        encoded = ', or data.text = "one-hot"' + (f" with {_without(many)}" if many else "")
        yield f"text, not numbers, in {shown}: write {_without(texts)}{'' if many == refused else encoded}"


def _missing(section: DataSection, used: "DataFrame") -> Iterator[str]:
    lacks = used.isna()
    incomplete = lacks.any(axis=1).to_numpy()
    if section.missing == "drop" or not incomplete.any():
        return
    row = int(incomplete.argmax())
    counts = {name: int(count) for name, count in lacks.sum().items() if count}
    first = next(name for name in counts if lacks[name].iloc[row])
    shown = some([f"{name} ({count})" for name, count in counts.items()])
    yield (
        f"{first} is empty in row {row}, and {incomplete.sum():,} of {len(used):,} rows lack a value, in {shown}: "
        'write data.missing = "drop" to leave these rows out, or name columns in data.drop'
    )


def _without(names: Iterable[str]) -> str:
    return f"data.drop = {json.dumps(list(names), ensure_ascii=False)}"
