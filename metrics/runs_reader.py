"""The records of several runs as one frame each, with a column for every key in which the runs differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .comparison import differing
from .config_file import flat
from .reader import open_records, relations, runs_in
from .run_reader import RunReader
from .schema import RunFolderError

if TYPE_CHECKING:
    import numpy as np
    from pandas import DataFrame


class RunsReader(RunReader):
    """As the reader of a run, of all that lie in a folder, in the order of their configuration.

    In front of each frame stand ``run``, the name of the run's folder, and the keys that differ between runs; a key
    that is called as a column of the frame is config.KEY there. ``runs`` are the readers of each.
    """

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        self.runs = tuple(RunReader(each) for each in runs_in(self.folder))
        settings = [flat(reader.config) for reader in self.runs]
        keys = differing(settings)
        self.keys: list[dict[str, Any]] = [
            {"run": reader.folder.name} | {key: _plain(setting.get(key)) for key in keys}
            for reader, setting in zip(self.runs, settings, strict=True)
        ]
        """Of each run, what stands in front of its rows."""

    @property
    def relations(self) -> list[str]:
        """Tables and views that any of the runs has."""
        found: dict[str, None] = {}
        for reader in self.runs:
            with open_records(reader.folder) as records:
                found |= dict.fromkeys(relations(records))
        return sorted(found)

    def frame(self, relation: str) -> DataFrame:
        return self._together(lambda reader: reader.frame(relation))

    def sql(self, query: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> DataFrame:
        """The answers of all runs to the query."""
        return self._together(lambda reader: reader.sql(query, params))

    def _together(self, read: Callable[[RunReader], DataFrame]) -> DataFrame:
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
        raise self._of_one("configuration")

    @property
    def state_rounds(self) -> list[int]:
        raise self._of_one("state")

    def theta(self, round: int) -> dict[int, np.ndarray]:
        raise self._of_one("state")

    def _of_one(self, what: str) -> RunFolderError:
        return RunFolderError(f"{self.folder}: holds {len(self.runs)} runs, each with a {what} of its own: see .runs")


def _plain(value: Any) -> Any:
    return json.dumps(value, default=str) if isinstance(value, (list, dict)) else value
