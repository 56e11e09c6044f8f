"""What the pictures show, as frames: test metric and bits round by round, and the norms of the restriction maps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....metrics import open_run
from .runs import Result

if TYPE_CHECKING:
    from pandas import DataFrame


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
