"""Engines: what starts the processes of a run, on this machine or on several, and passes the launcher's words on."""

import contextlib
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import psutil

from ...metrics.records import FORK_SERVER, LAUNCHER, NodeRecord, OverheadRecord, Record
from ...node.assignment import Assignment
from ...node.process.reporting import sample
from ...topology.errors import UserError
from ...transport.control import Exited, Failed, FromClient, Kill, StepTimed, Tell, TellAll
from ..prepare.assignments import Host
from .forkserver import ForkServer

EngineName = Literal["local", "threads", "ray"]


class EngineError(UserError):
    """Why an engine cannot be used; one line for the user."""


@dataclass(frozen=True)
class HostLost:
    """What an engine tells before the exits of the clients that ran there."""

    host: str
    clients: list[int]
    cause: str


class Engine(ABC):
    """One launcher, one or several hosts with a fork server each. Leaving it as a context ends every process that it
    has started. Messages from clients and about them are those of the fork server, FromClient and Exited; an engine of
    several hosts adds the number of the client's fork server as ``parent``, and tells HostLost. Every method that talks
    to the processes raises ControlClosed when the last host is gone. ``sockets`` is a private folder on the launcher's
    host; it goes with the engine."""

    sockets: Path
    records_at = "ipc://{}/records"  # the address of a run's collector, whose Unix sockets are in a folder
    spans_hosts = False  # whether its hosts may be machines of their own
    shares_process = False  # whether clients are no processes: then nobody's memory and CPU time is measured
    _runs = 0

    def folder_for_run(self) -> Path:
        """A private folder for a run's Unix sockets, made in ``sockets``."""
        folder = self.sockets / str(self._runs)
        self._runs += 1
        folder.mkdir(mode=0o700)
        return folder

    def hosts(self) -> tuple[Host, ...]:
        return (Host(socket.gethostname(), cores=os.cpu_count() or 1),)

    def begin(self, folder: Path) -> None:  # noqa: B027  (nothing to do where there is one host)
        """A run in this folder. Raises EngineError."""

    @abstractmethod
    def fork(self, assignments: Iterable[Assignment], calibrate: int = 0) -> None:
        """Starts these clients, each on its host; with ``calibrate``, what only times so many local steps of theirs."""

    @abstractmethod
    def send(self, message: Tell | TellAll | Kill) -> None: ...

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Until there is something to receive, or for so long; whether there is."""

    @abstractmethod
    def receive(self) -> list[Any]:
        """What has come, perhaps nothing; to be called when ``wait`` says so."""

    def time_a_step(self, assignment: Assignment, steps: int) -> float:
        """Seconds that a local step of a client takes, measured in a process like the client's. Raises EngineError."""
        self.begin(assignment.run.folder)
        self.fork([assignment], calibrate=steps)
        answer: float | None = None
        cause = f"see {assignment.log}"
        while True:
            for message in self.receive() if self.wait(1.0) else ():
                match message:
                    case FromClient(_, StepTimed(seconds)):
                        answer = seconds
                    case FromClient(_, Failed(text)):
                        cause = text
                    case Exited():
                        if answer is None:
                            raise EngineError(f"a local step could not be timed: {cause}")
                        return answer

    def bring_home(self) -> list[str]:
        """Brings what clients have written into the run's folder; returns the hosts from which not all has come."""
        return []

    @abstractmethod
    def introductions(self) -> Iterator[Record]:
        """Yields the records of the engine's processes."""

    def final_resources(self, now: float) -> Iterator[Record]:
        """Memory and CPU time of the engine's processes, as far as there are any."""
        yield from ()

    def overhead(self) -> Iterator[Record]:
        """What has gone between the launcher and the engine's processes since the last call."""
        yield from ()

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...


class LocalEngine(Engine):
    """The engine of one machine: a fork server, at the end of one line."""

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

    def receive(self) -> list[Any]:
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


def open_engine(name: EngineName = "local", address: str | None = None, libraries: Iterable[str] = ()) -> Engine:
    """``libraries`` are modules that clients will need; others are loaded when they turn out to be needed. Raises
    EngineError."""
    if name == "local":
        return LocalEngine(libraries)
    if name == "threads":
        from .threads import ThreadsEngine

        return ThreadsEngine()
    from .ray import RayEngine

    return RayEngine(address or "auto")
