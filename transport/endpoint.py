"""A client's one data socket: a ROUTER that both binds and connects, and trusts nothing that comes in."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import zmq
from zmq.utils.monitor import recv_monitor_message

from .control import Control
from .envelope import MAX_HEADER_BYTES, Header, Rejected, pack_header, unpack_header, view_tensor
from .kernel import KernelCounters
from .stopwatch import Stopwatch
from .wire import message_wire_bytes

_CLOSED = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL

_OPENED = zmq.EVENT_CONNECTED | zmq.EVENT_ACCEPTED


class Stopped(Exception):
    """The launcher asked this process to end."""


class NeighbourTimeout(Exception):
    """A neighbour stayed silent for longer than transport.timeout."""


@dataclass(frozen=True, slots=True)
class Message:
    header: Header
    tensors: tuple[np.ndarray, ...]


@dataclass(frozen=True, slots=True)
class SentBytes:
    """What one message weighed: its tensors, all its frames, and all its frames with ZMTP framing."""

    payload: int
    message: int
    wire: int


def identity_of(node: int) -> bytes:
    """The routing id of a node's socket; it travels in READY, so its length is part of the wire bytes."""
    return b"node-%04d" % node


class Endpoint:
    """Raises Stopped or ControlClosed from any blocking call when the launcher says so or is gone.

    ``max_frame`` bounds the frames that ZeroMQ takes in at all: a longer one closes its connection.
    ``rejected`` counts dropped messages by reason, since the start. ``kernel`` is told of every TCP connection,
    ``stopwatch`` of the time spent blocked.
    """

    def __init__(
        self,
        context: zmq.Context,
        node: int,
        run: int,
        control: Control,
        max_frame: int,
        kernel: KernelCounters | None = None,
        stopwatch: Stopwatch | None = None,
    ):
        self.node = node
        self.run = run
        self.rejected: Counter[str] = Counter()
        self.stopwatch = stopwatch or Stopwatch("start", running=False)
        self._control = control
        self._max_frame = max(max_frame, MAX_HEADER_BYTES)
        self._route_to: dict[int, bytes] = {}
        self._peer_of: dict[bytes, int] = {}
        self._router = context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.IDENTITY, identity_of(node))
        self._router.router_mandatory = True  # sending to a peer that is not there is an error, never a silent drop
        self._router.maxmsgsize = self._max_frame
        self._router.reconnect_ivl = 20  # ms
        self._router.linger = 0
        self._router.sndtimeo = 0
        self._kernel = kernel
        self._monitor = self._router.get_monitor_socket(_CLOSED if kernel is None else _CLOSED | _OPENED)
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._poller.register(control.fileno(), zmq.POLLIN)

    def bind(self, address: str) -> str:
        """Binds to an address (``tcp://127.0.0.1:*`` picks a port) and returns the one that others connect to."""
        self._router.bind(address)
        return self._router.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()

    def connect(self, addresses: dict[int, str], deadline: float) -> dict[int, int]:
        """Links up with all neighbours: the lower number connects and says hello, the higher one answers.

        Returns {neighbour: wire bytes of the hello sent}. Raises NeighbourTimeout when some are silent at ``deadline``.
        """
        # Routes of connections made here are local names, never sent. They are secret: libzmq aborts the whole process
        # when a stranger has bound the name of such a route to itself before the connection is made.
        self._route_to = {node: identity_of(node) if node < self.node else os.urandom(16) for node in addresses}
        self._peer_of = {route: node for node, route in self._route_to.items()}
        hellos: dict[int, int] = {}
        for node, address in addresses.items():
            if self.node < node:
                self._router.setsockopt(zmq.CONNECT_ROUTING_ID, self._route_to[node])
                self._router.connect(address)
                hellos |= self._hello(node)
        missing = set(addresses)
        while missing:
            try:
                greeted = self.receive(deadline).header.src
            except NeighbourTimeout:
                raise NeighbourTimeout(f"no connection to client {names_of(missing)}") from None
            if greeted in missing and greeted < self.node:
                hellos |= self._hello(greeted)
            missing.discard(greeted)
        return hellos

    def _hello(self, node: int) -> dict[int, int]:
        return {j: sent.wire for j, sent in self.send([node], round=0, phase=0, tensors=()).items()}

    def send(
        self, to: Iterable[int], *, round: int, phase: int, tensors: tuple[np.ndarray, ...]
    ) -> dict[int, SentBytes]:
        """Sends the same tensors to each node; returns what each of these messages weighs.

        The tensors are copied once, whatever the number of receivers, and may be changed after the call. A node whose
        connection is gone is left out of the result and counted in ``rejected``.
        """
        frames = [zmq.Frame(np.ascontiguousarray(tensor).data, copy=True) for tensor in tensors]
        lengths = [tensor.nbytes for tensor in tensors]
        payload = sum(lengths)
        sent = {}
        for node in to:
            header = pack_header(Header(self.run, self.node, node, round, phase), tensors)
            if self._put([self._route_to[node], header, *frames]):
                wire = message_wire_bytes([len(header), *lengths])
                sent[node] = SentBytes(payload, payload + len(header), wire)
        return sent

    def _put(self, parts: list) -> bool:
        while True:
            try:
                self._router.send_multipart(parts, copy=False)
                return True
            except zmq.Again:  # the neighbour's queue is full: wait for room, and for a word from the launcher
                start = time.perf_counter_ns()
                self._router.poll(50, zmq.POLLOUT)
                self.stopwatch.blocked_since(start)
                self._heed(0)
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                self.reject(Rejected("neighbour is gone, message not sent"))
                return False

    def receive(self, deadline: float) -> Message:
        """The next legal message of a neighbour. Raises NeighbourTimeout at ``deadline`` (time.monotonic seconds)."""
        while True:
            try:
                identity, *frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise NeighbourTimeout from None
                self._heed(remaining)
                continue
            try:
                return self._open(identity, frames)
            except Rejected as rejected:
                self.reject(rejected)
                self._heed(0)  # a flood of garbage keeps neither the launcher nor the deadline waiting
                if time.monotonic() >= deadline:
                    raise NeighbourTimeout from None

    def reject(self, rejected: Rejected) -> None:
        self.rejected[rejected.reason] += 1

    def _open(self, identity: bytes, frames: list[bytes]) -> Message:
        peer = self._peer_of.get(identity)
        if peer is None:
            raise Rejected("unknown peer")
        if not frames:
            raise Rejected("malformed header")
        header, shapes = unpack_header(frames[0], len(frames) - 1)
        if header.run != self.run:
            raise Rejected("foreign run id")
        if header.src != peer or header.dst != self.node:
            raise Rejected("wrong source or destination")
        tensors = tuple(view_tensor(frame, *shape) for frame, shape in zip(frames[1:], shapes, strict=True))
        return Message(header, tensors)

    def _heed(self, seconds: float) -> None:
        """Sleeps until something comes in, at most ``seconds``, and acts on what is not a message."""
        start = time.perf_counter_ns()
        ready = dict(self._poller.poll(math.ceil(seconds * 1000)))
        self.stopwatch.blocked_since(start)
        if self._monitor in ready:
            self.note_connections()
        if self._control.fileno() in ready:
            for message in self._control.receive_some():
                if "stop" in message:
                    raise Stopped(message["stop"])

    def note_connections(self) -> None:
        """Takes notice of connections that were opened or closed since the last look."""
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)
            if event["event"] & _OPENED:
                if self._kernel is not None:
                    self._kernel.watch(event["value"])
                continue
            # ZeroMQ does not tell the two causes apart
            self.reject(Rejected(f"connection closed by its peer, or for a frame over {self._max_frame} bytes"))

    def close(self) -> None:
        self._router.disable_monitor()
        self._monitor.close()
        self._router.close()


def names_of(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))
