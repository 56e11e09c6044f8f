"""What the time model of scenarios needs, measured: the beginning of a run, without its scenario, tells what clients'
work takes, and two clients that do nothing else what their link does."""

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from ...metrics.store import RunFolderError
from ...node.algorithms import links_of
from ...node.algorithms.base import work_of
from ...node.process.ping import Ping
from ...node.settings import Checkpoints, Measuring, Time
from ...topology.errors import UserError
from .. import interrupts
from ..config.sections import SCENARIO, ComputeSection, RunConfig, validate
from ..prepare.prepared import Prepared, check_resources, need_of
from ..processes.engine import Engine
from ..run.folder import recorded
from ..run.run import Run
from .runner import Means, preparation

_LEAST_ROUNDS, _MOST_ROUNDS = 4, 50
_WORK_S, _LINK_S = 4.0, 2.0  # so long a probe goes on, if it has the least rounds by then
_LARGE, _LARGEST = 1 << 16, 1 << 20  # numbers in a message, enough to tell a rate; at most
_UNLIKE = 0.1  # a difference between clients that is worth a factor of its own
Protocol = Literal["ipc", "tcp"]
_PING = f"{Ping.__module__}:{Ping.__name__}"
_PARTS = ("gradient", "maps", "exchange", "evaluation", "projection")


class ProbeFailed(UserError):
    """A run that was to be measured failed; each line is a cause."""


@dataclass(frozen=True)
class Figure:
    """Something that was measured."""

    key: str  # of the configuration, such as compute.step_s; "": it has none
    what: str
    unit: str  # s, or B/s
    value: float  # the median; inf for a rate that is too high to tell
    error: float  # the median absolute deviation of one measurement from it
    least: float
    repeats: int

    @classmethod
    def of(cls, what: str, found: Sequence[float] | np.ndarray, key: str = "") -> "Figure":
        seconds = np.asarray(found, float)
        value = float(np.median(seconds))
        error = float(np.median(np.abs(seconds - value)))
        return cls(key, what, "s", value, error, float(seconds.min()), seconds.size)

    @property
    def is_rough(self) -> bool:
        """Tells whether the error is more than half of the value."""
        return not self.error <= self.value / 2


@dataclass(frozen=True)
class Calibration:
    """What the time model needs for a configuration, as measured here."""

    figures: Sequence[Figure]
    slowdown: Sequence[float] = ()  # compute.slowdown, where models or hosts make clients differ

    @property
    def tables(self) -> dict[str, dict[str, Any]]:
        """Returns [compute] and [links], which a configuration can start from."""
        tables: dict[str, dict[str, Any]] = {"compute": {}, "links": {}}
        for figure in self.figures:
            if figure.key:
                table, _, key = figure.key.partition(".")
                tables[table][key] = float(f"{figure.value:.4g}") if figure.value < math.inf else 0.0
        if self.slowdown:
            tables["compute"]["slowdown"] = [*self.slowdown]
        return tables

    def to_toml(self) -> str:
        """Returns these tables, each value with its error and how often it was measured."""
        told = {each.key: f"± {each.error:.2g}, {each.repeats} times: {each.what}" for each in self.figures}
        told["compute.slowdown"] = "by client: models or hosts differ"
        lines = []
        for table, values in self.tables.items():
            lines += [f"[{table}]", *(f"{key} = {value}  # {told[f'{table}.{key}']}" for key, value in values.items())]
        return "\n".join(lines) + "\n"


def calibrate(
    config: RunConfig, means: Means = Means(), tell: Callable[[str], None] = lambda text: None
) -> Calibration:
    """``tell`` hears what is at work. Raises UserError, also ProbeFailed, and KeyboardInterrupt."""
    if means.engine == "threads":
        raise UserError("--engine threads: clients that share a process are not measured; allowed are local, ray")
    with ExitStack() as stack:
        engine = stack.enter_context(means.open(config))
        interrupts.handle()
        probe = _Probe(engine, force=means.force)
        tell(f"the work of {config.clients} clients ...")
        prepared = probe(_without_scenario(config), _WORK_S)
        figures, slowdown = _of_work(prepared)
        used, *beside = _protocols(config, engine)
        for protocol in (used, *beside):
            tell(f"messages over {protocol} ...")
            found = _of_link(probe, config, prepared, protocol)
            figures += found if protocol == used else [replace(figure, key="") for figure in found if figure.key]
    return Calibration(figures, slowdown)


class _Probe:
    """Makes runs that record what the work of each round takes, and ends them when that is enough; they go with the
    engine."""

    def __init__(self, engine: Engine, *, force: bool):
        self._engine, self._force = engine, force
        self._prepare = preparation(engine, force=force)

    def __call__(self, config: RunConfig, seconds: float) -> Prepared:
        """Raises UserError, KeyboardInterrupt."""
        prepared = self._prepare(config, self._engine.folder_for_run())
        if not self._engine.spans_hosts:  # else each host's memory was seen to when clients were placed
            check_resources([need_of(prepared)], force=self._force)
        assignments = tuple(replace(assignment, probes=True) for assignment in prepared.assignments)
        prepared, enough = replace(prepared, assignments=assignments), _Enough(prepared, seconds)
        outcome = Run(prepared, self._engine, enough)()
        if outcome.status == "failure":
            raise ProbeFailed(*(cause.partition(f"; {prepared.folder}")[0] for cause in outcome.causes))  # its logs go
        if outcome.status == "interrupt" and not enough.reached:
            raise KeyboardInterrupt
        interrupts.check()
        return prepared


class _Enough:
    """Interrupts a run that has enough rounds on record: the least, if it has gone on for so long, else the most."""

    reached = False

    def __init__(self, prepared: Prepared, seconds: float):
        self._folder, self._processes, self._seconds = prepared.folder, len(prepared.assignments), seconds
        self._began = math.inf

    def __call__(self, news: str = "") -> None:
        if news or self.reached:
            return
        with suppress(RunFolderError):  # the next look may be luckier
            last = [round for (round,) in recorded(self._folder, "SELECT max(round) FROM round GROUP BY node")]
            if len(last) == self._processes:
                self._began = min(self._began, time.monotonic())
                least = _LEAST_ROUNDS if time.monotonic() >= self._began + self._seconds else _MOST_ROUNDS
                self.reached = min(last) >= least
        if self.reached:
            raise KeyboardInterrupt


def _without_scenario(config: RunConfig) -> RunConfig:
    plain = {name: getattr(RunConfig(), name) for name in SCENARIO}
    if config.algorithm.traits.meets:  # only a plan says who meets whom
        plain |= {"time": Time(clock="virtual"), "compute": ComputeSection(step_s=1.0)}
    plain |= {"evaluation": {"every": 1}, "checkpoints": Checkpoints(every=0), "measuring": Measuring()}
    return config.but(**plain, rounds=max(config.rounds, _LEAST_ROUNDS), transport={"emulate": False})


# -- what clients do ---------------------------------------------------------------------------------------------------


class _Work(NamedTuple):
    """What a client did in a round, and the seconds that it took."""

    steps: float  # or what takes as long
    samples: float
    messages: int
    maps_of: int
    gradient: float
    maps: float
    exchange: float
    evaluation: float
    projection: float


def _of_work(prepared: Prepared) -> tuple[list[Figure], Sequence[float]]:
    """Returns the figures of each group of alike clients, of which those of client 0's have keys, and slowdowns."""
    groups: dict[tuple[str, str], list[int]] = {}
    for own in prepared.assignments[: prepared.config.clients]:
        model = f"{own.architecture.label} ({own.architecture.size:,} parameters)"
        groups.setdefault((model, own.deployment.host_name), []).append(own.node)
    works, several_hosts = _works(prepared), len({host for _, host in groups}) > 1
    by, first, figures, slowdown = "", dict[str, float](), list[Figure](), [1.0] * prepared.config.clients
    for (model, host), nodes in groups.items():
        alike = [work for node in nodes for work in works[node]]
        by = by or _told_by(alike)
        name = f", {model} on {host}" if several_hosts else f", {model}" if len(groups) > 1 else ""
        found = list(_figures_of(alike, by, name))
        if not figures:
            first = {figure.key: figure.value for figure in found}
        for figure in found if by in first else ():
            if figure.key == by:
                for node in nodes:
                    slowdown[node] = float(f"{figure.value / first[by]:.3g}")
        figures += [replace(figure, key="") for figure in found] if figures else found
    return figures, _shortest(slowdown) if any(abs(each - 1) > _UNLIKE for each in slowdown) else ()


def _told_by(works: Sequence[_Work]) -> str:
    """Returns the key of what tells best how long local work takes: its steps, unless its samples do so far better."""
    if not (learnt := [work for work in works if work.steps]):
        return "compute.step_s"
    a_step = Figure.of("", [work.gradient / work.steps for work in learnt])
    a_sample = Figure.of("", [work.gradient / work.samples for work in learnt])
    return f"compute.{'sample_s' if a_sample.error * a_step.value < a_step.error * a_sample.value / 2 else 'step_s'}"


def _figures_of(works: Sequence[_Work], by: str, name: str) -> Iterator[Figure]:
    """What an algorithm does beside local steps goes to its messages; to the steps where it sends none."""
    learnt, spoken = [work for work in works if work.steps], [work for work in works if work.messages]
    if learnt:
        samples = np.median([work.samples / work.steps for work in learnt])
        what, unit = ("", "steps") if by == "compute.step_s" else ("sample of a ", "samples")
        seconds = [(work.gradient + (0.0 if spoken else work.maps)) / getattr(work, unit) for work in learnt]
        yield Figure.of(f"{what}local step on {samples:,.0f} samples{name}", seconds, by)
    if spoken:
        own, exchange = ([getattr(work, part) / work.messages for work in spoken] for part in ("maps", "exchange"))
        yield Figure.of(f"work for a message{name}", np.add(own, exchange), "compute.message_s")
        yield Figure.of(f"- the algorithm's own{name}", own)
        yield Figure.of(f"- sending, receiving{name}", exchange)
    if projected := [work.projection / work.maps_of for work in works if work.projection and work.maps_of]:
        yield Figure.of(f"projection P theta{name}", projected)
    if evaluated := [work.evaluation for work in works if work.evaluation]:
        yield Figure.of(f"evaluation{name}", evaluated, "compute.evaluation_s")


def _works(prepared: Prepared) -> dict[int, list[_Work]]:
    """By client: of each round but the first, in which much is done for the first time."""
    folder, algorithm, found = prepared.folder, prepared.config.algorithm, defaultdict[int, list[_Work]](list)
    query = "SELECT src, round, sum(messages) FROM traffic GROUP BY src, round"
    sent = {(node, round): messages for node, round, messages in recorded(folder, query)}
    learnt = set(recorded(folder, "SELECT node, round FROM round WHERE train_loss IS NOT NULL"))
    spent = defaultdict[tuple[int, int], np.ndarray](lambda: np.zeros((len(_PARTS), 2)))  # CPU and elapsed, so far
    query = "SELECT node, round, part, cpu_s, elapsed_s FROM round JOIN work USING (node, wall_s)"
    for node, round, part, *seconds in recorded(folder, query):
        if part in _PARTS:
            spent[node, round][_PARTS.index(part)] = seconds
    for node, round in sorted(spent):
        if round > 1 and node < prepared.config.clients and (node, round - 1) in spent:
            # Work takes its CPU time at least, and more where it sleeps, or waits for a disk
            parts = (spent[node, round] - spent[node, round - 1]).max(axis=1).tolist()
            own, samples = prepared.assignments[node], prepared.data.clients[node].train_samples
            work = work_of(algorithm, own, samples, round) if (node, round) in learnt else (0.0, 0.0)
            found[node].append(_Work(*work, sent.get((node, round), 0), len(own.neighbours), *parts))
    return found


def _shortest(values: Sequence[float]) -> Sequence[float]:
    """The shortest list that is these when it is repeated."""
    parts = (values[:length] for length in range(1, len(values) + 1))
    return next(part for part in parts if all(each == part[n % len(part)] for n, each in enumerate(values)))


# -- what links do -----------------------------------------------------------------------------------------------------


def _protocols(config: RunConfig, engine: Engine) -> list[Protocol]:
    """Returns that of the run first."""
    if engine.spans_hosts:
        return ["tcp"]
    return ["tcp", "ipc"] if config.transport.protocol == "tcp" else ["ipc", "tcp"]


def _of_link(probe: _Probe, config: RunConfig, prepared: Prepared, protocol: Protocol) -> list[Figure]:
    """Returns the figures of [links] over ``protocol``, and what a message as long as the longest of the run costs."""
    first = prepared.assignments[0]
    longest = max((n for link in links_of(first).values() for n in link.sends), default=first.architecture.size)
    ping = Ping(lengths=(1, _LARGE), costs=min(longest, _LARGEST))
    made = probe(_of_two(config, ping, protocol), _LINK_S)
    hosts = dict.fromkeys(each.deployment.host_name for each in made.assignments)
    over = protocol + (f" from {' to '.join(hosts)}" if len(hosts) > 1 else "")
    told = [json.loads(text) for (text,) in recorded(made.folder, "SELECT detail FROM event WHERE kind = 'ping'")]
    both = np.array([each["there and back"] for each in told])  # (repeats, lengths, kinds of seconds)
    ways = both[..., 0] / 2 - both[..., 2]  # each end computes for as long as the one that tells
    latency = Figure.of(f"latency, {over}", ways[:, 0], "links.latency_s")
    latency = replace(latency, value=max(0.0, latency.value), least=max(0.0, latency.least))
    size = (_LARGE - 1) * first.dtype.itemsize
    figures = [latency, _rate(f"bandwidth, {over}", ways[:, 1], latency.value, size)]
    for name in ("send", "receive"):
        for place, kind in ((1, ""), (2, ", CPU")):
            what = f"{name} {ping.costs:,} numbers, {over}{kind}"
            figures.append(Figure.of(what, [each[name][place] for each in told]))
    return figures


def _rate(what: str, ways: np.ndarray, latency: float, count: int) -> Figure:
    """Bytes a second, by the seconds that messages of so many bytes took to come."""
    seconds = Figure.of(what, ways - latency, "links.bandwidth")
    longest = float(ways.max()) - latency
    if min(seconds.value, longest) <= 0:
        return replace(seconds, unit="B/s", value=math.inf, error=math.nan, least=math.inf)
    value = count / seconds.value
    return replace(seconds, unit="B/s", value=value, error=value * seconds.error / seconds.value, least=count / longest)


def _of_two(config: RunConfig, ping: Ping, protocol: Protocol) -> RunConfig:
    """The run of two clients, on two hosts where there are several, that only measure their link."""
    tables: dict[str, Any] = {"clients": 2, "rounds": _MOST_ROUNDS, "topology": {"kind": "complete"}}
    tables |= {"data": {"dataset": "synthetic", "synthetic": {"groups": 1, "samples": 8}}, "evaluation": {"every": 0}}
    tables |= {
        "algorithm": {"use": _PING, "lengths": [*ping.lengths], "costs": ping.costs},
        "placement": {"by": "round-robin"},
    }
    plain = validate(tables | {"model": {"dtype": config.model.dtype}})
    transport = replace(config.transport, protocol=protocol, emulate=False)
    return plain.but(transport=transport, measuring={"enabled": False})
