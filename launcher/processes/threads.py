"""The engine for debugging: clients are threads of the launcher's own process, with the same sockets between them and
the same bits. What they print comes out at once, and Python's debugger can stop in them. What belongs to a process
cannot be told of one of them, and is not."""

import contextlib
import importlib
import json
import os
import pdb
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import astuple, replace
from queue import SimpleQueue
from typing import Any

from ...metrics.records import LAUNCHER, EventRecord, Record
from ...node.algorithms import libraries_for
from ...node.assignment import Assignment
from ...node.process.main import live
from ...transport import control
from ...transport.control import Control, ControlClosed, Exited, Failed, FromClient, Kill, Stop, Tell
from ...transport.endpoint import Stopped
from ...transport.environment import FAILPOINTS
from ...transport.limits import allow_open_files
from ...transport.stopwatch import suspended
from .. import ONE_THREAD, interrupts
from .engine import Engine, EngineError

with contextlib.suppress(ImportError):
    import readline  # noqa: F401  (``input`` then edits its line, and remembers those before)

_END_S = 1.0  # for threads told to end: they look at their line all the time, unless they compute or wait for a user
_QUIT = b""  # in place of a question: the user has left the debugger
_LONGEST = 1 << 10  # bytes of a question


class ThreadsEngine(Engine):
    shares_process = True

    def __init__(self) -> None:
        if not ONE_THREAD.items() <= os.environ.items():
            names = " ".join(f"{name}=1" for name in ONE_THREAD)
            raise EngineError(f"--engine threads: NumPy and PyTorch must be loaded with {names} in the environment")
        if os.environ.get(FAILPOINTS):
            raise EngineError(f"--engine threads: {FAILPOINTS} kills processes; leave it out, or use local")
        allow_open_files()  # all clients' are this process's
        super().__init__()
        self._clients: dict[int, _Client] = {}
        self._mail: list[Any] = []
        self._console = _Console()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._console.asked, selectors.EVENT_READ)

    def begin(self, folder: object, assignments: object) -> None:
        self._console.is_open = True

    def fork(self, assignments: Iterable[Assignment]) -> None:
        """They get their parts as they would have travelled to processes, with what these need loaded."""
        parts = []
        for each in assignments:
            message = replace(each, deployment=replace(each.deployment, shares_process=True)).to_json()
            parts.append(Assignment.from_json(json.loads(json.dumps(message))))
        for library in libraries_for(parts):
            importlib.import_module(library)
        for place, part in enumerate(parts):
            try:
                client = _Client(part)
                client.start()
            except (RuntimeError, OSError) as error:
                self._mail.append(FromClient(part.node, Failed(f"no thread could be started for it: {error}")))
                self._mail += (Exited(each.node, None, parent=LAUNCHER) for each in parts[place:])
                return
            self._clients[part.node] = client
            self._selector.register(client.line, selectors.EVENT_READ, part.node)

    def send(self, message: Tell | Kill) -> None:
        """A thread cannot be killed: those that are left are given up, and end with this process."""
        if isinstance(message, Kill):
            self._mail += [self._part_with(node, -signal.SIGKILL) for node in list(self._clients)]
            return
        if isinstance(message.message, Stop):
            self._console.close()
        for node in list(self._clients) if message.node is None else [message.node]:
            if node in self._clients:
                with contextlib.suppress(ControlClosed):  # it has just ended
                    self._clients[node].line.send(message.message)

    def receive(self, seconds: float) -> list[Any]:
        for key, _ in self._selector.select(0 if self._mail else seconds):
            if key.data is None:
                self._console.answer()
                continue
            try:
                self._mail += (FromClient(key.data, said) for said in self._clients[key.data].line.receive_some())
            except ControlClosed:
                self._mail.append(self._part_with(key.data))
        messages, self._mail = self._mail, []
        return messages

    def _part_with(self, node: int, status: int | None = None) -> Exited:
        client = self._clients.pop(node)
        self._selector.unregister(client.line)
        client.line.close()
        if status is None:
            client.join()  # it has closed its line, as the last thing that it does
            status = client.status
        return Exited(node, status, astuple(client.line.sent), astuple(client.line.received), parent=LAUNCHER)

    def introductions(self) -> Iterator[Record]:
        text = "clients are threads of the launcher: their memory and CPU time are not measured"
        yield EventRecord(0.0, None, LAUNCHER, "engine", text)

    def __exit__(self, *_: object) -> None:
        with interrupts.deferred():
            self._console.leave()
            deadline = time.monotonic() + _END_S
            for client in self._clients.values():
                client.line.close()
            for client in self._clients.values():
                client.join(max(0.0, deadline - time.monotonic()))
            self._selector.close()
            super().__exit__()


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


# -- Python's debugger in clients --------------------------------------------------------------------------------------


class _Console:
    """As long as it is there, ``breakpoint()`` and ``pdb.set_trace()`` in clients lead to it, and they print whole
    lines. One client at a time stops there; while one does, the others' waits for their neighbours do not count. The
    terminal is the main thread's own: when ``asked`` is readable, that is to ``answer``."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.one_at_a_time = threading.Lock()
        self.asked, self._ask = socket.socketpair(type=socket.SOCK_DGRAM)
        self.asked.setblocking(False)
        self._answers: SimpleQueue[str] = SimpleQueue()  # lines; an empty one: the run ends
        self.is_open = False
        self._before = pdb.set_trace, sys.stdout
        pdb.set_trace = self._stop_here
        sys.stdout = _WholeLines(sys.stdout)

    def close(self) -> None:
        """Stops who has a question, or comes with one later."""
        with self._guard, contextlib.suppress(BlockingIOError):
            self.is_open = False
            while True:
                if self.asked.recv(_LONGEST) != _QUIT:
                    self._answers.put("")

    def leave(self) -> None:
        """For good."""
        self.close()
        pdb.set_trace, sys.stdout = self._before
        self.asked.close()
        self._ask.close()

    def answer(self) -> None:
        """Raises KeyboardInterrupt when the user has left the debugger, or asked for the end of the run."""
        question, line = self.asked.recv(_LONGEST), ""
        if question == _QUIT:
            raise interrupts.Interrupted
        try:
            with interrupts.heard_at_a_prompt():
                line = input(question.decode()) + "\n"
        except EOFError:
            raise interrupts.Interrupted from None
        finally:
            self._answers.put(line)

    def ask(self, question: bytes) -> str:
        """Returns what the main thread reads. Raises Stopped; with _QUIT at once, and the run ends as by Ctrl-C."""
        with self._guard:
            if not self.is_open:
                raise Stopped("the run ends")
            self._ask.send(question)
        if question == _QUIT:
            raise Stopped("the debugger was left")
        if line := self._answers.get():
            return line
        raise Stopped("the run ends")

    def _stop_here(self, *, header: object = None, **options: Any) -> None:
        """In place of ``pdb.set_trace``, which ``breakpoint()`` calls."""
        is_main = threading.current_thread() is threading.main_thread()
        (pdb.Pdb() if is_main else _Debugger(self)).set_trace(sys._getframe().f_back, **options)


class _Debugger(pdb.Pdb):
    """The debugger of one thread."""

    def __init__(self, console: _Console):
        self._console = console
        answers: Any = self
        super().__init__(stdin=answers, stdout=sys.stdout, nosigint=True)
        self.prompt = ""  # it is part of the question

    def readline(self) -> str:
        return self._console.ask(f"(Pdb {threading.current_thread().name}) ".encode())

    def interaction(self, *about: Any) -> None:
        with self._console.one_at_a_time, suspended():
            super().interaction(*about)

    def do_quit(self, arg: str) -> None:
        """Ends the run."""
        self._console.ask(_QUIT)

    do_q = do_exit = do_EOF = do_quit


class _WholeLines:
    """A text stream for several threads: what one prints comes out line by line, and at once."""

    def __init__(self, stream: Any):
        self._stream = stream
        self._begun = threading.local()

    def write(self, text: str) -> int:
        *lines, self._begun.line = (getattr(self._begun, "line", "") + text).split("\n")
        if lines:
            self._stream.write("\n".join([*lines, ""]))
            self._stream.flush()
        return len(text)

    def flush(self) -> None:
        self._stream.write(getattr(self._begun, "line", ""))
        self._begun.line = ""
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
