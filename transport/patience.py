"""Waiting for somebody, by a clock that stands still while this process does."""

from __future__ import annotations

import time
from collections.abc import Iterator

_PART_S = 1.0
_PARTS = 8  # at least
_STOPPED_S = 0.5  # later than this is not for want of a processor alone


def parts_of(seconds: float) -> Iterator[float]:
    """A wait of ``seconds`` in parts: when the part that begins now ends (time.monotonic() seconds).

    A part that took far longer than it should does not count: this process was stopped meanwhile (SIGSTOP, a machine
    that was suspended), and those it waits for are likely to have been so, too.
    """
    part = min(_PART_S, seconds / _PARTS)
    left = seconds
    while left > 1e-6:
        began = time.monotonic()
        yield began + min(part, left)
        took = time.monotonic() - began
        if took < part + _STOPPED_S:
            left -= max(took, 0.01)
