"""Writes runs and comparisons as files that other programs read."""

import csv
import importlib.util
import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from ..topology.errors import UserError, install
from .comparison import Comparison, Estimate
from .config_file import read_config, setting_of
from .figures import averaged_of
from .reader import RunReader, metric_of, open_records, read_frame, relations, runs_in
from .records import TABLES
from .store import CLIENTS, RunFolderError
from .summary import mean, summarize, worst

_OWN_METRICS = "SELECT round, node, name, value FROM metric WHERE value IS NOT NULL"
EVENT_FILE = "events.out.tfevents.sheafgossip"  # TensorBoard opens files with "tfevents" in their name
_NEEDED = {"csv": None, "parquet": "pyarrow", "json": None, "tensorboard": "tensorboard"}  # the package that writes it
Rows = tuple[Sequence[str], Iterable[Sequence[Any]]]  # columns, and rows that can be read once


class ExportError(UserError):
    """Nothing was exported; the message is one line for the user."""


def export(run_folder: Path | str, to: str, out: Path | None = None) -> list[Path]:
    """Writes each table and view of a run to ``out`` (default: ``export`` in its folder) as it is at one moment; of a
    folder of several runs, all in one file, with the keys in which they differ. ``to`` is csv, parquet or json, which
    has a summary.json besides. "tensorboard" writes one file instead, with the scalars of every round; of several runs
    a folder each. Returns the files. Raises ExportError and RunFolderError."""
    if to not in _NEEDED:
        raise ExportError(f"--to {to}: allowed: {', '.join(_NEEDED)}")
    if (package := _NEEDED[to]) and importlib.util.find_spec(package) is None:
        raise ExportError(f"--to {to} needs {package}: {install(to)}")
    folder = Path(run_folder) / "export" if out is None else out
    if out is None and folder.is_symlink():
        raise ExportError(f"{folder}: is a symbolic link; remove it, or choose another folder with --out")
    runs = runs_in(Path(run_folder))
    try:
        if runs == [Path(run_folder)]:
            return _export(runs[0], to, folder)
        if to == "tensorboard":
            return [file for run in runs for file in _export(run, to, folder / run.name)]
        return _export_together(Path(run_folder), to, folder)
    except OSError as error:
        raise ExportError(f"{folder}: cannot be written: {error.strerror or error}") from error


def _export(run: Path, to: str, folder: Path) -> list[Path]:
    with open_records(run, check=TABLES) as records:
        if to == "tensorboard":
            return _write_all(folder, {EVENT_FILE: partial(write_events, records)})

        def rows(name: str) -> Rows:
            found = records.execute(f"SELECT * FROM {name}")
            return [column for column, *_ in found.description], found

        figures = summarize(run).as_dict() if to == "json" else None
        return _write_all(folder, _tables(to, relations(records), rows, partial(read_frame, records), figures))


def _export_together(run_folder: Path, to: str, folder: Path) -> list[Path]:
    reader = RunReader(run_folder)

    def rows(name: str) -> Rows:
        frame = reader.frame(name)
        return list(frame.columns), frame.astype(object).where(frame.notna(), None).itertuples(index=False, name=None)

    names, figures = set[str](), []
    for run, keys in zip(reader.runs, reader.keys, strict=True):
        with open_records(run.folder) as records:
            names |= set(relations(records))
        figures += [keys | summarize(run.folder).as_dict()] if to == "json" else []
    return _write_all(folder, _tables(to, sorted(names), rows, reader.frame, figures))


def _tables(
    to: str, names: Iterable[str], rows: Callable[[str], Rows], frame: Callable[[str], Any], figures: Any
) -> dict[str, Callable[[Path], object]]:
    writers: dict[str, Callable[[str, Path], object]] = {
        "csv": lambda name, path: _csv(*rows(name), path),
        "json": lambda name, path: _json(*rows(name), path),
        "parquet": lambda name, path: frame(name).to_parquet(path, engine="pyarrow", index=False),
    }
    files: dict[str, Callable[[Path], object]] = {f"{name}.{to}": partial(writers[to], name) for name in names}
    if to == "json":
        files["summary.json"] = lambda path: path.write_text(f"{json.dumps(figures, indent=2)}\n", encoding="utf-8")
    return files


def _write_all(folder: Path, files: Mapping[str, Callable[[Path], object]]) -> list[Path]:
    """Raises ExportError where one of the files exists."""
    paths = {folder / name: write for name, write in files.items()}
    if taken := [path for path in paths if path.exists()]:
        others = f" and {len(taken) - 1} more exist" if len(taken) > 1 else " exists"
        raise ExportError(f"{taken[0]}{others}; nothing is overwritten, choose another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    for path, write in paths.items():
        _whole(path, write)
    return list(paths)


def _whole(path: Path, write: Callable[[Path], object]) -> None:
    """Lets a file be there with all its rows or not at all."""
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.unlink(missing_ok=True)  # it may be a link to another file
    write(unfinished)
    unfinished.replace(path)


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], path: Path, end: str = "\r\n") -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator=end).writerows(chain([columns], rows))


def _json(columns: Sequence[str], rows: Iterable[Sequence[Any]], path: Path) -> None:
    """Writes an array with an object a row, a row a line. JSON has no infinity: it becomes null, as NaN already is."""
    with path.open("w", encoding="utf-8") as file:
        file.write("[")
        for number, row in enumerate(rows):
            values = (None if isinstance(value, float) and math.isinf(value) else value for value in row)
            file.write(",\n" if number else "\n")
            file.write(json.dumps(dict(zip(columns, values, strict=True)), allow_nan=False))
        file.write("\n]\n")


def write_events(records: sqlite3.Connection, path: Path) -> None:
    """Needs the package tensorboard. A step is a round; its time is, for all clients, when the last one was done."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    with path.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(file_version="brain.Event:2").SerializeToString())
        for round, wall_s, scalars in _scalars(records):
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
            writer.write(Event(step=round, wall_time=wall_s, summary=Summary(value=values)).SerializeToString())


def _scalars(records: sqlite3.Connection) -> Iterator[tuple[int, float, Mapping[str, float]]]:
    """Yields (round, wall seconds, {tag: value})."""
    tags = ("test_metric", "train_loss", "disagreement")
    accuracy = metric_of(records) == "accuracy"
    payload = dict(records.execute("SELECT round, sum(payload_bytes) FROM traffic GROUP BY round"))
    memory = f"SELECT wall_s, node, pss FROM resource WHERE {CLIENTS} ORDER BY wall_s, resource.rowid"
    metrics = defaultdict[tuple[int, int], dict[str, float]](dict)  # of the user's own
    for round, node, name, value in records.execute(_OWN_METRICS) if "metric" in relations(records) else ():
        metrics[round, node][f"metric.{name}"] = value
    samples, pss = records.execute(memory).fetchall()[::-1], dict[int, int]()  # of each client the latest
    query = f"SELECT round, node, wall_s, {', '.join(tags)} FROM round WHERE {CLIENTS} ORDER BY round, node"
    for round, of_round in groupby(records.execute(query), itemgetter(0)):
        rows = [
            (node, wall_s, _known(dict(zip(tags, values, strict=True))) | metrics[round, node])
            for _, node, wall_s, *values in of_round
        ]
        last_s = max(wall_s for _, wall_s, _ in rows)
        known = defaultdict[str, list[float]](list)
        for tag, value in (each for *_, own in rows for each in own.items()):
            known[tag].append(value)
        scalars = {f"mean/{tag}": mean(values) for tag, values in known.items()}
        if "test_metric" in known:
            scalars["worst_10/test_metric"] = worst(known["test_metric"], 0.1, higher_is_better=accuracy)
        if round in payload:
            scalars["sum/payload_bytes"] = payload[round]
        while samples and samples[-1][0] <= last_s:
            _, node, size = samples.pop()
            pss[node] = size
        if pss:
            scalars["sum/pss"] = sum(pss.values())
        yield round, last_s, scalars
        for node, wall_s, own in rows:
            if own:
                yield round, wall_s, {f"client_{node:04d}/{tag}": value for tag, value in own.items()}


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {tag: value for tag, value in values.items() if value is not None}


def write_groups(path: Path, comparison: Comparison) -> None:
    """Writes a line a group. Raises ExportError."""
    _write_rows(path, rows_of_groups(comparison))


def rows_of_groups(comparison: Comparison) -> list[dict[str, Any]]:
    """Returns for each group its keys, how many runs it has, and figures with the standard error over them."""
    rows, figures = [], averaged_of(run for group in comparison.groups for run in group.runs)
    for group, setting in zip(comparison.groups, comparison.settings, strict=True):
        row = {key: _value(setting.get(key)) for key in comparison.keys}
        row |= {"run": group.name, "status": group.run.status, "runs": len(group.runs)}
        row |= {"seeds": " ".join(str(run.seed) for run in group.runs), "metric": group.run.metric}
        row |= {"flaw": group.flaw or None}
        for figure in figures:
            estimate = group.estimate(figure) or Estimate(math.nan, math.nan)
            row |= {figure: _value(estimate.mean), f"{figure}_se": _value(estimate.standard_error)}
        rows.append(row)
    return rows


def write_runs(path: Path, folders: Iterable[Path], keys: Sequence[str]) -> None:
    """Writes a line a run: folder, keys, seed, how it ended, and its figures if it has finished. Raises ExportError."""
    rows: list[dict[str, Any]] = []
    for folder in folders:
        try:
            setting, run = setting_of(read_config(folder)), summarize(folder)
        except RunFolderError:
            rows.append({"folder": folder.name, "status": "missing"})
            continue
        row = {"folder": folder.name} | {key: _value(setting.get(key)) for key in keys}
        row |= {"seed": run.seed, "status": run.status, "rounds": run.rounds, "metric": run.metric}
        if run.status == "finished":
            row |= {"flaw": run.divergence.kind if run.divergence else None}
            row |= {name: _value(figure.of(run)) for name, figure in averaged_of([run]).items()}
        rows.append(row)
    _write_rows(path, rows)


def _value(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return None
    return json.dumps(value, default=str) if isinstance(value, (bool, list, dict)) else value


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Leaves out columns of which no line has a value."""
    titles = list(dict.fromkeys(title for row in rows for title, value in row.items() if value is not None))
    try:
        _whole(path, lambda file: _csv(titles, ([row.get(title) for title in titles] for row in rows), file, "\n"))
    except OSError as error:
        raise ExportError(f"{path}: cannot be written: {error.strerror or error}") from error
