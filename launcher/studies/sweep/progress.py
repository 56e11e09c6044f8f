"""What a person sees while a sweep goes on: a line for each run that has ended."""

from __future__ import annotations

import sys
from statistics import mean

from ....metrics.text import duration
from ..crew import Ended

_HOW = {"finish": "finished", "failure": "failed", "interrupt": "was interrupted"}


class Lines:
    """Tells of ``missing`` runs of ``total``, as ``jobs`` at once end."""

    def __init__(self, total: int, missing: int, jobs: int, *, silent: bool = False):
        self._silent = silent
        self._total, self._left, self._jobs = total, missing, jobs
        self._seconds: list[float] = []
        there = f", {total - missing} finished before" if missing < total else ""
        self._say(f"{total} runs{there}")

    def __call__(self, ended: Ended) -> None:
        self._left -= 1
        self._seconds.append(ended.seconds)
        number = self._total - self._left
        line = f"{number} of {self._total}: {ended.run.name} {_HOW[ended.outcome.status]} after {ended.seconds:.1f} s"
        self._say(line + (f", about {duration(self._time_left())} left" if self._left else ""))

    def _time_left(self) -> float:
        return mean(self._seconds) * self._left / min(self._jobs, self._left)

    def _say(self, line: str) -> None:
        if not self._silent:
            print(line, file=sys.stderr, flush=True)
