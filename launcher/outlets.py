"""Standard output and error that cannot break what writes to them: whoever read them may be gone."""

import errno
import io
import os
import sys
from typing import TextIO

_NOBODY_READS = (errno.EPIPE, errno.EIO, errno.EBADF)


class _Outlet(io.TextIOWrapper):
    """Leads nowhere once something cannot be written; ``lost`` says why, unless it is that nobody reads."""

    lost: OSError | None = None

    def __init__(self, stream: TextIO | None, descriptor: int):
        file = io.FileIO(descriptor, "w", closefd=False)
        super().__init__(
            io.BufferedWriter(file),
            encoding=stream.encoding if stream else "utf-8",
            errors=stream.errors if stream else "backslashreplace",
            line_buffering=file.isatty() or descriptor == 2,
            write_through=bool(getattr(stream, "write_through", False)),
        )

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if error.errno not in _NOBODY_READS:
            self.lost = error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        super().flush()


def secure() -> None:
    """Makes ``sys.stdout`` and ``sys.stderr`` such. Descriptors 0 to 2 that are closed lead nowhere from here on: the
    next files to be opened would get their numbers."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: PTH123, SIM115
    sys.stdout, sys.stderr = _Outlet(sys.stdout, 1), _Outlet(sys.stderr, 2)


def lost() -> str | None:
    """Why not all that was printed has arrived, where somebody may miss it."""
    sys.stdout.flush()
    return sys.stdout.lost.strerror if isinstance(sys.stdout, _Outlet) and sys.stdout.lost else None
