"""Summaries as a table for the terminal. MB are 10^6 bytes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .conditions import Conditions
from .seeds import Group
from .summary import RunSummary
from .text import UNKNOWN, metric_number, metric_text, short

if TYPE_CHECKING:
    from rich.table import Table

_LONGEST_NAME = 40
"""Longer ones take more than one line where that makes room for figures."""


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of several groups. ``figure`` is its name in seeds.FIGURES."""

    title: str
    figure: str
    text: Callable[[Group], str]


_METRIC = Column("{metric}\n± s.e.", "test_metric", lambda group: _mean_with_error(group))
_GLOBAL = Column("global", "global_metric", lambda group: _mean_of_metric(group, "global_metric"))
_WORST = Column("worst\n10%", "worst_10", lambda group: _mean_of_metric(group, "worst_10"))
_PAYLOAD = Column("payload\nMB", "payload_bytes", lambda group: _mean(group, "payload_bytes", 1e6))
_WIRE = Column("wire\nMB", "wire_bytes", lambda group: _mean(group, "wire_bytes", 1e6))
_TFLOP = Column("TFLOP", "flops", lambda group: _mean(group, "flops", 1e12))
_PSS = Column("PSS\nMB", "clients_pss", lambda group: _mean(group, "clients_pss", 1e6))
_CPU = Column("CPU\ns", "clients_cpu_s", lambda group: _mean(group, "clients_cpu_s"))
_WALL = Column("wall\ns", "wall_s", lambda group: _mean(group, "wall_s"))
_WAITED = Column("waited\n%", "waited_share", lambda group: _mean(group, "waited_share", 0.01))
_VIRTUAL = Column("virtual\ns", "virtual_s", lambda group: _mean(group, "virtual_s"))
_TO_THE_TARGET = (
    Column("rounds\nto {target}", "rounds_to_reach", lambda group: _rounds_to_reach(group)),
    Column(
        "payload\nMB\nto {target}",
        "payload_bytes_to_reach",
        lambda group: _mean(group, "payload_bytes_to_reach", 1e6),
    ),
    Column("wire\nMB\nto {target}", "wire_bytes_to_reach", lambda group: _mean(group, "wire_bytes_to_reach", 1e6)),
    Column("wall\ns\nto {target}", "wall_s_to_reach", lambda group: _mean(group, "wall_s_to_reach")),
    Column("virtual\ns\nto {target}", "virtual_s_to_reach", lambda group: _mean(group, "virtual_s_to_reach")),
)
_ALL_FIGURES: dict[str, Callable[[RunSummary], str]] = {
    "algorithm": lambda run: run.algorithm,
    "status": lambda run: run.status + (f", but {run.divergence.kind}" if run.divergence else ""),
    "clients": lambda run: str(run.clients),
    "rounds completed by all": lambda run: _rounds(run),
    "test {metric}, mean over clients ± standard error": lambda run: _with_error(run),
    "standard deviation": lambda run: _of_final(run, "std"),
    "variance": lambda run: _variance(run),
    "mean of the worst 10% of clients": lambda run: _of_final(run, "worst_10"),
    "mean of the worst 20% of clients": lambda run: _of_final(run, "worst_20"),
    "test {metric} of the common model": lambda run: (
        UNKNOWN if run.global_metric is None else metric_text(run.metric, run.global_metric)
    ),
    "messages": lambda run: _if_measured(run, f"{run.traffic.messages:,}"),
    "payload (vectors alone), MB": lambda run: _mb(run, run.traffic.payload_bytes),
    "messages (all frames), MB": lambda run: _mb(run, run.traffic.message_bytes),
    "wire (with framing), MB": lambda run: _mb(run, run.traffic.wire_bytes),
    "payload between hosts, MB": lambda run: _between(run, "payload_bytes"),
    "wire between hosts, MB": lambda run: _between(run, "wire_bytes"),
    "opening connections, MB": lambda run: _mb(run, _overhead(run, "greeting", "ready", "handshake", "hello")),
    "of which keys, MB": lambda run: _mb(run, spent) if (spent := _overhead(run, "handshake")) else UNKNOWN,
    "models for evaluation only, MB": lambda run: _mb(run, sent) if (sent := _overhead(run, "evaluation")) else UNKNOWN,
    "records to the collector, MB": lambda run: _mb(run, _overhead(run, "records")),
    "control lines, MB": lambda run: _mb(run, _overhead(run, "control")),
    "TFLOP of all clients": lambda run: UNKNOWN if run.flops is None else short(run.flops / 1e12),
    "memory of all clients (PSS), MB": lambda run: _memory(run, run.memory.clients_pss),
    "of which theta, MB": lambda run: _memory(run, run.memory.clients_theta),
    "of which maps and their history, MB": lambda run: _memory(
        run, run.memory.clients_maps + run.memory.clients_history
    ),
    "of which buffers, MB": lambda run: _memory(run, run.memory.clients_buffers),
    "a client's own memory (USS, median), MB": lambda run: _memory(run, run.memory.clients_median_uss),
    "largest client at its peak (RSS), MB": lambda run: _memory(run, run.memory.clients_max_peak_rss),
    "memory of the other processes (PSS), MB": lambda run: _memory(run, run.memory.others_pss),
    "CPU of all clients, s": lambda run: _of_processes(run, f"{run.clients_cpu_s:,.1f}"),
    "CPU of the other processes, s": lambda run: _of_processes(run, f"{run.others_cpu_s:,.1f}"),
    "wall time, s": lambda run: f"{run.wall_s:,.1f}",
}
_FIRST = (
    "status",
    "rounds completed by all",
    "test {metric}, mean over clients ± standard error",
    "mean of the worst 10% of clients",
    "test {metric} of the common model",
    "payload (vectors alone), MB",
    "wire (with framing), MB",
    "memory of all clients (PSS), MB",
    "CPU of all clients, s",
    "wall time, s",
)
DISPENSABLE = ("clients_pss", "flops", "clients_cpu_s", "waited_share", "worst_10", "wall_s", "global_metric",
               "wire_bytes", "virtual_s", "payload_bytes")  # fmt: skip
"""Figures that make place for names and keys, in this order; those of a target stay."""

_ONLY_IF_KNOWN = ("test {metric} of the common model", "payload between hosts, MB", "wire between hosts, MB",
                  "of which keys, MB", "models for evaluation only, MB")  # fmt: skip
_FIGURES_OF_A_SCENARIO: dict[str, Callable[[Conditions], str]] = {
    "virtual time, s": lambda what: UNKNOWN if what.virtual_s is None else short(what.virtual_s),
    "time clients waited, share": lambda what: _share(what.waited_share),
    "crashes": lambda what: f"{what.events['crash']:,}",
    "restarts": lambda what: f"{what.events['restart']:,}",
    "clients that joined late": lambda what: f"{what.events['join']:,}",
    "clients that left": lambda what: f"{what.events['leave']:,}",
    "clients that died unplanned": lambda what: f"{what.events['death']:,}",
    "waits ended by the deadline": lambda what: f"{what.events['timeout']:,}",
    "messages dropped": lambda what: f"{what.events['dropped']:,}",
    "vectors used of an older round": lambda what: _part(what.older, what),
    "vectors used of a newer round": lambda what: _part(what.newer, what),
    "went without a vector": lambda what: _part(what.missing, what),
}
_ONLY_IF_ANY = ("crashes", "restarts", "clients that joined late", "clients that left", "clients that died unplanned",
                "messages dropped")  # fmt: skip


def render(groups: Sequence[Group], target: float | None = None, width: int = 80, *, every: bool = False) -> Table:
    """One run: its figures one below the other, the first ones or ``every`` one. Several: a line each, with as many of
    the figures that are compared most as the width takes beside the names.

    ``target`` is the one that the runs were summarized with.
    """
    if len(groups) == 1 and len(groups[0].runs) == 1:
        return _one(groups[0].runs[0], target, every)
    return _several(groups, target, width)


def _one(run: RunSummary, target: float | None, every: bool) -> Table:
    from rich.table import Table  # rich costs every process that imports it, and most only want the numbers

    table = Table(title=run.name, show_header=False, caption=None if every else "summary --all shows every figure")
    table.add_column()
    table.add_column(justify="right")
    for title in (*_FIRST, *(title for title in _ALL_FIGURES if every and title not in _FIRST)):
        text = _ALL_FIGURES[title](run)
        if text != UNKNOWN or title not in _ONLY_IF_KNOWN:
            table.add_row(title.format(metric=run.metric), text)
    if run.conditions is not None and not every and run.conditions.virtual_s is not None:
        table.add_row("virtual time, s", short(run.conditions.virtual_s))
    if run.conditions is not None and every:
        if confirmed := _overhead(run, "confirmation"):
            table.add_row("confirmations of messages, MB", _mb(run, confirmed))
        for title, figure_of in _FIGURES_OF_A_SCENARIO.items():
            text = figure_of(run.conditions)
            if text != UNKNOWN and not (text == "0" and title in _ONLY_IF_ANY):
                table.add_row(title, text)
    if target is not None:
        wanted, reached = _target([run.metric], target), run.reached
        table.add_row(f"rounds to reach {wanted}", "not reached" if reached is None else str(reached.round))
        if reached is not None:
            table.add_row(f"payload to reach {wanted}, MB", _mb(run, reached.payload_bytes))
            table.add_row(f"wire to reach {wanted}, MB", _mb(run, reached.wire_bytes))
            table.add_row(f"wall time to reach {wanted}, s", f"{reached.wall_s:,.1f}")
        if run.conditions is not None and run.conditions.virtual_s is not None:
            met = run.reached_virtually
            table.add_row(f"virtual time to reach {wanted}, s", "not reached" if met is None else short(met.virtual_s))
            if met is not None:
                table.add_row("payload sent by then, MB", _mb(run, met.payload_bytes))
                table.add_row("wire sent by then, MB", _mb(run, met.wire_bytes))
    return table


def _between(run: RunSummary, what: str) -> str:
    return UNKNOWN if run.between_hosts is None else _mb(run, getattr(run.between_hosts, what))


def _several(groups: Sequence[Group], target: float | None, width: int) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    columns = fitting(figure_columns(groups, target), groups, width - _of_names(groups))
    caption = caption_of(groups, explain=target is None)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    table.add_column("method", overflow="fold")
    for column in columns:
        table.add_column(column.title, justify="right", vertical="bottom", no_wrap=True)
    for group in groups:
        table.add_row(name_of(group), *(column.text(group) for column in columns))
    return table


def _of_names(groups: Sequence[Group]) -> int:
    """Columns that the names take, with the space around the table."""
    return 3 + min(_LONGEST_NAME, max(len("method"), *(len(name_of(group)) for group in groups)))


def fitting(columns: Sequence[Column], groups: Sequence[Group], width: int) -> list[Column]:
    """Those for which there is room; the metric and what a target took stay."""
    there = list(columns)
    for figure in DISPENSABLE:
        needed = sum(2 + max(map(len, (*each.title.split("\n"), *map(each.text, groups)))) for each in there)
        if needed > width:
            there = [each for each in there if each.figure != figure]
    return there


def figure_columns(groups: Sequence[Group], target: float | None = None) -> list[Column]:
    """What is compared most, as far as 80 columns hold it beside a name."""
    runs = [run for group in groups for run in group.runs]
    metrics = sorted({run.metric for run in runs})
    columns = [_METRIC, _WORST, _PAYLOAD, _WIRE, _TFLOP, _PSS, _CPU, _WALL]
    if target is not None:
        one_clock = _TO_THE_TARGET[:-2] + _TO_THE_TARGET[-1:] if _in_virtual_time(groups) else _TO_THE_TARGET[:-1]
        columns = [_METRIC, _PAYLOAD, _WIRE, *one_clock]
    elif any(run.conditions for run in runs):
        columns = [_METRIC, _WORST, _PAYLOAD, _WIRE, _CPU, _WALL, _WAITED, _VIRTUAL]
    elif any(run.global_metric is not None for run in runs):
        columns = [_METRIC, _GLOBAL, _WORST, _PAYLOAD, _WIRE, _TFLOP, _PSS, _WALL]
    return [replace(column, title=_titled(column.title, metrics, target)) for column in columns]


def all_columns(groups: Sequence[Group], target: float | None = None) -> list[Column]:
    """Every one of them that any group has a figure for."""
    metrics = sorted({run.metric for group in groups for run in group.runs})
    columns = [_METRIC, _GLOBAL, _WORST, _PAYLOAD, _WIRE, _TFLOP, _PSS, _CPU, _WALL, _WAITED, _VIRTUAL]
    there = [column for column in columns if any(group.estimate(column.figure) for group in groups)]
    if target is not None:
        there += _TO_THE_TARGET if _in_virtual_time(groups) else _TO_THE_TARGET[:-1]
    return [replace(column, title=_titled(column.title, metrics, target)) for column in there]


def _in_virtual_time(groups: Sequence[Group]) -> bool:
    return any(group.estimate("virtual_s") for group in groups)


def _titled(title: str, metrics: Sequence[str], target: float | None) -> str:
    metric = " / ".join(f"{metric} %" if metric == "accuracy" else metric for metric in metrics)
    return title.format(metric=metric, target="" if target is None else _target(metrics, target))


def name_of(group: Group) -> str:
    run, flawed = group.runs[0], flaw_of(group)
    if len(group.runs) > 1:
        return f"{group.name} ({', '.join(filter(None, [f'{len(group.runs)} seeds', flawed]))})"
    if run.status != "finished":
        return f"{run.name} ({run.status} after {run.rounds} rounds)"
    return f"{run.name} ({flawed})" if flawed else run.name


def flaw_of(group: Group) -> str:
    """What a table says of runs that have finished and learned nothing; empty where all have learned."""
    kinds = Counter(run.divergence.kind for run in group.runs if run.divergence)
    if len(group.runs) == 1:
        return "".join(kinds)
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def caption_of(groups: Sequence[Group], *, explain: bool) -> str:
    runs = [run for group in groups for run in group.runs]
    clients = " / ".join(sorted({str(run.clients) for run in runs}, key=int))
    rounds = " / ".join(sorted({str(run.rounds) for run in runs}, key=int))
    seeds = ", or over runs where there are several seeds" if len(runs) > len(groups) else ""
    sums, more = "TFLOP, PSS and CPU", ""
    if any(run.conditions for run in runs):
        sums = "CPU"
        more = "\nwaited: share of the clients' time; virtual: when the last one was done" if explain else ""
    elif any(run.global_metric is not None for run in runs):
        sums = "TFLOP, PSS"
        more = "\nglobal: the same of the model that all clients have in common" if explain else ""
    return (
        f"{clients} clients, {rounds} rounds; 1 MB = 10^6 bytes; {sums}: sum of clients\n"
        f"± is the standard error over clients{seeds}{more}"
    )


def _mean(group: Group, figure: str, unit: float = 1.0) -> str:
    estimate = group.estimate(figure)
    return UNKNOWN if estimate is None else short(estimate.mean / unit)


def _mean_of_metric(group: Group, figure: str) -> str:
    estimate = group.estimate(figure)
    return UNKNOWN if estimate is None else metric_number(group.runs[0].metric, estimate.mean)


def _mean_with_error(group: Group) -> str:
    """± over clients for one run, over runs for several."""
    estimate, run = group.estimate("test_metric"), group.runs[0]
    if estimate is None or run.final is None:
        return "not evaluated"
    error = estimate.standard_error if len(group.runs) > 1 else run.final.standard_error
    return _plus_minus(run.metric, estimate.mean, error)


def _rounds_to_reach(group: Group) -> str:
    estimate = group.estimate("rounds_to_reach")
    if estimate is None:
        reached = sum(run.reached is not None for run in group.runs)
        return f"by {reached} of {len(group.runs)}" if reached else UNKNOWN
    return f"{estimate.mean:,.0f}" if len(group.runs) == 1 else short(estimate.mean)


def _with_error(run: RunSummary) -> str:
    if run.final is None:
        return "not evaluated"
    return _plus_minus(run.metric, run.final.mean, run.final.standard_error) + (
        " %" if run.metric == "accuracy" else ""
    )


def _plus_minus(metric: str, mean: float, error: float) -> str:
    return metric_number(metric, mean) + ("" if math.isnan(error) else f" ± {metric_number(metric, error)}")


def _of_final(run: RunSummary, figure: str) -> str:
    return UNKNOWN if run.final is None else metric_text(run.metric, getattr(run.final, figure))


def _variance(run: RunSummary) -> str:
    if run.final is None:
        return UNKNOWN
    return f"{1e4 * run.final.variance:.2f} %²" if run.metric == "accuracy" else f"{run.final.variance:.4g}"


def _target(metrics: Sequence[str], target: float) -> str:
    return f"{100 * target:g} %" if list(metrics) == ["accuracy"] else f"{target:g}"


def _overhead(run: RunSummary, *kinds: str) -> int:
    return sum(run.overhead_bytes.get(kind, 0) for kind in kinds)


def _mb(run: RunSummary, number: int) -> str:
    return _if_measured(run, f"{number / 1e6:,.2f}")


def _if_measured(run: RunSummary, text: str) -> str:
    return text if run.measured else UNKNOWN


def _memory(run: RunSummary, number: int) -> str:
    return _of_processes(run, f"{number / 1e6:,.2f}")


def _of_processes(run: RunSummary, text: str) -> str:
    return text if run.processes_measured else UNKNOWN


def _rounds(run: RunSummary) -> str:
    return f"{run.rounds}" if not run.gone else f"{run.rounds}, but for {run.gone} gone"


def _share(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.1f} %"


def _part(count: int, what: Conditions) -> str:
    total = what.used + what.missing
    return f"{count:,} ({100 * count / total:.1f} %)" if total else UNKNOWN
