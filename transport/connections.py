"""A client's socket and its connections: who may open one, and what is noticed of them."""

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import zmq

from .constants import CONSTANTS
from .envelope import MAX_HEADER_BYTES
from .kernel import KernelCounters
from .keys import (
    CLOSED,
    OPENED,
    PROOF,
    Ring,
    ZapHandler,
    authenticated_number,
    dial_with,
    limit_handshake,
    listen_with,
    next_event,
)
from .presence import Presence, identity_of
from .stopwatch import Stopwatch
from .wire import HANDSHAKE_FRAME, SEAL_BYTES

_EVENTS_WAITING = 100_000  # of connections that others open and close while a client is at work
_EVENTS_A_LOOK = 1000  # of connections: a flood of them holds up no one for long


class CannotListen(Exception):
    """A client cannot be bound where it should be."""


class Identity(NamedTuple):
    """A client's process; a client that is started again begins its next incarnation."""

    node: int
    run: int
    incarnation: int = 1


@dataclass(frozen=True)
class Options:
    """What an endpoint takes in: frames of ``max_frame`` bytes at most, ``queue`` messages on a connection in each
    direction. With ``keys`` only neighbours that own theirs get in, each under its own number; a context has one such
    endpoint at most. ``kernel`` is told of every TCP connection, ``stopwatch`` of the time spent blocked."""

    max_frame: int
    queue: int = 1000
    keys: Ring | None = None
    kernel: KernelCounters | None = None
    stopwatch: Stopwatch | None = None


class Connections:
    def __init__(
        self, context: zmq.Context, identity: Identity, options: Options, presence: Presence, rejected: Counter[str]
    ):
        """``rejected`` counts the connections that were refused, or closed by the other end."""
        self._keys, self._kernel = keys, kernel = options.keys, options.kernel
        self._presence, self._rejected = presence, rejected
        self._max_frame = most = max(options.max_frame, MAX_HEADER_BYTES)
        self.router = router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.IDENTITY, identity_of(identity.node, identity.incarnation))
        router.router_mandatory = True  # sending to a peer that is not there is an error, never a silent drop
        router.maxmsgsize = most if keys is None else max(most + SEAL_BYTES, HANDSHAKE_FRAME)
        router.reconnect_ivl = 20  # ms
        router.sndhwm = router.rcvhwm = options.queue
        router.linger = router.sndtimeo = 0
        router.rcvtimeo = int(CONSTANTS.soon_s * 1000)
        self.zap = None if keys is None else ZapHandler(context, keys.others, more=keys.more)
        if keys is not None:
            listen_with(router, keys.own)
        self._monitor = router.get_monitor_socket(PROOF if keys else CLOSED if kernel is None else CLOSED | OPENED)
        self._monitor.rcvhwm = _EVENTS_WAITING
        self.sockets = [self._monitor] if self.zap is None else [self._monitor, self.zap.socket]
        """To be polled; ``attend`` acts on what comes."""

    def bind(self, address: str, *, hurry: bool = True) -> str:
        """Binds to an address (``tcp://127.0.0.1:*`` picks a port) and returns the one that others connect to.
        ``hurry``: who does not open a connection soon is sent away; with keys this client must attend to it meanwhile.
        Raises CannotListen."""
        before = self.router.handshake_ivl
        if hurry:
            limit_handshake(self.router)
        try:
            self.router.bind(address)
        except zmq.ZMQError as error:
            raise CannotListen(f"cannot listen at {address}: {error.strerror}") from error
        self.router.handshake_ivl = before  # of connections made here: neighbours may be at work, and answer late
        return self.router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def learn(self, keys: Mapping[int, str], *, more: bool = False) -> None:
        """The public keys of neighbours; ``more``: some may come later, with keys that are not known yet."""
        if self._keys is not None and self.zap is not None:
            self._keys.others.update(keys)
            self.zap.learn(keys, more=more)

    def open(self, node: int, address: str, route: bytes) -> None:
        if self._keys is not None:
            dial_with(self.router, self._keys.own, self._keys.others[node])
        self.router.setsockopt(zmq.CONNECT_ROUTING_ID, route)
        self.router.connect(address)

    def is_from(self, frame: zmq.Frame, node: int) -> bool:
        """Whether a frame on a connection that was accepted is the node's, as far as keys can tell."""
        return self.zap is None or authenticated_number(frame) == node

    def attend(self, ready: Container[Any]) -> None:
        if self._monitor in ready:
            self.note()
        if self.zap is not None and self.zap.socket in ready:
            self.zap.answer()

    def note(self) -> None:
        """Takes notice of connections that were opened or closed since the last look."""
        come_and_go = bool(self._presence.latecomers)
        for _ in range(_EVENTS_A_LOOK):
            if not self._monitor.poll(0):
                return
            kind, descriptor = next_event(self._monitor)
            refused = self.zap is not None and self.zap.refused(kind, descriptor, sure=come_and_go)
            if self._kernel is not None and kind & OPENED:
                self._kernel.watch(descriptor)
            if refused:
                self._rejected["connection without the right key"] += 1
                if self._kernel is not None:
                    self._kernel.forget(descriptor)
            elif kind & (zmq.EVENT_DISCONNECTED if self.zap else CLOSED) and not come_and_go:
                # ZeroMQ does not tell the two causes apart, and neighbours that may come late also go
                self._rejected[f"connection closed by its peer, or for a frame over {self._max_frame} bytes"] += 1

    def close(self, linger_s: float) -> None:
        self.router.linger = int(linger_s * 1000)
        self.router.disable_monitor()
        self._monitor.close()
        self.router.close()
        if self.zap is not None:
            self.zap.close()
