"""The control plane: messages between the launcher, its fork server and the clients. Each is a line of JSON, an object
with the name of the message's class and its fields, which may hold further messages."""

import json
import math
import select
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, dataclass_transform


@dataclass_transform(frozen_default=True)
class ControlMessage:
    """Its subclasses are frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class Place(ControlMessage):
    """Where a client's present process is found, and by which public key it is known (empty without keys)."""

    node: int
    address: str
    incarnation: int
    key: str


class Connect(ControlMessage):
    neighbours: Sequence[Place]  # that are there


class Go(ControlMessage):
    epoch: float  # the start of the run's wall time (time.monotonic() seconds)


class Exit(ControlMessage):
    """Everybody has completed all rounds."""


class Stop(ControlMessage):
    reason: str


class NeighbourGone(ControlMessage):
    node: int
    incarnation: int
    died: bool  # unexpectedly; else it has left as planned


class NeighbourFinished(ControlMessage):
    node: int  # has completed all rounds: nothing more is to be expected of it


class NeighbourCame(ControlMessage):
    place: Place  # of one that has come late, or again
    first_round: int  # in which it takes part


class NeighbourCalls(ControlMessage):
    place: Place  # of one that waits for this client to open the connection


class Bound(ControlMessage):
    address: str
    key: str


class Ready(ControlMessage):
    """The client has met its neighbours."""


class Done(ControlMessage):
    """The client has completed all rounds."""


class Call(ControlMessage):
    node: int  # a neighbour that should open the connection: the client has something to send


class Leaving(ControlMessage):
    batches: int  # of records that the client has sent: this is its last message
    wire_bytes: int  # of those batches


class Failed(ControlMessage):
    text: str
    cause: str = ""  # what many clients may fail of at once: told once for all of them


class Waiting(ControlMessage):
    wanted: Sequence[tuple[int, int, int]]  # sender, round and phase of each missing message
    round: int
    sent: Sequence[tuple[int, int]]  # (neighbour, messages sent to it in this round)
    seconds: float


class WaitOver(ControlMessage):
    """What the client has told that it waits for has come."""


class StepTimed(ControlMessage):
    seconds: float  # that a local step takes, where a process was forked to time it


class Fork(ControlMessage):
    assignments: Sequence[dict[str, Any]]  # a client for each


class Tell(ControlMessage):
    node: int | None  # None: all clients
    message: Any


class Kill(ControlMessage):
    """For all clients."""


class FromClient(ControlMessage):
    node: int
    message: Any


class Exited(ControlMessage):
    node: int
    status: int | None  # None: there never was one
    told: tuple[int, int] = (0, 0)  # messages and bytes of its control line, to the client
    heard: tuple[int, int] = (0, 0)  # and from it
    parent: int | None = None  # the process that forked it, by its number in the records; None: the own fork server


Words = Mapping[str, type]
_TO_CLIENTS = (Place, Connect, Go, Exit, Stop, NeighbourGone, NeighbourFinished, NeighbourCame, NeighbourCalls)
_TO_LAUNCHER = (Bound, Ready, Done, Call, Leaving, Failed, Waiting, WaitOver, StepTimed, FromClient, Exited)
FROM_LAUNCHER: Words = {each.__name__: each for each in (*_TO_CLIENTS, Fork, Tell, Kill)}
TO_LAUNCHER: Words = {each.__name__: each for each in _TO_LAUNCHER}
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=lambda each: {"is": type(each).__name__} | vars(each))


def encode(message: Any) -> bytes:
    return _ENCODER.encode(message).encode()


def decode(line: bytes, words: Words) -> Any:
    """Raises ValueError, TypeError for anything but JSON with messages of this direction."""

    def message(fields: dict[str, Any]) -> Any:
        if (name := fields.pop("is", None)) is None:
            return fields
        if name not in words:
            raise ValueError(f"no message of this direction: {name!r}")
        return words[name](**fields)

    return json.loads(line, object_hook=message)


class ControlClosed(Exception):
    """The other end is gone."""


@dataclass(slots=True)
class Tally:
    """What has gone in one direction over a line so far."""

    messages: int = 0
    bytes: int = 0


class Control:
    """One end of a control line; ``words`` are the messages that may come in. Both ends trust each other. One must be
    ``attentive``: it reads while it waits for room to send, or a burst in both directions would hang them."""

    def __init__(self, sock: socket.socket, words: Words, *, attentive: bool = False):
        self.sent, self.received = Tally(), Tally()
        sock.setblocking(True)
        self.fileno, self.close = sock.fileno, sock.close
        self._sock = sock
        self._words = words
        self._attentive = attentive
        self._pending = b""  # what has come, and was not received yet

    def send(self, message: Any) -> None:
        """Raises ControlClosed."""
        left = line = encode(message) + b"\n"
        try:
            while left:
                try:
                    left = left[self._sock.send(left, socket.MSG_DONTWAIT if self._attentive else 0) :]
                except BlockingIOError:
                    if self._poll(select.POLLIN | select.POLLOUT) & ~select.POLLOUT:
                        self._pending += self._read()
        except OSError as error:
            raise ControlClosed from error
        self.sent.messages += 1
        self.sent.bytes += len(line)

    def wait(self, seconds: float) -> bool:
        """Waits until there is something to receive, or for so long; returns whether there is."""
        return b"\n" in self._pending or bool(self._poll(select.POLLIN, seconds))

    def _poll(self, events: int, seconds: float | None = None) -> int:
        poll = select.poll()  # unlike select(), for any number of open files
        poll.register(self._sock, events)
        return next((event for _, event in poll.poll(None if seconds is None else math.ceil(seconds * 1000))), 0)

    def receive_some(self) -> list[Any]:
        """One read of the socket: the messages that it completed, perhaps none. Raises ControlClosed."""
        if b"\n" not in self._pending:
            self._pending += self._read()
        *lines, self._pending = self._pending.split(b"\n")
        self.received.messages += len(lines)
        return [decode(line, self._words) for line in lines]

    def _read(self) -> bytes:
        try:
            data = self._sock.recv(1 << 16)
        except OSError as error:
            raise ControlClosed from error
        if not data:
            raise ControlClosed
        self.received.bytes += len(data)
        return data
