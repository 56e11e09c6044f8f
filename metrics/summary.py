"""The figures of a run as one frozen object of plain numbers, read from the run's folder."""

import math
import sqlite3
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from . import lock
from .conditions import CLIENTS, Conditions, completed_rounds, conditions_of, gone_clients
from .config_file import read_config
from .divergence import Divergence, divergence_of
from .fairness import Spread
from .reader import metric_of, open_records
from .records import COLLECTOR, LAUNCHER, TABLES
from .schema import CONFIG_DIGEST
from .target import Reached, ReachedVirtually, bytes_to_reach, virtual_time_to_reach
from .text import label

Status = Literal["running", "finished", "interrupted", "failed"]
_STATUS: dict[str, Status] = {
    "start": "running",
    "finish": "finished",
    "interrupt": "interrupted",
    "failure": "failed",
    "extend": "interrupted",  # the rounds that it is to have are not done yet
}


@dataclass(frozen=True, slots=True)
class TrafficTotal:
    """Sums over all directed edges and rounds; the three levels are defined at TrafficRecord."""

    messages: int
    payload_bytes: int
    message_bytes: int
    wire_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryTotal:
    """Bytes. The sums are over what each process said last; others: all processes that are not clients."""

    clients_pss: int
    clients_max_peak_rss: int
    clients_median_uss: int
    others_pss: int
    others_max_peak_rss: int
    clients_theta: int
    clients_maps: int
    clients_history: int
    clients_buffers: int


@dataclass(frozen=True, slots=True)
class RunSummary:
    """``rounds`` are those that every client has completed, apart from clients that are ``gone``: they crashed, left or
    died and did not come back. ``final`` spreads each client's last evaluation, also of those that are gone; None
    before the first one. ``overhead_bytes``: wire bytes outside the rounds, by kind. ``flops``: of all clients; None
    where none were counted. ``measured`` is False where the run recorded no traffic, memory, CPU time or work: these
    figures are 0 then and mean nothing; ``processes_measured`` is False, too, where clients were threads of one process
    for a while, and says so of memory and CPU time alone. ``reached`` belongs to the target that was asked for; None:
    not reached, or none asked for; ``reached_virtually`` is the same in virtual time. ``conditions`` is None without a
    scenario, ``divergence`` tells of a finished run that has learned nothing. ``global_metric``, the mean over clients
    of the common model's last test metric, where there is no such model, and ``between_hosts``, the part of the traffic
    that went from one host to another, where all clients ran on one.
    """

    folder: str
    name: str
    algorithm: str
    seed: int
    status: Status
    measured: bool
    processes_measured: bool
    clients: int
    gone: int
    rounds: int
    metric: str
    final: Spread | None
    traffic: TrafficTotal
    overhead_bytes: dict[str, int]
    memory: MemoryTotal
    clients_cpu_s: float
    others_cpu_s: float
    flops: int | None
    wall_s: float
    conditions: Conditions | None = None
    reached: Reached | None = None
    reached_virtually: ReachedVirtually | None = None
    global_metric: float | None = None
    between_hosts: TrafficTotal | None = None
    divergence: Divergence | None = None

    def as_dict(self) -> dict:
        """Returns nested plain values that JSON can carry: None stands for a figure that is not defined."""
        return _finite(asdict(self))


def summarize(run_folder: Path | str, target: float | None = None) -> RunSummary:
    """Raises RunFolderError. A run that still goes on is summarized as far as it is committed.

    ``target`` is a mean test metric, for ``reached``.
    """
    folder = Path(run_folder)
    with open_records(folder, check=TABLES) as records:
        config = read_config(folder)
        name, algorithm = labels_of(folder, config)
        metric = metric_of(records)
        measured = config.get("measuring", {}).get("enabled", True)
        one_process = _first(records, "SELECT count(*) FROM event WHERE node = -1 AND kind = 'engine'")
        cpu = dict(records.execute("SELECT coalesce(role = 'client', 0), sum(cpu_s) FROM cpu_total"
                                   " LEFT JOIN node USING (node) GROUP BY 1"))  # fmt: skip
        gone, conditions = gone_clients(records), conditions_of(records)
        status = _status(folder, records)
        in_virtual_time = conditions is not None and conditions.virtual_s is not None
        return RunSummary(
            folder=str(run_folder),
            name=name,
            algorithm=algorithm,
            seed=config.get("seed", 0),
            status=status,
            measured=measured,
            processes_measured=measured and not one_process,
            clients=_first(records, "SELECT count(*) FROM node WHERE role = 'client'"),
            gone=len(gone),
            rounds=max(0, completed_rounds(records, gone)),
            metric=metric,
            final=_final(records, metric),
            traffic=_traffic(records),
            overhead_bytes=dict(
                records.execute("SELECT kind, sum(wire_bytes) FROM overhead GROUP BY kind ORDER BY kind")
            ),
            memory=_memory(records),
            clients_cpu_s=cpu.get(1) or 0.0,
            others_cpu_s=cpu.get(0) or 0.0,
            flops=_first(records, f"SELECT sum(flops) FROM work_total WHERE {CLIENTS}"),
            wall_s=_first(records, "SELECT max(wall_s) FROM round") or 0.0,
            conditions=conditions,
            global_metric=_global_metric(records),
            between_hosts=_between_hosts(records),
            divergence=divergence_of(records, metric) if status == "finished" else None,
            reached=None if target is None else bytes_to_reach(folder, target),
            reached_virtually=virtual_time_to_reach(folder, target) if target is not None and in_virtual_time else None,
        )


def labels_of(folder: Path, config: dict[str, Any]) -> tuple[str, str]:
    """Names the run and its algorithm: the folder's name and "?" where the configuration does not tell."""
    section = config.get("algorithm")
    algorithm = section if isinstance(section, dict) else {}
    name = config.get("name") or folder.resolve().name
    return label(name), label(algorithm.get("label") or algorithm.get("name") or "?")


def _status(folder: Path, records: sqlite3.Connection) -> Status:
    """Takes a run for interrupted that nobody works at any more, and whose last event is missing."""
    status = status_of(records)
    has_lock = _first(records, f"SELECT count(*) FROM meta WHERE key = '{CONFIG_DIGEST}'") > 0
    return "interrupted" if status == "running" and has_lock and not lock.is_held(folder) else status


def status_of(records: sqlite3.Connection) -> Status:
    """Returns what the launcher said last; where that is missing, the collector, which outlives it for a moment."""
    status: Status = "running"
    events = records.execute(
        f"SELECT node, kind FROM event WHERE node IN (?, ?) AND kind IN ({', '.join('?' * len(_STATUS))})"
        " ORDER BY rowid",
        (LAUNCHER, COLLECTOR, *_STATUS),
    )
    for node, kind in events:
        if node == LAUNCHER or (kind == "interrupt" and status == "running"):
            status = _STATUS[kind]
    return status


def _final(records: sqlite3.Connection, metric: str) -> Spread | None:
    values = [value for (value,) in records.execute(f"SELECT test_metric FROM last_test_metric WHERE {CLIENTS}")]
    return Spread.of(values, higher_is_better=metric == "accuracy") if values else None


def _global_metric(records: sqlite3.Connection) -> float | None:
    if "global_metric" not in [column for _, column, *_ in records.execute("PRAGMA table_info(round)")]:
        return None  # a run from before there were such models
    last = "SELECT max(round), global_metric FROM round WHERE global_metric IS NOT NULL GROUP BY node"
    return _first(records, f"SELECT avg(global_metric) FROM ({last})")


def _traffic(records: sqlite3.Connection, rows: str = "traffic") -> TrafficTotal:
    sums = "sum(messages), sum(payload_bytes), sum(message_bytes), sum(wire_bytes)"
    return TrafficTotal(*(total or 0 for total in records.execute(f"SELECT {sums} FROM {rows}").fetchone()))


def _between_hosts(records: sqlite3.Connection) -> TrafficTotal | None:
    if _first(records, "SELECT count(DISTINCT host) FROM node WHERE role IN ('client', 'server')") < 2:
        return None
    return _traffic(
        records,
        "traffic JOIN node AS sender ON sender.node = src JOIN node AS receiver ON receiver.node = dst"
        " WHERE sender.host <> receiver.host",
    )


def _memory(records: sqlite3.Connection) -> MemoryTotal:
    latest = records.execute(
        "SELECT coalesce(role = 'client', 0), pss, top, uss, theta_bytes, map_bytes, history_bytes, buffer_bytes"
        " FROM resource"
        " JOIN (SELECT max(rowid) AS id, max(peak_rss) AS top FROM resource GROUP BY node) ON resource.rowid = id"
        " LEFT JOIN node USING (node)"
    ).fetchall()
    columns = list(zip(*(row for client, *row in latest if client), strict=True)) or [()] * 7
    others = [row for client, *row in latest if not client]
    pss, peak_rss, uss, *state = columns
    return MemoryTotal(
        sum(pss),
        max(peak_rss, default=0),
        round(median(uss)) if uss else 0,
        sum(row[0] for row in others),
        max((row[1] for row in others), default=0),
        *map(sum, state),
    )


def _first(records: sqlite3.Connection, query: str) -> Any:
    return records.execute(query).fetchone()[0]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
