"""A board as a page, as Markdown, and as a picture: the same tables in both."""

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from ...topology.picture import COLOURS, INK, LOOK, MARKERS, SOFT, legend_below, new_figure
from ..board import TARGET, Board, Entry, best_of, front_of, target_of
from ..comparison import Estimate
from ..text import UNKNOWN, plain, short
from .drawn import Drawn
from .page import document, html_figure, html_row, html_table

PAGE, TABLES, DATA, PICTURE = "board.html", "board.md", "board.json", "board.svg"
"""Names of the files."""
_NAMED = 5  # of the front, in the picture: more would cover each other


class Section(NamedTuple):
    heading: str
    note: str
    columns: list[str]
    rows: list[list[str]]  # the first cell names the row
    drawn: Drawn | None = None


def write_board(board: Board, out: Path) -> list[Path]:
    """Writes page, Markdown, picture and board.json. Raises OSError."""
    out.mkdir(parents=True, exist_ok=True)
    files = [out / name for name in (PAGE, TABLES, PICTURE, DATA)]
    with matplotlib.rc_context(LOOK | {"axes.grid": True}):
        drawn = draw(board)
        sections = list(sections_of(board, drawn))
        files[0].write_text(plain(_page(board, sections)), encoding="utf-8")
        files[1].write_text(_markdown(board, sections), encoding="utf-8")
        drawn.figure.savefig(files[2], facecolor="white", metadata={"Date": None})
    board.save(files[3])
    return files


def sections_of(board: Board, drawn: Drawn | None = None) -> Iterator[Section]:
    problems = {problem: board.of(problem) for problem in board.problems}
    bests = {problem: best_of(entries) for problem, entries in problems.items()}
    columns = ["method", *board.problems.values(), "places"]
    note = (
        "Mean test metric in the last round, mean ± standard error over seeds; * is best, or not worse than the best "
        "by more than the standard error of the difference; places is the mean over the problems of the place."
    )
    places = {problem: places_of(entries) for problem, entries in problems.items()}
    rows = []
    for name, method in board.methods.items():
        cells = []
        for problem, entries in problems.items():
            entry = next((each for each in entries if each.method == name), None)
            best = bests[problem]
            star = " *" if entry and best and entry.results and not best.better(entry) else ""
            cells.append(f"{_metric(entry, 'test_metric')}{star}")
        found = [place[name] for place in places.values() if name in place]
        rows.append([method.title, *cells, f"{sum(found) / len(found):.1f}" if found else UNKNOWN])
    yield Section("All problems", note, columns, rows, drawn)
    for problem, entries in problems.items():
        yield _of_problem(board, board.problems[problem], entries)


def places_of(entries: Sequence[Entry]) -> dict[str, float]:
    """Returns {method: its place by the mean test metric}, 1 the best; those that are equal share the mean place."""
    found = [(each.method, estimate.mean) for each in entries if (estimate := each.estimate("test_metric"))]
    sign = -1 if entries[0].metric == "mse" else 1
    return {
        name: 1 + sum(sign * other > sign * value for _, other in found)
        + (sum(other == value for _, other in found) - 1) / 2
        for name, value in found
    }  # fmt: skip


def _of_problem(board: Board, title: str, entries: Sequence[Entry]) -> Section:
    target, front = target_of(entries), {each.name for each in front_of(entries)}
    aim = UNKNOWN if target is None else _text(entries[0], target)
    columns = ["method", "tuned", f"{_title(entries[0])}", "worst 10%", "sent, MB", f"MB to {aim}", f"s to {aim}",
               "planned s", "CPU s", "memory MB"]  # fmt: skip
    order = list(board.methods)
    rows = []
    for entry in sorted(entries, key=lambda each: order.index(each.method)):
        sent, seconds = (None, None) if target is None else entry.to_reach(target)
        mark = " ▲" if entry.name in front else ""
        tuned = ", ".join(f"{key.rpartition('.')[2]} {_value(value)}" for key, value in entry.tuned.items())
        rows.append([
            f"{entry.title}{mark}", entry.flaw or tuned, _metric(entry, "test_metric"), _metric(entry, "worst_10"),
            _size(entry.estimate("payload_bytes")), _size(sent), _seconds(seconds),
            _seconds(entry.estimate("virtual_s")), _seconds(entry.estimate("clients_cpu_s")),
            _size(entry.estimate("clients_pss")),
        ])  # fmt: skip
    note = (
        f"▲ no other is better for as few bytes. MB and planned seconds until the mean was {aim}, {TARGET:.0%} of the "
        f"best, where every seed got there. CPU and memory (PSS) of all clients together."
    )
    return Section(title, note, columns, rows)


def _title(entry: Entry) -> str:
    return "test MSE" if entry.metric == "mse" else "accuracy %"


def _text(entry: Entry, value: float, error: float = math.nan) -> str:
    scale, form = (1.0, ".3g") if entry.metric == "mse" else (100.0, ".1f")
    return f"{scale * value:{form}}" + ("" if math.isnan(error) else f" ± {scale * error:{form}}")


def _metric(entry: Entry | None, figure: str) -> str:
    if entry is None:
        return ""
    found = entry.estimate(figure)
    return _text(entry, *found) if found else "refused" if entry.flaw.startswith("refused") else "diverged"


def _value(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else f"{value}"


def _size(found: Estimate | None) -> str:
    return UNKNOWN if found is None else _with_error(found.mean / 1e6, found.standard_error / 1e6)


def _seconds(found: Estimate | None) -> str:
    return UNKNOWN if found is None else _with_error(*found)


def _with_error(value: float, error: float) -> str:
    shown = "" if math.isnan(error) or error <= 0.005 * abs(value) else f" ± {short(error)}"
    return f"{short(value)}{shown}"


# -- the picture -------------------------------------------------------------------------------------------------------


def draw(board: Board) -> Drawn:
    """Accuracy against bytes, a panel a problem, with the methods that no other beats for as few bytes joined."""
    problems = board.problems
    columns = min(3, len(problems))
    lines = math.ceil(len(problems) / columns)
    figure, panels = new_figure(4.2 * columns, 3.4 * lines + 0.7, columns, len(problems))
    families = list(dict.fromkeys(each.family for each in board.methods.values()))
    for panel, (problem, title) in zip(panels, problems.items(), strict=True):
        _panel(panel, title, board.of(problem), families)
    _legend(figure, panels[0], families)
    data = DataFrame(
        [
            (each.problem, each.method, metric.mean, metric.standard_error, sent.mean, each in front)
            for problem in problems
            for front in [front_of(board.of(problem))]
            for each in board.of(problem)
            if (metric := each.estimate("test_metric")) and (sent := each.estimate("payload_bytes"))
        ],
        columns=["problem", "method", "test_metric", "standard_error", "payload_bytes", "on_front"],
    )
    caption = "Each dot is a method, mean over seeds; the line joins those that no other beats for as few bytes."
    return Drawn("board", "Accuracy against bytes", caption, figure, data)


def _panel(panel: Axes, title: str, entries: Sequence[Entry], families: Sequence[str]) -> None:
    there = [each for each in entries if each.results]
    sent = {each.name: each.estimate("payload_bytes") for each in there}
    least = min((found.mean for found in sent.values() if found and found.mean > 0), default=1e6)
    scale = 1.0 if there and there[0].metric == "mse" else 100.0

    def place(entry: Entry) -> tuple[float, float]:
        bytes_, metric = sent[entry.name], entry.estimate("test_metric")
        assert bytes_
        assert metric
        return max(bytes_.mean, least / 3) / 1e6, scale * metric.mean  # what sends nothing stands at the left

    for entry in there:
        panel.scatter(*place(entry), **_look(families.index(entry.family)))
    front = front_of(there)
    if front:
        xs, ys = zip(*map(place, front), strict=True)
        panel.step([*xs, panel.get_xlim()[1]], [*ys, ys[-1]], where="post", color=SOFT, lw=1, zorder=0)
    for entry in front[-_NAMED:]:
        panel.annotate(
            entry.title, place(entry), (0, 4), textcoords="offset points", fontsize=7, color=INK, ha="center"
        )
    panel.set_xscale("log")
    panel.set_title(title, fontsize=10)
    panel.set_xlabel("payload sent, MB")
    panel.set_ylabel(_title(there[0]) if there else "")


def _legend(figure: Figure, panel: Axes, families: Sequence[str]) -> None:
    for number, family in enumerate(families):
        panel.scatter([], [], label=family, **_look(number))
    legend_below(figure, panel)


def _look(family: int) -> dict[str, Any]:
    colour, marker = COLOURS[family % len(COLOURS)], MARKERS[family % len(MARKERS)]
    return {"s": 22, "linewidths": 0, "color": colour, "marker": marker}


# -- pages -------------------------------------------------------------------------------------------------------------


def _page(board: Board, sections: Iterable[Section]) -> str:
    facts = "".join(f"<br>{escape(name)}: {escape(text)}" for name, text in board.facts.items())
    parts = [f"<header><h1>Board</h1><p>{facts.removeprefix('<br>')}</p></header>"]
    for section in sections:
        rows = [html_row(escape(first), cells) for first, *cells in section.rows]
        table = html_table(section.columns, rows, kind="")
        drawn = html_figure(section.drawn, "h3") if section.drawn else ""
        note = f"<p class=note>{escape(section.note)}</p>"
        parts.append(f"<section><h2>{escape(section.heading)}</h2>{table}{note}{drawn}</section>")
    parts.append(_configurations(board))
    return document("Board", parts)


def _configurations(board: Board) -> str:
    blocks = "".join(
        f"<details><summary>{escape(each.name)}</summary><p class=note>Seeds and hashes: "
        f"{', '.join(f'{result.seed} {result.digest[:12]}' for result in each.results) or escape(each.flaw)}. "
        f"Trials: {', '.join(f'{count} {how}' for how, count in each.trials.items())}. To make it again and compare: "
        f"<code>sheafgossip board --check {escape(each.name)}</code></p><pre>{escape(each.toml)}</pre></details>"
        for each in board.entries
    )
    return f"<section><h2>Configurations</h2>{blocks}</section>"


def _markdown(board: Board, sections: Iterable[Section]) -> str:
    texts = ["\n".join(f"- {name}: {text}" for name, text in board.facts.items())]
    for section in sections:
        lines = [section.columns, ["---"] * len(section.columns), *section.rows]
        texts.append(
            f"## {section.heading}\n\n{section.note}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in lines)
        )
    return "\n\n".join(texts) + "\n"
