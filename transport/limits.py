"""What every process of a run needs: to end with its parent or when asked to, enough open files, a way to give memory
back, and a bound to the files and memory that others can take: ZeroMQ bounds neither connections nor frames; the system
does."""

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
from pathlib import Path

_PR_SET_PDEATHSIG, _CLONE_FILES = 1, 0x400
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_UNAUTHENTICATED = 256  # connections of unauthenticated peers that a process tolerates at a time


def end_with_parent(parent: int | None, how: signal.Signals = signal.SIGTERM) -> None:
    """Asks the kernel for ``how`` when the thread that started this process ends. SystemExit if it already has.
    ``parent`` is the process number the starter knows itself by; None skips that check."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)
    if parent is not None and os.getppid() != parent:  # it died before the kernel was asked
        sys.exit(f"the parent process {parent} has ended")


def stop_requests() -> socket.socket:
    """A socket that becomes readable on SIGTERM, for a poller: a handler that raises could break a write in two. Ctrl-C
    and the end of a terminal reach every process of it; the launcher decides what they mean, here they are ignored."""
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(writing.detach(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    return reading


def allow_open_files(count: int | None = None) -> None:
    """So many at most; without, as many as the system allows: a line or connection to every client takes one each."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = most if count is None else count if most == resource.RLIM_INFINITY else min(count, most)
    with contextlib.suppress(ValueError, OSError):  # some systems promise more than they allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))


def bound_connections(count: int) -> None:
    """Limits connections to so many, and some of unauthenticated peers: to be called when all else is open."""
    lowest = os.dup(0)
    os.close(lowest)
    allow_open_files(lowest + count + _UNAUTHENTICATED)


def keep_own_files() -> None:
    """Parts this thread's open files from those of ZeroMQ's threads, which accept anyone. To be called when all sockets
    are bound, which both sides know; what either opens later, the other does not see. Linux only."""
    if _LIBC is not None:
        _LIBC.unshare(_CLONE_FILES)


def give_memory_back() -> None:
    """To the system: all pages of glibc's heaps on which nothing is left. Other C libraries do as they do."""
    with contextlib.suppress(AttributeError):
        if _LIBC is not None:
            _LIBC.malloc_trim(0)


def bound_memory(more: int | None = None) -> None:
    """Limits memory to so many bytes more than now, by default half of all; beyond is SIGABRT. Linux only."""
    if more is None:
        more = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    with contextlib.suppress(OSError, ValueError, StopIteration):
        status = Path("/proc/self/status").read_text().splitlines()
        fields = next(line for line in status if line.startswith("VmData:")).split()
        limit = int(fields[1]) * 1024 + more
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))
