"""A board as a page, as Markdown, and as a picture: the same tables in both."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pandas import DataFrame

from ..board import TARGET, Board, Entry, best_of, front_of, target_of
from ..comparison import Estimate
from ..text import UNKNOWN, short
from .chart import PALETTE, SHAPES, Chart, Spec, category, quantity
from .page import document

PAGE, TABLES, DATA, PICTURE = "board.html", "board.md", "board.json", "board.svg"
"""Names of the files."""
_NAMED = 5  # of the front, in the picture: more would cover each other


class Section(NamedTuple):
    heading: str
    note: str
    columns: list[str]
    rows: list[list[str]]  # the first cell names the row
    chart: Chart | None = None


def write_board(board: Board, out: Path) -> list[Path]:
    """Writes page, Markdown, picture and board.json. Raises OSError."""
    out.mkdir(parents=True, exist_ok=True)
    files = [out / name for name in (PAGE, TABLES, PICTURE, DATA)]
    chart = draw(board)
    sections = list(sections_of(board, chart))
    files[0].write_text(_page(board, sections), encoding="utf-8")
    files[1].write_text(_markdown(board, sections), encoding="utf-8")
    files[2].write_text(chart.svg(), encoding="utf-8")
    board.save(files[3])
    return files


def sections_of(board: Board, chart: Chart | None = None) -> Iterator[Section]:
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
    yield Section("All problems", note, columns, rows, chart)
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


def draw(board: Board) -> Chart:
    """Accuracy against bytes, a panel a problem, with the methods that no other beats for as few bytes joined."""
    families = list(dict.fromkeys(each.family for each in board.methods.values()))
    rows = [row for problem in board.problems for row in _points(problem, board.of(problem))]
    columns = ["problem", "method", "title", "family", "test_metric", "standard_error", "payload_bytes", "on_front"]
    table = DataFrame(rows, columns=[*columns, "place_mb", "value", "name"])
    views = [_panel(problem, title, board.of(problem), families) for problem, title in board.problems.items()]
    spec: Spec = {"concat": views, "columns": 3}
    caption = "Each dot is a method, mean over seeds; the line joins those that no other beats for as few bytes."
    written = table[[each for each in columns if each not in ("title", "family")]]
    return Chart("board", "Accuracy against bytes", caption, spec, {"board": table}, written=written)


def _points(problem: str, entries: Sequence[Entry]) -> Iterator[tuple]:
    found = [
        (each, metric, sent)
        for each in entries
        if (metric := each.estimate("test_metric")) and (sent := each.estimate("payload_bytes"))
    ]
    front = front_of([each for each in entries if each.results])
    named = {each.name for each in front[-_NAMED:]}
    least = min((sent.mean for *_, sent in found if sent.mean > 0), default=1e6)
    for each, metric, sent in found:
        scale = 1.0 if each.metric == "mse" else 100.0
        place = max(sent.mean, least / 3) / 1e6  # what sends nothing stands at the left
        error, on_front = metric.standard_error, each in front
        about = each.method, each.title, each.family, metric.mean, error, sent.mean, on_front
        yield problem, *about, place, scale * metric.mean, each.title if each.name in named else ""


def _panel(problem: str, title: str, entries: Sequence[Entry], families: Sequence[str]) -> Spec:
    there = [each for each in entries if each.results]
    look = {"domain": list(families), "range": [PALETTE[place % len(PALETTE)] for place in range(len(families))]}
    shape = {"domain": list(families), "range": [SHAPES[place % len(SHAPES)] for place in range(len(families))]}
    x = quantity(
        "place_mb",
        "payload sent, MB",
        scale={"type": "log", "nice": False},
        axis={"format": "~r", "labelOverlap": True},
    )
    y = quantity("value", _title(there[0]) if there else "", scale={"zero": False})
    tooltip = [
        category("title", "method"),
        quantity("payload_bytes", "payload, bytes", format=",.4~s"),
        quantity("value", y["title"], format=".4~g"),
    ]
    on_front = {"filter": "datum.on_front"}
    return {
        "title": title,
        "width": 290,
        "height": 220,
        "transform": [{"filter": f"datum.problem == {json.dumps(problem)}"}],
        "encoding": {"x": x, "y": y},
        "layer": [
            {
                "transform": [on_front],
                "mark": {"type": "line", "interpolate": "step-after", "color": "#8a8d93", "strokeWidth": 1},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 46, "opacity": 0.9},
                "encoding": {
                    "color": category("family", None, scale=look),
                    "shape": category("family", None, scale=shape),
                    "tooltip": tooltip,
                },
            },
            {"mark": {"type": "text", "dy": -9, "fontSize": 9, "aria": False}, "encoding": {"text": {"field": "name"}}},
        ],
    }


# -- pages -------------------------------------------------------------------------------------------------------------


def _page(board: Board, sections: Sequence[Section]) -> str:
    charts = [section.chart for section in sections if section.chart]
    return document("board.html", charts, **contents(board, sections))


def contents(board: Board, sections: Sequence[Section]) -> dict[str, Any]:
    """Returns what board.html shows."""
    entries = [
        {
            "name": each.name,
            "seeds": ", ".join(f"{result.seed} {result.digest[:12]}" for result in each.results) or each.flaw,
            "trials": ", ".join(f"{count} {how}" for how, count in each.trials.items()),
            "toml": each.toml,
        }
        for each in board.entries
    ]
    shown = [
        {"heading": each.heading, "name": each.heading, "note": each.note, "columns": each.columns, "chart": each.chart,
         "rows": [(first, cells) for first, *cells in each.rows]}
        for each in sections
    ]  # fmt: skip
    return {"title": "Board", "facts": list(board.facts.items()), "sections": shown, "entries": entries}


def _markdown(board: Board, sections: Iterable[Section]) -> str:
    texts = ["\n".join(f"- {name}: {text}" for name, text in board.facts.items())]
    for section in sections:
        lines = [section.columns, ["---"] * len(section.columns), *section.rows]
        texts.append(
            f"## {section.heading}\n\n{section.note}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in lines)
        )
    return "\n\n".join(texts) + "\n"
