"""Ctrl-C, SIGTERM and SIGHUP: each asks the program to end, and is heard as a KeyboardInterrupt.

SIGHUP comes when the terminal is lost; where it is ignored from the start, as under nohup, it stays so.
"""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """Its own class: Python kills itself with SIGINT in the end where the very KeyboardInterrupt has once left code
    that was run from a text, as at many an import, even if it was caught later."""


class _Heard:
    """What this process has heard; there is one, as handlers of signals belong to a process."""

    def __init__(self) -> None:
        self.count = 0
        self.is_waiting = False
        self.deferring = 0
        self.lasting = False


_heard = _Heard()


def handle(*, lasting: bool = False) -> None:
    """From here on; raises KeyboardInterrupt for what came while it was deferred.

    ``lasting``: the process is to end with the first of them. An exception that a handler raises can get lost, where it
    interrupts the import of a module or the end of an object: then ``check`` raises it anew.
    """
    _heard.lasting |= lasting
    if lasting:
        sys.unraisablehook = _tell
    for number in _SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGTERM:
            signal.signal(number, _hear)
    check()


def _hear(*_: object) -> None:
    _heard.count += 1
    _heard.is_waiting = _heard.lasting or _heard.deferring > 0
    if not _heard.deferring:
        raise Interrupted


def _tell(lost: "sys.UnraisableHookArgs") -> None:
    """Tells of a lost exception, unless it is raised anew anyhow."""
    if not isinstance(lost.exc_value, Interrupted):
        sys.__unraisablehook__(lost)


def check() -> None:
    """Raises KeyboardInterrupt if it was deferred, or lost."""
    if _heard.is_waiting and not _heard.deferring:
        _heard.is_waiting = _heard.lasting
        raise Interrupted


def heard() -> bool:
    """Whether any has come so far."""
    return _heard.count > 0


@contextlib.contextmanager
def deferred() -> Iterator[Callable[[], bool]]:
    """What is done here is not cut; gives what tells whether any has come meanwhile."""
    before = _heard.count
    _heard.deferring += 1
    try:
        yield lambda: _heard.count > before
    finally:
        _heard.deferring -= 1


@contextlib.contextmanager
def heard_at_a_prompt() -> Iterator[None]:
    """For ``input`` in the main thread: a signal that comes after the prompt is shown and before GNU readline waits for
    a key is handled only when something wakes it, so an alarm does, ten times a second."""
    handler = signal.signal(signal.SIGALRM, lambda *_: None)
    timer = signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def ignore() -> None:
    """Nothing is left to be ended."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
