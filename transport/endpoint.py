"""A client's one data socket: a ROUTER that both binds and connects, and trusts nothing that comes in."""

import contextlib
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import zmq

from .connections import Connections, Options
from .constants import CONSTANTS
from .control import Control, NeighbourCame, Place, Stop
from .envelope import MAX_HEADER_BYTES, HeaderReader, HeaderStart, Layout, Rejected, layout_of, pack_rest, view_tensor
from .limits import limit_handshake
from .presence import Presence, identity_of
from .stopwatch import Stopwatch
from .waiting import parts_of
from .wire import HANDSHAKE_FRAME, SEAL_BYTES, message_wire_bytes

_GLANCE_S = 0.2

_send: Callable[..., None] = zmq.backend.Socket.send  # socket, frame, flags, whether to copy a frame of bytes
_receive: Callable[..., Any] = zmq.backend.Socket.recv  # socket, flags, whether to return bytes
_MORE, _AT_ONCE = int(zmq.SNDMORE), int(zmq.NOBLOCK)  # plain numbers: the enumeration is looked up at every call
_SOON_S, _HEED_EVERY_S = CONSTANTS.soon_s, CONSTANTS.heed_every_s
_yield = getattr(os, "sched_yield", lambda: None)
_WORTH_A_FRAME = 1 << 16  # bytes


class Stopped(Exception):
    """The launcher asked this process to end."""


class NeighbourTimeout(Exception):
    """A neighbour stayed silent for longer than transport.timeout."""


class CannotListen(Exception):
    """A client cannot be bound where it should be."""


class Message(NamedTuple):
    src: int
    round: int
    phase: int
    tensors: tuple[np.ndarray, ...]
    incarnation: int = 1
    """Of the process that sent it."""

    @property
    def is_greeting(self) -> bool:
        return self.round == self.phase == 0 and not self.tensors


class SentBytes(NamedTuple):
    """What one message weighed: its tensors, all its frames, and all its frames with ZMTP framing."""

    payload: int
    message: int
    wire: int


class _Form(NamedTuple):
    """What messages of one round, phase and layout have in common."""

    key: tuple[int, int, Layout]
    rest: bytes
    """Of the header, after what depends on the receiver."""
    weights: dict[int, SentBytes]
    """By the length of the header."""


class Identity(NamedTuple):
    """A client's process; a client that is started again begins its next incarnation."""

    node: int
    run: int
    incarnation: int = 1


class Endpoint:
    """Raises Stopped or ControlClosed from any blocking call when the launcher says so or is gone.

    ``rejected`` counts dropped messages by reason, since the start; ``heard`` collects the launcher's messages that are
    not for the endpoint.
    """

    def __init__(self, context: zmq.Context, identity: Identity, control: Control, options: Options):
        self.node = identity.node
        self.presence = Presence(identity.node)
        self.heard: list[Any] = []
        self.hellos: list[tuple[int, int]] = []
        """(neighbour, wire bytes) of the greetings sent to neighbours that came later."""
        self.rejected: Counter[str] = Counter()
        self.before_waiting: Callable[[], None] = lambda: None
        """Called where no message has come soon."""
        self.stopwatch = options.stopwatch or Stopwatch("start", running=False)
        self._control = control
        self._header_start = HeaderStart(identity.run, self.node)
        self._headers = HeaderReader(identity.run, self.node)
        self._form = _Form((-1, -1, ()), b"", {})
        self._sealed = options.keys is not None
        self._route_to: dict[int, bytes] = {}
        self._peer_of: dict[bytes, tuple[int, int]] = {}  # (neighbour, its incarnation)
        self._addresses: dict[int, str] = {}
        self._waiting: list[Message] = []  # that came while this client was still linking up
        self._heed_due = 0.0
        options = replace(options, max_frame=max(options.max_frame, MAX_HEADER_BYTES))
        self._router = _router(context, identity, options)
        self.connections = Connections(context, self._router, options, self.presence, self.rejected)
        self._poller, self._aside = zmq.Poller(), zmq.Poller()  # the one for all, the other for all but messages
        self._poller.register(self._router, zmq.POLLIN)
        for other in (control.fileno(), *self.connections.sockets):
            self._poller.register(other, zmq.POLLIN)
            self._aside.register(other, zmq.POLLIN)

    def bind(self, address: str, *, hurry: bool = True) -> str:
        """Binds to an address (``tcp://127.0.0.1:*`` picks a port) and returns the one that others connect to.

        ``hurry``: who does not open a connection soon is sent away; with keys this client must attend to it meanwhile.
        Raises CannotListen.
        """
        before = self._router.handshake_ivl
        if hurry:
            limit_handshake(self._router)
        try:
            self._router.bind(address)
        except zmq.ZMQError as error:
            raise CannotListen(f"cannot listen at {address}: {error.strerror}") from error
        self._router.handshake_ivl = before  # of connections made here: neighbours may be at work, and answer late
        return self._router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    # -- linking up ----------------------------------------------------------------------------------------------------

    def connect(
        self, addresses: Mapping[int, str], deadline: float, incarnations: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        """Links up with all neighbours: the lower number connects and says hello, the higher one answers.

        ``incarnations`` are those of the neighbours, by default the first. Returns {neighbour: wire bytes of the hello
        sent}. Raises NeighbourTimeout when some are silent at ``deadline``.
        """
        missing = set(addresses)
        hellos: dict[int, int] = {}
        for node, address in addresses.items():
            hellos |= self._link(node, address, (incarnations or {}).get(node, 1))
        waiting = parts_of(deadline - time.monotonic())
        until = next(waiting, deadline)
        while self.presence.expected(missing):
            message = self._next(min(until, time.monotonic() + _GLANCE_S), linking=True)
            if message is not None and message.src in missing:
                greeted = message.src
                self.presence.linked[greeted] = message.incarnation
                if greeted < self.node:  # by now it may be another incarnation than the one that was told
                    self._route_to[greeted] = identity_of(greeted, message.incarnation)
                    hellos |= self._hello(greeted)
                missing.discard(greeted)
            elif message is not None:
                self._waiting.append(message)
            elif time.monotonic() >= until and (until := next(waiting, 0.0)) == 0.0:
                raise NeighbourTimeout(f"no connection to client {names_of(missing)}")
        return hellos

    def _link(self, node: int, address: str, incarnation: int) -> dict[int, int]:
        """Opens the way to a neighbour's process; returns {node: wire bytes of the hello}, if it is for us to speak."""
        # Routes of connections made here are local names, never sent. They are secret: libzmq aborts the whole process
        # when an unauthenticated peer has bound the name of such a route to itself before the connection is made.
        route = identity_of(node, incarnation) if node < self.node else os.urandom(16)
        self._route_to[node] = route
        self._peer_of[route] = node, incarnation
        if self.node > node:
            return {}
        self._addresses[node] = address
        self.connections.open(node, address, route)
        return self._hello(node)

    def _hello(self, node: int) -> dict[int, int]:
        return {j: sent.wire for j, sent in self.send([node], round=0, phase=0, tensors=()).items()}

    def welcome(self, message: Message) -> bool:
        """Whether this is the greeting of a neighbour that has come later than the others; it is answered then."""
        node = message.src
        if not message.is_greeting or not self.presence.welcome(node, message.incarnation):
            return False
        if node < self.node:
            self._route_to[node] = identity_of(node, message.incarnation)
            self.hellos += self._hello(node).items()
        return True

    def _rejoin(self, place: Place) -> None:
        """A neighbour is there (again), at a new address."""
        node = place.node
        if place.key:
            self.connections.learn({node: place.key}, more=True)
        if self.node < node and place.incarnation > self.presence.linked.get(node, 0):
            if (before := self._addresses.get(node)) is not None:
                with contextlib.suppress(zmq.ZMQError):
                    self._router.disconnect(before)
            self.hellos += self._link(node, place.address, place.incarnation).items()

    # -- messages ------------------------------------------------------------------------------------------------------

    def send(
        self, to: Iterable[int], *, round: int, phase: int, tensors: tuple[np.ndarray, ...]
    ) -> dict[int, SentBytes]:
        """Sends the same tensors to each node; returns what each of these messages weighs.

        The tensors are copied once, whatever the number of receivers, and may be changed after the call. A node whose
        connection is gone is left out of the result and counted in ``rejected``.
        """
        key = round, phase, layout_of(tensors)
        if key != self._form.key:
            self._form = _Form(key, pack_rest(*key), {})
            self._headers.expect(self._form.rest, *key)
        _, rest, weights = self._form
        frames = [_frame(tensor) for tensor in tensors]
        sent = {}
        for node in to:
            header = self._header_start.of(node) + rest
            if self._put(self._route_to[node], header, frames):
                weight = weights.get(len(header))
                if weight is None:
                    lengths = [len(header), *(tensor.nbytes for tensor in tensors)]
                    wire = message_wire_bytes(lengths, sealed=self._sealed)
                    weight = weights[len(header)] = SentBytes(sum(lengths[1:]), sum(lengths), wire)
                sent[node] = weight
        return sent

    def _put(self, route: bytes, header: bytes, frames: Sequence[bytes | zmq.Frame]) -> bool:
        """The frames after the header go where that one went, at once. False where nobody is there any more."""
        router = self._router
        while True:
            try:
                to_come = len(frames)
                _send(router, route, _MORE)
                _send(router, header, to_come and _MORE)
                for frame in frames:  # small ones are copied sooner than shared
                    to_come -= 1
                    _send(router, frame, to_come and _MORE, type(frame) is bytes)
                return True
            except zmq.Again:  # the neighbour's queue is full: wait for room, and for a word from the launcher
                start = time.monotonic()
                self._router.poll(50, zmq.POLLOUT)
                self.stopwatch.blocked_for(time.monotonic() - start)
                self._heed(0)
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                self.reject(Rejected("neighbour is gone, message not sent"))
                return False

    def receive(self, deadline: float) -> Message:
        """The next legal message of a neighbour. Raises NeighbourTimeout if none is there at ``deadline``
        (time.monotonic seconds)."""
        while True:
            is_over = time.monotonic() >= deadline  # also where this process was stopped meanwhile: one more look
            message = self._waiting.pop(0) if self._waiting else self._next(deadline)
            if message is not None:
                return message
            if is_over:
                raise NeighbourTimeout

    def receive_or_hear(self, deadline: float) -> Message | None:
        """The next legal message; None at ``deadline``, or when the launcher has said something, or earlier."""
        return self._waiting.pop(0) if self._waiting else self._next(deadline)

    def _next(self, deadline: float, *, linking: bool = False) -> Message | None:
        """At first it blocks on the socket alone, which is the quickest way to a message that is about to come; but not
        while ``linking`` up with keys: neighbours wait to be authenticated then.

        Before it blocks it lets others run. Where many clients share few processors, what this one waits for has come
        by then, mostly from more than one of its neighbours: it needs to be woken less often.
        """
        start = time.monotonic()
        if start >= self._heed_due and self._heed(0):
            return None  # the caller may not want to wait so long any more
        try:
            try:
                return self._take(_AT_ONCE)
            except zmq.Again:
                if start + _SOON_S >= deadline or (linking and self._sealed):
                    raise
                _yield()
                message = self._take(0)
                self.stopwatch.blocked_for(time.monotonic() - start)
                return message
        except zmq.Again:
            self.stopwatch.blocked_for(time.monotonic() - start)
            self.before_waiting()
            self._heed(max(0.0, deadline - time.monotonic()))
        except Rejected as rejected:
            self.reject(rejected)
            self._heed(0)  # a flood of garbage keeps neither the launcher nor the deadline waiting
        return None

    def _take(self, flags: int) -> Message:
        """The next message. Raises zmq.Again, Rejected."""
        router = self._router
        route: bytes = _receive(router, flags, True)
        head: zmq.Frame = _receive(router, _AT_ONCE, False)  # a frame knows whether more follow
        frame = head
        tensors = []
        while frame.more:
            frame = _receive(router, _AT_ONCE, False)
            tensors.append(frame.bytes)
        return self._open(route, head, tensors)

    def _open(self, route: bytes, head: zmq.Frame, frames: list[bytes]) -> Message:
        sender = self._peer_of.get(route)
        peer, incarnation = sender or self.presence.latecomer(route)
        if self._sealed and peer < self.node and not self.connections.is_from(head, peer):
            raise Rejected("another client's name")
        round, phase, layout = self._headers.read(peer, head.bytes, len(frames))
        message = Message(peer, round, phase, tuple(map(view_tensor, frames, layout)), incarnation)
        if sender is None:
            self._peer_of[route] = peer, incarnation
        if not round and message.is_greeting:
            self.connections.note()  # this one's, before it can have closed again
        return message

    def reject(self, rejected: Rejected) -> None:
        self.rejected[rejected.reason] += 1

    # -- the launcher --------------------------------------------------------------------------------------------------

    def say(self, message: object) -> None:
        """Tells the launcher."""
        self._control.send(message)

    def heed(self) -> None:
        """Sleeps until the launcher says something, or something other than a message comes, and acts on it."""
        self._act_on(dict(self._aside.poll()))

    def _heed(self, seconds: float) -> bool:
        """Sleeps until something comes in, at most ``seconds``, and acts on what is not a message.

        Returns whether the launcher has said something.
        """
        start = time.monotonic()
        ready = dict(self._poller.poll(math.ceil(seconds * 1000)))
        now = time.monotonic()
        self._heed_due = now + _HEED_EVERY_S
        self.stopwatch.blocked_for(now - start)
        return self._act_on(ready)

    def _act_on(self, ready: Container[Any]) -> bool:
        self.connections.attend(ready)
        if self._control.fileno() not in ready:
            return False
        for message in self._control.receive_some():
            if isinstance(message, Stop):
                raise Stopped(message.reason)
            if not self.presence.note(message):
                self.heard.append(message)
            elif isinstance(message, NeighbourCame):
                self._rejoin(message.place)
        return True

    def close(self, linger_s: float = 0.0) -> None:
        """What was sent and has not left yet gets ``linger_s`` seconds, while the context is terminated."""
        self._router.linger = int(linger_s * 1000)
        self.connections.close()
        self._router.close()
        self.connections.end()


def _router(context: zmq.Context, identity: Identity, options: Options) -> zmq.Socket:
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.IDENTITY, identity_of(identity.node, identity.incarnation))
    router.router_mandatory = True  # sending to a peer that is not there is an error, never a silent drop
    most = options.max_frame
    router.maxmsgsize = most if options.keys is None else max(most + SEAL_BYTES, HANDSHAKE_FRAME)
    router.reconnect_ivl = 20  # ms
    router.sndhwm = router.rcvhwm = options.queue
    router.linger = 0
    router.sndtimeo = 0
    router.rcvtimeo = int(_SOON_S * 1000)
    return router


def _frame(tensor: np.ndarray) -> bytes | zmq.Frame:
    """A copy of the tensor that can be sent to many. A frame is costly to make, but not copied again for each."""
    if tensor.nbytes < _WORTH_A_FRAME:
        return tensor.tobytes()
    return zmq.Frame(np.ascontiguousarray(tensor).data, copy=True)


def names_of(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))
