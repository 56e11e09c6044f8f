"""One host's end of an engine that spans several: it keeps a fork server, and passes control messages, objects of its
own and files both ways. All that a run writes on this host lies in a private folder, which goes when the agent ends:
when it is told to, when its fork server does, and when it has not heard of the launcher for a few seconds."""

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import zmq

from ...node.algorithms import INPUT_FILES
from ...node.process.reporting import sample
from ...transport import control
from ...transport.control import ControlClosed, Fork, Go, Kill, Tell
from ...transport.keys import KeyPair, dial_with, next_event
from .engine import LocalEngine

_AWAY_S = 2.0  # for how long the launcher may be out of reach
_LOOK_EVERY_S = 0.5  # for checkpoints of clients: the launcher gets them at once, in case this host is lost
_QUESTIONS = 10
_PIECE_BYTES = 256 << 10
_MAX_FRAME_BYTES = 64 << 20  # the assignments of a hundred clients with many neighbours each are a few megabytes
_HEARTBEAT_MS, _SILENCE_MS = 1000, 3000  # how often each end asks for a sign, and when a connection counts as lost
_STATES = "state/*/*.safetensors", "sent/*.safetensors"
_ALLOWED = re.compile(
    r"(shards|plan)/node-\d{4,7}\.safetensors|state/round-\d{6,9}/(node|sent)-\d{4,7}\.safetensors|"
    r"sent/node-\d{4,7}\.\d{1,3}\.safetensors|code/([^/.][^/]*/)*[^/.][^/]*\.py|"
    rf"log/node-\d{{4,7}}\.(log|used)|({'|'.join(INPUT_FILES)})\.safetensors"
)


class LineError(Exception):
    """The other end said what it must not."""


def configured(line: zmq.Socket) -> zmq.Socket:
    """Returns either end of the line, with what both ends keep to."""
    line.linger = 1000  # ms
    line.maxmsgsize = _MAX_FRAME_BYTES
    line.heartbeat_ivl, line.heartbeat_timeout = _HEARTBEAT_MS, _SILENCE_MS
    return line


def unpack(frames: list[bytes], words: control.Words) -> tuple[Any, bytes]:
    """The message, and the piece of a file that came with it. Raises LineError."""
    try:
        message = control.decode(frames[0], words)
        if isinstance(message, (dict, *words.values())) and len(frames) <= 2:
            return message, b"".join(frames[1:])
    except (ValueError, TypeError, IndexError, RecursionError):
        pass
    raise LineError("no JSON object")


def pieces(path: Path) -> Iterator[bytes]:
    """A file's pieces, one a message; an empty one comes last."""
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
    yield b""


def put(piece: bytes, folder: Path, name: str) -> None:
    """Puts a file together in a run's folder, where it is whole or not at all. Raises LineError where no run has it."""
    if not isinstance(name, str) or _ALLOWED.fullmatch(name) is None or len(piece) > _PIECE_BYTES:
        raise LineError(f"a file that is none of a run's: {str(name)[:60]!r}")
    path = folder / name
    unfinished = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    with unfinished.open("ab") as file:
        file.write(piece)
    if not piece:
        unfinished.replace(path)


@contextlib.contextmanager
def _removed_at_the_end(folder: Path) -> Iterator[None]:
    """However this process ends: Ray kills the children of one that is killed, and they could not clean up any more. So
    that is left to a shell that is no child of it and waits for the end of a pipe."""
    reading, writing = os.pipe()
    script = 'exec 3<&0; (cat <&3; sleep 1; rm -rf -- "$0") >/dev/null 2>&1 &'
    subprocess.run(["/bin/sh", "-c", script, str(folder)], stdin=reading, check=True, start_new_session=True)
    os.close(reading)
    try:
        yield
    finally:
        os.close(writing)


class Agent:
    """Runs in a process of its own."""

    def make_keys(self) -> str:
        """Returns the public half; to be called before ``serve``."""
        self._keys = KeyPair.make()
        return self._keys.public

    def serve(self, index: int, line: str, launcher: str) -> str:
        """Until the end of the engine; returns why. ``line`` is the launcher's address, ``launcher`` its public key."""
        context = zmq.Context()
        self._line = configured(context.socket(zmq.DEALER))
        self._line.setsockopt(zmq.IDENTITY, b"host-%d" % index)
        dial_with(self._line, self._keys, launcher)
        self._line.sndtimeo = 1000 * round(_AWAY_S)  # what piles up: the launcher reads at once, if it is there
        self._line.reconnect_ivl = 100  # ms
        monitor = self._line.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._line.connect(line)
        self._clocks: list[tuple[float, float]] = []  # (round trip, the launcher's clock minus this one)
        self._folder: Path | None = None  # of the present run
        self._sent: set[Path] = set()
        try:
            self._server = LocalEngine()
            with self._server, _removed_at_the_end(self._server.sockets):
                return self._serve(monitor)
        except ControlClosed:
            return "its fork server has ended"
        except zmq.Again:
            return "the launcher is gone"
        finally:
            context.destroy()

    def _serve(self, monitor: zmq.Socket) -> str:
        self._say({"time": time.monotonic()})
        met, away_since, look_due = False, None, 0.0
        while True:
            zmq.select([self._line, monitor, self._server.control], [], [], _LOOK_EVERY_S)
            while monitor.poll(0):
                # before the two have met there is no hurry: the launcher may have much to prepare, and Ray ends this
                # agent if the launcher ends meanwhile
                if next_event(monitor)[0] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    met, away_since = True, None
                elif met and away_since is None:
                    away_since = time.monotonic()
            for said in self._server.receive(0.0):
                self._say(said)
            while self._line.poll(0):
                message, piece = unpack(self._line.recv_multipart(), control.FROM_LAUNCHER)
                if message == {"end": True}:
                    return "the launcher said so"
                self._act_on(message, piece)
            if (now := time.monotonic()) >= look_due:
                look_due = now + _LOOK_EVERY_S
                self._send_new(*_STATES)
            if away_since is not None and now > away_since + _AWAY_S:
                return "the launcher is gone"

    def _say(self, message: object, *piece: bytes) -> None:
        self._line.send_multipart([control.encode(message), *piece])

    def _act_on(self, message: Any, piece: bytes) -> None:
        server = self._server
        match message:
            case {"asked": asked, "time": there}:
                now = time.monotonic()
                self._clocks.append((now - asked, there - (asked + now) / 2))
                if len(self._clocks) < _QUESTIONS:  # the quickest answer tells best how the two clocks differ
                    self._say({"time": time.monotonic()})
                else:
                    self._say({"ready": [os.getpid(), server.pid]})
            case {"run": True}:
                self._folder = server.folder_for_run()
                (self._folder / "log").mkdir()
                self._sent.clear()
                server.tallies()
            case {"file": name} if self._folder:
                put(piece, self._folder, name)
                if name.startswith(("state/", "sent/")):  # the launcher has it already
                    self._sent.add(self._folder / name)
            case Fork(assignments) if self._folder:
                for assignment in assignments:  # with paths as they are on this host
                    assignment["run"]["folder"] = str(self._folder)
                    for key in INPUT_FILES:
                        if (path := self._folder / f"{key}.safetensors").exists():
                            assignment["algorithm"][key] = str(path)
                server.send(message)
            case Tell(_, Go(epoch)):
                server.send(replace(message, message=Go(epoch - min(self._clocks)[1])))
            case Tell() | Kill():
                server.send(message)
            case {"bring_home": True}:
                self._send_new(*_STATES, "log/*.log", "log/*.used")
                sizes = [list(sample(0, 0.0, pid=pid)) for pid in (server.pid, os.getpid())]
                self._say({"home": True, "samples": sizes, "tallies": server.tallies()})

    def _send_new(self, *patterns: str) -> None:
        if self._folder is None:
            return
        there = {path for pattern in patterns for path in self._folder.glob(pattern)}
        for path in sorted(there - self._sent):
            self._sent.add(path)
            for piece in pieces(path):
                self._say({"file": path.relative_to(self._folder).as_posix()}, piece)
