"""A comparison, and the runs behind it, as CSV files."""

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .comparison import Comparison, setting_of
from .config_file import read_config
from .figures import AVERAGED
from .schema import ExportError, RunFolderError
from .seeds import Estimate
from .summary import summarize


def write_groups(path: Path, comparison: Comparison) -> None:
    """A line a group: keys, how many runs, and figures with the standard error over them. Raises ExportError."""
    rows = []
    for group, setting in zip(comparison.groups, comparison.settings, strict=True):
        run = group.runs[0]
        row = {key: _value(setting.get(key)) for key in comparison.keys}
        row |= {"run": group.name, "status": run.status, "runs": len(group.runs)}
        row |= {"seeds": " ".join(str(run.seed) for run in group.runs), "metric": run.metric}
        row |= {"flaw": group.flaw or None}
        for figure in AVERAGED:
            estimate = group.estimate(figure) or Estimate(math.nan, math.nan)
            row |= {figure: _number(estimate.mean), f"{figure}_se": _number(estimate.standard_error)}
        rows.append(row)
    _write(path, rows)


def write_runs(path: Path, folders: Iterable[Path], keys: Sequence[str]) -> None:
    """A line a run: folder, keys, seed, how it ended, and its figures if it has finished. Raises ExportError."""
    _write(path, [_row_of_run(folder, keys) for folder in folders])


def _row_of_run(folder: Path, keys: Sequence[str]) -> dict[str, Any]:
    try:
        config, run = read_config(folder), summarize(folder)
    except RunFolderError:
        return {"folder": folder.name, "status": "missing"}
    setting = setting_of(config)
    row = {"folder": folder.name} | {key: _value(setting.get(key)) for key in keys}
    row |= {"seed": run.seed, "status": run.status, "rounds": run.rounds, "metric": run.metric}
    if run.status == "finished":
        row |= {"flaw": run.divergence.kind if run.divergence else None}
        row |= {name: _number(figure.of(run)) for name, figure in AVERAGED.items()}
    return row


def _value(value: Any) -> Any:
    return json.dumps(value, default=str) if isinstance(value, (bool, list, dict)) else value


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Columns of which no line has a value are left out. The file is there as a whole or not at all."""
    titles = dict.fromkeys(title for row in rows for title, value in row.items() if value is not None)
    unfinished = path.with_name(f"{path.name}.part")
    try:
        with unfinished.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, titles, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        unfinished.replace(path)
    except OSError as error:
        raise ExportError(f"{path}: cannot be written: {error.strerror or error}") from error
