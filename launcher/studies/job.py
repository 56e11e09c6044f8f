"""A process that takes up one run after the other, on a fork server of its own, as the sweep tells it to.

A run needs the main thread of its launcher, for signals; so runs that go on at once have a process each.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...topology.errors import UserError
from ...transport.control import Control, ControlClosed
from ...transport.limits import end_with_parent
from .. import interrupts
from ..run.run import Outcome

_END_S = 60.0  # for its run to end, most of all to store what has piled up
_GRACE_S = 10.0  # for itself to end after that


@dataclass(frozen=True)
class TakeUp:
    """Asks a job for a run that is prepared or was interrupted."""

    folder: str


class Job:
    """The sweep's handle. It holds ``lock``, a descriptor, for as long as its process lives."""

    def __init__(self, lock: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno(), lock],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is the sweep's to handle
            )
        self.line = Control(ours, {"Outcome": Outcome})

        self.is_closed = False

    def fileno(self) -> int:
        return self.line.fileno()

    def take_up(self, folder: Path) -> None:
        """Asks for a run that is prepared or was interrupted."""
        with suppress(ControlClosed):  # listening to it will tell
            self.line.send(TakeUp(str(folder)))

    def outcomes(self) -> list[Outcome]:
        """The end of its run, if that is what has come."""
        try:
            return self.line.receive_some()
        except ControlClosed:
            self.close()
            return [Outcome("failure", ("the process that led this run has died",))]

    def interrupt(self) -> None:
        """Its run, if it has one, ends as after Ctrl-C; then it ends itself."""
        self._process.terminate()

    def last_outcome(self) -> Outcome | None:
        """Returns how its run ended, if it tells that in time before it ends itself."""
        deadline = time.monotonic() + _END_S
        with suppress(ControlClosed):
            while select.select([self.line], [], [], max(0.0, deadline - time.monotonic()))[0]:
                for outcome in self.line.receive_some():
                    return outcome
        return None

    def close(self) -> None:
        """Waits for its end, and makes it end if that takes long."""
        self.is_closed = True
        self.line.close()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(line_number: int, parent: int) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # that is the sweep's to handle
    interrupts.handle(lasting=True)
    end_with_parent(parent)
    line = Control(socket.socket(fileno=line_number), {"TakeUp": TakeUp})
    from ..processes.engines import open_engine
    from .runner import take_up

    with open_engine() as engine:
        while True:
            for message in line.receive():
                try:
                    outcome = take_up(Path(message.folder), engine).outcome
                except UserError as error:
                    outcome = Outcome("failure", (str(error),))
                line.send(outcome)
                if outcome.status == "interrupt":
                    return


if __name__ == "__main__":
    with suppress(ControlClosed, KeyboardInterrupt):
        main(int(sys.argv[1]), int(sys.argv[2]))
