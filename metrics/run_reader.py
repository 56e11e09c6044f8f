"""The records of a run, or of several, as pandas frames, for notebooks and scripts."""

import json
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .comparison import differing
from .config_file import flat, read_config, require_plain_file
from .reader import open_records, relations, runs_in
from .records import TABLES, columns
from .schema import RunFolderError

if TYPE_CHECKING:
    import numpy as np
    from pandas import DataFrame

_DTYPES: dict[Any, str] = {int: "int64", int | None: "Int64", float: "float64", float | None: "float64"}


class _Frame:
    """A property of the reader: one table or view, read anew at each access."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, reader: "RunReader", _: type | None = None) -> "DataFrame":
        return reader.frame(self._name)


class RunReader:
    """Reads only, and sees a run that still goes on as far as it is committed.

    Nothing is kept: each access reads what is there at that moment. Raises RunFolderError.
    """

    nodes = _Frame("node")
    rounds = _Frame("round")
    traffic = _Frame("traffic")
    resources = _Frame("resource")
    events = _Frame("event")
    edges = _Frame("edge")
    overhead = _Frame("overhead")
    work = _Frame("work")
    kernel = _Frame("kernel")
    used = _Frame("used")

    round_total = _Frame("round_total")
    round_cumulative = _Frame("round_cumulative")
    edge_total = _Frame("edge_total")
    owner = _Frame("owner")
    client_total = _Frame("client_total")
    last_test_metric = _Frame("last_test_metric")
    cpu_total = _Frame("cpu_total")
    work_total = _Frame("work_total")
    virtual_progress = _Frame("virtual_progress")
    waited_total = _Frame("waited_total")
    used_total = _Frame("used_total")

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        with open_records(self.folder):
            pass  # a folder that is no run is refused here and not at the first table

    def frame(self, relation: str) -> "DataFrame":
        """A table or view by its name in the file; the properties above are all of them."""
        with open_records(self.folder, check={relation} & TABLES.keys()) as records:
            return read_frame(records, relation)

    @property
    def config(self) -> dict[str, Any]:
        """The full configuration as nested dictionaries."""
        return read_config(self.folder)

    def sql(self, query: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> "DataFrame":
        """Returns the answer to any query; ``params`` fill its ? or :name places."""
        import pandas

        with open_records(self.folder, bounded=False) as records:
            return pandas.read_sql_query(query, records, params=params)

    @property
    def state_rounds(self) -> list[int]:
        """The rounds after which state was written."""
        found = (re.fullmatch(r"round-(\d+)", path.name) for path in (self.folder / "state").glob("round-*"))
        return sorted(int(match[1]) for match in found if match)

    def theta(self, round: int) -> "dict[int, np.ndarray]":
        """Returns {client: its parameters (d,)} after ``round``, of a run in progress those that have come so far."""
        from safetensors import SafetensorError
        from safetensors.numpy import safe_open

        states = (self.folder / "state" / f"round-{round:06d}").glob("node-*.safetensors")
        files = sorted(path for path in states if not path.stem.endswith(".sent"))  # of clients that were away
        if not files:
            there = ", ".join(map(str, self.state_rounds)) or "none"
            raise RunFolderError(f"{self.folder}: no state of round {round}; rounds with state: {there}")
        found = {}
        for path in files:
            try:
                require_plain_file(path)
                with safe_open(path, framework="numpy") as state:  # a file may hold large maps beside theta
                    found[int(path.stem.removeprefix("node-"))] = state.get_tensor("theta")
            except (OSError, SafetensorError, ValueError) as error:
                raise RunFolderError(f"{path}: cannot be read as the state of a client: {error}") from error
        return found


class RunsReader(RunReader):
    """Reads all runs that lie in a folder as one, in the order of their configuration.

    In front of each frame stand ``run``, the name of the run's folder, and the keys that differ between runs; a key
    that is called as a column of the frame is config.KEY there. ``runs`` are the readers of each.
    """

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        self.runs = tuple(RunReader(each) for each in runs_in(self.folder))
        settings = [flat(reader.config) for reader in self.runs]
        keys = differing(settings)
        self.keys: list[dict[str, Any]] = [
            {"run": reader.folder.name} | {key: _cell(setting.get(key)) for key in keys}
            for reader, setting in zip(self.runs, settings, strict=True)
        ]
        """Of each run, what stands in front of its rows."""

    @property
    def relations(self) -> list[str]:
        """Tables and views that any of the runs has."""
        found: set[str] = set()
        for reader in self.runs:
            with open_records(reader.folder) as records:
                found |= set(relations(records))
        return sorted(found)

    def frame(self, relation: str) -> "DataFrame":
        return self._together(lambda reader: reader.frame(relation))

    def sql(self, query: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> "DataFrame":
        """Returns the answers of all runs to the query."""
        return self._together(lambda reader: reader.sql(query, params))

    def _together(self, read: "Callable[[RunReader], DataFrame]") -> "DataFrame":
        import pandas

        frames = []
        for reader, keys in zip(self.runs, self.keys, strict=True):
            frame = read(reader)
            named = {f"config.{key}" if key in frame.columns else key: value for key, value in keys.items()}
            columns = pandas.DataFrame({key: [value] * len(frame) for key, value in named.items()}, index=frame.index)
            frames.append(pandas.concat([columns, frame], axis=1))
        filled = [frame for frame in frames if len(frame)] or frames[:1]
        return pandas.concat(filled, ignore_index=True)

    @property
    def config(self) -> dict[str, Any]:
        raise self._has_several("configuration")

    @property
    def state_rounds(self) -> list[int]:
        raise self._has_several("state")

    def theta(self, round: int) -> "dict[int, np.ndarray]":
        raise self._has_several("state")

    def _has_several(self, what: str) -> RunFolderError:
        return RunFolderError(f"{self.folder}: holds {len(self.runs)} runs, each with a {what} of its own: see .runs")


def open_run(run_folder: Path | str) -> RunReader:
    """Opens the tables of a run as pandas frames, or of all runs in a folder: then with the keys in which they differ.

    Raises RunFolderError.
    """
    return RunReader(run_folder) if runs_in(Path(run_folder)) == [Path(run_folder)] else RunsReader(run_folder)


def _cell(value: Any) -> Any:
    return json.dumps(value, default=str) if isinstance(value, (list, dict)) else value


def read_frame(records: sqlite3.Connection, relation: str) -> "DataFrame":
    """One table or view; numbers are numbers also where all are missing. What an older run lacks is missing."""
    frame = frame_of(records, f"SELECT * FROM {relation}")
    if relation in TABLES:
        types = columns(TABLES[relation])
        frame = frame.astype({name: _DTYPES[types[name]] for name in frame.columns if types.get(name) in _DTYPES})
        return frame.reindex(columns=list(dict.fromkeys([*types, *frame.columns])))
    missing = frame.columns[frame.isna().all()]
    return frame.astype(dict.fromkeys(missing, "float64"))


def frame_of(records: sqlite3.Connection, query: str) -> "DataFrame":
    """The answer to a query of this program: whatever is wrong with it is the file's fault, and sqlite3's error."""
    import pandas

    rows = records.execute(query)
    return pandas.DataFrame.from_records(rows.fetchall(), columns=[name for name, *_ in rows.description])
