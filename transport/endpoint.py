"""A client's one data socket: a ROUTER that both binds and connects, and trusts nothing that comes in."""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import zmq

from .constants import CONSTANTS
from .control import Control, NeighbourCame, NeighbourDied, NeighbourFinished, NeighbourLeft, Stop
from .envelope import MAX_HEADER_BYTES, HeaderReader, HeaderStart, Layout, Rejected, layout_of, pack_rest, view_tensor
from .kernel import KernelCounters
from .keys import CLOSED, OPENED, PROOF, Gate, Ring, dial_with, listen_with, speaker
from .limits import hurry_strangers
from .monitor import next_event
from .stopwatch import Stopwatch
from .waiting import parts_of
from .wire import HANDSHAKE_FRAME, SEAL_BYTES, message_wire_bytes

_LATER_LIFE = re.compile(rb"node-(\d{4,9})(?:\.(\d{1,3}))?")

_GLANCE_S = 0.2

_EVENTS_WAITING = 100_000  # of connections that strangers open and close while a client is at work

_send: Callable[..., None] = zmq.backend.Socket.send  # socket, frame, flags, whether to copy a frame of bytes
_receive: Callable[..., Any] = zmq.backend.Socket.recv  # socket, flags, whether to return bytes
_MORE, _AT_ONCE = int(zmq.SNDMORE), int(zmq.NOBLOCK)  # plain numbers: the enumeration is looked up at every call
_SOON_S, _HEED_EVERY_S = CONSTANTS.soon_s, CONSTANTS.heed_every_s
_yield = getattr(os, "sched_yield", lambda: None)
_WORTH_A_FRAME = 1 << 16  # bytes
_EVENTS_A_LOOK = 1000  # of connections: a flood of them holds up no one for long


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
    life: int = 1
    """Of the process that sent it: a client that is started again begins its next life."""

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


def identity_of(node: int, life: int = 1) -> bytes:
    """The routing id of a node's socket; it travels in READY, so its length is part of the wire bytes."""
    return b"node-%04d" % node if life == 1 else b"node-%04d.%d" % (node, life)


class Endpoint:
    """Raises Stopped or ControlClosed from any blocking call when the launcher says so or is gone.

    With ``keys`` only those neighbours get in that own theirs, each under its own name; the context may have no other
    such endpoint. ``max_frame`` bounds the frames that ZeroMQ takes in at all: a longer one closes its connection.
    ``rejected`` counts dropped messages by reason, since the start. ``kernel`` is told of every TCP connection,
    ``stopwatch`` of the time spent blocked. ``heard`` collects the launcher's words that are not for the endpoint;
    ``gone`` are neighbours that died unexpectedly, and when that was heard (time.monotonic() seconds); ``left`` those
    that have ended, as planned or not, and in which of their lives.
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
        life: int = 1,
        keys: Ring | None = None,
        queue: int = 1000,
    ):
        """``queue`` bounds the messages that wait on a connection, each way."""
        self.node = node
        self.life = life
        self.lives: dict[int, int] = {}
        """{neighbour: the life of it that this client is linked up with}"""
        self.heard: list[Any] = []
        self.gone: dict[int, float] = {}
        self.left: dict[int, int] = {}
        self.first_rounds: dict[int, int] = {}
        """Of neighbours that have come later than the others."""
        self.finished: dict[int, float] = {}
        """Neighbours that have sent their last message, and when that was heard (time.monotonic() seconds)."""
        self.latecomers: frozenset[int] = frozenset()
        """Neighbours that may connect after the others have met."""
        self.hellos: list[tuple[int, int]] = []
        """(neighbour, wire bytes) of the greetings sent to neighbours that came later."""
        self.rejected: Counter[str] = Counter()
        self.before_waiting: Callable[[], None] = lambda: None
        """Called where no message has come soon."""
        self.stopwatch = stopwatch or Stopwatch("start", running=False)
        self._control = control
        self._header_start, self._headers = HeaderStart(run, node), HeaderReader(run, node)
        self._form = _Form((-1, -1, ()), b"", {})
        self._max_frame = max(max_frame, MAX_HEADER_BYTES)
        self._route_to: dict[int, bytes] = {}
        self._peer_of: dict[bytes, tuple[int, int]] = {}  # (neighbour, its life)
        self._addresses: dict[int, str] = {}
        self._waiting: list[Message] = []  # that came while this client was still linking up
        self._router = context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.IDENTITY, identity_of(node, life))
        self._router.router_mandatory = True  # sending to a peer that is not there is an error, never a silent drop
        self._router.maxmsgsize = (
            self._max_frame if keys is None else max(self._max_frame + SEAL_BYTES, HANDSHAKE_FRAME)
        )
        self._router.reconnect_ivl = 20  # ms
        self._router.sndhwm = self._router.rcvhwm = queue
        self._router.linger = 0
        self._router.sndtimeo = 0
        self._router.rcvtimeo = int(_SOON_S * 1000)
        self._heed_due = 0.0
        self._kernel = kernel
        self._keys = keys
        self._gate = None if keys is None else Gate(context, keys.others, more=keys.more)
        if keys is not None:
            listen_with(self._router, keys.own)
        self._monitor = self._router.get_monitor_socket(
            PROOF if keys else CLOSED if kernel is None else CLOSED | OPENED
        )
        self._monitor.rcvhwm = _EVENTS_WAITING
        self._poller, self._aside = zmq.Poller(), zmq.Poller()  # the one for all, the other for all but messages
        self._poller.register(self._router, zmq.POLLIN)
        for other in (self._monitor, control.fileno(), *([self._gate.socket] if self._gate else [])):
            self._poller.register(other, zmq.POLLIN)
            self._aside.register(other, zmq.POLLIN)

    def bind(self, address: str, *, hurry: bool = True) -> str:
        """Binds to an address (``tcp://127.0.0.1:*`` picks a port) and returns the one that others connect to.

        ``hurry``: who does not open a connection soon is sent away; with keys this client must attend to it meanwhile.
        Raises CannotListen.
        """
        before = self._router.handshake_ivl
        if hurry:
            hurry_strangers(self._router)
        try:
            self._router.bind(address)
        except zmq.ZMQError as error:
            raise CannotListen(f"cannot listen at {address}: {error.strerror}") from error
        self._router.handshake_ivl = before  # of connections made here: neighbours may be at work, and answer late
        return self._router.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()

    def learn(self, keys: Mapping[int, str], *, more: bool = False) -> None:
        """The public keys of neighbours; ``more``: some may come later, with keys that are not known yet."""
        if self._keys is not None and self._gate is not None:
            self._keys.others.update(keys)
            self._gate.learn(keys, more=more)

    def connect(
        self, addresses: dict[int, str], deadline: float, lives: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        """Links up with all neighbours: the lower number connects and says hello, the higher one answers.

        ``lives`` are those of the neighbours, by default the first. Returns {neighbour: wire bytes of the hello sent}.
        Raises NeighbourTimeout when some are silent at ``deadline``.
        """
        missing = set(addresses)
        hellos: dict[int, int] = {}
        for node, address in addresses.items():
            hellos |= self._link(node, address, (lives or {}).get(node, 1))
        waiting = parts_of(deadline - time.monotonic())
        until = next(waiting, deadline)
        while missing - self.gone.keys() - self.left.keys():
            message = self._next(min(until, time.monotonic() + _GLANCE_S), linking=True)
            if message is not None and message.src in missing:
                greeted = message.src
                self.lives[greeted] = message.life
                if greeted < self.node:  # by now it may be another life than the one that was told
                    self._route_to[greeted] = identity_of(greeted, message.life)
                    hellos |= self._hello(greeted)
                missing.discard(greeted)
            elif message is not None:
                self._waiting.append(message)
            elif time.monotonic() >= until and (until := next(waiting, 0.0)) == 0.0:
                raise NeighbourTimeout(f"no connection to client {names_of(missing)}")
        return hellos

    def _link(self, node: int, address: str, life: int) -> dict[int, int]:
        """Opens the way to a neighbour's process; returns {node: wire bytes of the hello}, if it is for us to speak."""
        # Routes of connections made here are local names, never sent. They are secret: libzmq aborts the whole process
        # when a stranger has bound the name of such a route to itself before the connection is made.
        route = identity_of(node, life) if node < self.node else os.urandom(16)
        self._route_to[node] = route
        self._peer_of[route] = node, life
        if self.node > node:
            return {}
        self._addresses[node] = address
        if self._keys is not None:
            dial_with(self._router, self._keys.own, self._keys.others[node])
        self._router.setsockopt(zmq.CONNECT_ROUTING_ID, route)
        self._router.connect(address)
        return self._hello(node)

    def _hello(self, node: int) -> dict[int, int]:
        return {j: sent.wire for j, sent in self.send([node], round=0, phase=0, tensors=()).items()}

    def welcome(self, message: Message) -> bool:
        """Whether this is the greeting of a neighbour that has come later than the others; it is answered then."""
        node = message.src
        if not message.is_greeting or message.life <= max(self.lives.get(node, 0), self.left.get(node, 0)):
            return False  # that of a short life may be read when it is over
        self.lives[node] = message.life
        self.gone.pop(node, None)
        self.left.pop(node, None)
        if node < self.node:
            self._route_to[node] = identity_of(node, message.life)
            self.hellos += self._hello(node).items()
        return True

    def _rejoin(self, node: int, address: str, life: int) -> None:
        """A neighbour is there (again), at a new address."""
        self.gone.pop(node, None)
        self.left.pop(node, None)
        if self.node < node and life > self.lives.get(node, 0):
            if (before := self._addresses.get(node)) is not None:
                with contextlib.suppress(zmq.ZMQError):
                    self._router.disconnect(before)
            self.hellos += self._link(node, address, life).items()

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
                    weight = weights[len(header)] = _weigh(header, tensors, self._keys is not None)
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
        """At first it blocks on the socket alone, which is the quickest way to a message that is about to come.

        Not while ``linking`` up with keys: neighbours stand at the gate then.
        """
        start = time.monotonic()
        if start >= self._heed_due and self._heed(0):
            return None  # the caller may not want to wait so long any more
        try:
            try:
                return self._take(_AT_ONCE)
            except zmq.Again:
                if start + _SOON_S < deadline and not (linking and self._gate is not None):
                    return self._take_soon(start)
                raise
        except zmq.Again:
            self.stopwatch.blocked_for(time.monotonic() - start)
            self.before_waiting()
            self._heed(max(0.0, deadline - time.monotonic()))
        except Rejected as rejected:
            self.reject(rejected)
            self._heed(0)  # a flood of garbage keeps neither the launcher nor the deadline waiting
        return None

    def _take_soon(self, start: float) -> Message:
        """Blocks only after having let others run.

        Where many clients share few processors, what this one waits for has come by then, mostly from more than one of
        its neighbours: it needs to be woken less often.
        """
        _yield()
        message = self._take(0)
        self.stopwatch.blocked_for(time.monotonic() - start)
        return message

    def _take(self, flags: int) -> Message:
        """The next message. Raises zmq.Again, Rejected."""
        router = self._router
        identity: bytes = _receive(router, flags, True)
        head: zmq.Frame = _receive(router, _AT_ONCE, False)  # a frame knows whether more follow
        frame = head
        tensors = []
        while frame.more:
            frame = _receive(router, _AT_ONCE, False)
            tensors.append(frame.bytes)
        return self._open(identity, head, tensors)

    def reject(self, rejected: Rejected) -> None:
        self.rejected[rejected.reason] += 1

    def _open(self, identity: bytes, head: zmq.Frame, frames: list[bytes]) -> Message:
        sender = self._peer_of.get(identity)
        peer, life = sender or self._later_life(identity)
        if self._gate is not None and peer < self.node and speaker(head) != peer:
            raise Rejected("another client's name")
        round, phase, layout = self._headers.read(peer, head.bytes, len(frames))
        message = Message(peer, round, phase, tuple(map(view_tensor, frames, layout)), life)
        if sender is None:
            self._peer_of[identity] = peer, life
        if not round and message.is_greeting:
            self.note_connections()  # this one's, before it can have closed again
        return message

    def _later_life(self, identity: bytes) -> tuple[int, int]:
        """Of a neighbour that connects to this client after having been away. Raises Rejected."""
        match = _LATER_LIFE.fullmatch(identity)
        if match is None or int(match[1]) not in self.latecomers or int(match[1]) >= self.node:
            raise Rejected("unknown peer")
        return int(match[1]), int(match[2] or 1)

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
        if self._monitor in ready:
            self.note_connections()
        if self._gate is not None and self._gate.socket in ready:
            self._gate.answer()
        spoken = self._control.fileno() in ready
        if spoken:
            self.listen()
        return spoken

    def listen(self) -> None:
        """Reads the launcher's words, and acts on those that are for the endpoint. Raises Stopped, ControlClosed."""
        for message in self._control.receive_some():
            match message:
                case Stop(reason):
                    raise Stopped(reason)
                case NeighbourDied(node, life):
                    self.gone.setdefault(node, time.monotonic())
                    self.left[node] = life
                case NeighbourLeft(node, life):
                    self.left[node] = life
                case NeighbourFinished(node):
                    self.finished.setdefault(node, time.monotonic())
                case NeighbourCame(place, first):
                    self.first_rounds[place.node] = first
                    if place.key:
                        self.learn({place.node: place.key}, more=True)
                    self._rejoin(place.node, place.address, place.incarnation)
                case _:
                    self.heard.append(message)

    def note_connections(self) -> None:
        """Takes notice of connections that were opened or closed since the last look."""
        for _ in range(_EVENTS_A_LOOK):
            if not self._monitor.poll(0):
                return
            kind, value = next_event(self._monitor)
            refused = self._gate is not None and self._gate.refused(kind, value, sure=bool(self.latecomers))
            self._note(kind, value, refused)

    def _note(self, kind: int, descriptor: int, refused: bool) -> None:
        if self._kernel is not None and kind & OPENED:
            self._kernel.watch(descriptor)
        if refused:
            self.reject(Rejected("connection without the right key"))
            if self._kernel is not None:
                self._kernel.forget(descriptor)
        elif kind & (zmq.EVENT_DISCONNECTED if self._gate else CLOSED) and not self.latecomers:
            # ZeroMQ does not tell the two causes apart, and neighbours that may come late also go
            self.reject(Rejected(f"connection closed by its peer, or for a frame over {self._max_frame} bytes"))

    def close(self, linger_s: float = 0.0) -> None:
        """What was sent and has not left yet gets ``linger_s`` seconds, while the context is terminated."""
        self._router.linger = int(linger_s * 1000)
        self._router.disable_monitor()
        self._monitor.close()
        self._router.close()
        if self._gate is not None:
            self._gate.close()


def _weigh(header: bytes, tensors: tuple[np.ndarray, ...], sealed: bool) -> SentBytes:
    lengths = [tensor.nbytes for tensor in tensors]
    payload, size = sum(lengths), len(header)
    return SentBytes(payload, payload + size, message_wire_bytes((size, *lengths), sealed=sealed))


def _frame(tensor: np.ndarray) -> bytes | zmq.Frame:
    """A copy of the tensor that can be sent to many. A frame is costly to make, but not copied again for each."""
    if tensor.nbytes < _WORTH_A_FRAME:
        return tensor.tobytes()
    return zmq.Frame(np.ascontiguousarray(tensor).data, copy=True)


def names_of(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))
