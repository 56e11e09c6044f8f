"""The figures of a run, computed from its folder; how one is spread over clients."""

import math
import sqlite3
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import events, lock
from .config_file import own_metrics, read_config
from .events import completed_rounds, gone_clients
from .reader import metric_of, open_records
from .records import LAUNCHER, TABLES
from .store import ALL_EVALUATED, CLIENTS, CONFIG_DIGEST, HONEST
from .text import label

_ABOUT = f"""SELECT (SELECT count(DISTINCT host) FROM node WHERE role IN ('client', 'server')),
    (SELECT count(*) FROM event WHERE node = {LAUNCHER} AND kind = 'engine'),
    (SELECT count(*) FROM meta WHERE key = '{CONFIG_DIGEST}')"""
_FIGURES = {  # fields of a summary
    "clients": "SELECT count(*) FROM node WHERE role = 'client'",
    "attackers": "SELECT count(*) FROM attacker",
    "clients_cpu_s": "SELECT total(cpu_s) FROM cpu_total LEFT JOIN node USING (node) WHERE role = 'client'",
    "others_cpu_s": "SELECT total(cpu_s) FROM cpu_total LEFT JOIN node USING (node) WHERE role IS NOT 'client'",
    "flops": f"SELECT sum(flops) FROM work_total WHERE {CLIENTS}",
    "wall_s": "SELECT coalesce(max(wall_s), 0.0) FROM round",
}
_OVERHEAD = "SELECT kind, sum(wire_bytes) FROM overhead GROUP BY kind ORDER BY kind"
_BETWEEN_HOSTS = """traffic JOIN node AS sender ON sender.node = src JOIN node AS receiver ON receiver.node = dst
    WHERE sender.host <> receiver.host"""
_GLOBAL_METRIC = f"""SELECT avg(global_metric) FROM
    (SELECT max(round), global_metric FROM round WHERE global_metric IS NOT NULL AND {HONEST} GROUP BY node)"""


def mean(values: ArrayLike) -> float:
    return float(np.mean(_checked(values)))


def standard_error(values: ArrayLike) -> float:
    """Returns that of the mean, with the sample variance (n - 1): here the values are a sample. nan for one value."""
    checked = _checked(values)
    with np.errstate(invalid="ignore"):  # of infinities it is not defined: nan
        return float(np.std(checked, ddof=1) / math.sqrt(checked.size)) if checked.size > 1 else math.nan


def worst(values: ArrayLike, share: float = 0.1, higher_is_better: bool = True) -> float:
    """Returns the mean over the ceil(share * n) clients that fare worst; 0 < share <= 1."""
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}; it must be above 0 and at most 1")
    ascending = np.sort(_checked(values))
    count = max(1, math.ceil(share * ascending.size - 1e-9))  # round-off adds no client: 0.07 * 100 is more than 7
    return float(np.mean(ascending[:count] if higher_is_better else ascending[-count:]))


def _checked(values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"expected one value a client, got shape {array.shape}")
    return array


@dataclass(frozen=True, slots=True)
class Spread:
    """How a metric of each client is spread over the clients."""

    mean: float
    std: float  # of the population, as the variance is: the clients are all there are
    standard_error: float
    variance: float
    worst_10: float
    worst_20: float
    higher_is_better: bool

    @classmethod
    def of(cls, values: ArrayLike, *, higher_is_better: bool = True) -> "Spread":
        tenth, fifth = (worst(values, share, higher_is_better) for share in (0.1, 0.2))
        with np.errstate(invalid="ignore"):
            variance = float(np.var(_checked(values)))
        error = standard_error(values)
        return cls(mean(values), math.sqrt(variance), error, variance, tenth, fifth, higher_is_better)


@dataclass(frozen=True, slots=True)
class TrafficTotal:
    messages: int  # sums over all directed edges and rounds
    payload_bytes: int  # the three levels are defined at TrafficRecord
    message_bytes: int
    wire_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryTotal:
    clients_pss: int  # bytes; sums are over what each process said last
    clients_max_peak_rss: int
    clients_median_uss: int
    others_pss: int  # of all processes that are not clients
    others_max_peak_rss: int
    clients_theta: int
    clients_maps: int
    clients_history: int
    clients_buffers: int


@dataclass(frozen=True, slots=True)
class Reached:
    round: int  # the first evaluated one that was good enough
    payload_bytes: int  # sent up to and including it
    message_bytes: int
    wire_bytes: int
    wall_s: float  # when it was over


@dataclass(frozen=True, slots=True)
class ReachedVirtually:
    virtual_s: float  # the first moment at which the clients were good enough
    payload_bytes: int  # of rounds completed by then
    message_bytes: int
    wire_bytes: int


@dataclass(frozen=True, slots=True)
class Confusion:
    samples: int  # that were classified after the last round, of all clients
    wrong: int
    most: tuple[tuple[int, int, int], ...]  # the most frequent mistakes: class, what it was taken for, samples


@dataclass(frozen=True, slots=True)
class Privacy:
    epsilon: float  # of the client that has the largest, after all rounds
    delta: float
    noise: float  # standard deviation as a multiple of privacy.clip


@dataclass(frozen=True, slots=True)
class RunSummary:
    folder: str
    name: str
    algorithm: str
    seed: int
    status: events.Status
    measured: bool  # False: traffic, memory, CPU time and work are 0 and mean nothing
    processes_measured: bool  # False, too, where clients were threads of one process for a while: memory and CPU time
    clients: int
    attackers: int  # of these clients: metrics, and what comes from them, are of the others
    gone: int  # clients that crashed, left or died and did not come back
    rounds: int  # that every client has completed, apart from those that are gone
    metric: str
    final: Spread | None  # of each client's last evaluation, also of those that are gone
    metrics: dict[str, Spread]  # the same of metrics of the user's own, where it is a number; by name
    traffic: TrafficTotal
    overhead_bytes: dict[str, int]  # wire bytes outside the rounds, by kind
    memory: MemoryTotal
    clients_cpu_s: float
    others_cpu_s: float
    flops: int | None  # of all clients; None where none were counted
    wall_s: float
    conditions: events.Conditions | None = None  # None without a scenario
    reached: Reached | None = None  # the target that was asked for
    reached_virtually: ReachedVirtually | None = None
    global_metric: float | None = None  # mean over clients of the common model's last test metric, where there is one
    between_hosts: TrafficTotal | None = None  # None where all clients ran on one
    divergence: events.Divergence | None = None
    confusion: Confusion | None = None  # None where none was asked for
    privacy: Privacy | None = None  # None where none holds

    def as_dict(self) -> dict[str, Any]:
        """Returns nested plain values that JSON can carry: None stands for a figure that is not defined."""

        def finite(items: list[tuple[str, Any]]) -> dict[str, Any]:
            return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in items}

        return asdict(self, dict_factory=finite)


def summarize(run_folder: Path | str, target: float | None = None) -> RunSummary:
    """Takes a run that goes on as far as it is committed. ``target`` is a mean test metric. Raises RunFolderError."""
    folder = Path(run_folder)
    with open_records(folder, check=TABLES) as records:
        config = read_config(folder)
        metric, status = metric_of(records), events.status_of(records)
        hosts, in_one_process, has_lock = records.execute(_ABOUT).fetchone()
        if status == "running" and has_lock:
            status = "running" if lock.is_held(folder) else "interrupted"  # its last event is missing
        measured = config.get("measuring", {}).get("enabled", True)
        gone, conditions = gone_clients(records), events.conditions_of(records)
        evaluated = list(last_of(records).values())
        in_virtual_time = conditions is not None and conditions.virtual_s is not None
        global_metric = None
        if "global_metric" in [column for _, column, *_ in records.execute("PRAGMA table_info(round)")]:  # else older
            global_metric = records.execute(_GLOBAL_METRIC).fetchone()[0]
        return RunSummary(
            str(run_folder),
            *labels_of(folder, config),
            seed=config.get("seed", 0),
            status=status,
            measured=measured,
            processes_measured=measured and not in_one_process,
            gone=len(gone),
            rounds=max(0, completed_rounds(records, gone)),
            metric=metric,
            final=Spread.of(evaluated, higher_is_better=metric == "accuracy") if evaluated else None,
            metrics=_own_metrics(records, config),
            traffic=_traffic(records, "traffic"),
            overhead_bytes=dict(records.execute(_OVERHEAD)),
            memory=_memory(records),
            **{name: records.execute(query).fetchone()[0] for name, query in _FIGURES.items()},
            conditions=conditions,
            global_metric=global_metric,
            between_hosts=_traffic(records, _BETWEEN_HOSTS) if hosts > 1 else None,
            confusion=_confusion(records),
            privacy=_privacy(records),
            divergence=events.divergence_of(records, metric) if status == "finished" else None,
            reached=None if target is None else bytes_to_reach(folder, target),
            reached_virtually=virtual_time_to_reach(folder, target) if target is not None and in_virtual_time else None,
        )


def last_of(records: sqlite3.Connection, metric: str = "") -> dict[int, float]:
    """Returns what the last evaluation of each client that does not attack found, by client: of a metric of the user's
    own, or else of the test metric."""
    query, parameters = f"SELECT node, test_metric FROM last_test_metric WHERE {HONEST}", list[str]()
    if metric:
        query, parameters = f"SELECT node, value FROM last_metric WHERE name = ? AND {HONEST}", [metric]
    return dict(records.execute(query, parameters))


def _own_metrics(records: sqlite3.Connection, config: dict[str, Any]) -> dict[str, Spread]:
    """Returns those that the configuration names, in its order."""
    found = {name: (list(last_of(records, name).values()), higher) for name, higher in own_metrics(config).items()}
    return {name: Spread.of(values, higher_is_better=higher) for name, (values, higher) in found.items() if values}


def _privacy(records: sqlite3.Connection) -> Privacy | None:
    if not _has(records, "privacy"):
        return None
    largest = records.execute("SELECT epsilon, delta, noise FROM privacy ORDER BY epsilon DESC LIMIT 1").fetchone()
    return Privacy(*largest) if largest else None


def _has(records: sqlite3.Connection, table: str) -> bool:
    """Older runs lack tables."""
    return bool(records.execute("SELECT 1 FROM main.sqlite_schema WHERE name = ?", [table]).fetchone())


def _confusion(records: sqlite3.Connection) -> Confusion | None:
    if not _has(records, "confusion"):
        return None
    query = f"""SELECT label, predicted, sum(samples) AS n FROM confusion WHERE {HONEST}
        AND round = (SELECT max(round) FROM confusion) GROUP BY label, predicted ORDER BY n DESC, label, predicted"""
    cells = records.execute(query).fetchall()
    wrong = [(label, predicted, n) for label, predicted, n in cells if label != predicted]
    total = sum(n for *_, n in cells)
    return Confusion(total, sum(n for *_, n in wrong), tuple(wrong[:3])) if cells else None


def labels_of(folder: Path, config: dict[str, Any]) -> tuple[str, str]:
    algorithm = config.get("algorithm", {})
    name = config.get("name") or folder.resolve().name
    return label(name), label(algorithm.get("label") or algorithm.get("name") or "?")


def _traffic(records: sqlite3.Connection, rows: str) -> TrafficTotal:
    sums = "sum(messages), sum(payload_bytes), sum(message_bytes), sum(wire_bytes)"
    return TrafficTotal(*(total or 0 for total in records.execute(f"SELECT {sums} FROM {rows}").fetchone()))


def _memory(records: sqlite3.Connection) -> MemoryTotal:
    query = """SELECT coalesce(role = 'client', 0), pss, top, uss, theta_bytes, map_bytes, history_bytes, buffer_bytes
        FROM resource JOIN (SELECT max(rowid) AS id, max(peak_rss) AS top FROM resource GROUP BY node)
        ON resource.rowid = id LEFT JOIN node USING (node)"""
    latest = records.execute(query).fetchall()
    clients, others = ([row for role, *row in latest if role == client] for client in (1, 0))
    pss, top, uss, *state = zip(*clients, strict=True) if clients else [(0,)] * 7
    other_pss, other_top, *_ = zip(*others, strict=True) if others else [(0,)] * 7
    return MemoryTotal(sum(pss), max(top), round(median(uss)), sum(other_pss), max(other_top), *map(sum, state))


def bytes_to_reach(run_folder: Path | str, target: float) -> Reached | None:
    """Returns None if the mean test metric was never as good as ``target``. Only rounds that every client has evaluated
    count, apart from clients that were away, or gone for good. Raises RunFolderError."""
    with open_records(run_folder) as records:
        query = f"""SELECT round, payload_bytes, message_bytes, wire_bytes, wall_s
            FROM round_cumulative JOIN (SELECT round, clients FROM round_total) USING (round)
            WHERE mean_test_metric {_good(records)} ? AND evaluated = clients AND round <= ? ORDER BY round LIMIT 1"""
        row = records.execute(query, (target, completed_rounds(records, gone_clients(records)))).fetchone()
    return Reached(*row) if row else None


def virtual_time_to_reach(run_folder: Path | str, target: float) -> ReachedVirtually | None:
    """Does the same with the mean that view virtual_progress has at each moment: over the clients, each with its latest
    evaluation so far. None also where the run has no virtual time. Raises RunFolderError."""
    with open_records(run_folder) as records:
        query = f"""SELECT virtual_s FROM virtual_progress WHERE mean_test_metric {_good(records)} ?
            AND {ALL_EVALUATED} ORDER BY virtual_s LIMIT 1"""
        row = records.execute(query, (target,)).fetchone()
        if row is None:
            return None
        query = """SELECT total(payload_bytes), total(message_bytes), total(wire_bytes) FROM traffic
            JOIN round ON round.node = src AND round.round = traffic.round WHERE virtual_s <= ?"""
        sent = records.execute(query, row).fetchone()
    return ReachedVirtually(row[0], *map(int, sent))


def _good(records: sqlite3.Connection) -> str:
    return "<=" if metric_of(records) == "mse" else ">="
