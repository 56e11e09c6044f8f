"""Summaries and comparisons as tables for the terminal. MB are 10^6 bytes."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

from .comparison import Comparison, Group, Mark
from .config_file import short_names
from .figures import COLUMNS, FIGURES, Figure
from .summary import RunSummary
from .text import UNKNOWN, new_table

if TYPE_CHECKING:  # rich costs every process that imports it, and most only want the numbers
    from rich.table import Table
    from rich.text import Text

_LONGEST_NAME = 40  # longer ones take more than one line where that makes room for figures
_SIGNS: dict[Mark, str] = {"best": " *", "close": " ≈", "": "  "}
_LEGEND = """* best by more than the standard error of the difference; ≈ too close to tell
differences are paired where seeds and clients are the same
no sign where all are equal, or where single runs tell no standard error"""
_FEW = 3  # so many groups are compared best from left to right, key by key and figure by figure
_MAY_LEAVE = 6  # the highest rank of the figures that make place for keys
_WIDEST = 24


def render_summary(
    groups: Sequence[Group], target: float | None = None, width: int = 80, *, every: bool = False
) -> "Table":
    """Shows one run with its figures one below the other, the first ones or ``every`` one; several with a line each and
    as many figures as the width takes beside the names. The ``target`` is the one they were summarized with."""
    if len(groups) == 1 and len(groups[0].runs) == 1:
        return _one(groups[0].runs[0], target, every)
    names = 3 + min(_LONGEST_NAME, max(len("method"), *(len(group.label) for group in groups)))  # with space around
    columns = columns_of(groups, target)
    cells = {title: [group.text(figure) for group in groups] for title, figure in columns.items()}
    figures = _fitting(columns, cells, width - names)
    table = new_table(caption=caption_of(groups, figures.values()), caption_justify="left")
    table.add_column("method", overflow="fold")
    for title in figures:
        table.add_column(title, justify="right", vertical="bottom", no_wrap=True)
    for number, group in enumerate(groups):
        table.add_row(group.label, *(cells[title][number] for title in figures))
    return table


def _one(run: RunSummary, target: float | None, every: bool) -> "Table":
    from rich.table import Table

    table = Table(title=run.name, show_header=False, caption=None if every else "summary --all shows every figure")
    table.add_column()
    table.add_column(justify="right")
    in_virtual_time = run.conditions is not None and run.conditions.virtual_s is not None
    rows: list[tuple[str, str] | None] = [
        ("status", run.status + (f", but {run.divergence.kind}" if run.divergence else "")),
        ("rounds completed by all", f"{run.rounds}" + (f", but for {run.gone} gone" if run.gone else "")),
        *(figure.line(run) for figure in FIGURES if figure.brief),
    ]
    if every:
        rows += [("algorithm", run.algorithm), ("clients", str(run.clients))]
        rows += [figure.line(run) for figure in FIGURES if not figure.brief and not figure.of_target]
    if target is not None:
        shown = (each for each in FIGURES if each.of_target and (in_virtual_time or "virtual" not in each.title))
        rows += [figure.line(run, target) for figure in shown]
    for row in filter(None, rows):
        table.add_row(*row)
    return table


def columns_of(groups: Sequence[Group], target: float | None = None) -> dict[str, Figure]:
    """Returns {title: figure} of every column that any group has a figure for, and of the target's."""
    metrics = sorted({run.metric for group in groups for run in group.runs})
    there = {"test_metric"} | {each.key for each in COLUMNS if any(group.estimate(each.key) for group in groups)}
    if target is not None:
        in_virtual_time = "virtual_s" in there
        there |= {each.key for each in COLUMNS if each.of_target and (in_virtual_time or each.head != "virtual")}
    return {figure.column(metrics, target): figure for figure in COLUMNS if figure.key in there}


def _fitting(
    columns: Mapping[str, Figure], cells: Mapping[str, Sequence[Sized]], width: int, highest: int = 99
) -> dict[str, Figure]:
    """Returns the columns for which there is room; those of the lowest rank leave first, up to the ``highest``."""
    there = dict(columns)
    leaving = sorted((figure.rank, title) for title, figure in columns.items() if 0 < figure.rank <= highest)
    for _, title in leaving:
        if _width_of({title: cells[title] for title in there}) > width:
            del there[title]
    return there


def _width_of(columns: Mapping[str, Iterable[Sized]]) -> int:
    """Returns the width of {title: cells} with the space around them."""
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
    """Returns "10 / 20 clients, 5 rounds"."""
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
    fitting = {title: figures[title] for title in _fitting(columns, figures, room, _MAY_LEAVE)}
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
    ambiguous = len(set(zip(*heads.values(), strict=True))) < len(groups)
    unfinished = any(run.status != "finished" or run.divergence for group in groups for run in group.runs)
    if ambiguous or unfinished or comparison.named:
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
            name = group.label + "  "
            table.add_column(name, justify="right", vertical="bottom", overflow="fold", max_width=_WIDEST)
        for title, texts in rows.items():
            table.add_row(title, *texts[shown], end_section=bool(keys) and title == keys[-1])
        tables.append(table)
    return tables
