"""The engine for debugging: clients are threads of the launcher's own process.

They are what they are as processes: the same sockets between them, the same bits. What they print comes out at once,
and a debugger can stop in them. What belongs to a process cannot be told of one of them, and is not.
"""

import contextlib
import importlib
import json
import os
import selectors
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import astuple, replace

from ....metrics.records import LAUNCHER, EventRecord, Record
from ....node.algorithms import libraries_for
from ....node.assignment import Assignment
from ....node.model.learner import time_of_a_step
from ....node.process.main import live
from ....transport import control, failpoints
from ....transport.control import Control, ControlClosed, Exited, Failed, FromClient, Kill, Stop, Tell, TellAll
from ....transport.limits import allow_open_files
from ... import interrupts, one_thread
from .. import private_folder
from .base import Engine, EngineError, Message
from .console import Console

_END_S = 1.0  # for threads told to end: they look at their line all the time, unless they compute or wait for a user

NOT_MEASURED = "clients are threads of the launcher: their memory and CPU time are not measured"


class _Client(threading.Thread):
    """``line`` is the launcher's end of that to the client, ``status`` how its process would have ended."""

    def __init__(self, assignment: Assignment):
        name = "server" if assignment.role == "server" else f"client {assignment.node}"
        super().__init__(name=name, daemon=True)
        ours, self._theirs = socket.socketpair()
        self.line, self.status = Control(ours, control.TO_LAUNCHER), 1
        self._assignment = assignment

    def run(self) -> None:
        try:
            self.status = live(self._assignment, Control(self._theirs, control.FROM_LAUNCHER))
        except BaseException:  # such as SystemExit
            with contextlib.suppress(OSError), self._assignment.log.open("a") as log:
                traceback.print_exc(file=log)
        finally:
            self._theirs.close()


class ThreadsEngine(Engine):
    shares_process = True

    def __init__(self) -> None:
        if not one_thread.is_chosen():
            names = " ".join(f"{name}=1" for name in one_thread.VARIABLES)
            raise EngineError(f"--engine threads: NumPy and PyTorch must be loaded with {names} in the environment")
        if os.environ.get(failpoints.VARIABLE):
            raise EngineError(f"--engine threads: {failpoints.VARIABLE} kills processes; leave it out, or use local")
        allow_open_files()  # all clients' are this process's
        self.sockets, self._lock = private_folder.make()
        self._clients: dict[int, _Client] = {}
        self._spoken: list[int] = []
        self._mail: list[Message] = []
        self._console = Console()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._console, selectors.EVENT_READ)

    def begin(self, folder: object) -> None:
        self._console.open()

    def fork(self, assignments: Iterable[Assignment], calibrate: int = 0) -> None:
        parts = _as_threads(assignments)
        for place, part in enumerate(parts):
            try:
                client = _Client(part)
                client.start()
            except (RuntimeError, OSError) as error:
                self._mail.append(FromClient(part.node, Failed(f"no thread could be started for it: {error}")))
                self._mail += (_exit_of(each.node, None) for each in parts[place:])
                return
            self._clients[part.node] = client
            self._selector.register(client.line, selectors.EVENT_READ, part.node)

    def send(self, message: Tell | TellAll | Kill) -> None:
        """A thread cannot be killed: those that are left are given up, and end with this process."""
        if isinstance(message, Kill):
            self._mail += [self._part_with(node, -signal.SIGKILL) for node in list(self._clients)]
            return
        if isinstance(message.message, Stop):
            self._console.close()
        for node in [message.node] if isinstance(message, Tell) else list(self._clients):
            if node in self._clients:
                with contextlib.suppress(ControlClosed):  # it has just ended
                    self._clients[node].line.send(message.message)

    def wait(self, seconds: float) -> bool:
        ready = [key.data for key, _ in self._selector.select(0 if self._mail else seconds)]
        self._spoken = [node for node in ready if node is not None]
        if len(self._spoken) < len(ready):
            self._console.answer()
        return bool(self._spoken or self._mail)

    def receive(self) -> list[Message]:
        messages, self._mail = self._mail, []
        spoken, self._spoken = self._spoken, []
        for node in spoken:
            try:
                messages += (FromClient(node, message) for message in self._clients[node].line.receive_some())
            except ControlClosed:
                messages.append(self._part_with(node))
        return messages

    def _part_with(self, node: int, status: int | None = None) -> Message:
        client = self._clients.pop(node)
        self._selector.unregister(client.line)
        client.line.close()
        if status is None:
            client.join()  # it has closed its line, as the last thing that it does
        return _exit_of(node, client.status if status is None else status, client.line)

    def time_a_step(self, assignment: Assignment, steps: int) -> float:
        (part,) = _as_threads([assignment])
        try:
            return time_of_a_step(part, steps)
        except Exception as error:
            raise EngineError(f"a local step could not be timed: {traceback.format_exc().rstrip()}") from error

    def introductions(self) -> Iterator[Record]:
        yield EventRecord(0.0, None, LAUNCHER, "engine", NOT_MEASURED)

    def __exit__(self, *_: object) -> None:
        with interrupts.deferred():
            self._console.leave()
            deadline = time.monotonic() + _END_S
            for client in self._clients.values():
                client.line.close()
            for client in self._clients.values():
                client.join(max(0.0, deadline - time.monotonic()))
            self._selector.close()
            private_folder.remove(self.sockets)
            os.close(self._lock)


def _as_threads(assignments: Iterable[Assignment]) -> list[Assignment]:
    """As they would have travelled to processes, with what these need loaded."""
    parts = []
    for each in assignments:
        message = replace(each, deployment=replace(each.deployment, shares_process=True)).to_json()
        parts.append(Assignment.from_json(json.loads(json.dumps(message))))
    for library in libraries_for(parts):
        importlib.import_module(library)
    return parts


def _exit_of(node: int, status: int | None, line: Control | None = None) -> Exited:
    told, heard = (astuple(line.sent), astuple(line.received)) if line else ((0, 0), (0, 0))
    return Exited(node, status, told, heard, parent=LAUNCHER)
