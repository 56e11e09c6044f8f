"""How commands that make runs end: what they tell of each run, and their exit code."""

from collections.abc import Iterable
from pathlib import Path

from ...metrics.events import remarks_on
from ...metrics.terminal import say
from ..run.run import Outcome

_EXIT_CODES = {"finish": 0, "failure": 1, "interrupt": 130}
_CAUSES_SHOWN = 3

INTERRUPTED = _EXIT_CODES["interrupt"]


def exit_code(outcomes: Iterable[Outcome]) -> int:
    """Returns that of the worst outcome; 0 where there is none."""
    return max((_EXIT_CODES[outcome.status] for outcome in outcomes), default=0)


def tell(folder: Path, outcome: Outcome, name: str = "") -> None:
    """Tells a run's warnings and the causes of its failure on standard error; ``name`` is the run's among several."""
    prefix = f"{name}: " if name else ""
    for line in remarks_on(folder):
        say(f"{prefix}{line}", err=True)
    for cause in outcome.causes[:_CAUSES_SHOWN]:
        say(f"error: {prefix}{cause}", err=True)
    if (more := len(outcome.causes) - _CAUSES_SHOWN) > 0:
        say(f"error: {prefix}and {more} more; see table event of run.sqlite", err=True)
    if outcome.status == "interrupt":
        say(f"{prefix}interrupted: the records so far are kept", err=True)
