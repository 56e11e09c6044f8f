"""The engine of one machine: a fork server, at the end of one line."""

import contextlib
import socket
from collections.abc import Iterable, Iterator
from dataclasses import astuple

import numpy as np
import psutil

from ....metrics.records import FORK_SERVER, LAUNCHER, NodeRecord, OverheadRecord, Record
from ....node.assignment import Assignment
from ....node.process.resources import sample
from ..forkserver import ForkServer
from .base import Engine, EngineError, Message


class LocalEngine(Engine):
    def __init__(self, libraries: Iterable[str] = ()) -> None:
        try:
            self._server = ForkServer(libraries)
        except OSError as error:
            raise EngineError(f"no process can be started: {error.strerror or error}") from error
        self.sockets = self._server.sockets
        self._before = tallies(self._server)

    def fork(self, assignments: Iterable[Assignment], calibrate: int = 0) -> None:
        self._server.fork((assignment.to_json() for assignment in assignments), calibrate)

    def send(self, message: object) -> None:
        self._server.control.send(message)

    def wait(self, seconds: float) -> bool:
        return self._server.control.wait(seconds)

    def receive(self) -> list[Message]:
        return self._server.control.receive_some()

    def introductions(self) -> Iterator[Record]:
        yield NodeRecord(FORK_SERVER, "fork server", "", 0, 0, 0, 0, socket.gethostname(), self._server.pid, "")

    def final_resources(self, now: float) -> Iterator[Record]:
        with contextlib.suppress(psutil.Error):  # it may be what failed
            yield sample(FORK_SERVER, now, pid=self._server.pid)

    def overhead(self) -> Iterator[Record]:
        before, self._before = self._before, tallies(self._server)
        directions = (LAUNCHER, FORK_SERVER), (FORK_SERVER, LAUNCHER)
        for ends, tally in zip(directions, (self._before - before).tolist(), strict=True):
            yield OverheadRecord(*ends, "control", *tally)

    def __exit__(self, *reason: object) -> None:
        self._server.__exit__(*reason)


def tallies(server: ForkServer) -> np.ndarray:
    """Messages and bytes of the line to a fork server, to it and from it, so far."""
    return np.array([astuple(server.control.sent), astuple(server.control.received)])
