"""The interface of engines: one launcher, one or several hosts with a fork server each."""

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ....metrics.records import Record
from ....node.assignment import Assignment
from ....topology.errors import UserError
from ....transport.control import Exited, Failed, FromClient, Kill, StepTimed, Tell, TellAll
from ...prepare.assignments import Host

Message = Any
"""One of transport/control.py, or HostLost."""


@dataclass(frozen=True)
class HostLost:
    """What an engine tells before the exits of the clients that ran there."""

    host: str
    clients: list[int]
    cause: str


class EngineError(UserError):
    """Why an engine cannot be used; one line for the user."""


class Engine(ABC):
    """Messages from clients and about them are those of the fork server, FromClient and Exited. An engine of several
    hosts adds the number of the client's fork server as ``parent``.

    Every method that talks to the processes raises ControlClosed when the last host is gone. ``sockets`` is a private
    folder on the launcher's host for its Unix sockets; it goes with the engine.
    """

    sockets: Path
    spans_hosts = False  # whether its hosts may be machines of their own
    shares_process = False  # whether clients are no processes: then nobody's memory and CPU time is measured
    _runs = 0

    def folder_for_run(self) -> Path:
        """A private folder for a run's Unix sockets, made in ``sockets``."""
        folder = self.sockets / str(self._runs)
        self._runs += 1
        folder.mkdir(mode=0o700)
        return folder

    def records_at(self, sockets: Path) -> str:
        """The address of a run's collector, whose Unix sockets are in this folder."""
        return f"ipc://{sockets}/records"

    def hosts(self) -> tuple[Host, ...]:
        """One, unless the engine spans several machines."""
        return (Host(socket.gethostname(), cores=os.cpu_count() or 1),)

    @abstractmethod
    def fork(self, assignments: Iterable[Assignment], calibrate: int = 0) -> None:
        """Starts these clients, each on its host; with ``calibrate``, what only times so many local steps of theirs."""

    @abstractmethod
    def send(self, message: Tell | TellAll | Kill) -> None: ...

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Until there is something to receive, or for so long; whether there is."""

    @abstractmethod
    def receive(self) -> list[Message]:
        """What has come, perhaps nothing; to be called when ``wait`` says so."""

    def time_a_step(self, assignment: Assignment, steps: int) -> float:
        """Seconds that a local step of a client takes, measured in a process like the client's. Raises EngineError."""
        self.begin(assignment.run.folder)
        self.equip([assignment])
        self.fork([assignment], calibrate=steps)
        answer, cause = None, ""
        while True:
            for message in self.receive() if self.wait(1.0) else ():
                match message:
                    case FromClient(_, StepTimed(seconds)):
                        answer = seconds
                    case FromClient(_, Failed(text)):
                        cause = text
                    case Exited():
                        if answer is None:
                            raise EngineError(f"a local step could not be timed: {cause or f'see {assignment.log}'}")
                        return answer

    def begin(self, folder: Path) -> None:  # noqa: B027  (nothing to do where there is one host)
        """A run in this folder. Raises EngineError."""

    def equip(self, assignments: Iterable[Assignment]) -> None:  # noqa: B027
        """Brings to each host what its clients are to read, before they are forked."""

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
