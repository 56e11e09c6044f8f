"""What tests choose for all processes of a run, by the environment: the protocol's constants, which no user should have
to choose, and failpoints, named points at which a process is killed or held up.

SHEAFGOSSIP_TEST_CONSTANTS="window_bytes=4096,linger_s=0.1" gives two constants other values.
SHEAFGOSSIP_FAILPOINTS="state renamed@node-0003:2=kill; committed@collector=delay 0.5" kills client 3 at the second time
that it gets to the first point, and holds up the collector each time that it gets to the other, for half a second."""

import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, TypeVar, get_type_hints

_Meaning = TypeVar("_Meaning")

TEST_CONSTANTS, FAILPOINTS = "SHEAFGOSSIP_TEST_CONSTANTS", "SHEAFGOSSIP_FAILPOINTS"

_FORM = re.compile(r"([a-z ]+)@([a-z0-9 -]+)(?::(\d+))?=(?:kill|delay ([0-9.]+))")


@dataclass(frozen=True, slots=True)
class Constants:
    window_bytes: int = 1 << 20  # that messages under way to a neighbour fit, beside those that the plan has wait
    window_most: int = 128  # of those messages; half as many are confirmed at once
    opened_at_start: int = 64  # connections of a client: where it has more, those that are not needed yet come later
    queue_of_a_server: int = 8  # messages that wait on a server's connection, each way, where nobody confirms them
    soon_s: float = 0.05  # so long a client waits for messages alone, before it also listens to the launcher
    look_every_s: float = 0.2  # it hears the launcher in any case so often while messages keep coming
    tell_wait_s: float = 5.0  # after so long a wait a client tells the launcher for whom, and again after twice as long
    last_words_s: float = 1.0  # how long the last words of a neighbour that has died may take to come in
    last_words_wall_s: float = 0.5  # the same on the wall clock, also of one that has finished
    gather_s: float = 0.25  # records of rounds that are shorter than this leave together
    linger_s: float = 10.0  # how long what a client has sent may take to leave it, where it ends before the others
    records_a_batch: int = 2000
    forked_at_once: int = 100
    stop_grace_s: float = 1.5  # how long clients that were asked to stop may take before they are killed
    further_failures_s: float = 0.3  # a failure rarely comes alone: how long to listen for the one that caused it
    exit_s: float = 60.0  # how long processes that are done may take to leave
    standstill_s: float = 120.0  # for how long the collector may store and write nothing at the end
    locked_s: float = 120.0  # for how long somebody else may keep the database locked at the end
    commit_every_s: float = 0.5
    missing_s: float = 5.0  # how long the collector waits for batches that were announced, while none comes
    collector_gather_ms: int = 50  # messages that come meanwhile are written together: much cheaper than one by one
    burst: int = 256  # messages that the collector takes in one go; also bounds how late a commit can be
    burst_rows: int = 1_000  # rows that wait in the collector's memory to be written together


class Failure(NamedTuple):
    point: str
    process: str  # launcher, fork server, collector, or a client's name as that of its files
    time: int  # which of the times that the process gets there, from 1; 0: each
    delay: float | None  # seconds; None: the process is killed


def parse_constants(text: str) -> Constants:
    """``text`` is NAME=NUMBER, separated by commas. Raises ValueError."""
    types = get_type_hints(Constants)
    given = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in types:
            raise ValueError(f"{part!r}: no such constant; allowed are {', '.join(types)}")
        with suppress(ValueError):
            given[name] = types[name](value)
        if given.get(name, -1) < 0:
            raise ValueError(f"{part!r}: must be a number ({types[name].__name__}), and not below 0")
    return Constants(**given)


def parse_failures(text: str) -> tuple[Failure, ...]:
    """Raises ValueError."""
    failures = []
    for part in filter(None, map(str.strip, text.split(";"))):
        if (match := _FORM.fullmatch(part)) is None:
            raise ValueError(f"{part!r}: write POINT@PROCESS=kill or POINT@PROCESS:TIME=delay SECONDS")
        point, process, time, delay = match.groups()
        failures.append(Failure(point, process, int(time or 0), float(delay) if delay else None))
    return tuple(failures)


def _chosen(variable: str, parse: Callable[[str], _Meaning]) -> _Meaning:
    """What the environment's ``variable`` means; where it means nothing, the process ends with one line."""
    try:
        return parse(os.environ.get(variable, ""))
    except ValueError as error:
        print(f"error: {variable}: {error}", file=sys.stderr)
        raise SystemExit(2) from None


CONSTANTS = _chosen(TEST_CONSTANTS, parse_constants)
_FAILURES = _chosen(FAILPOINTS, parse_failures)
_reached: Counter[str] = Counter()
_process = "launcher"


def this_is(process: str) -> None:
    """Names the process; one that is not named is the launcher."""
    global _process
    _process = process
    _reached.clear()


def failpoint(point: str) -> None:
    """Does nothing unless a test has chosen it."""
    _reached[point] += 1
    for failure in _FAILURES:
        if failure[:2] == (point, _process) and failure.time in (0, _reached[point]):
            if failure.delay is None:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(failure.delay or 0.0)
