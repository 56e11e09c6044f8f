"""A client's messages, over a ROUTER that both binds and connects, and trusts nothing that comes in."""

import contextlib
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from functools import cache, lru_cache, partial
from operator import add
from typing import Any, NamedTuple

import numpy as np
import zmq

from .connections import Connections, Options, identity_of
from .control import Call, Control, NeighbourCalls, NeighbourCame, Place, Stop
from .environment import CONSTANTS
from .messages import AT_ONCE, Key, Message, MessageReader, Peer, receive_frame, rest_of
from .stopwatch import Stopwatch, parts_of
from .wire import Plain, Rejected, layout_of, message_wire_bytes, pack_end, pack_start

_send: Callable[..., None] = zmq.backend.Socket.send  # socket, frame, flags, whether to copy a frame of bytes
_MORE = int(zmq.SNDMORE)  # a plain number: the enumeration is looked up at every call
_SOON_S, _LOOK_EVERY_S = CONSTANTS.soon_s, CONSTANTS.look_every_s
_GLANCE_S = 0.2
_SEEN_IN_S = 1e-4  # that a message is there is seen sooner than this, else it was waited for
_WORTH_A_FRAME = 1 << 16  # bytes
_MOST_LAST_WORDS = 1 << 16  # messages, also illegal ones


class Stopped(Exception):
    """The launcher asked this process to end."""


class NeighbourTimeout(Exception):
    """A neighbour was silent for transport.timeout."""


_NOBODY, _NOTHING = Peer(-1, 0, b""), (0, 0, ())  # where a route, or the end of a header, is not known


class Intake(NamedTuple):
    """How a clock takes in messages."""

    forms: Mapping[tuple[int, int, int], Plain | None]  # see Channels.plain_received
    inbox: Mapping[Key, np.ndarray]
    take_in: Callable[[Key, np.ndarray], None]  # a vector, as it is
    store: Callable[[Message], Key | None]  # any message; returns the key of what it has taken in


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
        self._reader = MessageReader(self.connections, options)
        self.presence, self.rejected = self.connections.presence, self.connections.rejected
        self.close = self.connections.close
        self.heard: list[Any] = []
        self.hellos: list[tuple[int, int]] = []
        self.sent: defaultdict[str, dict[int, Traffic]] = defaultdict(dict)
        self.before_waiting: Callable[[], None] = lambda: None  # called where no message has come soon
        self.stopwatch = options.stopwatch or Stopwatch("start", running=False)
        self.control = control
        self._start_to = cache(partial(pack_start, options.run, self.node))
        self._sealed = options.keys is not None
        self.route_to: dict[int, bytes] = {}  # over connections that the other end may not have answered yet
        self.opens_late = options.opens_late
        self._places: dict[int, Place] = {}  # of neighbours, where connections are opened late
        self._sought: dict[int, Place] = {}  # to whom a connection was opened, or who was asked to open one
        self._open_theirs: Set[int] = frozenset()  # who need not be asked
        self._waiting: list[Message] = []  # that came while this client was still linking up
        self._last_words: list[Message] = []  # that came over a connection that has been closed since
        self._look_due = 0.0
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
        if self.opens_late:
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
        self._reader.know(route, node, place.incarnation)
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
                self._last_words += _all_there(self._reader.take, self.reject)  # else it is lost with its connection
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
        if self.opens_late:
            self._places[place.node] = place
        if opens:
            self._open(place)

    def send(
        self, to: Iterable[int], round: int, phase: int, tensors: tuple[np.ndarray, ...] = (), beside: str = ""
    ) -> dict[int, Traffic]:
        """Sends the same tensors to each node; returns what each message weighs. The tensors are copied once, and may
        be changed after the call. A node whose connection is gone is left out of the result and counted in
        ``rejected``. ``beside`` is the kind of messages that are no traffic of the round."""
        return self.send_all([(to, phase, tensors)], round, beside)

    def send_all(
        self, messages: Iterable[tuple[Iterable[int], int, tuple[np.ndarray, ...]]], round: int, beside: str = ""
    ) -> dict[int, Traffic]:
        """As ``send``, of (nodes, phase, tensors) each."""
        sent, before, router, alike = {}, self.sent[beside], self._router, None
        for to, phase, tensors in messages:
            layout = layout_of(tensors)
            if alike != (phase, layout):
                alike = phase, layout
                end = pack_end(round, phase, layout)
                self._reader.headers.expect(end, round, phase, layout)
                if round:  # some neighbours are one ahead
                    self._reader.headers.expect(pack_end(round + 1, phase, layout), round + 1, phase, layout)
                sizes, last = tuple([tensor.nbytes for tensor in tensors]), len(tensors) - 1
            frames = [_frame(tensor) for tensor in tensors]
            for node in to:
                header, route = self._start_to(node) + end, self.route_to[node]
                try:
                    _send(router, route, _MORE)
                except zmq.ZMQError:
                    if not self._begin(route):
                        continue
                _send(router, header, _MORE if frames else 0)
                for place, frame in enumerate(frames):  # small ones are copied sooner than shared
                    _send(router, frame, _MORE if place < last else 0, type(frame) is bytes)
                sent[node] = one = _weigh(len(header), sizes, self._sealed)
                before[node] = Traffic(*map(add, before[node], one)) if node in before else one
        return sent

    def _begin(self, route: bytes) -> bool:
        """Begins a message once there is room for it. False where nobody is there any more."""
        while True:
            try:
                _send(self._router, route, _MORE)
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
            hurries = start + _SOON_S >= deadline or ((linking or self.opens_late) and self._sealed)
            message = self._reader.take(AT_ONCE if hurries else 0)
            if (waited := self._reader.came - start) > _SEEN_IN_S:
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

    def receive_soon(self, lacking: set[Key], ahead: Container[int], intake: Intake) -> None:
        """Takes in messages until none is ``lacking``, as long as they come one soon after the other; also those of the
        rounds ``ahead``. Where many processes share few processors each call finds cold caches: for a vector that comes
        as it is, the header of which is known byte by byte, there are few. What does not come soon is left to
        ``receive``."""
        if self._waiting or self._last_words or (self.opens_late and self._sealed):
            return
        router, peers, known = self._router, self._reader.peers, {} if self._sealed else self._reader.headers.known
        forms, inbox, take_in, store = intake
        lacked = -1  # when it has last looked: a flood of what nobody waits for must end, too
        try:
            while lacking:
                if (start := time.monotonic()) >= self._look_due:
                    if self._wait_for_any(0) or len(lacking) == lacked:
                        return
                    lacked = len(lacking)
                    continue
                route: bytes = receive_frame(router, 0, True)
                if (waited := time.monotonic() - start) > _SEEN_IN_S:
                    self.stopwatch.blocked_for(waited)
                head, frames = rest_of(router)
                header, (node, _, begin) = head.bytes, peers.get(route, _NOBODY)
                end = header[len(begin) :] if header.startswith(begin) else b""
                round, phase, layout = known.get(end, _NOTHING)
                form, key = forms.get((node, phase, round == 1)), (node, round, phase)
                if (
                    form
                    and form.layout == layout
                    and len(frames) == 1
                    and len(frames[0]) == form.nbytes
                    and (key in lacking or (round in ahead and key not in inbox))
                ):
                    take_in(key, np.ndarray(form.shape, form.dtype, frames[0]))
                    lacking.discard(key)
                elif taken := store(self._reader.read(route, head, frames)):
                    lacking.discard(taken)
        except zmq.Again:
            self.stopwatch.blocked_for(time.monotonic() - start)
            self.before_waiting()
        except Rejected as rejected:
            self.reject(rejected)

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
                self._find(message.place, opens=not self.opens_late)
        return True


def _all_there(take: Callable[[int], Message], reject: Callable[[Rejected], None]) -> Iterator[Message]:
    """Takes all that has come so far."""
    with contextlib.suppress(zmq.Again):
        for _ in range(_MOST_LAST_WORDS):
            try:
                yield take(AT_ONCE)
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
