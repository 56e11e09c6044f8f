"""Where a process's time goes, part by part."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

WAITING, IO = "waiting", "io"


class Spent(NamedTuple):
    cpu_s: float
    elapsed_s: float


class Stopwatch:
    """At every moment exactly one part of the work runs: the times of all parts add up to the whole.

    CPU time is that of the thread that holds the watch. Two parts are never switched to: ``waiting``, the wall time
    spent blocked (what little CPU time that takes stays with the part that blocks), and ``io``, the CPU time of the
    process's other threads, which are ZeroMQ's.

    One that is not ``running`` reads no clock and tells nothing; one that is not ``alone`` in its process tells no
    ``io``: other threads are not ZeroMQ's only.
    """

    def __init__(self, part: str, *, running: bool = True, alone: bool = True):
        self._part = part
        self._running = running
        self._alone = alone
        self._cpu: defaultdict[str, int] = defaultdict(int)  # nanoseconds
        self._wall: defaultdict[str, int] = defaultdict(int)
        self._cpu_mark = time.thread_time_ns()
        self._wall_mark = time.perf_counter_ns()
        self._others = time.process_time_ns() - self._cpu_mark

    def switch(self, part: str) -> str:
        """Time is ``part``'s from now on; returns the part that it was until now."""
        before = self._part
        if self._running:
            cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
            self._cpu[before] += cpu - self._cpu_mark
            self._wall[before] += wall - self._wall_mark
            self._cpu_mark, self._wall_mark = cpu, wall
            self._part = part
        return before

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        before = self.switch(part)
        try:
            yield
        finally:
            self.switch(before)

    def blocked_for(self, seconds: float) -> None:
        """Until now nothing ran for so long: that was ``waiting``."""
        if self._running:
            blocked = round(seconds * 1e9)
            self._wall[WAITING] += blocked
            self._wall[self._part] -= blocked

    def read(self) -> dict[str, Spent]:
        """{part: what it has taken so far}, of the parts that have begun."""
        if not self._running:
            return {}
        self.switch(self._part)
        spent = {part: Spent(self._cpu[part] / 1e9, wall / 1e9) for part, wall in self._wall.items()}
        others = time.process_time_ns() - time.thread_time_ns() - self._others
        return spent | ({IO: Spent(max(others, 0) / 1e9, 0.0)} if self._alone else {})
