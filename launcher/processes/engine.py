"""Engines: what starts the processes of a run, on this machine or on several, and passes the launcher's words on."""

import contextlib
import itertools
import os
import socket
import stat
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil

from ...metrics import lock
from ...metrics.records import FORK_SERVER, LAUNCHER, NodeRecord, OverheadRecord, Record
from ...node.algorithms import algorithm_of, libraries_of
from ...node.assignment import Assignment
from ...node.process.reporting import sample
from ...topology.errors import UserError
from ...transport import control
from ...transport.control import Control, Exited, Failed, Fork, FromClient, Kill, StepTimed, Tell
from ...transport.environment import CONSTANTS
from .. import command, importing_as_here, interrupts
from ..prepare.assignments import Host
from . import shared_pages

EngineName = Literal["local", "threads", "ray"]

_FORK_SERVER = "sheafgossip.launcher.processes.forkserver"
_PREFIX = "sheafgossip-"
_LONGEST_SOCKET = 107  # bytes of a Unix socket's path
_SERVERS = 4  # that are kept, each with libraries of its own


class EngineError(UserError):
    """Why an engine cannot be used, or its run cannot go on; one line for the user."""


class HostLost(control.ControlMessage):
    """What an engine tells before the exits of the clients that ran there."""

    host: str
    clients: list[int]
    cause: str


class Engine(contextlib.AbstractContextManager["Engine"]):
    """One launcher, one or several hosts with a fork server each. Leaving it as a context ends every process that it
    has started. Messages from clients and about them are those of the fork server, FromClient and Exited; an engine of
    several hosts adds the number of the client's fork server as ``parent``, and tells HostLost where one is gone; the
    local one raises ControlClosed. ``sockets`` is a private folder, here."""

    records_at = "ipc://{}/records"  # the address of a run's collector, whose Unix sockets are in a folder
    spans_hosts = False  # whether its hosts may be machines of their own
    shares_process = False  # whether clients are no processes: then nobody's memory and CPU time is measured
    _runs = 0

    def __init__(self) -> None:
        _require_short(Path(tempfile.gettempdir(), f"{_PREFIX}12345678", "0"))
        try:
            self.sockets, self._lock = private_folder()
        except OSError as error:
            raise EngineError(f"no folder for sockets can be made: {error.strerror or error}") from error

    def folder_for_run(self) -> Path:
        """A private folder for a run, made in ``sockets``."""
        folder = self.sockets / str(self._runs)
        _require_short(folder)
        self._runs += 1
        folder.mkdir(mode=0o700)
        return folder

    def hosts(self) -> tuple[Host, ...]:
        return (Host(socket.gethostname(), cores=os.cpu_count() or 1),)

    def begin(self, folder: Path, assignments: Sequence[Assignment]) -> None:
        """A run of these clients in this folder is next. Raises EngineError."""

    @abstractmethod
    def fork(self, assignments: Iterable[Assignment]) -> None:
        """Starts these clients, each on its host."""

    @abstractmethod
    def send(self, message: Tell | Kill) -> None: ...

    @abstractmethod
    def receive(self, seconds: float) -> list[Any]:
        """Waits for messages, so long at most; there may be none."""

    def time_a_step(self, assignment: Assignment, steps: int) -> float:
        """Seconds that a local step of a client takes, measured in a process like the client's. Raises EngineError."""
        self.begin(assignment.run.folder, [assignment])
        self.fork([replace(assignment, timed_steps=steps)])
        answer: float | None = None
        cause = f"see {assignment.log}"
        while True:
            for message in self.receive(1.0):
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

    def __exit__(self, *_: object) -> None:
        lock.remove(self.sockets)  # where a fork server has not
        os.close(self._lock)


class _ForkServer:
    """A line to a fork server, which loads ``libraries`` before it is asked to fork."""

    def __init__(self, sockets: Path, lock: int, libraries: Iterable[str]):
        self.holds, self.has_forked = frozenset(libraries), False
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = (theirs.fileno(), os.getpid(), sockets, *libraries)
            self.process = subprocess.Popen(
                [*command(_FORK_SERVER), *map(str, arguments)],
                pass_fds=[theirs.fileno(), lock],
                env=importing_as_here(),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is the launcher's to handle
            )
        self.control = Control(ours, control.TO_LAUNCHER, attentive=True)
        self.before = np.zeros((2, 2), int)


class LocalEngine(Engine):
    """The engine of one machine: a fork server for the runs that need the same libraries. Of one that had more loaded,
    clients would seem to need more memory than they do. The first loads ``libraries`` at once."""

    def __init__(self, libraries: Iterable[str] = ()) -> None:
        with interrupts.deferred():
            super().__init__()
            self._servers: list[_ForkServer] = []
            try:
                self._server = self._new_server(libraries)
            except EngineError:
                super().__exit__()
                raise

    def _new_server(self, libraries: Iterable[str] = ()) -> _ForkServer:
        try:
            self._servers.append(_ForkServer(self.sockets, self._lock, libraries))
        except OSError as error:
            raise EngineError(f"no process can be started: {error.strerror or error}") from error
        return self._servers[-1]

    @property
    def pid(self) -> int:
        """Of the fork server of the present run."""
        return self._server.process.pid

    @property
    def control(self) -> Control:
        return self._server.control

    def begin(self, folder: Path, assignments: Sequence[Assignment]) -> None:
        needed = frozenset(needs_of(assignments))
        fits = [each for each in self._servers if each.holds == needed]
        fits += [each for each in self._servers if each.holds < needed and not each.has_forked]
        with interrupts.deferred():
            if len(self._servers) == _SERVERS and not fits:
                oldest = self._servers.pop(0)
                oldest.process.kill()  # at an end of its own it removes the folder of sockets
                oldest.process.wait()
                oldest.control.close()
            self._server = fits[0] if fits else self._new_server(shares_for(len(assignments)))
        self._servers.remove(self._server)
        self._servers.append(self._server)
        self._server.holds = needed

    def fork(self, assignments: Iterable[Assignment]) -> None:
        self._server.has_forked = True
        for message in in_batches(assignments):
            self.send(message)

    def send(self, message: object) -> None:
        self.control.send(message)

    def receive(self, seconds: float) -> list[Any]:
        return self.control.receive_some() if self.control.wait(seconds) else []

    def introductions(self) -> Iterator[Record]:
        yield NodeRecord(FORK_SERVER, "fork server", "", 0, 0, 0, 0, socket.gethostname(), self.pid, "")

    def final_resources(self, now: float) -> Iterator[Record]:
        with contextlib.suppress(psutil.Error):  # it may be what failed
            yield sample(FORK_SERVER, now, pid=self.pid)

    def overhead(self) -> Iterator[Record]:
        directions = (LAUNCHER, FORK_SERVER), (FORK_SERVER, LAUNCHER)
        for ends, tally in zip(directions, self.tallies(), strict=True):
            yield OverheadRecord(*ends, "control", *tally)

    def tallies(self) -> list[list[int]]:
        """Messages and bytes of the line to the fork server, to it and from it, since the last call."""
        server = self._server
        before, server.before = server.before, np.array([astuple(self.control.sent), astuple(self.control.received)])
        return (server.before - before).tolist()

    def __exit__(self, *_: object) -> None:
        with interrupts.deferred():
            for server in self._servers:
                server.control.close()
            for server in self._servers:
                stop(server.process, 5.0)  # it may still be loading, and not be listening yet
            super().__exit__()


def needs_of(assignments: Sequence[Assignment]) -> set[str]:
    """Returns what these clients load beyond what all do: large modules, and the user's own code."""
    first, kinds = assignments[0], {each.architecture.kind for each in assignments}
    metrics = [each.use for each in first.evaluation.metrics]
    own = {each.architecture.own.use for each in assignments if each.architecture.own}
    own |= {use for use in (first.training.loss.use, first.training.optimizer_use, *metrics) if use}
    if use := first.algorithm.get("use"):
        own.add(use)
    more = set(shares_for(len(assignments)))
    return own | more | set(libraries_of(None if use else algorithm_of(first), kinds, first.training))


def shares_for(clients: int) -> list[str]:
    """What a fork server loads to have as many clients share more of its memory."""
    return [shared_pages.__name__] if clients >= shared_pages.PAYS_FROM else []


def in_batches(assignments: Iterable[Assignment]) -> Iterator[Fork]:
    waiting = iter(assignments)
    while batch := list(itertools.islice(waiting, CONSTANTS.forked_at_once)):
        yield Fork([assignment.to_json() for assignment in batch])


def stop(process: subprocess.Popen, grace_s: float) -> None:
    """Asks a process to end, and kills it where it takes longer."""
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _require_short(folder: Path) -> None:
    """So that sockets in a run's ``folder`` can have paths. Raises EngineError."""
    place = tempfile.gettempdir()
    if (more := len(os.fsencode(folder / "records")) - _LONGEST_SOCKET) > 0:
        raise EngineError(
            f"TMPDIR {place}: is too long for the paths of sockets in it; "
            f"choose a folder of at most {len(os.fsencode(place)) - more} bytes"
        )


def private_folder() -> tuple[Path, int]:
    """A private folder for Unix sockets that goes with the processes that use it, however they end; and the descriptor
    that keeps it, to be passed on to each of them. Where all of them were killed at once, the next one to make such a
    folder removes it: a file in it is locked for as long as one of them lives. Raises OSError."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # most of all where somebody keeps it
            found = folder.lstat()
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if ours and stat.S_IMODE(found.st_mode) == 0o700 and (folder / lock.NAME).exists():
                held = lock.acquire(folder, 0.0)
                lock.remove(folder)  # before another can lock it: whoever has just made it then makes another
                os.close(held)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            return folder, lock.acquire(folder, 0.0)
        except (BlockingIOError, FileNotFoundError):
            continue  # somebody swept it away before it was locked
        except OSError:  # a file system without locks has to do without
            return folder, os.open(folder / lock.NAME, os.O_RDONLY)


def open_engine(name: EngineName = "local", address: str | None = None, libraries: Iterable[str] = ()) -> Engine:
    """``libraries`` are modules that clients will need; others are loaded when they are needed. Raises EngineError."""
    if name == "local":
        return LocalEngine(libraries)
    if name == "threads":
        from .threads import ThreadsEngine

        return ThreadsEngine()
    from .ray import RayEngine

    return RayEngine(address or "auto")
