"""Writes runs and comparisons as files that other programs read."""

import csv
import importlib.util
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from ..topology.errors import UserError, install
from .comparison import Comparison, Estimate
from .config_file import read_config, setting_of
from .figures import averaged_of
from .reader import RunReader, open_records, read_frame, relations, runs_in
from .records import TABLES
from .store import RunFolderError
from .summary import summarize
from .trackers import EVENT_FILE, TRACKERS
from .tracking import export_to, require, write_events

_FORMATS = ("csv", "parquet", "json", *TRACKERS)
Rows = tuple[Sequence[str], Iterable[Sequence[Any]]]  # columns, and rows that can be read once


class ExportError(UserError):
    """Nothing was exported; the message is one line for the user."""


def export(run_folder: Path | str, to: str, out: Path | None = None) -> list[Path]:
    """Writes each table and view of a run to ``out`` (default: ``export`` in its folder) as it is at one moment; of a
    folder of several runs, all in one file, with the keys in which they differ. ``to`` is csv, parquet or json, which
    has a summary.json besides. "tensorboard" writes one file instead, with the scalars of every round; of several runs
    a folder each. Returns the files. "mlflow", "wandb" and "trackio" write those scalars to a tracker's store in that
    folder, where a run takes its own earlier place; returns the folder then, or nothing where MLflow's own variable
    names another store. Raises ExportError and RunFolderError."""
    if to not in _FORMATS:
        raise ExportError(f"--to {to}: allowed: {', '.join(_FORMATS)}")
    if to == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ExportError(f"--to {to} needs pyarrow: {install(to)}")
    folder = Path(run_folder) / "export" if out is None else out
    if out is None and folder.is_symlink():
        raise ExportError(f"{folder}: is a symbolic link; remove it, or choose another folder with --out")
    runs = runs_in(Path(run_folder))
    try:
        if to in TRACKERS:
            require(to, f"--to {to}", folder)
        if to in TRACKERS and to != "tensorboard":
            export_to(runs, to, folder, chosen=out is not None)
            return [folder] if folder.exists() else []
    except UserError as error:
        raise ExportError(str(error)) from error
    try:
        if runs == [Path(run_folder)]:
            return _export(runs[0], to, folder)
        if to == "tensorboard":
            return [file for run in runs for file in _export(run, to, folder / run.name)]
        return _export_together(Path(run_folder), to, folder)
    except OSError as error:
        raise ExportError(f"{folder}: cannot be written: {error.strerror or error}") from error


def _export(run: Path, to: str, folder: Path) -> list[Path]:
    if to == "tensorboard":
        return _write_all(folder, {EVENT_FILE: partial(write_events, run)})
    with open_records(run, check=TABLES) as records:

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
