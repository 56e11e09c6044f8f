"""What every helper process of a run needs: to end with its parent or when asked to, and enough open files."""

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def end_with_parent(parent: int | None, how: signal.Signals = signal.SIGTERM) -> None:
    """Asks the kernel for ``how`` when the thread that started this process ends. SystemExit if it already has.

    ``parent`` is the process number the starter knows itself by; None skips that check.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)
    if parent is not None and os.getppid() != parent:  # it died before the kernel was asked
        sys.exit(f"the parent process {parent} has ended")


def allow_open_files() -> None:
    """As many as the system lets this process have: a line or connection to every client takes one each."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems promise more than they allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def stop_requests() -> socket.socket:
    """A socket that becomes readable on SIGTERM, for a poller: a handler that raises could break a write in two.

    Ctrl-C and the end of a terminal reach every process of it; the launcher decides what they mean, here they are
    ignored.
    """
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(writing.detach())
    return reading
