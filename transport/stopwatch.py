"""Time: where that of a process goes, part by part, and waits by a clock that stands still while the process does."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns, process_time_ns, thread_time_ns
from typing import NamedTuple

# Of this process's waits, so far and going on: a debugger holds up all threads.
_suspensions = {"so far": 0, "going on": 0}
_PART_S = 1.0
_PARTS = 8  # at least
_STOPPED_S = 0.5  # later than this is not for want of a processor alone


class Spent(NamedTuple):
    cpu_s: float
    elapsed_s: float


class Stopwatch:
    """At every moment exactly one part of the work runs: the times of all parts add up to the whole. CPU time is that
    of the thread that holds the watch. Two parts are never switched to: ``waiting``, the wall time spent blocked, and
    ``io``, the CPU time of the process's other threads, which are ZeroMQ's, unless the watch is not ``alone`` in it.
    One that is not ``running`` reads no clock and tells nothing. ``clock`` tells wall time in nanoseconds."""

    def __init__(
        self, part: str, *, running: bool = True, alone: bool = True, clock: Callable[[], int] = perf_counter_ns
    ):
        self._part = part
        self._running = running
        self._alone = alone
        self._clock = clock
        self._cpu: defaultdict[str, int] = defaultdict(int)  # nanoseconds
        self._wall: defaultdict[str, int] = defaultdict(int)
        self._cpu_mark = thread_time_ns()
        self._wall_mark = clock()
        self._others = process_time_ns() - self._cpu_mark

    def switch(self, part: str) -> str:
        """Time is ``part``'s from now on; returns the part that it was until now."""
        before = self._part
        if self._running:
            cpu, wall = thread_time_ns(), self._clock()
            self._cpu[before] += cpu - self._cpu_mark
            self._wall[before] += wall - self._wall_mark
            self._cpu_mark, self._wall_mark = cpu, wall
            self._part = part
        return before

    def during(self, part: str) -> "_During":
        return _During(self, part)

    def blocked_for(self, seconds: float) -> None:
        """Until now nothing ran for so long: that was ``waiting``."""
        if self._running:
            blocked = round(seconds * 1e9)
            self._wall["waiting"] += blocked
            self._wall[self._part] -= blocked

    def read(self) -> dict[str, Spent]:
        """{part: what it has taken so far}, of the parts that have begun."""
        if not self._running:
            return {}
        self.switch(self._part)
        spent = {part: Spent(self._cpu[part] / 1e9, wall / 1e9) for part, wall in self._wall.items()}
        others = process_time_ns() - thread_time_ns() - self._others
        return spent | ({"io": Spent(max(others, 0) / 1e9, 0.0)} if self._alone else {})


class _During:
    """Around what belongs to a part; its own class, as a generator takes three times as long."""

    __slots__ = ("_next", "_watch")

    def __init__(self, watch: Stopwatch, part: str):
        self._watch, self._next = watch, part

    def __enter__(self) -> None:
        self._next = self._watch.switch(self._next)  # the one before comes after it

    def __exit__(self, *error: object) -> None:
        self._watch.switch(self._next)


def undisturbed() -> Callable[[], int]:
    """Returns a clock of this thread, in nanoseconds, that stands still while it is ready to run and others have the
    processors; where the kernel does not tell that, it is wall time."""
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        int(os.pread(file, 99, 0).split()[1])
    except (OSError, IndexError, ValueError):
        return perf_counter_ns
    return lambda: perf_counter_ns() - int(os.pread(file, 99, 0).split()[1])


def parts_of(seconds: float, tell: Callable[[float], None] = lambda waited: None) -> Iterator[float]:
    """A wait of ``seconds`` in parts: when the part that begins now ends (time.monotonic() seconds). A part that took
    far longer than it should does not count: this process was stopped meanwhile (SIGSTOP, a machine that was
    suspended), and those it waits for are likely to have been so, too. Nor does one in which the clock was
    ``suspended``. After a part that counts, ``tell`` is told how long that makes."""
    part = min(_PART_S, seconds / _PARTS)
    left = seconds
    while left > 1e-6:
        began, before = time.monotonic(), _suspensions["so far"]
        yield began + min(part, left)
        took = time.monotonic() - began
        if took < part + _STOPPED_S and before == _suspensions["so far"] and not _suspensions["going on"]:
            left -= max(took, 0.01)
            tell(seconds - left)


@contextmanager
def suspended() -> Iterator[None]:
    """Makes all other threads wait while somebody looks at one with a debugger. For one thread at a time."""
    _suspensions["so far"] += 1
    _suspensions["going on"] += 1
    try:
        yield
    finally:
        _suspensions["going on"] -= 1
