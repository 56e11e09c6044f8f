"""Summaries as a table for the terminal. MB are 10^6 bytes."""

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import TYPE_CHECKING

from .figures import COLUMNS, FIGURES, Figure
from .seeds import Group
from .summary import RunSummary
from .terminal import new_table

if TYPE_CHECKING:
    from rich.table import Table

_LONGEST_NAME = 40
"""Longer ones take more than one line where that makes room for figures."""


def render(groups: Sequence[Group], target: float | None = None, width: int = 80, *, every: bool = False) -> "Table":
    """Shows one run with its figures one below the other, the first ones or ``every`` one; several with a line each and
    as many figures as the width takes beside the names.

    ``target`` is the one that the runs were summarized with.
    """
    if len(groups) == 1 and len(groups[0].runs) == 1:
        return _one(groups[0].runs[0], target, every)
    return _several(groups, target, width)


def _one(run: RunSummary, target: float | None, every: bool) -> "Table":
    from rich.table import Table  # rich costs every process that imports it, and most only want the numbers

    table = Table(title=run.name, show_header=False, caption=None if every else "summary --all shows every figure")
    table.add_column()
    table.add_column(justify="right")
    table.add_row("status", run.status + (f", but {run.divergence.kind}" if run.divergence else ""))
    table.add_row("rounds completed by all", f"{run.rounds}" + (f", but for {run.gone} gone" if run.gone else ""))
    shown = [figure for figure in FIGURES if figure.brief]
    if every:
        shown += [figure for figure in FIGURES if not figure.brief and not figure.of_target]
    if target is not None:
        in_virtual_time = run.conditions is not None and run.conditions.virtual_s is not None
        shown += [each for each in FIGURES if each.of_target and (in_virtual_time or "virtual" not in each.title)]
    for number, line in enumerate(figure.line(run, target) for figure in shown):
        if every and number == sum(figure.brief for figure in FIGURES):
            table.add_row("algorithm", run.algorithm)
            table.add_row("clients", str(run.clients))
        if line is not None:
            table.add_row(*line)
    return table


def _several(groups: Sequence[Group], target: float | None, width: int) -> "Table":
    names = 3 + min(_LONGEST_NAME, max(len("method"), *(len(group.label) for group in groups)))  # with space around
    columns = columns_of(groups, target)
    cells = {title: [group.text(figure) for group in groups] for title, figure in columns.items()}
    figures = fitting(columns, cells, width - names)
    table = new_table(caption=caption_of(groups, figures.values()), caption_justify="left")
    table.add_column("method", overflow="fold")
    for title in figures:
        table.add_column(title, justify="right", vertical="bottom", no_wrap=True)
    for number, group in enumerate(groups):
        table.add_row(group.label, *(cells[title][number] for title in figures))
    return table


def columns_of(groups: Sequence[Group], target: float | None = None) -> dict[str, Figure]:
    """Returns {title: figure} of every column that any group has a figure for, and of the target's."""
    metrics = sorted({run.metric for group in groups for run in group.runs})
    there = {figure.key for figure in COLUMNS if any(group.estimate(figure.key) for group in groups)}
    if target is not None:
        in_virtual_time = "virtual_s" in there
        there |= {each.key for each in COLUMNS if each.of_target and (in_virtual_time or each.head != "virtual")}
    return {
        figure.column(metrics, target): figure
        for figure in COLUMNS
        if figure.key in there or figure.key == "test_metric"
    }


def fitting(
    columns: Mapping[str, Figure], cells: Mapping[str, Sequence[Sized]], width: int, highest: int = 99
) -> dict[str, Figure]:
    """Returns the columns for which there is room; those of the lowest rank leave first, up to the ``highest``."""
    there = dict(columns)
    leaving = sorted(
        (title for title in there if 0 < there[title].rank <= highest), key=lambda title: there[title].rank
    )
    while leaving and sum(width_of(title, cells[title]) for title in there) > width:
        del there[leaving.pop(0)]
    return there


def width_of(title: str, cells: Iterable[Sized]) -> int:
    """Returns a column's width with the space around it."""
    return 2 + max(len(text) for text in (*title.split("\n"), *cells))


def caption_of(groups: Sequence[Group], figures: Iterable[Figure]) -> str:
    """Says of which runs the figures are, and what their columns' short titles do not say."""
    runs = [run for group in groups for run in group.runs]
    seeds = ", or over runs where there are several seeds" if len(runs) > len(groups) else ""
    heads: dict[str, list[str]] = {}
    for figure in figures:
        if figure.note:
            heads.setdefault(figure.note, []).append(" ".join(figure.head.split()))
    notes = "; ".join(f"{', '.join(names)}: {note}" for note, names in heads.items())
    return "\n".join(
        filter(None, [f"{size_of(runs)}; 1 MB = 10^6 bytes", f"± is the standard error over clients{seeds}", notes])
    )


def size_of(runs: Sequence[RunSummary], between: str = ", ") -> str:
    """Returns "10 / 20 clients, 5 rounds"."""
    clients, rounds = {run.clients for run in runs}, {run.rounds for run in runs}
    return f"{' / '.join(map(str, sorted(clients)))} clients{between}{' / '.join(map(str, sorted(rounds)))} rounds"
