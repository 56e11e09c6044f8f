"""What those who connect to a process can make it take at most: open files, and memory.

ZeroMQ bounds neither connections nor the frames of a message. The system does, for the whole process: a limit on open
files below the system's own leaves some for the process itself, which raises the limit while it needs one. This module
imports nothing of ours: the collector needs it too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import zmq

T = TypeVar("T")

_STRANGERS = 256
"""So many connections of others a process bears at a time."""

_HANDSHAKE_MS = 10_000
"""Time enough to open a connection on a busy machine; libzmq's own 30 s hold a stranger's descriptor longer."""

_STATUS = Path("/proc/self/status")


def hurry_strangers(socket: zmq.Socket) -> None:
    """To be called before ``bind``: who does not open a connection soon is sent away."""
    socket.handshake_ivl = _HANDSHAKE_MS


class OpenFiles:
    """Room for so many ``connections`` and some strangers from now on; what is above that, ``use`` takes."""

    def __init__(self, connections: int):
        _, self._most = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        self._room = lowest + connections + _STRANGERS
        self._allow(self._room)

    def use(self, action: Callable[[], T]) -> T:
        """An action of the process's own that opens files. While there are none left it gets two more and is tried
        again: a stranger may be quicker, but not each time."""
        room = self._room
        try:
            while True:
                try:
                    return action()
                except Exception as error:
                    if room >= self._most != resource.RLIM_INFINITY or not _out_of_files(error):
                        raise
                    room += 2
                    self._allow(room)
        finally:
            if room > self._room:
                self._allow(self._room)

    def _allow(self, files: int) -> None:
        few = files if self._most == resource.RLIM_INFINITY else min(files, self._most)
        with contextlib.suppress(ValueError, OSError):  # some systems promise more than they allow
            resource.setrlimit(resource.RLIMIT_NOFILE, (few, self._most))


def _out_of_files(error: Exception) -> bool:
    """Libraries that are not written in Python tell it in words."""
    return getattr(error, "errno", None) == errno.EMFILE or f"os error {errno.EMFILE}" in str(error)


def bound_memory(more: int) -> None:
    """To so many bytes more than this process has now; who asks for more ends with SIGABRT. Linux only."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        fields = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmData:")).split()
        limit = int(fields[1]) * 1024 + more
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def half_of_all_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
