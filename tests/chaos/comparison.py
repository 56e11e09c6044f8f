"""Two runs of one scenario must have left the same: every table but for what is real time or memory, every file."""

from collections import Counter
from collections.abc import Iterator

from .records import Records, same_arrays

_REAL = {  # columns that are real time, or numbers of processes
    "node": {"pid", "address"},
    "round": {"wall_s"},
    "event": {"wall_s"},
}
_TABLES = ("node", "round", "traffic", "edge", "used", "event", "meta")
_OF_A_PROCESS = ("start", "finish", "failure", "interrupt")  # one for each time that the run was taken up
_OF_THE_KILLED = ("lost-records",)
"""What records a client that is killed takes with it; its rounds are done again."""
_GONE = "neighbour is gone, message not sent"
"""A confirmation to one that has just ended, as planned, is a matter of moments; what counts is in table traffic."""
_OPENED = ("greeting", "ready", "handshake", "hello")
_SHOWN = 3


def differences(one: Records, other: Records, *, interrupted: bool) -> Iterator[str]:
    """``interrupted``: the other one was taken up again, so it opened connections anew; where clients come and go, how
    many are opened is a matter of moments, too."""
    for table in _TABLES:
        yield from _rows(table, *(_table(each, table, interrupted=interrupted) for each in (one, other)))
    if not interrupted and not one.rows("SELECT 1 FROM event WHERE kind IN ('crash', 'leave', 'restart', 'join')"):
        opened = f"SELECT src, dst, kind, messages, wire_bytes FROM overhead WHERE kind IN {_OPENED}"
        yield from _rows("overhead", *(Counter(each.rows(opened)) for each in (one, other)))
    for folder in ("shards", "plan", "state"):
        ours, theirs = one.files(folder), other.files(folder)
        for name in sorted(ours.keys() ^ theirs.keys()):
            yield f"{folder}/{name} is there only {'once' if name in ours else 'in the second run'}"
        for name in sorted(ours.keys() & theirs.keys()):
            if not same_arrays(ours[name], theirs[name]):
                yield f"{folder}/{name} differs"
    if one.config != other.config:
        yield "config.toml differs"


def _table(records: Records, name: str, *, interrupted: bool) -> Counter:
    columns = [column for column in records.columns(name) if column not in _REAL.get(name, ())]
    left_out = _OF_A_PROCESS + (_OF_THE_KILLED if interrupted else ())
    where = {
        "event": f"WHERE kind NOT IN {left_out} AND detail NOT LIKE '%{_GONE}'",
        "meta": "WHERE key NOT IN ('command', 'prepared')",
    }
    return Counter(records.rows(f"SELECT {', '.join(columns)} FROM {name} {where.get(name, '')}"))


def _rows(table: str, ours: Counter, theirs: Counter) -> Iterator[str]:
    for rows, where in ((ours - theirs, "first"), (theirs - ours, "second")):
        if rows:
            shown = sorted(rows, key=repr)[:_SHOWN]
            yield f"table {table}: {rows.total()} rows only in the {where} run, such as {shown}"
