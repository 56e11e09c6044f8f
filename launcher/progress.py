"""What a person sees while a run goes on: one line that moves in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time

from ..metrics.reader import open_records
from ..metrics.schema import RunFolderError
from .preparation import Prepared

_MOVING_S = 0.5
_PLAIN_S = 10.0


class Progress:
    """Call it often: it looks at the run's records at most every half second (every 10 s in plain lines)."""

    def __init__(self, prepared: Prepared, *, silent: bool = False):
        self._folder = prepared.folder
        self._label = prepared.config.label
        self._rounds = prepared.config.rounds
        self._processes = len(prepared.assignments)
        self._percent = prepared.assignments[0].task == "classification"
        self._silent = silent
        self._moving = sys.stderr.isatty()
        self._looked = self._started = time.monotonic()
        self._shown = 0

    def __call__(self) -> None:
        now = time.monotonic()
        if self._silent or now - self._looked < (_MOVING_S if self._moving else _PLAIN_S):
            return
        self._looked = now
        line = f"{self._label}: {self._state()}, {now - self._started:.0f} s"
        if self._moving:
            sys.stderr.write("\r" + line.ljust(self._shown))
            self._shown = len(line)
        else:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            self._shown = 0

    def _state(self) -> str:
        try:
            with open_records(self._folder) as records:
                present, slowest, fastest = records.execute(_ROUNDS).fetchone()
                if present < self._processes:
                    return f"{self._processes} processes starting"
                metric = records.execute(_METRIC, {"upto": slowest}).fetchone()
        except RunFolderError:
            return "starting"
        span = f"{slowest}" if slowest == fastest else f"{slowest} to {fastest}"
        return f"round {span} of {self._rounds}{self._metric(metric)}"

    def _metric(self, row: tuple[int, float] | None) -> str:
        if row is None or row[1] is None:
            return ""
        return f", accuracy {row[1]:.1%}" if self._percent else f", MSE {row[1]:.4g}"


_ROUNDS = "SELECT count(*), min(last), max(last) FROM (SELECT max(round) AS last FROM round GROUP BY node)"
_METRIC = """SELECT round, avg(test_metric) FROM round
             WHERE round = (SELECT max(round) FROM round WHERE round <= :upto AND test_metric IS NOT NULL)"""
