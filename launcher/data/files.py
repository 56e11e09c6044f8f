"""Data sets in files. Each reader raises DataError where the file is not as it must be."""

import gzip
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from ...topology.errors import install
from ..config.data import DataSection
from .pool import DataError, Pool, Source, first_line, some

if TYPE_CHECKING:
    from pandas import DataFrame, Series  # takes longer to import than a small table to read

_CLIENT = "client"  # the column, or array, that names owners where data.client does not say
_TABLES = (".csv", ".csv.gz", ".npz", ".parquet")
_SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
_MOST_TEXTS = 64
_LEAVE_OUT = 'write data.missing = "drop" to leave these rows out, or name columns in data.drop'
_NAMELESS = "Unnamed: "  # as pandas calls what has no name, with its number
_SPLIT = ("x_train", "y_train", "x_test", "y_test")
_COLOURS = (1, 3)
_HAR_FILES = [f"{part}/{kind}_{part}.txt" for part in ("train", "test") for kind in ("X", "y", "subject")]


def load_table(section: DataSection) -> Pool:
    """CSV, .npz or Parquet, a row a sample: columns data.target and, unless it is "", data.client; the others, or
    data.features, are features. A column of text gives one feature for each text, 0 or 1."""
    source = Source.of(section, "the .csv, .npz or .parquet file")
    frame, told = _read_columns(source)
    client = (_CLIENT if _CLIENT in frame else "") if section.client is None else section.client
    features = _features(section, source, frame, client)
    used = frame[[section.target, *filter(None, [client]), *features]]
    if complaints := "; ".join(_complaints(section, used, features)):
        raise source.wrong(complaints)
    whole = used.dropna()
    if whole.empty:
        raise source.wrong("no row has a value in every column; name some of them in data.drop")
    x: dict[str, np.ndarray] = {}
    for name in features:
        values = _values(whole[name])
        if values.dtype.kind == "U":
            x |= {f"{name}={text}": (values == text).astype(np.float32) for text in np.unique(values)}
        else:
            x[name] = source.finite(name, values)
    y, outputs = source.targets(section.target, _values(whole[section.target]), section.task)
    owned = source.owners(client, _values(whole[client])) if client else {}
    if left_out := len(frame) - len(whole):
        told.append(f"{left_out:,} of {len(frame):,} rows left out, in which a value is missing")
    told.append(f"features: {some(list(x))}")
    return Pool(np.stack(list(x.values()), axis=1), y, section.task, outputs, told=tuple(told), **owned)


def _read_columns(source: Source) -> tuple["DataFrame", list[str]]:
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
            frame = pandas.read_parquet(source.path).rename(columns=str)
        else:
            frame, told = _csv(source)
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

    with gzip.open(source.path, "rb") if source.path.suffix == ".gz" else source.path.open("rb") as file:
        outside = file.readline(1 << 20).decode(errors="replace").split('"')[::2]
    separator = max(_SEPARATORS, key="".join(outside).count)  # a comma where none of them does
    frame, told = pandas.read_csv(source.path, sep=separator), f"{_SEPARATORS[separator]} stands between its columns"
    if separator == ";" and any(_is_text(frame[name]) and has_decimal_comma(frame[name]) for name in frame):
        return pandas.read_csv(source.path, sep=separator, decimal=","), [f"{told}, a comma in its numbers"]
    return frame, [] if separator == "," else [told]


def _is_text(column: "Series") -> bool:
    return column.dtype.kind not in "biufc"


def _values(column: "Series") -> np.ndarray:
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
    client = section.client
    with source.npz() as file:
        there, holds = set(file.files), f"it holds arrays {', '.join(file.files) or '(none)'}"
        parts = ["_train", "_test"] if there.issuperset(_SPLIT) and not there & {"x", "y"} else [""]
        if parts == [""] and not there >= {"x", "y"}:
            raise source.wrong(f"{holds}; needed are x, y (and {_CLIENT}, if you like) or {', '.join(_SPLIT)}")
        if client is None:
            client = _CLIENT if there.issuperset(f"{_CLIENT}{part}" for part in parts) else ""
        named = [f"{client}{part}" for part in parts]
        if client in ("x", "y") or (client and not there.issuperset(named)):
            raise source.wrong(f'data.client = "{client}": needed is {" and ".join(named)}; {holds}')
        arrays = {}
        for name in filter(None, ("x", "y", client)):
            first, *others = [source.array(file, f"{name}{part}") for part in parts]
            if others and first.shape[1:] != others[0].shape[1:]:
                fits = f"which does not fit {name}_test, {others[0].shape}"
                raise source.wrong(f"{name}_train has shape {first.shape}, {fits}")
            arrays[name] = np.concatenate([first, *others]) if others else first
    x, scale = _inputs(source, arrays["x"], section.series)
    for name, values in arrays.items():
        if len(values) != len(x):
            raise source.wrong(f"x has {len(x)} samples and {name} has {len(values)}")
    owned = source.owners(client, arrays[client]) if client else {}
    y, outputs = source.targets("y", arrays["y"], section.task)
    return Pool(x, y, section.task, outputs, scale, **owned)


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


def load_har(section: DataSection) -> Pool:
    """UCI HAR: six activities of 30 people, each a client, in 561 features; training and test samples together."""
    source = Source.of(section, "the folder of the unpacked archive")
    within = source.path / "UCI HAR Dataset"
    files = [(within if (within / _HAR_FILES[0]).is_file() else source.path) / name for name in _HAR_FILES]
    if missing := [name for name, file in zip(_HAR_FILES, files, strict=True) if not file.is_file()]:
        raise source.wrong(f"it lacks {', '.join(missing)}")
    arrays: list[np.ndarray] = []
    for number, file in enumerate(files):  # twice features (n, 561), activities and subjects (n, 1)
        try:
            arrays.append(np.loadtxt(file, dtype=np.int64 if number % 3 else np.float32, ndmin=2))
        except (OSError, ValueError) as error:
            raise DataError(f"{file} can't be read: {first_line(error)}") from error
        first = number - number % 3
        values = arrays[number] = arrays[number].reshape(-1) if number % 3 else Source(file).finite("X", arrays[number])
        if len(values) != len(arrays[first]):
            raise DataError(f"{files[first]} has {len(arrays[first])} lines, {file} has {len(values)}")
        if number % 3 == 1 and (unknown := sorted({*values.tolist()} - {*range(1, 7)})):
            raise DataError(f"{file} holds activity {unknown[0]}: activities are 1 to 6")
    train, test = arrays[0], arrays[3]
    if train.shape[1] != test.shape[1]:
        raise source.wrong(f"training samples have {train.shape[1]} features, test samples {test.shape[1]}")
    x, y, subject = (np.concatenate(arrays[kind::3]) for kind in range(3))
    return Pool(x, y - 1, "classification", outputs=6, **source.owners("subject", subject))


def load_matlab(section: DataSection) -> Pool:
    """Multi-task data, a task a client: school, vehicle, gleam (docs/data.md). The cell arrays X and Y have an entry a
    task: X{t} is (n_t, features), Y{t} holds n_t numbers; of two labels, -1 and 1 in the published files, the smaller
    one is class 0."""
    source = Source.of(section, f"{section.dataset}.mat, or the folder with it")
    if source.path.is_dir():
        source = Source(source.path / f"{section.dataset}.mat")
    inputs, outcomes = _cells(source)
    if len(inputs) != len(outcomes):
        raise source.wrong(f"X has {len(inputs)} cells and Y has {len(outcomes)}")
    features = inputs[0].shape[-1]
    for task, (x, y) in enumerate(zip(inputs, outcomes, strict=True), start=1):
        if x.ndim != 2 or x.shape[1] != features or x.size == 0:
            raise source.wrong(f"X{{{task}}} has shape {x.shape}; needed is (samples, {features}), as in X{{1}}")
        if y.size != len(x) or max(y.shape) != y.size:
            raise source.wrong(f"Y{{{task}}} has shape {y.shape}, but X{{{task}}} has {len(x)} samples")
    owner = np.repeat(np.arange(len(inputs)), [len(x) for x in inputs])
    x, y = source.finite("X", np.concatenate(inputs)), np.concatenate([y.reshape(-1) for y in outcomes])
    if section.dataset == "school":
        return Pool(x, source.finite("Y", y)[:, None], "regression", outputs=1, client=owner)
    labels, classes = source.codes("Y", y)
    if len(labels) != 2:
        raise source.wrong(f"Y holds {len(labels)} different labels; needed are two, like -1 and 1")
    return Pool(x, classes, "classification", outputs=2, client=owner)


def _cells(source: Source) -> list[list[np.ndarray]]:
    from scipy.io import loadmat

    source.require_file()
    try:
        found = loadmat(source.path, appendmat=False, variable_names=("X", "Y"))
    except NotImplementedError as error:
        raise source.wrong("this is a MATLAB file of version 7.3; save it with -v7") from error
    except Exception as error:  # whatever the parser raises, the bytes are at fault
        raise source.wrong("this is not a MATLAB file, or it is damaged") from error
    if missing := [name for name in "XY" if name not in found]:
        raise source.wrong(f"it lacks {' and '.join(missing)}; needed are cells X and Y")
    for name in "XY":
        cells = found[name]
        if cells.dtype != object or cells.size == 0 or max(cells.shape) != cells.size:
            is_now = f"{name} has shape {cells.shape} and type {cells.dtype}"
            raise source.wrong(f"{is_now}; needed is a row of cells, one a task")
        for task, entry in enumerate(cells.flat, start=1):
            if not isinstance(entry, np.ndarray) or entry.dtype.kind not in "biuf":
                raise source.wrong(f"{name}{{{task}}} is not an array of whole or real numbers")
    return [list(found[name].flat) for name in "XY"]


def load_sensors(section: DataSection) -> Pool:
    """Series of many sensors, each a client. A sample is (window,) past values of one sensor, oldest first, with the
    (horizon,) values that follow. .csv or .parquet: a column a sensor, a row a moment (column time is left out); .npz:
    an array values or data of shape (moments, sensors) or (moments, sensors, channels), of which the first is read."""
    source, names = Source.of(section, "the .csv, .npz or .parquet file"), None
    if source.path.suffix == ".npz":
        with source.npz() as file:
            name = next((name for name in ("values", "data") if name in file.files), None)
            if name is None:
                raise source.wrong(f"it holds arrays {', '.join(file.files) or '(none)'}; needed is values or data")
            values = source.array(file, name)
        if values.ndim not in (2, 3) or values.size == 0:
            raise source.wrong(f"{name} has shape {values.shape}; allowed are (moments, sensors) and (.., channels)")
        values = source.finite(name, values if values.ndim == 2 else values[:, :, 0])
    else:
        frame = _read_columns(source)[0].drop(columns="time", errors="ignore")
        if not len(frame.columns):
            raise source.wrong("it has no column of a sensor")
        names = tuple(frame)
        values = np.stack([source.finite(name, _values(frame[name])) for name in names], axis=1)
    moments, sensors = values.shape
    length = section.window + section.horizon
    if moments < length:
        taken = f"data.window and data.horizon together take {length} of them"
        raise source.wrong(f"it holds {moments} moments, but {taken}")
    # Moment by moment and then sensor by sensor, so that the rows are in the order of time.
    spans = np.lib.stride_tricks.sliding_window_view(values, length, axis=0).reshape(-1, length)
    owner = np.tile(np.arange(sensors), moments - length + 1)
    x, y = np.ascontiguousarray(spans[:, : section.window]), np.ascontiguousarray(spans[:, section.window :])
    return Pool(x, y, "regression", outputs=section.horizon, client=owner, owners=names, in_time_order=True)
