"""``sheafgossip summary``, ``compare``, ``report`` and ``export``: what runs have recorded, shown and written."""

import json
from collections.abc import Sequence
from pathlib import Path

from ...metrics.comparison import Comparison, Group, render_comparison, render_summary, summarize_all
from ...metrics.export import ExportError, export as write_tables, write_groups
from ...metrics.reader import runs_in
from ...metrics.text import say, show, width
from ..config.sections import ConfigError
from ..run.folder import relative


def summary(folders: Sequence[Path], target: float | None, as_json: bool, every: bool) -> None:
    groups = _summarized(folders, target)
    if as_json:
        runs = [run.as_dict() for group in groups for run in group.runs]
        seeds = [group.as_dict() for group in groups if len(group.runs) > 1]
        say(json.dumps({"target": target, "runs": runs, "seeds": seeds}, indent=2))
    else:
        show(render_summary(groups, target, width(), every=every))


def compare(folders: Sequence[Path], target: float | None, to_csv: Path | None) -> None:
    if to_csv is not None and to_csv.exists():
        raise ExportError(f"--csv {to_csv}: exists; nothing is overwritten, choose another name")
    comparison = Comparison(_summarized(folders, target))
    if to_csv is not None:
        write_groups(to_csv, comparison)
    show_comparison(comparison, target)
    if to_csv is not None:
        show(f"written: {relative(to_csv.resolve())}")


def show_comparison(comparison: Comparison, target: float | None = None) -> None:
    for part in render_comparison(comparison, target, width()):
        show(part)


def report(folders: Sequence[Path], out: Path | None, figures: Path | None) -> None:
    from ...metrics.report.page import write_report

    page = (folders[0] / "report.html") if out is None else out
    if page.is_dir() or (out is None and (page.is_symlink() or (page.exists() and not page.is_file()))):
        raise ConfigError(f"{page}: is there, and no plain file; remove it, or name another page with --out")
    try:
        files = write_report(_runs_of(folders), page, figures)
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written: {error.strerror}") from error
    show(f"report: {relative(page.resolve())}")
    if figures is not None:
        show(f"{len(files) - 1} files in {relative(figures.resolve())}")


def export(folder: Path, to: str, out: Path | None) -> None:
    files = write_tables(folder, to, out)
    if not files:
        return show("written to MLFLOW_TRACKING_URI")
    if files[0].is_dir():
        return show(f"written to {relative(files[0].resolve())}")
    show(f"{len(files)} file{'s' if len(files) > 1 else ''} in {relative(files[0].parent.resolve())}")


def _runs_of(folders: Sequence[Path]) -> list[Path]:
    """A folder of several runs stands for all of them."""
    return [run for folder in folders for run in runs_in(folder)]


def _summarized(folders: Sequence[Path], target: float | None) -> list[Group]:
    groups = summarize_all(_runs_of(folders), target)
    if target is not None and not 0 <= target <= 1 and any(run.metric == "accuracy" for g in groups for run in g.runs):
        raise ConfigError(f"--target {target:g}: accuracy goes from 0 to 1")
    return groups
