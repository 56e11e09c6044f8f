"""Summaries as a table for the terminal. MB are 10^6 bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .summary import RunSummary

if TYPE_CHECKING:
    from rich.table import Table

_FEW_FIGURES: dict[str, Callable[[RunSummary], str]] = {
    "{metric}\n± s.e.": lambda run: _with_error(run),
    "worst\n10%": lambda run: _of_final(run, "worst_10"),
    "payload\nMB": lambda run: _mb(run.traffic.payload_bytes),
    "message\nMB": lambda run: _mb(run.traffic.message_bytes),
    "wire\nMB": lambda run: _mb(run.traffic.wire_bytes),
    "PSS\nMB": lambda run: f"{run.memory.clients_pss / 1e6:,.0f}",
    "CPU\ns": lambda run: f"{run.clients_cpu_s:,.1f}",
    "wall\ns": lambda run: f"{run.wall_s:,.1f}",
}
_ALL_FIGURES: dict[str, Callable[[RunSummary], str]] = {
    "algorithm": lambda run: run.algorithm,
    "status": lambda run: run.status,
    "clients": lambda run: str(run.clients),
    "rounds completed by all": lambda run: str(run.rounds),
    "test {metric}, mean over clients ± standard error": lambda run: _with_error(run),
    "standard deviation": lambda run: _of_final(run, "std"),
    "mean of the worst 10% of clients": lambda run: _of_final(run, "worst_10"),
    "mean of the worst 20% of clients": lambda run: _of_final(run, "worst_20"),
    "messages": lambda run: f"{run.traffic.messages:,}",
    "payload (vectors alone), MB": lambda run: _mb(run.traffic.payload_bytes),
    "messages (all frames), MB": lambda run: _mb(run.traffic.message_bytes),
    "wire (with framing), MB": lambda run: _mb(run.traffic.wire_bytes),
    "opening connections, MB": lambda run: _mb(sum(run.overhead_bytes.values()) - _record_bytes(run)),
    "records to the collector, MB": lambda run: _mb(_record_bytes(run)),
    "memory of all clients (PSS), MB": lambda run: _mb(run.memory.clients_pss),
    "a client's own memory (USS, median), MB": lambda run: _mb(run.memory.clients_median_uss),
    "largest client at its peak (RSS), MB": lambda run: _mb(run.memory.clients_max_peak_rss),
    "memory of the other processes (PSS), MB": lambda run: _mb(run.memory.others_pss),
    "CPU of all clients, s": lambda run: f"{run.clients_cpu_s:,.1f}",
    "CPU of the other processes, s": lambda run: f"{run.others_cpu_s:,.1f}",
    "wall time, s": lambda run: f"{run.wall_s:,.1f}",
}


def render(summaries: Sequence[RunSummary]) -> Table:
    """One run: every figure, one below the other. Several: a line each, with the figures that are compared most."""
    from rich.box import SIMPLE_HEAD  # rich costs every process that imports it, and most only want the numbers
    from rich.table import Table

    if len(summaries) == 1:
        (run,) = summaries
        table = Table(title=run.name, show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for title, figure in _ALL_FIGURES.items():
            table.add_row(title.format(metric=run.metric), figure(run))
        return table
    metrics = " / ".join(sorted({run.metric for run in summaries}))
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=_common(summaries), caption_justify="left")
    table.add_column("run", overflow="fold")
    for title in _FEW_FIGURES:
        table.add_column(title.format(metric=metrics), justify="right", vertical="bottom")
    for run in summaries:
        state = "" if run.status == "finished" else f" ({run.status} after {run.rounds} rounds)"
        table.add_row(run.name + state, *(figure(run) for figure in _FEW_FIGURES.values()))
    return table


def _common(summaries: Sequence[RunSummary]) -> str:
    clients = " / ".join(sorted({str(run.clients) for run in summaries}, key=int))
    rounds = " / ".join(sorted({str(run.rounds) for run in summaries}, key=int))
    return f"{clients} clients, {rounds} rounds; metric, PSS and CPU of clients; 1 MB = 10^6 bytes"


def _with_error(run: RunSummary) -> str:
    if run.final is None:
        return "not evaluated"
    if math.isnan(run.final.standard_error):
        return _of_metric(run, run.final.mean)
    unit = " %" if run.metric == "accuracy" else ""
    mean, error = (_of_metric(run, value).removesuffix(" %") for value in (run.final.mean, run.final.standard_error))
    return f"{mean} ± {error}{unit}"


def _of_final(run: RunSummary, figure: str) -> str:
    return "–" if run.final is None else _of_metric(run, getattr(run.final, figure))


def _of_metric(run: RunSummary, value: float) -> str:
    return f"{100 * value:.1f} %" if run.metric == "accuracy" else f"{value:.4g}"


def _record_bytes(run: RunSummary) -> int:
    return run.overhead_bytes.get("records", 0)


def _mb(number: int) -> str:
    return f"{number / 1e6:,.2f}"
