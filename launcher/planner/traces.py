"""Traces: a file that says of clients when they are there, how fast they are, and what their links carry.

A row is about one client, from a second until another, which is no part of it; without ``until`` for ever. An empty
cell says nothing, and where no row says anything all is as without a trace. Rows of one client may overlap where they
speak of different things.
"""

import csv
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from ...metrics.config_file import require_plain_file
from ...topology.errors import UserError, install, shown
from ...topology.randomness import generator
from ...topology.section import Needs, Positive, Section
from .plan import PlanError

COLUMNS = ("client", "from", "until", "available", "up", "down", "speed")
MOST_ROWS = 1_000_000
_LARGEST, _LARGEST_NUMBER, _SHOWN = 256 << 20, 1 << 53, 5
_MOST_CYCLES = 1_000_000
_ALLOWED = {"available": "0 and 1", **dict.fromkeys(("up", "down", "speed"), "numbers above 0")}


@dataclass(frozen=True)
class TraceSection(Section):
    """When clients are there, how fast they are and what their links carry, by a file: docs/stragglers.md#traces."""

    path: Path | None = None
    """CSV (.csv) or Parquet (.parquet) with the columns client, from, until (seconds), and any of available (0, 1), up,
    down (bytes a second), speed (local work takes 1/speed times as long). Empty cells say nothing."""
    clients: Annotated[Literal["same", "round-robin", "random"], Needs("path")] = "same"
    """Whose rows a client follows: same: those of its number; round-robin, random: the file's clients are dealt out in
    turn, or in an order that is drawn, again and again where the run has more."""
    repeat: Annotated[bool, Needs("path")] = False
    """Each client's rows begin anew after the last second that they name; else all is then as without a trace."""
    scale: Annotated[Positive, Needs("path"), "Seconds of the run that a second of the file takes."] = 1.0


@dataclass(frozen=True, slots=True)
class PiecewiseConstant:
    """A function of time, by the moments from which on it has each value, the first of them 0; it repeats after
    ``period``."""

    moments: tuple[float, ...] = (0.0,)
    values: tuple[float, ...] = (1.0,)
    period: float = math.inf

    def at(self, now: float) -> tuple[float, float]:
        """Returns its value, and until when it keeps that, at least."""
        if now > _MOST_CYCLES * self.period:
            raise PlanError(f"trace: its rows would begin anew more than {_MOST_CYCLES:,} times; use trace.scale")
        cycle = int(now / self.period)
        while cycle and cycle * self.period > now:  # round-off
            cycle -= 1
        while (cycle + 1) * self.period <= now:
            cycle += 1
        begin = cycle * self.period if cycle else 0.0
        place = bisect_right(self.moments, now, key=lambda moment: begin + moment) - 1
        ends = begin + self.moments[place + 1] if place + 1 < len(self.moments) else (cycle + 1) * self.period
        return self.values[place], ends

    def next_time(self, value: float, now: float) -> float:
        """Returns the first moment from now on at which it has that value; inf: it never has."""
        moment = now
        for _ in range(len(self.moments) + 1):
            found, until = self.at(moment)
            if found == value or until == math.inf:
                return moment if found == value else math.inf
            moment = until
        return math.inf

    def passed(self, amount: float, since: float, otherwise: float) -> float:
        """Returns when so much has passed at this rate, from a moment on; 0 stands for the rate ``otherwise``."""
        for _ in range(_MOST_CYCLES):
            rate, until = self.at(since)
            rate = rate or otherwise
            if since + amount / rate <= until:
                return since + amount / rate
            amount -= rate * (until - since)
            since = until
        raise PlanError(f"trace: sending a message would take more than {_MOST_CYCLES:,} of its rows")


@dataclass(frozen=True, slots=True)
class ClientTrace:
    available: PiecewiseConstant = PiecewiseConstant()
    up: PiecewiseConstant | None = None  # bytes a second; None, and 0: as without a trace
    down: PiecewiseConstant | None = None
    speed: PiecewiseConstant = PiecewiseConstant()


@dataclass(frozen=True, slots=True)
class _Span:
    since: float
    until: float
    value: float
    place: str  # line 3, row 3


def read_traces(section: TraceSection, clients: int, seed: int) -> dict[int, ClientTrace]:
    """Returns those of the run's clients. Raises UserError with a line for each mistake."""
    if section.path is None:
        return {}
    mistakes: list[str] = []
    try:
        spans = _spans(_rows(section.path), mistakes)
    except OSError as error:
        mistakes.append(f"cannot be read: {error.strerror or error}")
    except (ValueError, csv.Error, ImportError) as error:
        mistakes.append(" ".join(str(error).split()))
    else:
        mistakes += _overlaps(spans)
        if section.clients == "same" and (strange := [client for client in spans if client >= clients]):
            known = f"the run has 0 to {clients - 1}; trace.clients = 'round-robin' deals out those of the file"
            mistakes += [f"there is no client {client}: {known}" for client in strange]
    if mistakes:
        lines = [f"trace.path = {shown(section.path)}: {mistake}" for mistake in mistakes[:_SHOWN]]
        raise UserError(*lines, *([f"and {len(mistakes) - _SHOWN} more"] if len(mistakes) > _SHOWN else []))
    own = {number: _trace_of(spans[number], section) for number in sorted(spans)}
    return {client: own[number] for client, number in _dealt(section, sorted(spans), clients, seed).items()}


def _dealt(section: TraceSection, numbers: Sequence[int], clients: int, seed: int) -> dict[int, int]:
    """Returns {client: number in the file}."""
    if section.clients == "same" or not numbers:
        return {number: number for number in numbers}
    if section.clients == "random":
        rng, turns = generator(seed, "trace clients"), math.ceil(clients / len(numbers))
        numbers = [numbers[place] for _ in range(turns) for place in rng.permutation(len(numbers)).tolist()]
    return {client: numbers[client % len(numbers)] for client in range(clients)}


def _trace_of(spans: Mapping[str, Sequence[_Span]], section: TraceSection) -> ClientTrace:
    ends = [each.until for own in spans.values() for each in own if each.until < math.inf]
    period = section.scale * max(ends) if section.repeat and ends else math.inf
    otherwise = {"available": 1.0, "up": 0.0, "down": 0.0, "speed": 1.0}
    return ClientTrace(
        **{name: _function(own, otherwise[name], section.scale, period) for name, own in spans.items() if own}
    )


def _function(spans: Sequence[_Span], otherwise: float, scale: float, period: float) -> PiecewiseConstant:
    found = [(0.0, otherwise)]
    for span in spans:  # in their order, and apart
        if found[-1][0] == scale * span.since:
            found.pop()
        found += [(scale * span.since, span.value), (scale * span.until, otherwise)]
    found = [each for each in found if each[0] < period]
    kept = found[:1] + [later for earlier, later in pairwise(found) if earlier[1] != later[1]]
    return PiecewiseConstant(tuple(moment for moment, _ in kept), tuple(value for _, value in kept), period)


def _overlaps(spans: Mapping[int, Mapping[str, list[_Span]]]) -> Iterator[str]:
    for client in sorted(spans):
        for name, own in spans[client].items():
            own.sort(key=lambda span: span.since)
            for one, other in pairwise(own):
                if other.since < one.until:
                    both = f"{one.place} and {other.place} both tell"
                    yield f"{both} {name!r} of client {client} at {other.since:g} s"


# -- reading -----------------------------------------------------------------------------------------------------------


def _spans(rows: Iterable[tuple[str, dict[str, Any]]], mistakes: list[str]) -> dict[int, dict[str, list[_Span]]]:
    """Returns {client: {column: what it tells}}; of a row with a mistake nothing is taken."""
    spans: defaultdict[int, dict[str, list[_Span]]] = defaultdict(lambda: {name: [] for name in _ALLOWED})
    for place, row in rows:
        try:
            client = _number("client", row["client"])
            since, until = _number("from", row["from"]), _number("until", row["until"], empty=math.inf)
            told = {name: _number(name, row.get(name), empty=math.nan) for name in _ALLOWED}
            if since >= until:
                raise ValueError(f"from = {since:g} is not below until = {until:g}")
        except ValueError as error:
            mistakes.append(f"{place}: {error}")
            continue
        for name, value in told.items():
            if not math.isnan(value):
                spans[int(client)][name].append(_Span(since, until, value, place))
    if not spans and not mistakes:
        mistakes.append("tells nothing of any client")
    return spans


def _number(name: str, given: Any, empty: float | None = None) -> float:
    if (given is None or given == "") and empty is not None:
        return empty
    allowed = _ALLOWED.get(name, "whole numbers from 0" if name == "client" else "numbers from 0")
    try:
        value = float(given)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    is_right = 0 <= value <= _LARGEST_NUMBER
    if name == "client":
        is_right = is_right and value.is_integer()
    elif name == "available":
        is_right = value in (0, 1)
    elif name in _ALLOWED:
        is_right = is_right and value > 0
    if not is_right:
        raise ValueError(f"{name} = {shown(given)}; allowed are {allowed}")
    return value


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (place, row). Raises OSError, ValueError, csv.Error, ImportError."""
    require_plain_file(path)
    if path.stat().st_size > _LARGEST:
        raise ValueError(f"is larger than {_LARGEST >> 20} MB, the most that is read")
    rows = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    yield from islice(rows, MOST_ROWS)
    if next(rows, None):
        raise ValueError(f"has more than {MOST_ROWS:,} rows, the most that are read")


def _csv(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True)
        names = [name.strip() for name in next(reader, [])]
        _check_columns(names)
        for row in filter(None, reader):
            if len(row) != len(names):
                raise ValueError(f"line {reader.line_num} has {len(row)} cells, and the first line {len(names)}")
            yield f"line {reader.line_num}", dict(zip(names, map(str.strip, row), strict=True))


def _parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        from pyarrow import ArrowException, parquet, types
    except ImportError:
        raise ImportError(f"Parquet needs pyarrow: {install('parquet')}, or use .csv") from None
    numbers = count(1)
    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            _check_columns(schema.names)
            for name, kind in zip(schema.names, schema.types, strict=True):
                if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
                    raise ValueError(f"column {name!r} holds {kind}; allowed are numbers")
            for batch in file.iter_batches(10_000):
                yield from ((f"row {next(numbers)}", row) for row in batch.to_pylist())
    except (ArrowException, OSError) as error:
        raise ValueError(f"is no Parquet file that can be read ({error})") from None


def _check_columns(names: Sequence[str]) -> None:
    """Raises ValueError."""
    unknown = [name for name in names if name not in COLUMNS]
    missing = [name for name in COLUMNS[:3] if name not in names]
    allowed = f"allowed are {', '.join(COLUMNS)}"
    if unknown:
        raise ValueError(f"unknown column {shown(unknown[0])}; {allowed}")
    if missing:
        raise ValueError(f"column {missing[0]!r} is missing; {allowed}")
    if len(set(names)) < len(names):
        raise ValueError(f"a column stands there twice: {', '.join(names)}")
