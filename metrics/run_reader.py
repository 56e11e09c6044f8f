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
from .store import VIEWS, RunFolderError

if TYPE_CHECKING:
    import numpy as np
    from pandas import DataFrame

FRAMES = {
    **{f"{table}s": table for table in ("node", "round", "resource", "event", "edge")},
    **{name: name for name in ("traffic", "overhead", "work", "kernel", "used", *VIEWS)},
}
"""What a reader's frames are called -> table or view in the file."""

_DTYPES = {int: "int64", int | None: "Int64", float: "float64", float | None: "float64"}


class RunReader:
    """Reads only, and sees a run that still goes on as far as it is committed. Raises RunFolderError.

    Every table and view is an attribute, a frame: nodes, rounds, traffic, round_total, ... (FRAMES). Nothing is kept:
    each access reads what is there at that moment. All runs that lie in a folder are read as one, in the order of their
    configuration: then in front of each frame stand ``run``, the name of the run's folder, and the keys that differ
    between runs; a key that is called as a column of the frame is config.KEY there. ``runs`` are the readers of each,
    ``keys`` what stands in front of the rows of each.
    """

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        self._folders = runs_in(self.folder)
        self._single = self._folders == [self.folder]
        for each in self._folders:
            with open_records(each):
                pass  # a folder that is no run is refused here and not at the first table
        self.keys: list[dict[str, Any]] = [{} if self._single else {"run": each.name} for each in self._folders]
        settings = [] if self._single else [flat(read_config(each)) for each in self._folders]
        for key in differing(settings):
            for own, setting in zip(self.keys, settings, strict=True):
                value = setting.get(key)
                own[key] = json.dumps(value, default=str) if isinstance(value, (list, dict)) else value

    @property
    def runs(self) -> tuple["RunReader", ...]:
        return (self,) if self._single else tuple(map(RunReader, self._folders))

    def __getattr__(self, name: str) -> "DataFrame":
        if name not in FRAMES:
            raise AttributeError(f"there is no {name!r} in a run; its tables and views: {', '.join(FRAMES)}")
        return self.frame(FRAMES[name])

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *FRAMES]

    @property
    def relations(self) -> list[str]:
        """Tables and views that any of the runs has."""
        found: set[str] = set()
        for folder in self._folders:
            with open_records(folder) as records:
                found |= set(relations(records))
        return sorted(found)

    def frame(self, relation: str) -> "DataFrame":
        """A table or view by its name in the file."""
        return self._together(lambda records: read_frame(records, relation), check={relation} & TABLES.keys())

    def sql(self, query: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> "DataFrame":
        """Returns the answer to any query; ``params`` fill its ? or :name places."""
        import pandas

        return self._together(lambda records: pandas.read_sql_query(query, records, params=params), bounded=False)

    def _together(self, read: "Callable[[sqlite3.Connection], DataFrame]", **how: Any) -> "DataFrame":
        import pandas

        frames = []
        for folder, keys in zip(self._folders, self.keys, strict=True):
            with open_records(folder, **how) as records:
                frame = read(records)
            if self._single:
                return frame
            named = {f"config.{key}" if key in frame.columns else key: value for key, value in keys.items()}
            columns = pandas.DataFrame({key: [value] * len(frame) for key, value in named.items()}, index=frame.index)
            frames.append(pandas.concat([columns, frame], axis=1))
        return pandas.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)

    def _only(self, what: str) -> Path:
        if self._single:
            return self.folder
        raise RunFolderError(f"{self.folder}: holds {len(self.keys)} runs, each with a {what} of its own: see .runs")

    @property
    def config(self) -> dict[str, Any]:
        """The full configuration as nested dictionaries."""
        return read_config(self._only("configuration"))

    @property
    def state_rounds(self) -> list[int]:
        """The rounds after which state was written."""
        states = (self._only("state") / "state").glob("round-*")
        return sorted(int(match[1]) for path in states if (match := re.fullmatch(r"round-(\d+)", path.name)))

    def theta(self, round: int) -> "dict[int, np.ndarray]":
        """Returns {client: its parameters (d,)} after ``round``, of a run in progress those that have come so far."""
        from safetensors import SafetensorError
        from safetensors.numpy import safe_open

        states = (self._only("state") / "state" / f"round-{round:06d}").glob("node-*.safetensors")
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


open_run = RunReader


def read_frame(records: sqlite3.Connection, relation: str) -> "DataFrame":
    """One table or view; numbers are numbers also where all are missing. What an older run lacks is missing."""
    frame = frame_of(records, f"SELECT * FROM {relation}")
    if relation not in TABLES:
        return frame.astype(dict.fromkeys(frame.columns[frame.isna().all()], "float64"))
    types = columns(TABLES[relation])
    known = {name: _DTYPES[types[name]] for name in frame.columns if types.get(name) in _DTYPES}
    return frame.astype(known).reindex(columns=list(dict.fromkeys([*types, *frame.columns])))


def frame_of(records: sqlite3.Connection, query: str) -> "DataFrame":
    """The answer to a query of this program: whatever is wrong with it is the file's fault, and sqlite3's error."""
    import pandas

    rows = records.execute(query)
    return pandas.DataFrame.from_records(rows.fetchall(), columns=[name for name, *_ in rows.description])
