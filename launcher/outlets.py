"""Standard output and error that cannot break what writes to them: whoever read them may be gone."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any, TextIO

_NOBODY_READS = (errno.EPIPE, errno.EIO, errno.EBADF)


class _Outlet(io.FileIO):
    """A descriptor. What cannot be written to it is dropped; ``lost`` says why, unless it is that nobody reads."""

    lost: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            while (written := super().write(data)) is None:  # somebody has made it non-blocking
                select.select([], [self], [])
            return written
        except OSError as error:
            if error.errno not in _NOBODY_READS:
                self.lost = error
            return len(data)


_outlets: list[_Outlet] = []


def secure() -> None:
    """Makes ``sys.stdout`` and ``sys.stderr`` such. Descriptors 0 to 2 that are closed lead nowhere from here on: the
    next files to be opened would get their numbers."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: PTH123, SIM115
    sys.stdout, sys.stderr = _secured(sys.stdout, 1), _secured(sys.stderr, 2)


def _secured(stream: TextIO | None, descriptor: int) -> TextIO:
    _outlets.append(_Outlet(descriptor, "w", closefd=False))
    is_terminal, is_error = _outlets[-1].isatty(), descriptor == 2
    return io.TextIOWrapper(
        io.BufferedWriter(_outlets[-1]),
        encoding=stream.encoding if stream else "utf-8",
        errors=stream.errors if stream else "backslashreplace",
        line_buffering=is_terminal or is_error,
        write_through=bool(getattr(stream, "write_through", False)),
    )


def lost() -> str | None:
    """Why not all that was printed has arrived, where somebody may miss it."""
    sys.stdout.flush()
    return next((outlet.lost.strerror for outlet in _outlets[:1] if outlet.lost), None)
