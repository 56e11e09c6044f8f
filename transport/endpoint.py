"""A client's messages, over a ROUTER that both binds and connects, and trusts nothing that comes in."""

import contextlib
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence, Set
from functools import cache, lru_cache, partial
from operator import add
from typing import Any, NamedTuple

import numpy as np
import zmq

from .connections import Connections, Options, identity_of
from .control import Call, Control, NeighbourCalls, NeighbourCame, Place, Stop
from .environment import CONSTANTS
from .keys import authenticated_number
from .stopwatch import Stopwatch, parts_of
from .wire import HeaderReader, Rejected, layout_of, message_wire_bytes, pack_end, pack_start, view_tensor

_send: Callable[..., None] = zmq.backend.Socket.send  # socket, frame, flags, whether to copy a frame of bytes
_receive: Callable[..., Any] = zmq.backend.Socket.recv  # socket, flags, whether to return bytes
_new = tuple.__new__  # of a NamedTuple: half the time of a call by its name
_MORE, _AT_ONCE = int(zmq.SNDMORE), int(zmq.NOBLOCK)  # plain numbers: the enumeration is looked up at every call
_SOON_S, _LOOK_EVERY_S = CONSTANTS.soon_s, CONSTANTS.look_every_s
_GLANCE_S = 0.2
_SEEN_IN_S = 1e-4  # that a message is there is seen sooner than this, else it was waited for
_WORTH_A_FRAME = 1 << 16  # bytes
_MOST_LAST_WORDS = 1 << 16  # messages, also illegal ones


class Stopped(Exception):
    """The launcher asked this process to end."""


class NeighbourTimeout(Exception):
    """A neighbour was silent for transport.timeout."""


Key = tuple[int, int, int]  # sender, round and phase of a message


class Message(NamedTuple):
    src: int
    round: int
    phase: int
    tensors: tuple[np.ndarray, ...]
    incarnation: int = 1  # of the process that sent it


class Traffic(NamedTuple):
    """Messages to one neighbour, and their bytes: the tensors alone, all frames, all with ZMTP framing."""

    messages: int = 0
    payload_bytes: int = 0
    message_bytes: int = 0
    wire_bytes: int = 0


class Endpoint:
    """Raises Stopped or ControlClosed from any blocking call when the launcher says so or is gone. ``sent`` counts what
    was sent, by kind ("": a round's traffic) and neighbour, ``rejected`` the messages dropped, by reason; ``heard`` are
    the launcher's messages to others, ``hellos`` (neighbour, wire bytes) of the greetings sent since they were told."""

    def __init__(self, context: zmq.Context, control: Control, options: Options):
        self.node = options.node
        self.connections = Connections(context, options)
        self.presence, self.rejected = self.connections.presence, self.connections.rejected
        self.close = self.connections.close
        self.heard: list[Any] = []
        self.hellos: list[tuple[int, int]] = []
        self.sent: defaultdict[str, dict[int, Traffic]] = defaultdict(dict)
        self.before_waiting: Callable[[], None] = lambda: None  # called where no message has come soon
        self.stopwatch = options.stopwatch or Stopwatch("start", running=False)
        self.control = control
        self._headers = HeaderReader(options.run, self.node)
        self._start_to = cache(partial(pack_start, options.run, self.node))
        self._sealed = options.keys is not None
        self.route_to: dict[int, bytes] = {}  # over connections that the other end may not have answered yet
        self._peer_of: dict[bytes, tuple[int, int]] = {}  # (neighbour, its incarnation)
        self._opens_late = options.opens_late
        self._places: dict[int, Place] = {}  # of neighbours, where connections are opened late
        self._sought: dict[int, Place] = {}  # to whom a connection was opened, or who was asked to open one
        self._open_theirs: Set[int] = frozenset()  # who need not be asked
        self._waiting: list[Message] = []  # that came while this client was still linking up
        self._last_words: list[Message] = []  # that came over a connection that has been closed since
        self._look_due = self._came = 0.0
        self._router = self.connections.router
        self._poller, self._aside = zmq.Poller(), zmq.Poller()  # the one for all, the other for all but messages
        self._poller.register(self._router, zmq.POLLIN)
        for other in (control.fileno(), *self.connections.sockets):
            self._poller.register(other, zmq.POLLIN)
            self._aside.register(other, zmq.POLLIN)

    def connect(self, places: Sequence[Place], deadline: float) -> list[tuple[int, int]]:
        """Links up with all neighbours: the lower number connects and says hello, the higher one answers. Returns the
        ``hellos``. Raises NeighbourTimeout when some are silent at ``deadline`` (time.monotonic() seconds). Where
        connections are opened late, ``seek`` does all that."""
        if self._opens_late:
            self._places = {place.node: place for place in places} | self._places  # who has come since is at a new one
            return []
        missing = {place.node for place in places}
        for place in places:
            self._link(place)
        waiting = parts_of(deadline - time.monotonic())
        until = next(waiting, deadline)
        while missing - self.presence.left.keys():
            message = self.receive(min(until, time.monotonic() + _GLANCE_S), linking=True)
            if message is not None and message.src in missing:
                self._answer(message)  # by now it may be another incarnation than the one that was told
                missing.discard(message.src)
            elif message is not None:
                self._waiting.append(message)
            elif time.monotonic() >= until and (until := next(waiting, 0.0)) == 0.0:
                raise NeighbourTimeout(f"no connection to client {names_of(missing)}")
        hellos, self.hellos = self.hellos, []
        return hellos

    def _link(self, place: Place) -> None:
        """Opens the way to a neighbour's process, and says hello if it is for us to speak first."""
        # Routes of connections made here are local names, never sent. They are secret: libzmq aborts the whole process
        # when an unauthenticated peer has bound the name of such a route to itself before the connection is made.
        node = place.node
        route = identity_of(node, place.incarnation) if node < self.node else os.urandom(16)
        self.route_to[node] = route
        self._peer_of[route] = node, place.incarnation
        if self.node < node:
            self._sought[node] = place
            self.connections.open(node, place.address, route)
            self._hello(node)

    def _hello(self, node: int) -> None:
        self.hellos += [(node, sent.wire_bytes) for sent in self.send([node], 0, 0, beside="hello").values()]

    def _answer(self, greeting: Message) -> None:
        node, incarnation = greeting.src, greeting.incarnation
        self.presence.linked[node] = incarnation
        if node < self.node:
            self.route_to[node] = identity_of(node, incarnation)
            self._hello(node)

    def welcome(self, greeting: Message) -> bool:
        """Whether this comes from a neighbour that has come later than the others; it is answered then."""
        if is_new := self.presence.welcome(greeting.src, greeting.incarnation):
            self._answer(greeting)
        return is_new

    def meet(self, nodes: Collection[int]) -> None:
        """The present round joins this client to ``nodes``, which know it, too: it opens to those of higher numbers the
        connections that are lacking, and those of lower numbers will open theirs when they get to this round."""
        self._open_theirs = frozenset(node for node in nodes if node < self.node)
        for node in nodes:
            self.seek(node)

    def seek(self, node: int, incarnation: int = 1) -> bool:
        """Whether this client is linked up with that incarnation of a neighbour, or a later one. Where it is not, and
        connections are opened late, it opens one, or asks the neighbour to whose number is the lower; once."""
        if self.presence.linked.get(node, 0) >= incarnation:
            return True
        place = self._places.get(node)
        if place is not None and place.incarnation >= incarnation and node not in self._open_theirs:
            self._open(place, asks=True)
        return False

    @property
    def unanswered(self) -> list[int]:
        """Those that have yet to answer the hello of this client, which opened a connection to them."""
        known = self.presence
        last = {node: max(known.linked.get(node, 0), known.left.get(node, 0)) for node in self._sought}
        return [node for node, place in self._sought.items() if self.node < node and last[node] < place.incarnation]

    def _open(self, place: Place, *, asks: bool = False) -> None:
        """Opens a connection, or asks for one, unless that was done before; leaves that to an earlier incarnation."""
        before = self._sought.get(place.node)
        if before is not None and before.incarnation >= place.incarnation:
            return
        if self.node < place.node:
            if before is not None:
                self._last_words += _all_there(self._take, self.reject)  # else it is lost with its connection
                with contextlib.suppress(zmq.ZMQError):
                    self._router.disconnect(before.address)
            self._link(place)
        elif asks:
            self._sought[place.node] = place
            self.control.send(Call(place.node))

    def _find(self, place: Place, *, opens: bool) -> None:
        """A neighbour is there (again), perhaps at a new address."""
        if place.key and place != self._places.get(place.node):
            self.connections.learn({place.node: place.key}, more=True)
        if self._opens_late:
            self._places[place.node] = place
        if opens:
            self._open(place)

    def send(
        self, to: Iterable[int], round: int, phase: int, tensors: tuple[np.ndarray, ...] = (), beside: str = ""
    ) -> dict[int, Traffic]:
        """Sends the same tensors to each node; returns what each message weighs. The tensors are copied once, and may
        be changed after the call. A node whose connection is gone is left out of the result and counted in
        ``rejected``. ``beside`` is the kind of messages that are no traffic of the round."""
        layout = layout_of(tensors)
        end = pack_end(round, phase, layout)
        self._headers.expect(end, round, phase, layout)
        sizes = tuple([tensor.nbytes for tensor in tensors])
        frames = [_frame(tensor) for tensor in tensors]
        sent, before = {}, self.sent[beside]
        for node in to:
            header = self._start_to(node) + end
            if self._put(self.route_to[node], header, frames):
                sent[node] = one = _weigh(len(header), sizes, self._sealed)
                before[node] = Traffic(*map(add, before[node], one)) if node in before else one
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
                self._wait_for_any(0)
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                self.reject(Rejected("neighbour is gone, message not sent"))
                return False

    def receive(self, deadline: float, *, linking: bool = False) -> Message | None:
        """The next message; None at ``deadline`` (time.monotonic() seconds), at the launcher's word, or earlier. At
        first it blocks on the socket alone, which is the quickest way to a message that is about to come; but not where
        it may be ``linking`` up with keys: neighbours wait to be authenticated then."""
        if self._waiting and not linking:
            return self._waiting.pop(0)
        if self._last_words:
            return self._last_words.pop(0)
        start = time.monotonic()
        if start >= self._look_due and self._wait_for_any(0):
            return None  # the caller may not want to wait so long any more
        try:
            hurries = start + _SOON_S >= deadline or ((linking or self._opens_late) and self._sealed)
            message = self._take(_AT_ONCE if hurries else 0)
            if (waited := self._came - start) > _SEEN_IN_S:
                self.stopwatch.blocked_for(waited)
            return message
        except zmq.Again:
            self.stopwatch.blocked_for(time.monotonic() - start)
            self.before_waiting()
            self._wait_for_any(max(0.0, deadline - time.monotonic()))
        except Rejected as rejected:
            self.reject(rejected)
            self._wait_for_any(0)  # a flood of garbage keeps neither the launcher nor the deadline waiting
        return None

    def receive_soon(self, lacking: set[Key], store: Callable[[Message], Key | None]) -> None:
        """Takes in messages until none is ``lacking``, as long as they come one soon after the other, in few steps:
        where many processes share few processors, each step finds cold caches. ``store`` returns the key of what it
        takes in. All else is left to ``receive``."""
        if self._waiting or self._last_words or (self._opens_late and self._sealed):
            return
        try:
            while lacking and (start := time.monotonic()) < self._look_due:
                message = self._take(0)
                if (waited := self._came - start) > _SEEN_IN_S:
                    self.stopwatch.blocked_for(waited)
                lacking.discard(store(message))
        except zmq.Again:
            self.stopwatch.blocked_for(time.monotonic() - start)
            self.before_waiting()
        except Rejected as rejected:
            self.reject(rejected)

    def _take(self, flags: int) -> Message:
        """The next message. Raises zmq.Again, Rejected."""
        router = self._router
        route: bytes = _receive(router, flags, True)
        self._came = time.monotonic()  # what follows takes time where a message is large, but waits for nothing
        head: zmq.Frame = _receive(router, _AT_ONCE, False)  # a frame knows whether more follow
        frame, frames = head, []
        while frame.more:
            frame = _receive(router, _AT_ONCE, False)
            frames.append(frame.bytes)
        sender = self._peer_of.get(route)
        peer, incarnation = sender or self.presence.latecomer(route)
        if self._sealed and peer < self.node and authenticated_number(head) != peer:
            raise Rejected("another client's name")
        round, phase, layout = self._headers.read(peer, head.bytes, len(frames))
        message = _new(Message, (peer, round, phase, tuple(map(view_tensor, frames, layout)), incarnation))
        if sender is None:
            self._peer_of[route] = peer, incarnation
        if not (round or phase or frames):  # a greeting
            self.connections.note()  # this one's, before it can have closed again
        return message

    def reject(self, rejected: Rejected) -> None:
        self.rejected[rejected.reason] += 1

    def wait_for_launcher(self) -> None:
        """Sleeps until the launcher says something, or something other than a message comes, and acts on it."""
        self._act_on(dict(self._aside.poll()))

    def _wait_for_any(self, seconds: float) -> bool:
        """Sleeps until something comes in, and acts on what is no message. Returns whether the launcher spoke."""
        start = time.monotonic()
        ready = dict(self._poller.poll(math.ceil(seconds * 1000)))
        now = time.monotonic()
        self._look_due = now + _LOOK_EVERY_S
        self.stopwatch.blocked_for(now - start)
        return self._act_on(ready)

    def _act_on(self, ready: Container[Any]) -> bool:
        self.connections.attend(ready)
        if self.control.fileno() not in ready:
            return False
        for message in self.control.receive_some():
            if isinstance(message, Stop):
                raise Stopped(message.reason)
            if isinstance(message, NeighbourCalls):
                self._find(message.place, opens=True)
            elif not self.presence.note(message):
                self.heard.append(message)
            elif isinstance(message, NeighbourCame):
                self._find(message.place, opens=not self._opens_late)
        return True


def _all_there(take: Callable[[int], Message], reject: Callable[[Rejected], None]) -> Iterator[Message]:
    """Takes all that has come so far."""
    with contextlib.suppress(zmq.Again):
        for _ in range(_MOST_LAST_WORDS):
            try:
                yield take(_AT_ONCE)
            except Rejected as rejected:
                reject(rejected)


@lru_cache(maxsize=1024)
def _weigh(header: int, sizes: tuple[int, ...], sealed: bool) -> Traffic:
    payload = sum(sizes)
    return Traffic(1, payload, header + payload, message_wire_bytes([header, *sizes], sealed=sealed))


def _frame(tensor: np.ndarray) -> bytes | zmq.Frame:
    """A copy of the tensor that can be sent to many. A frame is costly to make, but not copied again for each."""
    if tensor.nbytes < _WORTH_A_FRAME:
        return tensor.tobytes()
    return zmq.Frame(np.ascontiguousarray(tensor).data, copy=True)


def names_of(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))
