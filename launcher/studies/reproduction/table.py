"""The published figures and ours side by side."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import mean
from textwrap import fill
from typing import TYPE_CHECKING

from ....metrics import open_run
from ....metrics.seeds import Group
from .parts import Part
from .results import Result, map_norms, rounds_past

if TYPE_CHECKING:
    from rich.table import Table

_UNKNOWN = "–"
_TITLES = {
    "accuracy": "accuracy %",
    "mse": "MSE",
    "worst_10": "worst\n10%",
    "sent": "sent\nMB",
    "wall": "time\ns",
    "tflop": "TFLOP",
    "memory": "memory\nMB",
    "busiest": "kB",
    "rounds_to": "rounds\nto {target}",
    "kbit_to": "kbit\nto {target}",
    "rounds_past_local": "rounds to\npass Local",
    "norm_least": "least\nnorm",
    "norm_median": "median\nnorm",
    "norm_most": "largest\nnorm",
    "norm_change": "largest\nchange %",
}
_OURS: dict[str, Callable[[Group], str]] = {
    "accuracy": lambda group: _metric(group, 100, "{:.1f}", "{:.1f}"),
    "mse": lambda group: _metric(group, 1, "{:.4g}", "{:.2g}"),
    "worst_10": lambda group: _scaled(group, "worst_10", 100),
    "sent": lambda group: _mean(group, "payload_bytes", 1e-6),
    "wall": lambda group: _mean(group, "wall_s"),
    "tflop": lambda group: _mean(group, "flops", 1e-12),
    "memory": lambda group: _mean(group, "clients_pss", 1e-6),
    "rounds_to": lambda group: _mean(group, "rounds_to_reach"),
    "kbit_to": lambda group: _mean(group, "payload_bytes_to_reach", 8e-3),
}


def render(part: Part, results: list[Result]) -> Table:
    """A line a run; where runs stand side by side (``across``), a line for each beginning of a name."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    about = part.about
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)  # 80 columns hold the widest
    table.add_column("", overflow="fold")
    endings = about.across or ("",)
    of_column = {column: [line.get(column) for line in part.published.values()] for column in about.columns}
    said = [column for column in about.columns if any(figure is not None for figure in of_column[column])]
    for ending in endings:
        for column in about.columns:
            above = f"{ending}\n" if ending and column == about.columns[0] else ""
            titles = [f"{above}{_title(part, column)}\npaper", "ours"] if column in said else [_title(part, column)]
            for title in titles:
                table.add_column(title, justify="right", vertical="bottom", no_wrap=True)
    by_name = {result.name: result for result in results}
    heading = ""
    for line in dict.fromkeys(_without(name, endings) for name in by_name):
        cells, label = [], line
        if about.across:
            above, _, value = line.rpartition(" ")
            label = f"  {value}"
            if above != heading:
                table.add_row(heading := above)
        names = [f"{line} {ending}" if ending else line for ending in endings]
        for name in names:
            for column in about.columns:
                if column in said:
                    cells.append(_published(part, name, column))
                result = by_name[name]
                if result.group is None:
                    cells.append(result.ended if column == about.columns[0] else _UNKNOWN)
                else:
                    cells.append(_ours(results, result, result.group, column))
        flaws = (group.flaw for name in names if (group := by_name[name].group))
        table.add_row(" ".join([label, *(f"({flaw})" for flaw in flaws if flaw)]), *cells)
    return table


def remarks(part: Part, results: list[Result], changed: list[str]) -> str:
    """How to read the figures, and what differs from the paper."""
    notes = [*_sizes(results), *part.about.notes]
    differs = [*part.about.differs, *(f"{key} (from the command line)" for key in changed)]
    return "\n".join([*_list("To read it:", notes), *_list("Not as in the paper:", differs)])


def _list(heading: str, lines: list[str]) -> list[str]:
    indented = [fill(line, 100, initial_indent="  - ", subsequent_indent="    ") for line in lines]
    return ["", heading, *indented] if lines else []


def _title(part: Part, column: str) -> str:
    target, metric = part.about.target or 0.0, "mse" if "mse" in part.about.columns else "accuracy"
    return _TITLES[column].format(target=f"{100 * target:g} %" if metric == "accuracy" else f"{target:g}")


def _without(name: str, endings: tuple[str, ...]) -> str:
    return next((name.removesuffix(f" {ending}") for ending in endings if ending and name.endswith(ending)), name)


def _published(part: Part, name: str, column: str) -> str:
    figure = part.published.get(name, {}).get(column)
    return "" if figure is None else figure if isinstance(figure, str) else f"{figure:g}"


def _ours(results: list[Result], result: Result, group: Group, column: str) -> str:
    if column in _OURS:
        return _OURS[column](group)
    if column == "busiest":
        return _short(mean(open_run(folder).client_total.payload_bytes_sent.max() for folder in result.folders) / 1e3)
    if column == "rounds_past_local":
        passed = None if result.name == "Local" else rounds_past(results, result, "Local")
        return _UNKNOWN if passed is None else str(passed)
    norms = map_norms(result)
    change = 100 * (norms.norm / norms.norm_after_round_1 - 1).abs().max()
    return _short({"norm_least": norms.norm.min(), "norm_median": norms.norm.median(), "norm_most": norms.norm.max(),
                   "norm_change": change}[column])  # fmt: skip


def _metric(group: Group, unit: float, form: str, error_form: str) -> str:
    """± over clients for one seed, over seeds for several."""
    estimate, final = group.estimate("test_metric"), group.runs[0].final
    if estimate is None or final is None:
        return _UNKNOWN
    error = estimate.standard_error if len(group.runs) > 1 else final.standard_error
    return form.format(unit * estimate.mean) + ("" if math.isnan(error) else "±" + error_form.format(unit * error))


def _scaled(group: Group, figure: str, unit: float) -> str:
    estimate = group.estimate(figure)
    return _UNKNOWN if estimate is None else f"{unit * estimate.mean:.1f}"


def _mean(group: Group, figure: str, unit: float = 1.0) -> str:
    estimate = group.estimate(figure)
    return _UNKNOWN if estimate is None else _short(unit * estimate.mean)


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}" if number >= 0.1 else f"{number:.2g}"


def _sizes(results: list[Result]) -> list[str]:
    runs = [run for result in results if result.group for run in result.group.runs]
    if not runs:
        return []
    clients, rounds, seeds = ({getattr(run, what) for run in runs} for what in ("clients", "rounds", "seed"))
    over = "clients" if len(seeds) == 1 else f"{len(seeds)} seeds"
    return [
        f"ours: {' / '.join(map(str, sorted(clients)))} clients, {' / '.join(map(str, sorted(rounds)))} rounds; "
        f"± is the standard error over {over}"
    ]
