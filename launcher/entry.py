"""Where a command begins: what has to be done before anything heavy is imported."""

import errno
import io
import os
import sys
import traceback
from typing import TextIO

from . import ONE_THREAD, interrupts

# The result is in their folders, not what they print
_MAKES_RUNS = "run", "resume", "sweep", "tune", "reproduce", "verify", "board"
_NOBODY_READS = (errno.EPIPE, errno.EIO, errno.EBADF)


def main() -> None:
    """Returns nothing, but exits with a code of ``cli.main``."""
    for descriptor in range(3):  # one that is closed leads nowhere from here on: the next file would get its number
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: PTH123, SIM115
    sys.stdout, sys.stderr = _Outlet(sys.stdout, 1), _Outlet(sys.stderr, 2)
    os.environ.update(ONE_THREAD)
    code = 130
    try:
        code = _attempt()
        interrupts.ignore()
    except KeyboardInterrupt:  # once more, on the way out
        interrupts.ignore()
    sys.stdout.flush()
    lost = getattr(sys.stdout, "lost", None)
    if code == 0 and lost and sys.argv[1:2] and sys.argv[1] not in _MAKES_RUNS:
        print(f"error: standard output cannot be written: {lost.strerror}", file=sys.stderr)
        code = 1
    sys.exit(code)


def _attempt() -> int:
    try:
        interrupts.handle(lasting=True)
        from . import cli

        cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # what an interrupted import raises may be anything
        if interrupts.heard():
            print("interrupted", file=sys.stderr)
            return 130
        traceback.print_exc()
        return 1
    return 0


class _Outlet(io.TextIOWrapper):
    """Standard output or error that cannot break what writes to it, for whoever read it may be gone: it leads nowhere
    once something cannot be written. ``lost`` says why, unless it is that nobody reads."""

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
