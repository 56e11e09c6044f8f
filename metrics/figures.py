"""Every figure of a run: how it is computed, printed and compared. A new figure is one more entry of FIGURES; those of
the user's own metrics come with the runs that have them."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from .summary import RunSummary, Spread
from .text import UNKNOWN, metric_text, short

Values = Callable[[RunSummary], float | None]  # None: the run has no such figure


class Unit(NamedTuple):
    name: str = ""
    size: float = 1.0
    decimals: int | None = None  # of a figure that stands alone; None, and in tables of several runs: three digits

    def text(self, value: float) -> str:
        return short(value / self.size) if self.decimals is None else f"{value / self.size:,.{self.decimals}f}"


_OWN = "metric."  # what keys of metrics of the user's own begin with
METRIC, COUNT = Unit(), Unit(decimals=0)  # the first is printed as the run's test metric is
MB, TERA, PERCENT = Unit("MB", 1e6, 2), Unit("", 1e12), Unit("%", 0.01, 1)
EPSILON = Unit(decimals=2)
SECONDS, VIRTUAL_SECONDS = Unit("s", decimals=1), Unit("s")


@dataclass(frozen=True, slots=True)
class Figure:
    title: str  # where a run stands alone; its {metric} and {target} are filled in
    of: Values
    unit: Unit
    key: str = ""  # its name in files and in ``Group.estimate``; without one it is not averaged over seeds
    head: str = ""  # of its column where runs stand side by side; without one it has none
    rank: int = 0  # where a table is too narrow, columns of the lowest leave first; 0 stays
    note: str = ""  # explains the column
    brief: bool = False  # one of the few that a summary shows first
    hide: Literal["never", "unknown", "zero"] = "never"  # when a summary leaves its line out
    missing: str = UNKNOWN
    spread: Callable[[RunSummary], Spread | None] | None = None
    """Over clients, of a metric whose direction is that of the figure; every other one is better where it is lower."""
    is_mean: bool = False  # of the spread: its standard error over clients is told, too
    metric: str = ""  # whose it is, if not the run's test metric
    exact: bool = False  # one run tells it; of the others one run does not tell how much they vary
    print: Callable[[RunSummary, float], str] | None = None  # what the unit cannot

    @property
    def of_target(self) -> bool:
        return "{target}" in self.title

    def spread_of(self, run: RunSummary) -> Spread | None:
        return self.spread(run) if self.spread else None

    def error_of(self, run: RunSummary) -> float:
        """Returns what one run tells of its standard error; nan: nothing."""
        spread = self.spread_of(run) if self.is_mean else None
        return spread.standard_error if spread else 0.0 if self.exact else math.nan

    def line(self, run: RunSummary, target: float | None = None) -> tuple[str, str] | None:
        """Returns title and text for the summary of a run; None where it is left out."""
        value = self.of(run)
        if (self.hide != "never" and value is None) or (self.hide == "zero" and value == 0):
            return None
        title = self.title.format(metric=run.metric, target=target_text([run.metric], target))
        text = self.missing
        if value is not None:
            metric = self.metric or run.metric
            told = plus_minus(metric, value, self.error_of(run)) + (" %" if metric == "accuracy" else "")
            plain = told if self.unit is METRIC else self.unit.text(value)
            text = self.print(run, value) if self.print else plain
        return f"{title}, {self.unit.name}" if self.unit.name else title, text

    def column(self, metrics: Sequence[str], target: float | None = None) -> str:
        """Returns what stands above its column, on several lines; ``metrics`` are all that the runs have."""
        metric = " / ".join(f"{metric} %" if metric == "accuracy" else metric for metric in metrics)
        head = "\n".join(filter(None, [self.head.format(metric=metric), self.unit.name]))
        return f"{head}\nto {target_text(metrics, target)}" if self.of_target else head


def target_text(metrics: Sequence[str], target: float | None) -> str:
    if target is None:
        return ""
    return f"{100 * target:g} %" if list(metrics) == ["accuracy"] else f"{target:g}"


def _at(path: str, needs: str = "") -> Values:
    """Returns what stands there in a summary; None where nothing does, or where what it ``needs`` is not true."""

    def of(run: RunSummary) -> float | None:
        there: Any = run if not needs or getattr(run, needs) else None
        for name in path.split("."):
            there = there[name] if isinstance(there, dict) else there and getattr(there, name)
        return there

    return of


def overhead(*kinds: str) -> Values:
    return lambda run: sum(run.overhead_bytes.get(kind, 0) for kind in kinds) if run.measured else None


def _exchanged(run: RunSummary) -> int:
    return run.conditions.used + run.conditions.missing if run.conditions else 0


def _vectors(name: str) -> Values:
    return lambda run: getattr(run.conditions, name) if _exchanged(run) else None


def plus_minus(metric: str, mean: float, error: float) -> str:
    return metric_text(metric, mean, "") + ("" if math.isnan(error) else f" ± {metric_text(metric, error, '')}")


def _squared(run: RunSummary, variance: float) -> str:
    return f"{1e4 * variance:.2f} %²" if run.metric == "accuracy" else f"{variance:.4g}"


def _at_delta(run: RunSummary, epsilon: float) -> str:
    assert run.privacy
    return f"{EPSILON.text(epsilon)} (delta {run.privacy.delta:g}, noise {run.privacy.noise:g})"


def _mistakes(run: RunSummary, wrong: float) -> str:
    assert run.confusion
    most = ", ".join(f"{label} as {taken}: {samples:,}" for label, taken, samples in run.confusion.most)
    return f"{wrong:,} of {run.confusion.samples:,}" + (f" (most often {most})" if most else "")


def _with_share(run: RunSummary, count: float) -> str:
    return f"{count:,} ({100 * count / _exchanged(run):.1f} %)"


def _until_reached(name: str) -> Values:
    """Returns the bytes sent by then: in virtual time by that moment, at which clients may be in different rounds."""
    in_time, in_rounds = _sent(f"reached_virtually.{name}"), _sent(f"reached.{name}")
    return lambda run: (in_time if run.conditions and run.conditions.virtual_s is not None else in_rounds)(run)


OPENING = overhead("greeting", "ready", "handshake", "hello")  # of connections; confirmations are sent all along
_sent, _ran = partial(_at, needs="measured"), partial(_at, needs="processes_measured")

_FINAL: Any = _at("final")
_SUM, _COMMON = "sum over clients", "of the model that all clients have in common"

SCENARIO = (
    Figure("time that clients waited", _at("conditions.waited_share"), PERCENT, "waited_share", "waited", 4,
           "share of the clients' time", hide="unknown"),
    Figure("crashes", _at("conditions.events.crash"), COUNT, hide="zero"),
    Figure("restarts", _at("conditions.events.restart"), COUNT, hide="zero"),
    Figure("clients that joined late", _at("conditions.events.join"), COUNT, hide="zero"),
    Figure("clients that left", _at("conditions.events.leave"), COUNT, hide="zero"),
    Figure("clients that died unplanned", _at("conditions.events.death"), COUNT, hide="zero"),
    Figure("waits ended by the deadline", _at("conditions.events.timeout"), COUNT, hide="unknown"),
    Figure("messages dropped", _at("conditions.events.dropped"), COUNT, hide="zero"),
    Figure("vectors used of an older round", _vectors("older"), COUNT, hide="unknown", print=_with_share),
    Figure("vectors used of a newer round", _vectors("newer"), COUNT, hide="unknown", print=_with_share),
    Figure("went without a vector", _vectors("missing"), COUNT, hide="unknown", print=_with_share),
)  # fmt: skip
"""What slow clients, links and faults did; of runs with a scenario."""
FIGURES = (
    Figure("test {metric}, mean over clients ± standard error", _at("final.mean"), METRIC, "test_metric",
           "{metric}\n± s.e.", brief=True, missing="not evaluated", spread=_FINAL, is_mean=True),
    Figure("clients that attack, left out of these", _at("attackers"), COUNT, brief=True, hide="zero"),
    Figure("standard deviation", _at("final.std"), METRIC, "std"),
    Figure("variance", _at("final.variance"), METRIC, "variance", print=_squared),
    Figure("mean of the worst 10% of clients", _at("final.worst_10"), METRIC, "worst_10", "worst\n10%", 5,
           brief=True, spread=_FINAL),
    Figure("mean of the worst 20% of clients", _at("final.worst_20"), METRIC, "worst_20", spread=_FINAL),
    Figure("test {metric} of the common model", _at("global_metric"), METRIC, "global_metric", "common\nmodel", 7,
           _COMMON, brief=True, hide="unknown", spread=_FINAL),
    Figure("test samples misclassified", _at("confusion.wrong"), COUNT, brief=True, hide="unknown",
           print=_mistakes),
    Figure("epsilon of differential privacy, the largest of all clients", _at("privacy.epsilon"), EPSILON, "epsilon",
           "epsilon", 7, "of differential privacy, the largest of all clients", brief=True, hide="unknown", exact=True,
           print=_at_delta),
    Figure("messages", _sent("traffic.messages"), COUNT),
    Figure("payload (vectors alone)", _sent("traffic.payload_bytes"), MB, "payload_bytes", "payload", 10,
           brief=True, exact=True),
    Figure("messages (all frames)", _sent("traffic.message_bytes"), MB, "message_bytes", exact=True),
    Figure("wire (with framing)", _sent("traffic.wire_bytes"), MB, "wire_bytes", "wire", 8, brief=True, exact=True),
    Figure("payload between hosts", _sent("between_hosts.payload_bytes"), MB, hide="unknown"),
    Figure("wire between hosts", _sent("between_hosts.wire_bytes"), MB, hide="unknown"),
    Figure("opening connections", OPENING, MB),
    Figure("of which keys", overhead("handshake"), MB, hide="zero"),
    Figure("confirmations of messages", overhead("confirmation"), MB, hide="zero"),
    Figure("models for evaluation only", overhead("evaluation"), MB, hide="zero"),
    Figure("records to the collector", overhead("records"), MB),
    Figure("control lines", overhead("control"), MB),
    Figure("TFLOP of all clients", _at("flops"), TERA, "flops", "TFLOP", 2, _SUM, exact=True),
    Figure("memory of all clients (PSS)", _ran("memory.clients_pss"), MB, "clients_pss", "PSS", 1, _SUM, True),
    Figure("of which theta", _ran("memory.clients_theta"), MB),
    Figure("of which maps and their history",
           lambda run: run.memory.clients_maps + run.memory.clients_history if run.processes_measured else None, MB),
    Figure("of which buffers", _ran("memory.clients_buffers"), MB),
    Figure("a client's own memory (USS, median)", _ran("memory.clients_median_uss"), MB),
    Figure("largest client at its peak (RSS)", _ran("memory.clients_max_peak_rss"), MB),
    Figure("memory of the other processes (PSS)", _ran("memory.others_pss"), MB),
    Figure("CPU of all clients", _ran("clients_cpu_s"), SECONDS, "clients_cpu_s", "CPU", 3, _SUM, brief=True),
    Figure("CPU of the other processes", _ran("others_cpu_s"), SECONDS),
    Figure("wall time", _at("wall_s"), SECONDS, "wall_s", "wall", 6, brief=True),
    Figure("virtual time", _at("conditions.virtual_s"), VIRTUAL_SECONDS, "virtual_s", "virtual", 9,
           "when the last one ended", brief=True, hide="unknown", exact=True),
    *SCENARIO,
    Figure("rounds to reach {target}", _at("reached.round"), COUNT, "rounds_to_reach", "rounds", missing="not reached"),
    Figure("payload to reach {target}", _until_reached("payload_bytes"), MB, "payload_bytes_to_reach", "payload",
           hide="unknown"),
    Figure("wire to reach {target}", _until_reached("wire_bytes"), MB, "wire_bytes_to_reach", "wire", hide="unknown"),
    Figure("wall time to reach {target}", _at("reached.wall_s"), SECONDS, "wall_s_to_reach", "wall", 11,
           hide="unknown"),
    Figure("virtual time to reach {target}", _at("reached_virtually.virtual_s"), VIRTUAL_SECONDS, "virtual_s_to_reach",
           "virtual", missing="not reached"),
)  # fmt: skip
AVERAGED = {figure.key: figure for figure in FIGURES if figure.key}  # over the runs of a group, by name


def figures_of(runs: Iterable[RunSummary]) -> tuple[Figure, ...]:
    """Returns FIGURES, and behind those of the test metric those of the metrics that users have brought."""
    own = dict.fromkeys(name for run in runs for name in run.metrics)
    place = 1 + FIGURES.index(AVERAGED["global_metric"])
    return (*FIGURES[:place], *map(_own, own), *FIGURES[place:])


def _own(name: str) -> Figure:
    """Returns that of a metric of the user's own."""
    title, spread = name.replace("{", "{{").replace("}", "}}"), lambda run: run.metrics.get(name)
    return Figure(f"{title}, mean over clients ± standard error", lambda run: (found := spread(run)) and found.mean,
                  METRIC, f"{_OWN}{name}", f"{title}\n± s.e.", 12, brief=True, hide="unknown", spread=spread,
                  is_mean=True, metric=name)  # fmt: skip


def averaged_of(runs: Iterable[RunSummary]) -> dict[str, Figure]:
    return {figure.key: figure for figure in figures_of(runs) if figure.key}


def figure_of(key: str) -> Figure:
    return AVERAGED[key] if key in AVERAGED else _own(key.removeprefix(_OWN))
