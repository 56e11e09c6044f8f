"""Ctrl-C, SIGTERM and SIGHUP, which comes when the terminal is lost: each asks the program to end, and is heard as a
KeyboardInterrupt. Where SIGHUP is ignored from the start, as under nohup, it stays so."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """Its own class: Python kills itself with SIGINT in the end where the very KeyboardInterrupt has once left code
    that was run from a text, as at many an import, even if it was caught later."""


class _Heard:
    """What this process has heard; handlers of signals belong to a process, so the class is all there is of it."""

    count = deferring = 0
    is_waiting = lasting = False


def handle(*, lasting: bool = False) -> None:
    """From here on; raises KeyboardInterrupt for what came while it was deferred. ``lasting``: the process is to end
    with the first of them. An exception that a handler raises can get lost, where it interrupts the import of a module
    or the end of an object: then ``check`` raises it anew. In a thread that is not the main one nothing
    is done."""
    if threading.current_thread() is not threading.main_thread():
        return
    _Heard.lasting |= lasting
    if lasting:  # tells of a lost exception, unless it is raised anew anyhow
        tell = sys.__unraisablehook__
        sys.unraisablehook = lambda lost: None if isinstance(lost.exc_value, Interrupted) else tell(lost)
    for number in _SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGTERM:
            signal.signal(number, _hear)
    check()


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """As ``handle``, in a program with handlers of its own, which it has again in the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    handle()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _Heard.is_waiting = False


def _hear(*_: object) -> None:
    _Heard.count += 1
    _Heard.is_waiting = _Heard.lasting or _Heard.deferring > 0
    if not _Heard.deferring:
        raise Interrupted


def check() -> None:
    """Raises KeyboardInterrupt if it was deferred, or lost."""
    if _Heard.is_waiting and not _Heard.deferring:
        _Heard.is_waiting = _Heard.lasting
        raise Interrupted


def heard() -> bool:
    """Whether any has come so far."""
    return _Heard.count > 0


@contextlib.contextmanager
def deferred() -> Iterator[Callable[[], bool]]:
    """What is done here is not cut; gives what tells whether any has come meanwhile."""
    before = _Heard.count
    _Heard.deferring += 1
    try:
        yield lambda: _Heard.count > before
    finally:
        _Heard.deferring -= 1


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
        if callable(handler):  # else the last alarm, still on its way to another thread, would end the process
            signal.signal(signal.SIGALRM, handler)


def ignore() -> None:
    """Nothing is left to be ended."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
