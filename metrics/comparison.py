"""Runs side by side: where their configurations differ, which is best in what, and the tables that show it. Runs that
differ in nothing but their seed are one group: means and standard errors over runs."""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .config_file import differing, read_config, setting_of, short_names
from .figures import COUNT, METRIC, Figure, averaged_of, figure_of, figures_of, plus_minus
from .reader import open_records
from .summary import RunSummary, last_of, mean, standard_error, summarize
from .text import UNKNOWN, new_table, short

if TYPE_CHECKING:  # rich costs every process that imports it, and most only want the numbers
    from rich.table import Table
    from rich.text import Text

Mark = Literal["", "best", "close"]
_LONGEST_NAME = 40  # longer ones take more than one line where that makes room for figures
_SIGNS: dict[Mark, str] = {"best": " *", "close": " ≈", "": "  "}
_LEGEND = """* best by more than the standard error of the difference; ≈ too close to tell
differences are paired where seeds and clients are the same
no sign where all are equal, or where single runs tell no standard error"""
_FEW = 3  # so many groups are compared best from left to right, key by key and figure by figure
_MAY_LEAVE = 6  # the highest rank of the figures that make place for keys
_WIDEST = 24


class Estimate(NamedTuple):
    mean: float  # over runs
    standard_error: float  # nan for one run


@dataclass(frozen=True, slots=True)
class Group:
    """One run, or finished runs that are equal but for seed and name."""

    name: str
    runs: tuple[RunSummary, ...]

    @property
    def run(self) -> RunSummary:
        return self.runs[0]

    def estimate(self, figure: str) -> Estimate | None:
        """Estimates the figure of that key; None unless every run has it."""
        values = [value for run in self.runs if (value := figure_of(figure).of(run)) is not None]
        return Estimate(mean(values), standard_error(values)) if len(values) == len(self.runs) else None

    def with_error(self, figure: str) -> Estimate | None:
        """Estimates as far as one run tells an error: a metric varies over its clients, what is exact does not."""
        estimate = self.estimate(figure)
        if estimate is None or len(self.runs) > 1:
            return estimate
        return Estimate(estimate.mean, figure_of(figure).error_of(self.run))

    def text(self, figure: Figure) -> str:
        estimate = self.with_error(figure.key)
        if estimate is None:
            reached = sum(figure.of(run) is not None for run in self.runs)
            missing = figure.missing if figure.is_mean else UNKNOWN
            return f"by {reached} of {len(self.runs)}" if reached and figure.unit is COUNT else missing
        if figure.unit is METRIC:
            error = estimate.standard_error if figure.is_mean else math.nan
            return plus_minus(figure.metric or self.run.metric, estimate.mean, error)
        whole = figure.unit is COUNT and len(self.runs) == 1
        return figure.unit.text(estimate.mean) if whole else short(estimate.mean / figure.unit.size)

    @property
    def flaw(self) -> str:
        """Tells of the runs that have finished and learned nothing; empty where all have learned."""
        kinds = Counter(run.divergence.kind for run in self.runs if run.divergence)
        return "".join(kinds) if len(self.runs) == 1 else ", ".join(f"{count} {kind}" for kind, count in kinds.items())

    @property
    def label(self) -> str:
        seeds = f"{len(self.runs)} seeds" if len(self.runs) > 1 else ""
        stopped = "" if self.run.status == "finished" else f"{self.run.status} after {self.run.rounds} rounds"
        remarks = ", ".join(filter(None, (seeds, stopped, self.flaw)))
        return f"{self.name} ({remarks})" if remarks else self.name

    def as_dict(self) -> dict[str, Any]:
        figures = {name: self.estimate(name) for name in averaged_of(self.runs)}
        errors = {name: found.standard_error if found else math.nan for name, found in figures.items()}
        about: dict[str, Any] = {"name": self.name, "algorithm": self.run.algorithm, "metric": self.run.metric}
        return about | {
            "seeds": [run.seed for run in self.runs],
            "mean": {name: found and found.mean for name, found in figures.items()},
            "standard_error": {name: None if math.isnan(error) else error for name, error in errors.items()},
        }


def summarize_all(run_folders: Sequence[Path], target: float | None = None) -> list[Group]:
    """Groups runs in the order given, a group standing where its first run stands. A run that has not finished stays
    alone, and so does one whose seed its group has already: it is no further sample. Raises RunFolderError."""
    groups: defaultdict[tuple[str, int], list[RunSummary]] = defaultdict(list)
    repeats: Counter[tuple[str, int]] = Counter()
    for number, folder in enumerate(run_folders):
        run, config = summarize(folder, target), read_config(folder)
        same = {key: value for key, value in config.items() if key not in ("seed", "name")}
        alone = not config or run.status != "finished"
        setting = str(number) if alone else json.dumps(same, sort_keys=True, default=str)
        groups[setting, repeats[setting, run.seed]].append(run)
        repeats[setting, run.seed] += 1
    return [Group(_name(runs), tuple(runs)) for runs in groups.values()]


def _name(runs: Sequence[RunSummary]) -> str:
    """Returns what the names have in common, without a seed's beginnings; else the algorithm's name."""
    names = [run.name for run in runs]
    if len(set(names)) == 1:
        return names[0]
    common = names[0]
    while not all(name.startswith(common) for name in names):
        common = common[:-1]
    if any(name[len(common) :][:1].isalnum() for name in names):
        common = re.sub(r"[^\W_]+$", "", common)  # half a word
    return re.sub(r"[\W_]*(?<![^\W_])(seed)?[\W_]*$", "", common, flags=re.IGNORECASE) or runs[0].algorithm


class Comparison:
    def __init__(self, groups: Sequence[Group], keys: Sequence[str] | None = None):
        """Raises RunFolderError."""
        configs = [read_config(group.run.folder) for group in groups]
        self.groups = tuple(groups)
        self.settings = [setting_of(config) for config in configs]  # of each group
        self.keys = differing(self.settings) if keys is None else keys
        self.named = len({config.get("name") for config in configs}) > 1  # by someone

    def marks(self, figure: str) -> list[Mark]:
        """Returns for each group: alone best by more than the standard error of the difference, or too close to it.
        Nothing is marked where all are equal, where metrics differ, and where the standard error is not known. Runs
        that have not finished, or have learned nothing, are left out."""
        found = {
            number: estimate
            for number, group in enumerate(self.groups)
            if group.run.status == "finished" and not group.flaw
            if (estimate := group.with_error(figure)) is not None
        }
        shown = figure_of(figure)
        directions = {self._direction(shown, self.groups[number].run) for number in found}
        unknown = any(math.isnan(each.standard_error) for each in found.values())
        if len({each.mean for each in found.values()}) < 2 or len(directions) > 1 or unknown:
            return [""] * len(self.groups)
        ((_, higher_is_better),) = directions
        better = max if higher_is_better else min
        best = better(found, key=lambda number: found[number].mean)
        close = []
        for number, each in found.items():
            paired = self.difference(figure, number, best) if number != best else None
            error = paired.standard_error if paired else math.hypot(each.standard_error, found[best].standard_error)
            if abs(each.mean - found[best].mean) <= error:
                close.append(number)
        mark: Mark = "best" if len(close) == 1 else "close"
        return [mark if number in close else "" for number in range(len(self.groups))]

    @staticmethod
    def _direction(figure: Figure, run: RunSummary) -> tuple[str, bool]:
        """Returns the run's test metric, and whether more of the figure is better."""
        spread = figure.spread_of(run)
        return run.metric, spread is not None and spread.higher_is_better

    def difference(self, figure: str, number: int, other: int) -> Estimate | None:
        """Estimates it from the figure in runs of the same seed; of single runs, from the metric of the same client,
        whom seed and data determine. None where runs or clients have not their like in the other group."""
        shown = figure_of(figure)
        apart = {key.partition(".")[0] for key in differing([self.settings[number], self.settings[other]])}
        ours, theirs = ({run.seed: run for run in self.groups[group].runs} for group in (number, other))
        if apart & {"clients", "data"} or "clients" not in self.settings[number] or ours.keys() != theirs.keys():
            return None
        values: list[Mapping[int, float | None]] = []
        if len(ours) > 1:
            values = [{seed: shown.of(run) for seed, run in runs.items()} for runs in (ours, theirs)]
        elif shown.is_mean:
            for run in (*ours.values(), *theirs.values()):
                with open_records(run.folder, check=("round", "metric")) as records:
                    values.append(last_of(records, shown.metric))
        if not values or values[0].keys() != values[1].keys():
            return None
        pairs = [(value, values[1][key]) for key, value in values[0].items()]
        found = [one - another for one, another in pairs if one is not None and another is not None]
        known = len(found) > 1 and all(map(math.isfinite, found))
        return Estimate(mean(found), standard_error(found)) if known else None


def render_summary(
    groups: Sequence[Group], target: float | None = None, width: int = 80, *, every: bool = False
) -> "Table":
    """Shows one run with its figures one below the other, the first ones or ``every`` one; several with a line each and
    as many figures as the width takes. The ``target`` is the one they were summarized with."""
    if len(groups) == 1 and len(groups[0].runs) == 1:
        return _one(groups[0].runs[0], target, every)
    names = 3 + min(_LONGEST_NAME, max(len("method"), *(len(group.label) for group in groups)))  # with space around
    columns = columns_of(groups, target)
    cells = {title: [group.text(figure) for group in groups] for title, figure in columns.items()}
    shown = _fitting(columns, cells, width - names, highest=99)
    table = new_table(caption=caption_of(groups, map(columns.__getitem__, shown)), caption_justify="left")
    table.add_column("method", overflow="fold")
    for title in shown:
        table.add_column(title, justify="right", vertical="bottom", no_wrap=True)
    for group, *texts in zip(groups, *shown.values(), strict=True):
        table.add_row(group.label, *texts)
    return table


def _one(run: RunSummary, target: float | None, every: bool) -> "Table":
    from rich.table import Table

    table = Table(title=run.name, show_header=False, caption=None if every else "summary --all shows every figure")
    table.add_column()
    table.add_column(justify="right")
    table.add_row("status", run.status + (f", but {run.divergence.kind}" if run.divergence else ""))
    table.add_row("rounds completed by all", f"{run.rounds}" + (f", but for {run.gone} gone" if run.gone else ""))
    figures = figures_of([run])
    rows = [figure.line(run) for figure in figures if figure.brief]
    if every:
        rows += [("algorithm", run.algorithm), ("clients", str(run.clients))]
        rows += [figure.line(run) for figure in figures if not figure.brief and not figure.of_target]
    if target is not None:
        in_virtual_time = run.conditions is not None and run.conditions.virtual_s is not None
        shown = (each for each in figures if each.of_target and (in_virtual_time or "virtual" not in each.title))
        rows += [figure.line(run, target) for figure in shown]
    for row in filter(None, rows):
        table.add_row(*row)
    return table


def columns_of(groups: Sequence[Group], target: float | None = None) -> dict[str, Figure]:
    """Returns {title: figure} of every column that any group has a figure for, and of the target's."""
    runs = [run for group in groups for run in group.runs]
    metrics, columns = sorted({run.metric for run in runs}), [each for each in figures_of(runs) if each.head]
    there = {"test_metric"} | {each.key for each in columns if any(group.estimate(each.key) for group in groups)}
    if target is not None:
        there |= {each.key for each in columns if each.of_target and ("virtual_s" in there or each.head != "virtual")}
    return {figure.column(metrics, target): figure for figure in columns if figure.key in there}


def _fitting(columns: Mapping[str, Figure], cells: Mapping[str, Any], width: int, highest: int) -> dict[str, Any]:
    """Returns the cells for which there is room; those of the lowest rank leave first, up to the ``highest``."""
    there = dict(cells)
    for _, title in sorted((figure.rank, title) for title, figure in columns.items() if 0 < figure.rank <= highest):
        if _width_of(there) > width:
            del there[title]
    return there


def _width_of(columns: Mapping[str, Iterable[Sized]]) -> int:
    return sum(2 + max(len(text) for text in (*title.split("\n"), *cells)) for title, cells in columns.items())


def caption_of(groups: Sequence[Group], figures: Iterable[Figure]) -> str:
    """Says of which runs the figures are, and what their columns' short titles do not say."""
    runs = [run for group in groups for run in group.runs]
    seeds = ", or over runs where there are several seeds" if len(runs) > len(groups) else ""
    heads: defaultdict[str, list[str]] = defaultdict(list)
    for figure in figures:
        heads[figure.note].append(" ".join(figure.head.split()))
    notes = "; ".join(f"{', '.join(names)}: {note}" for note, names in heads.items() if note)
    lines = [f"{size_of(runs)}; 1 MB = 10^6 bytes", f"± is the standard error over clients{seeds}", notes]
    return "\n".join(filter(None, lines))


def size_of(runs: Sequence[RunSummary], between: str = ", ") -> str:
    clients, rounds = {run.clients for run in runs}, {run.rounds for run in runs}
    return f"{' / '.join(map(str, sorted(clients)))} clients{between}{' / '.join(map(str, sorted(rounds)))} rounds"


def render_comparison(comparison: Comparison, target: float | None = None, width: int = 80) -> "list[Table | str]":
    """Shows a line a group; where there are few, or many keys, a column each, in as many tables as the width takes.
    What the signs mean comes last. The ``target`` is the one that the runs were summarized with."""
    from rich.text import Text

    columns = columns_of(comparison.groups, target)
    figures: dict[str, list[Text]] = {}
    for title, figure in columns.items():
        marks = comparison.marks(figure.key)
        figures[title] = [
            Text(group.text(figure) + (_SIGNS[mark] if any(marks) else ""), style="bold" if mark == "best" else "")
            for group, mark in zip(comparison.groups, marks, strict=True)
        ]
    heads = _heads(comparison)
    room = width - 1 - _width_of(heads)
    fitting = _fitting(columns, figures, room, _MAY_LEAVE)
    if len(comparison.groups) > _FEW and _width_of(fitting) <= room:
        tables = [new_table()]
        for title in (*heads, *fitting):
            justify: Any = "right" if title in fitting else "left"
            tables[0].add_column(title, justify=justify, vertical="bottom", no_wrap=True)
        for row in zip(*heads.values(), *fitting.values(), strict=True):
            tables[0].add_row(*row)
    else:
        tables = _side_by_side(comparison, figures, width)
    return [*tables, f"{caption_of(comparison.groups, columns.values())}\n{_LEGEND}"]


def value_text(value: Any) -> str:
    """Shows the value of a key; None: the configuration has no such key."""
    if value is None:
        return UNKNOWN
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _heads(comparison: Comparison) -> dict[str, list[str]]:
    """Returns what tells the groups apart: their keys, and their names where these say more."""
    groups, keys = comparison.groups, comparison.keys
    heads = {
        name: [value_text(setting.get(key)) for setting in comparison.settings]
        for name, key in zip(short_names(keys), keys, strict=True)
    }
    unfinished = any(run.status != "finished" or run.divergence for group in groups for run in group.runs)
    if unfinished or comparison.named or len(set(zip(*heads.values(), strict=True))) < len(groups):
        return {"run": [group.label for group in groups]} | heads
    return heads | {"seeds": [str(len(group.runs)) for group in groups]}


def _side_by_side(comparison: Comparison, columns: "Mapping[str, Sequence[Text]]", width: int) -> "list[Table]":
    groups, keys = comparison.groups, comparison.keys
    rows: dict[str, Sequence[Any]] = {
        **{key: [value_text(setting.get(key)) + "  " for setting in comparison.settings] for key in keys},
        **{" ".join(title.split()): marked for title, marked in columns.items()},
    }
    left, cell = 1 + _width_of({"": rows}), min(_WIDEST, max(_width_of({"": texts}) for texts in rows.values()))
    tables = []
    at_once = max(1, (width - left) // cell)
    for start in range(0, len(groups), at_once):
        shown = slice(start, start + at_once)
        table = new_table()
        table.add_column("", no_wrap=True)
        for group in groups[shown]:
            table.add_column(f"{group.label}  ", justify="right", vertical="bottom", overflow="fold", max_width=_WIDEST)
        for title, texts in rows.items():
            table.add_row(title, *texts[shown], end_section=bool(keys) and title == keys[-1])
        tables.append(table)
    return tables
