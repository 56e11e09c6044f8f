"""Failpoints: named points at which a test can kill a process, or hold it up.

SHEAFGOSSIP_FAILPOINTS="state renamed@node-0003:2=kill; committed@collector=delay 0.5" kills client 3 at the second time
that it gets to the first point, and holds up the collector at each time that it gets to the other, for half a second.
"""

import os
import re
import signal
import time
from collections import Counter
from typing import NamedTuple

from .constants import chosen

VARIABLE = "SHEAFGOSSIP_FAILPOINTS"

_FORM = re.compile(r"([a-z ]+)@([a-z0-9 -]+)(?::(\d+))?=(?:kill|delay ([0-9.]+))")


class Failure(NamedTuple):
    point: str
    process: str  # launcher, fork server, collector, or a client's name as that of its files
    time: int  # which of the times that the process gets there, from 1; 0: each
    delay: float | None  # seconds; None: the process is killed


def parse(text: str) -> tuple[Failure, ...]:
    """Raises ValueError."""
    failures = []
    for part in filter(None, map(str.strip, text.split(";"))):
        if (match := _FORM.fullmatch(part)) is None:
            raise ValueError(f"{part!r}: write POINT@PROCESS=kill or POINT@PROCESS:TIME=delay SECONDS")
        point, process, time, delay = match.groups()
        failures.append(Failure(point, process, int(time or 0), float(delay) if delay else None))
    return tuple(failures)


_FAILURES = chosen(VARIABLE, parse)
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
