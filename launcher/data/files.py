"""The user's own files, with what is checked of every file. Each reader raises DataError where a file is not as it must
be."""

import gzip
import json
import math
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import psutil
from numpy.lib.npyio import NpzFile

from ...topology.errors import install
from ..config.data import DataSection, Task
from .pool import DataError, Pool, some

if TYPE_CHECKING:
    from pandas import DataFrame, Series  # takes longer to import than a small table to read

_DAMAGED = (ValueError, OSError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error)
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
CLIENT = "client"  # the column, or array, that names owners where data.client does not say
_TABLES = (".csv", ".csv.gz", ".npz", ".parquet")
_SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
_MOST_TEXTS = 64
_OF_TEXT = 4  # bytes of a table from a byte of text, where that is short numbers
_LEAVE_OUT = 'write data.missing = "drop" to leave these rows out, or name columns in data.drop'
_NAMELESS = "Unnamed: "  # as pandas calls what has no name, with its number
_SPLIT = ("x_train", "y_train", "x_test", "y_test")
_COLOURS = (1, 3)


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@dataclass(frozen=True)
class Source:
    """A file, or a folder of them, that samples are read from. Each check raises a DataError that names it."""

    path: Path

    @classmethod
    def of(cls, section: DataSection, wanted: str) -> Self:
        if section.root is None:
            raise DataError(f'data.root is missing: data.dataset = "{section.dataset}" needs it to name {wanted}')
        return cls(section.root)

    def wrong(self, what: str) -> DataError:
        return DataError(f'data.root = "{self.path}": {what}')

    def require_file(self) -> None:
        if not self.path.is_file():
            raise self.wrong("there is no such file")

    def require_room(self, name: str, size: int) -> None:
        if size > psutil.virtual_memory().available:
            raise self.wrong(f"{name} takes {size / 1e9:,.1f} GB, more than the memory that is free")

    def require_parquet_room(self, path: Path) -> None:
        """Its last bytes tell what will be unpacked. Raises ImportError and what pyarrow raises, too."""
        import pyarrow.parquet

        about = pyarrow.parquet.read_metadata(path)
        groups = [about.row_group(number) for number in range(about.num_row_groups)]
        columns = [group.column(number) for group in groups for number in range(group.num_columns)]
        taken = sum(max(column.total_uncompressed_size, 0) + 8 * max(column.num_values, 0) for column in columns)
        self.require_room("what it holds", taken)

    def npz(self) -> NpzFile:
        self.require_file()
        try:
            file = np.load(self.path, allow_pickle=False)
        except _DAMAGED as error:
            raise self.wrong("this is not an .npz file") from error
        if isinstance(file, NpzFile):
            return file
        raise self.wrong("this is a file of one array, not an .npz file")

    def array(self, file: NpzFile, name: str) -> np.ndarray:
        """NumPy takes the memory that a header announces, and then looks what is there; here it is the reverse."""
        assert file.zip is not None  # it is open
        try:
            part = next((part for part in (f"{name}.npy", name) if part in file.zip.namelist()), name)
            with file.zip.open(part) as member:
                shape, _, dtype = _HEADERS[np.lib.format.read_magic(member)](member)
            size = math.prod(shape) * dtype.itemsize
            if min(shape, default=0) < 0 or size > file.zip.getinfo(part).file_size:
                raise ValueError("its header announces more than the file holds")
            self.require_room(name, size)
            array = file[name]
        except (*_DAMAGED, RuntimeError, MemoryError) as error:
            # NumPy's own words here advise to allow pickles, which can run any code.
            raise self.wrong(f"{name} is damaged or holds Python objects; allowed are plain arrays") from error
        if np.ndim(array) == 0:
            raise self.wrong(f"{name} is a single value; its first axis must run over the samples")
        return array

    def finite(self, name: str, values: np.ndarray) -> np.ndarray:
        if values.dtype.kind not in "biuf":
            raise self.wrong(f"{name} has type {values.dtype}; allowed are whole and real numbers")
        with np.errstate(over="ignore"):  # too large for float32 becomes inf, which is refused just below
            numbers = values.astype(np.float32)
        if len(bad := np.argwhere(~np.isfinite(numbers))):
            raise self.wrong(f"{name} holds NaN, an infinity or a number beyond float32 in row {bad[0, 0]}")
        return numbers

    def codes(self, name: str, labels: np.ndarray, or_else: str = "") -> tuple[np.ndarray, np.ndarray]:
        """Returns the distinct labels, sorted, and each label's place among them, int64 (n,); ``or_else``: what else
        helps with fractions."""
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.ndim != 1 or labels.dtype.kind not in "biufUS":
            found = f"{name} has shape {labels.shape} and type {labels.dtype}"
            raise self.wrong(f"{found}; allowed is (n,) of whole numbers or text")
        if labels.dtype.kind == "f" and len(rows := np.flatnonzero(labels != np.floor(labels))):  # NaN differs, too
            raise self.wrong(f"{name} holds {labels[rows[0]]} in row {rows[0]}; allowed are whole numbers{or_else}")
        distinct, numbers = np.unique(labels, return_inverse=True)
        return distinct, numbers.astype(np.int64)

    def targets(self, name: str, y: np.ndarray, task: Task) -> tuple[np.ndarray, int]:
        if task == "classification":
            classes, numbers = self.codes(name, y, ', or data.task = "regression"')
            if len(classes) < 2:
                raise self.wrong(f'{name} holds one class only; data.task = "classification" needs at least two')
            return numbers, len(classes)
        if y.ndim > 2 or y.size == 0:
            raise self.wrong(f"{name} has shape {y.shape}; regression allows (n,) and (n, targets)")
        if y.dtype.kind in "US":
            raise self.wrong(f'{name} is text (such as "{y[0]}"); write data.task = "classification"')
        values = self.finite(name, y).reshape(len(y), -1)
        return values, values.shape[1]

    def owners(self, name: str, labels: np.ndarray) -> dict[str, Any]:
        distinct, numbers = self.codes(name, labels)
        return {"client": numbers, "owners": tuple(map(str, distinct))}


def load_table(section: DataSection) -> Pool:
    """CSV, .npz or Parquet, a row a sample: columns data.target and, unless it is "", data.client; the others, or
    data.features, are features. A column of text gives one feature for each text, 0 or 1."""
    source = Source.of(section, "the .csv, .npz or .parquet file")
    frame, told = read_columns(source)
    client = (CLIENT if CLIENT in frame else "") if section.client is None else section.client
    features = _features(section, source, frame, client)
    used = frame[[section.target, *filter(None, [client]), *features]]
    if complaints := "; ".join(_complaints(section, used, features)):
        raise source.wrong(complaints)
    whole = used.dropna()
    if whole.empty:
        raise source.wrong("no row has a value in every column; name some of them in data.drop")
    x: dict[str, np.ndarray] = {}
    for name in features:
        values = values_of(whole[name])
        if values.dtype.kind == "U":
            x |= {f"{name}={text}": (values == text).astype(np.float32) for text in np.unique(values)}
        else:
            x[name] = source.finite(name, values)
    y, outputs = source.targets(section.target, values_of(whole[section.target]), section.task)
    owned = source.owners(client, values_of(whole[client])) if client else {}
    if left_out := len(frame) - len(whole):
        told.append(f"{left_out:,} of {len(frame):,} rows left out, in which a value is missing")
    told.append(f"features: {some(list(x))}")
    return Pool(np.stack(list(x.values()), axis=1), y, section.task, outputs, told=tuple(told), **owned)


def read_columns(source: Source) -> tuple["DataFrame", list[str]]:
    if not source.path.name.endswith(_TABLES):
        raise source.wrong(f"allowed are files that end in {', '.join(_TABLES)}")
    source.require_file()
    columns: dict[str, np.ndarray] = {}
    if source.path.suffix == ".npz":
        with source.npz() as file:
            columns = {name: source.array(file, name) for name in file.files}
    for name, column in columns.items():
        if column.ndim != 1:
            raise source.wrong(f"{name} has shape {column.shape}; a column is (n,)")
    if len(set(map(len, columns.values()))) > 1:
        lengths = ", ".join(f"{name} {len(column)}" for name, column in columns.items())
        raise source.wrong(f"its columns differ in length: {lengths}")
    import pandas

    told: list[str] = []
    try:
        if source.path.suffix == ".npz":
            frame = pandas.DataFrame(columns)
        elif source.path.suffix == ".parquet":
            source.require_parquet_room(source.path)
            frame = pandas.read_parquet(source.path).rename(columns=str)
        else:
            frame, told = _csv(source)
    except DataError:
        raise
    except ImportError as error:
        raise source.wrong(f"Parquet needs pyarrow: {install('parquet')}, or use .csv or .npz") from error
    except Exception as error:  # whatever the parsers of pandas and pyarrow raise, the bytes are at fault
        raise source.wrong(f"it can't be read: {first_line(error)}") from error
    if not frame.columns.is_unique:
        raise source.wrong(f'it has two columns "{frame.columns[frame.columns.duplicated()][0]}"')
    if frame.empty:
        raise source.wrong("it holds no rows")
    return frame, told


def _csv(source: Source) -> tuple["DataFrame", list[str]]:
    """The separator is what stands most often in the first line, outside of quotes."""
    import pandas

    def has_decimal_comma(column: "Series") -> bool:
        """Tells whether these are numbers such as 0,5, or whole numbers among them."""
        words = column.dropna().astype(str).str
        return words.fullmatch(r"\s*[-+]?\d+,\d+\s*").any() and words.fullmatch(r"[-+\d,\s]+").all()

    size = 0
    with gzip.open(source.path, "rb") if source.path.suffix == ".gz" else source.path.open("rb") as file:
        outside = file.readline(1 << 20).decode(errors="replace").split('"')[::2]
        while piece := file.read(1 << 20):
            size += len(piece)
            source.require_room("what it holds", _OF_TEXT * size)
    separator = max(_SEPARATORS, key="".join(outside).count)  # a comma where none of them does
    frame, told = pandas.read_csv(source.path, sep=separator), f"{_SEPARATORS[separator]} stands between its columns"
    if all(map(_is_number, frame)) and not all(name.isdecimal() for name in frame):
        raise source.wrong(
            f"its first line holds numbers ({some(list(frame), 3)}); it must hold the names of the columns"
        )
    if separator == ";" and any(_is_text(frame[name]) and has_decimal_comma(frame[name]) for name in frame):
        return pandas.read_csv(source.path, sep=separator, decimal=","), [f"{told}, a comma in its numbers"]
    return frame, [] if separator == "," else [told]


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _is_text(column: "Series") -> bool:
    return column.dtype.kind not in "biufc"


def values_of(column: "Series") -> np.ndarray:
    return column.astype(str).to_numpy().astype(str) if _is_text(column) else column.to_numpy()


def _features(section: DataSection, source: Source, frame: "DataFrame", client: str) -> list[str]:
    if section.features and section.drop:
        raise source.wrong("data.features and data.drop are both set; write one of them")
    key, named = ("data.features", section.features) if section.features else ("data.drop", section.drop)
    taken = [section.target, *filter(None, [client])]
    keys = [*zip(("data.target", "data.client"), taken, strict=False), *((key, name) for name in named)]
    for wanting, name in keys:
        if name not in frame:
            raise source.wrong(f'there is no column "{name}" ({wanting}); its columns are {", ".join(frame)}')
    if section.target == client:
        raise source.wrong(f'data.target and data.client are both "{client}"; they must be two columns')
    if both := [name for name in named if name in taken]:
        raise source.wrong(f'{key} names "{both[0]}", which is data.target or data.client')
    chosen = [name for name in frame if name not in taken and (name in named) == bool(section.features)]
    if not chosen:
        raise source.wrong("it has no column of features")
    return chosen


def _complaints(section: DataSection, used: "DataFrame", features: Iterable[str]) -> Iterator[str]:
    """Tells why these columns cannot be learnt from, with what to write: no name, text, rows with gaps."""
    nameless = [name for name in features if name.startswith(_NAMELESS)]
    if nameless:  # most often row numbers
        numbers = [name.removeprefix(_NAMELESS) for name in nameless]
        places = [str(int(number) + 1) for number in numbers if number.isdecimal()]
        yield f"no name above column {some(places)}: write {_without(nameless)}"
    texts = {name: used[name].dropna().astype(str) for name in features if _is_text(used[name])}
    many = [name for name, values in texts.items() if values.nunique() > _MOST_TEXTS]
    refused = many if section.text == "one-hot" else list(texts)
    shown = some([f'{name} (such as "{next(filter(None, texts[name]), "")[:40]}")' for name in refused])
    if refused and section.text == "one-hot":
        yield f"more than {_MOST_TEXTS} different texts in {shown}: write {_without(many)}"
    elif refused:
        encoded = ', or data.text = "one-hot"' + (f" with {_without(many)}" if many else "")
        yield f"text, not numbers, in {shown}: write {_without(texts)}{'' if many == refused else encoded}"
    lacks = used.isna()
    incomplete = lacks.any(axis=1).to_numpy()
    if section.missing == "refuse" and incomplete.any():
        row = int(incomplete.argmax())
        first, rows = lacks.columns[lacks.iloc[row]][0], f"{incomplete.sum():,} of {len(used):,} rows"
        shown = some([f"{name} ({count})" for name, count in lacks.sum().items() if count])
        yield f"{first} is empty in row {row}, and {rows} lack a value, in {shown}: {_LEAVE_OUT}"


def _without(names: Iterable[str]) -> str:
    return f"data.drop = {json.dumps(list(names), ensure_ascii=False)}"


def load_npz(section: DataSection) -> Pool:
    """x: (n, features), (n, height, width), (n, height, width, channels) or (n, channels, height, width) with 1 or 3
    channels; bytes that are images run from 0 to 255; with data.series (n, steps, features). y: (n,), for regression
    also (n, targets). data.client: (n,), anything that sorts. x_train, x_test and so on are taken as one."""
    source = Source.of(section, "the .npz file")
    with source.npz() as file:
        return pool_of(section, source, file.files, lambda name: source.array(file, name))


def pool_of(section: DataSection, source: Source, names: Iterable[str], array: Callable[[str], np.ndarray]) -> Pool:
    client, there, tests = section.client, set(names), None
    holds = f"it holds arrays {', '.join(names) or '(none)'}"
    parts = ["_train", "_test"] if there.issuperset(_SPLIT) and not there & {"x", "y"} else [""]
    if parts == [""] and not there >= {"x", "y"}:
        raise source.wrong(f"{holds}; needed are x, y (and {CLIENT}, if you like) or {', '.join(_SPLIT)}")
    if client is None:
        client = CLIENT if there.issuperset(f"{CLIENT}{part}" for part in parts) else ""
    named = [f"{client}{part}" for part in parts]
    if client in ("x", "y") or (client and not there.issuperset(named)):
        raise source.wrong(f'data.client = "{client}": needed is {" and ".join(named)}; {holds}')
    arrays = {}
    for name in filter(None, ("x", "y", client)):
        first, *others = [array(f"{name}{part}") for part in parts]
        if others and first.shape[1:] != others[0].shape[1:]:
            fits = f"which does not fit {name}_test, {others[0].shape}"
            raise source.wrong(f"{name}_train has shape {first.shape}, {fits}")
        arrays[name] = np.concatenate([first, *others]) if others else first
        if others:
            tests = np.arange(len(arrays[name])) >= len(first)
    x, scale = _inputs(source, arrays["x"], section.series)
    for name, values in arrays.items():
        if len(values) != len(x):
            raise source.wrong(f"x has {len(x)} samples and {name} has {len(values)}")
    owned = source.owners(client, arrays[client]) if client else {}
    y, outputs = source.targets("y", arrays["y"], section.task)
    return Pool(x, y, section.task, outputs, scale, tests=tests, **owned)


def _inputs(source: Source, x: np.ndarray, series: bool) -> tuple[np.ndarray, float]:
    if series:
        if x.ndim != 3 or x.size == 0:
            raise source.wrong(f"x has shape {x.shape}; data.series = true needs (n, steps, features)")
        return source.finite("x", x), 1.0
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in _COLOURS and x.shape[1] not in _COLOURS:
        x = np.moveaxis(x, 3, 1)
    if x.ndim not in (2, 4) or x.size == 0 or (x.ndim == 4 and x.shape[1] not in _COLOURS):
        images = "(n, height, width, channels) and (n, channels, height, width) with 1 or 3 channels"
        raise source.wrong(f"x has shape {x.shape}; allowed are (n, features), (n, height, width), {images}")
    if x.dtype == np.uint8:
        return x, 255.0 if x.ndim == 4 else 1.0
    return source.finite("x", x), 1.0
