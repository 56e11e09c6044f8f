"""The runs of a reproduction, and what they ended with: figures over seeds, curves, norms of restriction maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ....metrics import open_run
from ....metrics.seeds import Group, summarize_all
from ...run.earlier import PlannedRun, has_diverged, is_finished
from ..folders import slug
from .parts import Part

if TYPE_CHECKING:
    from pandas import DataFrame

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


def curves(results: list[Result]) -> DataFrame:
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


def map_norms(result: Result) -> DataFrame:
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
