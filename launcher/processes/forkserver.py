"""The fork server: one process that has everything loaded, and forks the clients off itself. They share its memory and
are ready within milliseconds. It holds a line to the launcher and one to each client, passes messages on both ways, and
tells when a client has ended.

Forking is safe because this process has no second thread of ours then: libraries are limited to one, and those of the
warm-up have ended. An allocator that keeps one (jemalloc, where scikit-learn finds pyarrow) sees to it itself."""

import contextlib
import ctypes
import errno
import functools
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Collection, Iterable
from dataclasses import astuple
from pathlib import Path
from typing import Any

from ...metrics import lock
from ...node.assignment import Assignment, name_of
from ...transport import control
from ...transport.control import Control, ControlClosed, Exited, Failed, Fork, FromClient, Kill, Tell
from ...transport.environment import failpoint, this_is
from ...transport.limits import allow_open_files, end_with_parent, stop_requests
from . import shared_pages


class _Server:
    def __init__(self, launcher: Control, settle: Callable[[], None]):
        self._launcher, self._settle, self._pid = launcher, settle, os.getpid()
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, Control] = {}
        self._nodes: dict[int, tuple[int, Control]] = {}  # pid -> client, and its line even when that is closed
        self._wake = stop_requests()
        self._wake.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only its wake-up is wanted: a handler must not raise
        self._selector.register(launcher, selectors.EVENT_READ, self._obey_launcher)
        self._selector.register(self._wake, selectors.EVENT_READ, self._wake_up)

    def serve(self) -> None:
        try:
            while True:
                for key, _ in self._selector.select():
                    key.data()
        except ControlClosed:
            pass  # the launcher has closed the line, or is gone
        finally:
            self._kill()
            for pid in self._nodes:
                os.waitpid(pid, 0)

    def _obey_launcher(self) -> None:
        for message in self._launcher.receive_some():
            match message:
                case Fork(assignments):
                    self._fork(assignments)
                case Tell(told, words):
                    for node in self._clients if told is None else [told]:
                        if node in self._clients:
                            with contextlib.suppress(ControlClosed):  # it has just ended; the launcher hears of that
                                self._clients[node].send(words)
                case Kill():
                    self._kill()

    def _fork(self, assignments: Iterable[dict[str, Any]]) -> None:
        """Makes a client of each. What this process writes to between two forks, the older client no longer shares: so
        all else is done before the first fork or after the last."""
        from ...node.algorithms import libraries_for

        parts = [Assignment.from_json(assignment) for assignment in assignments]
        try:
            if _load(libraries_for(parts)):
                self._settle()
        except Exception:  # of the user's code
            self._launcher.send(FromClient(parts[0].node, Failed(traceback.format_exc())))
            for part in parts:
                self._launcher.send(Exited(part.node, None))
            return
        lines: list[tuple[socket.socket, socket.socket]] = []
        pids: list[int] = []
        failpoint("fork")
        try:
            lines += (socket.socketpair() for _ in parts)
            for part, (_, theirs) in zip(parts, lines, strict=True):
                pid = _fork()
                if pid == 0:
                    _become_client(part, theirs, self._pid)
                pids.append(pid)
        except OSError as error:  # what is to be done about the others is the launcher's to say
            text = f"no process could be made for it: {error.strerror}"
            if error.errno == errno.EAGAIN:
                text += "; this user or container may have no more (ulimit -u, pids.max)"
            self._launcher.send(FromClient(parts[len(pids)].node, Failed(text)))
            for part in parts[len(pids) :]:
                self._launcher.send(Exited(part.node, None))
        failpoint("forked")
        for part, (ours, theirs), pid in zip(parts, lines, pids, strict=False):
            theirs.close()
            client = self._clients[part.node] = Control(ours, control.TO_LAUNCHER)
            self._nodes[pid] = part.node, client
            self._selector.register(client, selectors.EVENT_READ, functools.partial(self._relay, part.node))

    def _relay(self, node: int) -> None:
        if node not in self._clients:
            return
        client = self._clients[node]
        try:
            for message in client.receive_some():
                self._launcher.send(FromClient(node, message))
        except ControlClosed:
            self._selector.unregister(client)
            client.close()
            del self._clients[node]

    def _wake_up(self) -> None:
        """Raises ControlClosed after SIGTERM."""
        signals = b""
        with contextlib.suppress(BlockingIOError):
            signals = self._wake.recv(4096)
        if signal.SIGTERM in signals:
            raise ControlClosed
        while self._nodes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            node, line = self._nodes.pop(pid)
            while node in self._clients:  # its last words first
                self._relay(node)
            code = os.waitstatus_to_exitcode(status)
            self._launcher.send(Exited(node, code, astuple(line.sent), astuple(line.received)))

    def _kill(self) -> None:
        for pid in self._nodes:
            os.kill(pid, signal.SIGKILL)


def _load(libraries: Iterable[str]) -> bool:
    """Returns whether some were not loaded yet."""
    missing = [library for library in libraries if library not in sys.modules]
    for library in missing:
        importlib.import_module(library)
    return bool(missing)


def _settle(*, shares_more: bool) -> None:
    """What is loaded is to stay: in a client, a collection must not touch, and so copy, the shared pages."""
    gc.collect()
    if shares_more:
        shared_pages.make_immortal()
    gc.freeze()
    shared_pages.fill_gaps()


_LIBRARY = ctypes.PyDLL(None, use_errno=True)  # of C; not CDLL: the interpreter's lock stays held


def _fork() -> int:
    """fork(2) without Python's hooks around it, where that is possible: they set locks up anew that another thread may
    hold. Here is none; left out, they leave 0.4 MB more of each client shared, and a client starts sooner."""
    if sys.platform != "linux" or sys.implementation.name != "cpython":
        return os.fork()
    if (pid := _LIBRARY.fork()) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return pid


def _become_client(assignment: Assignment, line: socket.socket, server: int) -> None:
    """Turns the forked copy of the server into a client; never returns."""
    status = 1
    this_is(name_of(assignment.node))
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        log = os.open(assignment.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        end_with_parent(server, signal.SIGKILL)  # what it may have to say is for the log
        own = os.dup2(line.fileno(), 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))  # above all the other clients' lines
        launcher = Control(socket.socket(fileno=own), control.FROM_LAUNCHER)
        failpoint("born")
        from ...node.process.main import live

        status = live(assignment, launcher)
        sys.stdout.flush()
        sys.stderr.flush()
        if status < 0:  # its part was to crash
            os.kill(os.getpid(), -status)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def main(line: int, parent: int, folder: Path, libraries: Collection[str]) -> None:
    def end(*_: object) -> None:
        """Nobody has been forked yet."""
        lock.remove(folder)
        os._exit(0)

    this_is("fork server")
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    end_with_parent(parent)
    allow_open_files()  # one for every client
    from ...node.algorithms import ALGORITHMS

    list(ALGORITHMS.values())  # all, before the rest: else a client's memory would depend on which have run before
    from ...node.process.warm_up import warm_up

    _load(libraries)
    shares_more = shared_pages.__name__ in libraries
    short = folder / "r"  # as a run's own folder: paths of sockets must not be long
    try:
        if shares_more:
            with shared_pages.code_run() as codes:
                warm_up(short, rounds=1)
            shared_pages.move_together(codes)
        warm_up(short)
    except RuntimeError as error:  # no thread, most of all
        sys.exit(f"the fork server cannot begin: {error}")
    settle = functools.partial(_settle, shares_more=shares_more)
    settle()
    failpoint("loaded")
    _Server(Control(socket.socket(fileno=line), control.FROM_LAUNCHER), settle).serve()


if __name__ == "__main__":
    folder = Path(sys.argv[3])
    try:
        main(int(sys.argv[1]), int(sys.argv[2]), folder, sys.argv[4:])
    finally:
        lock.remove(folder)
