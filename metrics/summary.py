"""What a run came to: one frozen object of plain numbers, read from the run's folder."""

import math
import sqlite3
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from . import lock
from .conditions import Conditions, completed_rounds, conditions_of, gone_clients
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
        """Nested plain values that JSON can carry: None stands for a figure that is not defined."""
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
        clients_cpu_s, others_cpu_s = _cpu(records)
        measured = config.get("measuring", {}).get("enabled", True)
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
            processes_measured=measured
            and not _first(records, "SELECT count(*) FROM event WHERE node = -1 AND kind = 'engine'"),
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
            clients_cpu_s=clients_cpu_s,
            others_cpu_s=others_cpu_s,
            flops=_flops(records),
            wall_s=_first(records, "SELECT max(wall_s) FROM round") or 0.0,
            conditions=conditions,
            global_metric=_global_metric(records),
            between_hosts=_between_hosts(records),
            divergence=divergence_of(records, metric) if status == "finished" else None,
            reached=None if target is None else bytes_to_reach(folder, target),
            reached_virtually=(
                virtual_time_to_reach(folder, target) if target is not None and in_virtual_time else None
            ),
        )


def labels_of(folder: Path, config: dict[str, Any]) -> tuple[str, str]:
    """Name of the run and of its algorithm; the folder's name and "?" where the configuration does not tell."""
    section = config.get("algorithm")
    algorithm = section if isinstance(section, dict) else {}
    name = config.get("name") or folder.resolve().name
    return label(name), label(algorithm.get("label") or algorithm.get("name") or "?")


def _status(folder: Path, records: sqlite3.Connection) -> Status:
    """Of a run that nobody works at any more, and whose last word is missing, it is known that it was interrupted."""
    status = status_of(records)
    if status == "running" and _has_lock(records) and not lock.is_held(folder):
        return "interrupted"
    return status


def _has_lock(records: sqlite3.Connection) -> bool:
    return records.execute("SELECT count(*) FROM meta WHERE key = ?", [CONFIG_DIGEST]).fetchone()[0] > 0


def status_of(records: sqlite3.Connection) -> Status:
    """The launcher's last word; where it has none, the collector's, who outlives it for a moment."""
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
    values = [
        value
        for (value,) in records.execute(
            "SELECT test_metric FROM last_test_metric WHERE node NOT IN (SELECT node FROM node WHERE role <> 'client')"
        )
    ]
    return Spread.of(values, higher_is_better=metric == "accuracy") if values else None


def _global_metric(records: sqlite3.Connection) -> float | None:
    if "global_metric" not in [column for _, column, *_ in records.execute("PRAGMA table_info(round)")]:
        return None  # a run from before there were such models
    return _first(
        records,
        "SELECT avg(global_metric) FROM"
        " (SELECT max(round), global_metric FROM round WHERE global_metric IS NOT NULL GROUP BY node)",
    )


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
        "SELECT coalesce(role = 'client', 0), pss, uss, top, theta_bytes, map_bytes, history_bytes, buffer_bytes"
        " FROM resource"
        " JOIN (SELECT max(rowid) AS id, max(peak_rss) AS top FROM resource GROUP BY node) ON resource.rowid = id"
        " LEFT JOIN node USING (node)"
    ).fetchall()
    clients = [figures for client, *figures in latest if client]
    others = [figures for client, *figures in latest if not client]
    theta, maps, history, buffers = (sum(column) for column in list(zip(*clients, strict=True))[3:] or [()] * 4)
    return MemoryTotal(
        clients_pss=sum(pss for pss, *_ in clients),
        clients_max_peak_rss=max((top for _, _, top, *_ in clients), default=0),
        clients_median_uss=round(median(uss for _, uss, *_ in clients)) if clients else 0,
        others_pss=sum(pss for pss, *_ in others),
        others_max_peak_rss=max((top for _, _, top, *_ in others), default=0),
        clients_theta=theta,
        clients_maps=maps,
        clients_history=history,
        clients_buffers=buffers,
    )


def _cpu(records: sqlite3.Connection) -> tuple[float, float]:
    """CPU seconds of the clients and of all other processes."""
    spent = records.execute(
        "SELECT coalesce(role = 'client', 0), sum(cpu_s) FROM cpu_total LEFT JOIN node USING (node) GROUP BY 1"
    )
    by_client = dict(spent.fetchall())
    return by_client.get(1) or 0.0, by_client.get(0) or 0.0


def _flops(records: sqlite3.Connection) -> int | None:
    return _first(
        records, "SELECT sum(flops) FROM work_total WHERE node NOT IN (SELECT node FROM node WHERE role <> 'client')"
    )


def _first(records: sqlite3.Connection, query: str):
    return records.execute(query).fetchone()[0]


def _finite(value):
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
