"""Waiting for somebody, by a clock that stands still while this process does."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_suspensions = Counter[str]()  # of this process's waits, so far and going on: a debugger holds up all threads
_PART_S = 1.0
_PARTS = 8  # at least
_STOPPED_S = 0.5  # later than this is not for want of a processor alone


def parts_of(seconds: float, tell: Callable[[float], None] = lambda waited: None) -> Iterator[float]:
    """A wait of ``seconds`` in parts: when the part that begins now ends (time.monotonic() seconds).

    A part that took far longer than it should does not count: this process was stopped meanwhile (SIGSTOP, a machine
    that was suspended), and those it waits for are likely to have been so, too. Nor does one in which the clock was
    ``suspended``. After a part that counts, ``tell`` is told how long that makes.
    """
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
    """Where somebody looks at one thread of this process with a debugger, all others wait. For one thread at a time."""
    _suspensions["so far"] += 1
    _suspensions["going on"] += 1
    try:
        yield
    finally:
        _suspensions["going on"] -= 1
