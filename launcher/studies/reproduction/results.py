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


_COLUMNS = {
    "accuracy": ("accuracy %", "test_metric"),
    "mse": ("MSE", "test_metric"),
    "worst_10": ("worst\n10%", "worst_10"),
    "sent": ("sent\nMB", "payload_bytes"),
    "wall": ("time\ns", "wall_s"),
    "tflop": ("TFLOP", "flops"),
    "memory": ("memory\nMB", "clients_pss"),
    "busiest": ("kB", ""),
    "rounds_to": ("rounds\nto {target}", "rounds_to_reach"),
    "kbit_to": ("kbit\nto {target}", ""),
    "rounds_past_local": ("rounds to\npass Local", ""),
    "norm_least": ("least\nnorm", ""),
    "norm_median": ("median\nnorm", ""),
    "norm_most": ("largest\nnorm", ""),
    "norm_change": ("largest\nchange %", ""),
}
"""A column's title, and which of the figures of a run it shows; the others are computed here."""


def render(part: Part, results: list[Result]) -> "Table":
    """A line a run; where runs stand side by side (``across``), a line for each beginning of a name."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    about = part.about
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)  # 80 columns hold the widest
    table.add_column("", overflow="fold")
    endings = about.across or ("",)
    said = {column for line in part.published.values() for column in line}
    target = target_text(["mse" if "mse" in about.columns else "accuracy"], about.target or 0.0)
    for ending in endings:
        for column in about.columns:
            above = f"{ending}\n" if ending and column == about.columns[0] else ""
            title = above + _COLUMNS[column][0].format(target=target)
            for each in [f"{title}\npaper", "ours"] if column in said else [title]:
                table.add_column(each, justify="right", vertical="bottom", no_wrap=True)
    by_name, heading = {result.name: result for result in results}, ""
    for line in dict.fromkeys(_without(name, endings) for name in by_name):
        label = line
        if about.across:
            above, _, value = line.rpartition(" ")
            label = f"  {value}"
            if above != heading:
                table.add_row(heading := above)
        runs = [by_name[f"{line} {ending}" if ending else line] for ending in endings]
        cells = [cell for run in runs for column in about.columns for cell in _cells(part, results, run, column, said)]
        flaws = [f"({run.group.flaw})" for run in runs if run.group and run.group.flaw]
        table.add_row(" ".join([label, *flaws]), *cells)
    return table


def _cells(part: Part, results: list[Result], run: Result, column: str, said: set[str]) -> list[str]:
    """The paper's figure, where there is a column for it, and ours."""
    published = part.published.get(run.name, {}).get(column, "")
    if run.group is not None:
        ours = _ours(results, run, run.group, column)
    else:
        ours = run.ended if column == part.about.columns[0] else UNKNOWN
    return [published if isinstance(published, str) else f"{published:g}", ours] if column in said else [ours]


def remarks(part: Part, results: list[Result], changed: list[str]) -> str:
    """How to read the figures, and what differs from the paper."""
    notes = list(part.about.notes)
    if runs := [run for result in results if result.group for run in result.group.runs]:
        clients, rounds, seeds = ({getattr(run, what) for run in runs} for what in ("clients", "rounds", "seed"))
        over = "clients" if len(seeds) == 1 else f"{len(seeds)} seeds"
        of_all = f"{' / '.join(map(str, sorted(clients)))} clients, {' / '.join(map(str, sorted(rounds)))} rounds"
        notes.insert(0, f"ours: {of_all}; ± is the standard error over {over}")
    differs = [*part.about.differs, *(f"{key} (from the command line)" for key in changed)]
    lines: list[str] = []
    for heading, texts in (("To read it:", notes), ("Not as in the paper:", differs)):
        indented = [fill(text, 100, initial_indent="  - ", subsequent_indent="    ") for text in texts]
        lines += ["", heading, *indented] if texts else []
    return "\n".join(lines)


def _without(name: str, endings: tuple[str, ...]) -> str:
    return next((name.removesuffix(f" {ending}") for ending in endings if ending and name.endswith(ending)), name)


def _ours(results: list[Result], result: Result, group: Group, column: str) -> str:
    if of_a_run := _COLUMNS[column][1]:
        figure = AVERAGED[of_a_run]
        return group.text(figure).replace(" ± ", "±") if group.estimate(figure.key) else UNKNOWN
    if column == "kbit_to":
        estimate = group.estimate("payload_bytes_to_reach")
        return UNKNOWN if estimate is None else short(8e-3 * estimate.mean)
    if column == "busiest":
        return short(mean(open_run(folder).client_total.payload_bytes_sent.max() for folder in result.folders) / 1e3)
    if column == "rounds_past_local":
        found = curves(results)
        alone, own = found[found.run == "Local"].metric, found[found.run == result.name]
        above = own[own.metric > alone.iloc[-1]] if len(alone) and result.name != "Local" else alone[:0]
        return str(above["round"].iloc[0]) if len(above) else UNKNOWN  # the first round after which it is better
    norms = map_norms(result)
    change = 100 * (norms.norm / norms.norm_after_round_1 - 1).abs().max()
    return short({"norm_least": norms.norm.min(), "norm_median": norms.norm.median(), "norm_most": norms.norm.max(),
                   "norm_change": change}[column])  # fmt: skip
