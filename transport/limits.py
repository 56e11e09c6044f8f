"""What those who connect to a process can make it take at most: open files, and memory.

ZeroMQ bounds neither connections nor the frames of a message. The system does, for the whole process. This module
imports nothing of ours: the collector needs it too.
"""

import contextlib
import ctypes
import os
import resource
import sys
from pathlib import Path

import zmq

_CLONE_FILES = 0x400

_UNAUTHENTICATED = 256
"""Connections of unauthenticated peers that a process tolerates at a time."""

_HANDSHAKE_MS = 10_000
"""Time enough to open a connection on a busy machine; for libzmq's own 30 s others could hold a descriptor."""

_STATUS = Path("/proc/self/status")


def limit_handshake(socket: zmq.Socket) -> None:
    """Closes connections that are not opened soon; to be called before ``bind``."""
    socket.handshake_ivl = _HANDSHAKE_MS


def bound_connections(count: int) -> None:
    """Limits connections to so many, and some of unauthenticated peers, from now on: to be called when all else that
    others need is open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    wanted = lowest + count + _UNAUTHENTICATED
    few = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    with contextlib.suppress(ValueError, OSError):  # some systems promise more than they allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))


def keep_own_files() -> None:
    """Parts this thread's open files from those of ZeroMQ's threads, which accept anyone: unauthenticated peers cannot
    take what this thread needs, however many they are. To be called when all sockets are there and bound: they are
    known to both; what either side opens later, the other does not see. Linux only.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).unshare(_CLONE_FILES)


def bound_memory(more: int) -> None:
    """Limits memory to so many bytes more than this process has now; more ends it with SIGABRT. Linux only."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        fields = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmData:")).split()
        limit = int(fields[1]) * 1024 + more
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def half_of_all_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
