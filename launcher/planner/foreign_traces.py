"""Traces that others have published, as rows of ours. Their clients are numbered from 0, in the order of the file.

FedScale (github.com/SymbioticLab/FedScale) has two pickled files, read as its ClientMetadata uses them: capacities,
{client: {"computation": ms a sample, "communication": kbit/s}}, and availability, {client: {"active": [s, ...],
"inactive": [s, ...], "finish_time": s}}, where a client is there from each ``active`` to the ``inactive`` of the same
place and all begins anew at ``finish_time``. FLGo (github.com/WwZzz/easyFL) reads no files but those of its phone
simulator, of which pings.csv tells who is there: a row (id, timestamp) for each 15 s in which a client is. Its other
modes of availability are probabilities.

Nothing is unpickled: a pickle is a program, and of its instructions only those are followed that make dictionaries,
lists, tuples, numbers and text.
"""

import csv
import math
import pickletools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice, pairwise
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO

from ...metrics.config_file import require_plain_file
from ...topology.errors import UserError, shown
from .traces import COLUMNS, MOST_ROWS

Row = tuple[int, float, float | None, dict[str, float]]  # (client, from, until, {column: value})
_KBIT = 1024 / 8  # bytes, as FedScale counts the size of a model
_SLOT_S = 15.0
_MOST_CLIENTS, _MOST_TIMES, _LARGEST, _LARGEST_PART = 1_000_000, 10_000_000, 512 << 20, 1 << 20
_ONES = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"}
_ONES |= {"STRING", "SHORT_BINSTRING", "BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE"}
_NEW: dict[str, Callable[[], Any]] = {
    **{"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "NONE": lambda: None},
    **{"NEWTRUE": lambda: True, "NEWFALSE": lambda: False},
}
_OF_MARKED: dict[str, Callable[[list[Any]], Any]] = {
    "DICT": lambda items: dict(zip(items[::2], items[1::2], strict=True)),
    "LIST": list,
    "TUPLE": tuple,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def convert(path: Path, source: str, out: Path, clients: int) -> tuple[int, int]:
    """Writes at most the first ``clients`` of a file as a trace; returns how many they are, and its rows. Raises
    UserError."""
    if out.exists():
        raise UserError(f"--out {out}: is there already; nothing is overwritten, choose another name")
    try:
        require_plain_file(path)
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"is larger than {_LARGEST >> 20} MB, the most that is read")
        rows = list(islice(SOURCES[source](path, min(clients, _MOST_CLIENTS)), MOST_ROWS + 1))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, csv.Error) as error:
        raise UserError(f"{path}: is no {source} file: {' '.join(str(error).split())}") from None
    if len(rows) > MOST_ROWS:
        raise UserError(f"{path}: gives more than {MOST_ROWS:,} rows; --clients takes fewer of its clients")
    if not rows:
        raise UserError(f"{path}: is no {source} file: tells of no client")
    columns = [*COLUMNS[:3], *(name for name in COLUMNS[3:] if name in rows[0][3])]
    try:
        with out.open("x", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            for client, since, until, told in rows:
                writer.writerow([client, _text(since), _text(until), *map(_text, told.values())])
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written: {error.strerror or error}") from None
    return 1 + max(map(itemgetter(0), rows)), len(rows)


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"


# -- FedScale ----------------------------------------------------------------------------------------------------------


def _capacities(path: Path, most: int) -> Iterator[Row]:
    """A client of the median's speed has speed 1."""
    found = [_numbers(name, each, "computation", "communication") for name, each in _pickled(path, most)]
    typical = median(computation for computation, _ in found) if found else 1.0
    for client, (computation, communication) in enumerate(found):
        rate = communication * _KBIT
        yield client, 0.0, None, {"up": rate, "down": rate, "speed": typical / computation}


def _availability(path: Path, most: int) -> Iterator[Row]:
    seen = 0
    for client, (name, each) in enumerate(_pickled(path, most)):
        (end,) = _numbers(name, each, "finish_time")
        lists = [each.get(key) for key in ("active", "inactive")]
        seen += sum(len(times) for times in lists if isinstance(times, list))
        if seen > _MOST_TIMES:  # there may be more than the file has bytes
            raise ValueError(f"tells more than {_MOST_TIMES:,} times; --clients takes fewer of its clients")
        if not all(isinstance(times, list) and all(map(_is_time, times)) for times in lists):
            raise ValueError(f"client {shown(name)} needs lists of seconds, active and inactive")
        yield from _stretches(client, zip(*lists, strict=False), end)


def _numbers(name: Any, entry: Any, *keys: str) -> list[float]:
    values: list[Any] = [entry.get(key) if isinstance(entry, dict) else None for key in keys]
    for key, value in zip(keys, values, strict=True):
        if not (_is_time(value) and value > 0):
            raise ValueError(f"client {shown(name)} needs a number above 0 as {key!r}, not {shown(value)}")
    return values


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and -(2**53) < value < 2**53


def _stretches(client: int, there: Iterable[tuple[float, float]], end: float) -> Iterator[Row]:
    """Yields when a client is there and when not, from 0 to the end."""
    reached = 0.0
    for since, until in sorted(there):
        since, until = max(since, reached), min(until, end)
        if since < until:
            if since > reached:
                yield client, reached, since, {"available": 0}
            yield client, since, until, {"available": 1}
            reached = until
    if reached < end:
        yield client, reached, end, {"available": 0}


# -- FLGo --------------------------------------------------------------------------------------------------------------


def _pings(path: Path, most: int) -> Iterator[Row]:
    """As its phone simulator, time begins at the first ping and anew at the last."""
    slots: defaultdict[int, set[float]] = defaultdict(set)
    first, last = math.inf, -math.inf
    with path.open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            try:
                client, moment = int(row["id"]), float(row["timestamp"])
            except (KeyError, TypeError, ValueError):
                raise ValueError(f"needs whole numbers id and times timestamp, not {shown(row)}") from None
            if not _is_time(moment):
                raise ValueError(f"timestamp = {moment:g} is no time")
            if client not in slots and len(slots) == _MOST_CLIENTS:
                raise ValueError(f"tells of more than {_MOST_CLIENTS:,} clients")
            slots[client].add(moment)
            first, last = min(first, moment), max(last, moment)
    if slots and first == last:
        raise ValueError("all its pings are at one time")
    for client, own in enumerate(islice(slots.values(), most)):
        begun = sorted({_SLOT_S * ((moment - first) // _SLOT_S) for moment in own})
        spans = [[begun[0], begun[0] + _SLOT_S]]
        for earlier, later in pairwise(begun):
            if later == earlier + _SLOT_S:
                spans[-1][1] += _SLOT_S
            else:
                spans.append([later, later + _SLOT_S])
        yield from _stretches(client, ((since, until) for since, until in spans), last - first)


# -- pickles, without unpickling ---------------------------------------------------------------------------------------


class _Bounded:
    """What pickletools reads from; a part that announces more than a megabyte is refused."""

    def __init__(self, file: BinaryIO):
        self._file = file

    def read(self, size: int) -> bytes:
        if size > _LARGEST_PART:
            raise ValueError("an entry of more than a megabyte")
        return self._file.read(size)

    def readline(self) -> bytes:
        return self._file.readline(_LARGEST_PART)


def _pickled(path: Path, most: int) -> Iterator[tuple[Any, Any]]:
    """Yields (key, value) of the first entries of a pickled dictionary."""
    with closing(path.open("rb")) as file:
        try:
            found = _followed(file, most)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, MemoryError) as error:
            raise ValueError(f"its pickle is damaged, or holds more than plain values ({error})") from None
    if not isinstance(found, dict):
        raise ValueError("its pickle is no dictionary")
    yield from islice(found.items(), most)


def _followed(file: BinaryIO, most: int) -> Any:
    """Follows a pickle's instructions to its end, or until the dictionary at the bottom has so many entries."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def marked() -> list[Any]:
        place = marks.pop()
        items, stack[place:] = stack[place:], []
        return items

    for opcode, value, _ in pickletools.genops(_Bounded(file)):  # type: ignore[arg-type]  # all that it reads with
        name = opcode.name
        if name in _ONES:
            stack.append(value)
        elif name in _NEW:
            stack.append(_NEW[name]())
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("SETITEMS", "SETITEM"):
            items = marked() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
            if len(stack) == 1 and len(stack[0]) >= most:
                return stack[0]
        elif name in ("APPENDS", "APPEND"):
            items = marked() if name == "APPENDS" else [stack.pop()]
            stack[-1].extend(items)
        elif name in _OF_MARKED:
            stack.append(_OF_MARKED[name](marked()))
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
        elif name in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"):
            memo[len(memo) if name == "MEMOIZE" else value] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[value])
        elif name == "STOP":
            return stack.pop()
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"instruction {name}")
    raise ValueError("it has no end")


SOURCES: dict[str, Callable[[Path, int], Iterator[Row]]] = {
    "fedscale-capacity": _capacities,
    "fedscale-availability": _availability,
    "flgo-pings": _pings,
}
