"""A comparison as a table for the terminal."""

import json
from typing import TYPE_CHECKING, Any

from .comparison import Comparison, Mark, short_names
from .figures import Figure
from .summary_table import caption_of, columns_of, fitting, width_of
from .terminal import new_table
from .text import UNKNOWN

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_SIGNS: dict[Mark, str] = {"best": " *", "close": " ≈", "": "  "}
_LEGEND = """* best by more than the standard error of the difference; ≈ too close to tell
differences are paired where seeds and clients are the same
no sign where all are equal, or where single runs tell no standard error"""
_FEW = 3
"""So many groups are compared best from left to right, key by key and figure by figure."""

_MAY_LEAVE = 6
"""The highest rank of the figures that make place for keys."""

_WIDEST = 24


def render(comparison: Comparison, target: float | None = None, width: int = 80) -> "list[Table | str]":
    """Shows a line a group; where there are few, or many keys, a column each, in as many tables as the width takes.
    What the signs mean comes last.

    ``target`` is the one that the runs were summarized with.
    """
    columns = columns_of(comparison.groups, target)
    lines = _one_below_the_other(comparison, columns, width) if len(comparison.groups) > _FEW else None
    tables = _side_by_side(comparison, columns, width) if lines is None else [lines]
    return [*tables, f"{caption_of(comparison.groups, columns.values())}\n{_LEGEND}"]


def value_text(value: Any) -> str:
    """Shows the value of a key; None: the configuration has no such key."""
    if value is None:
        return UNKNOWN
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _one_below_the_other(comparison: Comparison, columns: dict[str, Figure], width: int) -> "Table | None":
    """None where the keys leave no place for the figures."""
    from rich.text import Text

    heads = _heads(comparison)
    figures = {title: _marked(comparison, figure) for title, figure in columns.items()}
    room = width - 1 - sum(width_of(title, texts) for title, texts in heads.items())
    figures = {title: figures[title] for title in fitting(columns, figures, room, _MAY_LEAVE)}
    if sum(width_of(title, texts) for title, texts in figures.items()) > room:
        return None
    table = new_table()
    for title in heads:
        table.add_column(title, vertical="bottom", no_wrap=True)
    for title in figures:
        table.add_column(title, justify="right", vertical="bottom", no_wrap=True)
    for row in zip(*heads.values(), *figures.values(), strict=True):
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def _side_by_side(comparison: Comparison, columns: dict[str, Figure], width: int) -> "list[Table]":
    from rich.text import Text

    groups, keys = comparison.groups, comparison.keys
    rows = {key: [value_text(setting.get(key)) + "  " for setting in comparison.settings] for key in keys}
    figures = {" ".join(title.split()): _marked(comparison, figure) for title, figure in columns.items()}
    left = 1 + width_of("", [*rows, *figures])
    widths = [width_of("", texts) for texts in rows.values()] + [width_of("", texts) for texts in figures.values()]
    cell = min(_WIDEST, max(widths))
    at_once = max(1, (width - left) // cell)
    tables = []
    for start in range(0, len(groups), at_once):
        shown = slice(start, start + at_once)
        table = new_table()
        table.add_column("", no_wrap=True)
        for group in groups[shown]:
            name = Text(group.label + "  ")
            table.add_column(name, justify="right", vertical="bottom", overflow="fold", max_width=_WIDEST)
        for key, texts in rows.items():
            table.add_row(Text(key), *map(Text, texts[shown]), end_section=key == keys[-1])
        for title, marked in figures.items():
            table.add_row(Text(title), *marked[shown])
        tables.append(table)
    return tables


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


def _marked(comparison: Comparison, figure: Figure) -> "list[Text]":
    from rich.text import Text

    marks = comparison.marks(figure.key)
    return [
        Text(group.text(figure) + (_SIGNS[mark] if any(marks) else ""), style="bold" if mark == "best" else "")
        for group, mark in zip(comparison.groups, marks, strict=True)
    ]
