"""The connections of a client's socket: who may open one, and what is noticed of them."""

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import zmq

from .kernel import KernelCounters
from .keys import CLOSED, OPENED, PROOF, Ring, ZapHandler, authenticated_number, dial_with, listen_with, next_event
from .presence import Presence
from .stopwatch import Stopwatch

_EVENTS_WAITING = 100_000  # of connections that others open and close while a client is at work
_EVENTS_A_LOOK = 1000  # of connections: a flood of them holds up no one for long


@dataclass(frozen=True)
class Options:
    """What an endpoint takes in, and who looks at it."""

    max_frame: int
    """Bytes; a longer frame closes its connection."""
    queue: int = 1000
    """Messages that wait on a connection, in each direction, at most."""
    keys: Ring | None = None
    """Only neighbours that own theirs get in, each under its own number. A context has one such endpoint at most."""
    kernel: KernelCounters | None = None
    """Is told of every TCP connection."""
    stopwatch: Stopwatch | None = None
    """Is told of the time spent blocked."""


class Connections:
    def __init__(
        self, context: zmq.Context, router: zmq.Socket, options: Options, presence: Presence, rejected: Counter[str]
    ):
        """``rejected`` counts the connections that were refused, or closed by the other end."""
        self._router = router
        self._max_frame = options.max_frame
        self._keys = keys = options.keys
        self._kernel = options.kernel
        self._presence, self._rejected = presence, rejected
        self.zap = None if keys is None else ZapHandler(context, keys.others, more=keys.more)
        if keys is not None:
            listen_with(router, keys.own)
        self._monitor = router.get_monitor_socket(
            PROOF if keys else CLOSED if self._kernel is None else CLOSED | OPENED
        )
        self._monitor.rcvhwm = _EVENTS_WAITING
        self.sockets = [self._monitor] if self.zap is None else [self._monitor, self.zap.socket]
        """To be polled; ``attend`` acts on what comes."""

    def learn(self, keys: Mapping[int, str], *, more: bool = False) -> None:
        """The public keys of neighbours; ``more``: some may come later, with keys that are not known yet."""
        if self._keys is not None and self.zap is not None:
            self._keys.others.update(keys)
            self.zap.learn(keys, more=more)

    def open(self, node: int, address: str, route: bytes) -> None:
        if self._keys is not None:
            dial_with(self._router, self._keys.own, self._keys.others[node])
        self._router.setsockopt(zmq.CONNECT_ROUTING_ID, route)
        self._router.connect(address)

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

    def close(self) -> None:
        """To be called before the socket is closed, and ``end`` after that."""
        self._router.disable_monitor()
        self._monitor.close()

    def end(self) -> None:
        if self.zap is not None:
            self.zap.close()
