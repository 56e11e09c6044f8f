"""Where a command begins: what has to be done before anything heavy is imported."""

import os
import sys
import traceback

from . import ONE_THREAD, interrupts, outlets

_MAKES_RUNS = ("run", "resume", "sweep", "reproduce", "verify")
"""Commands whose result is in their folders, whatever becomes of what they print."""


def main() -> None:
    """The whole life of a process; its exit codes are those of ``cli.main``."""
    outlets.secure()
    os.environ.update(ONE_THREAD)
    code = 130
    try:
        code = _attempt()
        interrupts.ignore()
    except KeyboardInterrupt:  # once more, on the way out
        interrupts.ignore()
    if code == 0 and (why := outlets.lost()) and sys.argv[1:2] and sys.argv[1] not in _MAKES_RUNS:
        print(f"error: standard output cannot be written: {why}", file=sys.stderr)
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
