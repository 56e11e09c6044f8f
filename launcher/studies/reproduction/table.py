"""The published figures and ours side by side."""

from statistics import mean
from textwrap import fill
from typing import TYPE_CHECKING

from ....metrics import open_run
from ....metrics.figures import AVERAGED, target_text
from ....metrics.seeds import Group
from ....metrics.text import UNKNOWN, short
from .parts import Part
from .results import Result, map_norms, rounds_past

if TYPE_CHECKING:
    from rich.table import Table

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
_OURS = {
    "accuracy": "test_metric",
    "mse": "test_metric",
    "worst_10": "worst_10",
    "sent": "payload_bytes",
    "wall": "wall_s",
    "tflop": "flops",
    "memory": "clients_pss",
    "rounds_to": "rounds_to_reach",
}
"""Which of the figures of a run a column shows; the others are computed here."""


def render(part: Part, results: list[Result]) -> "Table":
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
                    cells.append(result.ended if column == about.columns[0] else UNKNOWN)
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
    metric = "mse" if "mse" in part.about.columns else "accuracy"
    return _TITLES[column].format(target=target_text([metric], part.about.target or 0.0))


def _without(name: str, endings: tuple[str, ...]) -> str:
    return next((name.removesuffix(f" {ending}") for ending in endings if ending and name.endswith(ending)), name)


def _published(part: Part, name: str, column: str) -> str:
    figure = part.published.get(name, {}).get(column)
    return "" if figure is None else figure if isinstance(figure, str) else f"{figure:g}"


def _ours(results: list[Result], result: Result, group: Group, column: str) -> str:
    if column in _OURS:
        figure = AVERAGED[_OURS[column]]
        return group.text(figure).replace(" ± ", "±") if group.estimate(figure.key) else UNKNOWN
    if column == "kbit_to":
        estimate = group.estimate("payload_bytes_to_reach")
        return UNKNOWN if estimate is None else short(8e-3 * estimate.mean)
    if column == "busiest":
        return short(mean(open_run(folder).client_total.payload_bytes_sent.max() for folder in result.folders) / 1e3)
    if column == "rounds_past_local":
        passed = None if result.name == "Local" else rounds_past(results, result, "Local")
        return UNKNOWN if passed is None else str(passed)
    norms = map_norms(result)
    change = 100 * (norms.norm / norms.norm_after_round_1 - 1).abs().max()
    return short({"norm_least": norms.norm.min(), "norm_median": norms.norm.median(), "norm_most": norms.norm.max(),
                   "norm_change": change}[column])  # fmt: skip


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
