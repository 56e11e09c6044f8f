"""What comes in at a client's socket: of whom it is, and what it says."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import zmq

from .connections import Connections, Options
from .keys import authenticated_number
from .wire import HeaderReader, Rejected, view_tensor

receive_frame: Callable[..., Any] = zmq.backend.Socket.recv  # socket, flags, whether to return bytes
AT_ONCE = int(zmq.NOBLOCK)  # a plain number: the enumeration is looked up at every call
_new = tuple.__new__  # of a NamedTuple: half the time of a call by its name
_COPIED_UP_TO = 8192  # bytes: of what libzmq reads at once; a view of a shorter frame may keep all of that in memory

Key = tuple[int, int, int]  # sender, round and phase of a message


class Message(NamedTuple):
    src: int
    round: int
    phase: int
    tensors: tuple[np.ndarray, ...]
    incarnation: int = 1  # of the process that sent it


class Peer(NamedTuple):
    """Who is at the other end of a connection, and how all headers start that it may write."""

    node: int
    incarnation: int
    start: bytes


class MessageReader:
    """Makes messages of frames. ``peers`` are those at the other ends of connections, by their routes; ``came`` is when
    the last message came, time.monotonic() seconds."""

    def __init__(self, connections: Connections, options: Options):
        self.headers = HeaderReader(options.run, options.node)
        self.peers: dict[bytes, Peer] = {}
        self.came = 0.0
        self._connections, self._router = connections, connections.router
        self._node, self._sealed = options.node, options.keys is not None

    def know(self, route: bytes, node: int, incarnation: int) -> None:
        self.peers[route] = Peer(node, incarnation, self.headers.start_from(node))

    def take(self, flags: int) -> Message:
        """The next message. Raises zmq.Again, Rejected."""
        route: bytes = receive_frame(self._router, flags, True)
        self.came = time.monotonic()  # what follows takes time where a message is large, but waits for nothing
        return self.read(route, *rest_of(self._router))

    def read(self, route: bytes, head: zmq.Frame, frames: Sequence[bytes | memoryview]) -> Message:
        """Raises Rejected."""
        peer = self.peers.get(route)
        node, incarnation = peer[:2] if peer else self._connections.presence.latecomer(route)
        if self._sealed and node < self._node and authenticated_number(head) != node:
            raise Rejected("another client's name")
        round, phase, layout = self.headers.read(node, head.bytes, len(frames))
        message = _new(Message, (node, round, phase, tuple(map(view_tensor, frames, layout)), incarnation))
        if peer is None:
            self.know(route, node, incarnation)
        if not (round or phase or frames):  # a greeting
            self._connections.note()  # this one's, before it can have closed again
        return message


def rest_of(router: zmq.Socket) -> tuple[zmq.Frame, list[bytes | memoryview]]:
    """The header of a message whose route has been received, as a frame, which knows whether more follow; and these,
    read-only."""
    head: zmq.Frame = receive_frame(router, AT_ONCE, False)
    frames: list[bytes | memoryview] = []
    frame = head
    while frame.more:
        frame = receive_frame(router, AT_ONCE, False)
        frames.append(frame.bytes if len(frame) <= _COPIED_UP_TO else memoryview(frame).toreadonly())
    return head, frames
