"""How long a local step takes on this machine."""

from __future__ import annotations

import statistics
import time

from ..assignment import Assignment
from .learner import Learner

_ENOUGH_S = 0.3
_FEWEST = 3


def time_of_a_step(assignment: Assignment, steps: int) -> float:
    """Seconds: the median over some rounds of local work, of so many steps each, after one to warm up."""
    learner = Learner(assignment)
    learner.learn()
    rounds: list[float] = []
    while len(rounds) < _FEWEST or sum(rounds) < _ENOUGH_S:
        start = time.perf_counter()
        learner.learn()
        rounds.append(time.perf_counter() - start)
    return statistics.median(rounds) / steps
