"""What the runs of a reproduction ended with, and the published figures beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from textwrap import fill
from typing import TYPE_CHECKING, Literal

from ....metrics import open_run
from ....metrics.comparison import Group, summarize_all
from ....metrics.figures import AVERAGED, target_text
from ....metrics.text import UNKNOWN, short
from ...run.earlier import PlannedRun, has_diverged, is_finished
from ..folders import slug
from .parts import Part

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.table import Table

Ended = Literal["finished", "diverged", "failed"]


@dataclass(frozen=True)
class Result:
    """One run of a part in all its seeds. ``group`` and ``folders`` are of the seeds that finished; ``ended`` says how
    it went where none did."""

    name: str
    group: Group | None
    folders: tuple[Path, ...]
    ended: Ended


def planned(part: Part, seeds: int | None, out: Path) -> list[PlannedRun]:
    """Returns every run of every seed: OUT/PART/NAME-seed-0, ...; by default of as many seeds as a part has."""
    return [
        PlannedRun(config.but(seed=seed), out / part.folder / slug(f"{config.label} seed {seed}"))
        for seed in range(seeds or part.about.seeds)
        for config in part.configs
    ]


def results(part: Part, runs: Sequence[PlannedRun]) -> list[Result]:
    """In the order of the configuration; ``runs`` are those of the part."""
    found = []
    for config in part.configs:
        folders = [run.folder for run in runs if run.config.label == config.label]
        finished = tuple(folder for folder in folders if is_finished(folder))
        groups = summarize_all(finished, part.about.target)
        ended: Ended = "finished" if finished else "diverged" if all(map(has_diverged, folders)) else "failed"
        found.append(Result(config.label, groups[0] if groups else None, finished, ended))
    return found


def curves(results: list[Result]) -> "DataFrame":
    """run, round, metric, standard_error (over seeds; missing for one), mbit sent by all clients up to the round."""
    import pandas

    frames = []
    for result in results:
        for folder in result.folders:
            rounds = open_run(folder).round_cumulative.dropna(subset="mean_test_metric")
            frames.append(rounds.assign(run=result.name, mbit=rounds.payload_bytes * 8e-6))
    found = pandas.concat(frames).groupby(["run", "round"], sort=False)
    return found.agg(
        metric=("mean_test_metric", "mean"), standard_error=("mean_test_metric", "sem"), mbit=("mbit", "mean")
    ).reset_index()


def map_norms(result: Result) -> "DataFrame":
    """client, neighbour, parameters of both, ||P_ij||_F after the first round and the last, of the first seed."""
    reader = open_run(result.folders[0])
    edges, sizes = reader.edges, reader.nodes.set_index("node").parameters
    first, last = (
        edges[edges["round"] == at].set_index(["node", "neighbour"]).map_norm for at in (1, edges["round"].max())
    )
    norms = last.rename("norm").to_frame().assign(norm_after_round_1=first).reset_index()
    norms = norms.rename(columns={"node": "client"})
    return norms.assign(parameters=norms.client.map(sizes), neighbour_parameters=norms.neighbour.map(sizes))


def rounds_past(results: list[Result], result: Result, alone: str) -> int | None:
    """First round after which the mean accuracy is above what the run called ``alone`` ends with; None: never."""
    found = curves(results)
    bar = found[found.run == alone].metric
    above = found[(found.run == result.name) & (found.metric > bar.iloc[-1])] if len(bar) else bar
    return int(above["round"].iloc[0]) if len(above) else None


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
