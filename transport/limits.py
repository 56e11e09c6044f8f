"""What those who connect to a process can make it take at most: open files, and memory.

ZeroMQ bounds neither connections nor the frames of a message. The system does, for the whole process. This module
imports nothing of ours: the collector needs it too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from pathlib import Path

import zmq

_CLONE_FILES = 0x400

_STRANGERS = 256
"""So many connections of others a process bears at a time."""

_HANDSHAKE_MS = 10_000
"""Time enough to open a connection on a busy machine; libzmq's own 30 s hold a stranger's descriptor longer."""

_STATUS = Path("/proc/self/status")


def hurry_strangers(socket: zmq.Socket) -> None:
    """To be called before ``bind``: who does not open a connection soon is sent away."""
    socket.handshake_ivl = _HANDSHAKE_MS


def bound_connections(count: int) -> None:
    """To so many, and those of some strangers, from now on: to be called when all else that others need is open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    room = lowest + count + _STRANGERS
    few = room if most == resource.RLIM_INFINITY else min(room, most)
    with contextlib.suppress(ValueError, OSError):  # some systems promise more than they allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))


def keep_own_files() -> None:
    """Parts this thread's open files from those of ZeroMQ's threads, which accept strangers: they cannot take what this
    thread needs, however many there are. To be called when all sockets are there and bound: they are known to both;
    what either side opens later, the other does not see. Linux only.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).unshare(_CLONE_FILES)


def bound_memory(more: int) -> None:
    """To so many bytes more than this process has now; who asks for more ends with SIGABRT. Linux only."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        fields = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmData:")).split()
        limit = int(fields[1]) * 1024 + more
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def half_of_all_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
