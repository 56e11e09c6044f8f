"""Keys on the wire: who may connect to a socket, and as whom (CurveZMQ, RFC 26). Each process makes a pair of its own
for one run and tells others the public half only."""

import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

_DISCONNECTED, _SUCCEEDED = int(zmq.EVENT_DISCONNECTED), int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_BROKEN_OFF = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
CLOSED = _DISCONNECTED | _BROKEN_OFF | int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
OPENED = int(zmq.EVENT_CONNECTED | zmq.EVENT_ACCEPTED)  # their value is a descriptor, that of DISCONNECTED too
PROOF = OPENED | CLOSED | _SUCCEEDED  # the events that ``ZapHandler.refused`` wants to see

HANDSHAKE_MS = 10_000  # enough on a busy machine; for libzmq's own 30 s others could hold a descriptor
_ANSWERED_AT_ONCE = 256
_WAITING = 1024  # requests with keys that are not known yet; the oldest get no answer then, and have to come again


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Both halves as 40 characters of Z85."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def make(cls) -> "KeyPair":
        return cls(*(half.decode() for half in zmq.curve_keypair()))


@dataclass(frozen=True, slots=True)
class Ring:
    own: KeyPair
    others: dict[int, str]  # {number: public key}, as far as they are known
    more: bool = False  # whether others may still come, of whose keys this process may hear later than of them


def listen_with(socket: zmq.Socket, own: KeyPair) -> None:
    """To be called before ``bind``; what the socket binds from then on asks for keys."""
    socket.curve_publickey, socket.curve_secretkey = own.public.encode(), own.secret.encode()
    socket.curve_server = 1
    socket.zap_domain = b"sheafgossip"  # named, so that libzmq lets nobody in where there is no handler


def dial_with(socket: zmq.Socket, own: KeyPair, other: str) -> None:
    """To be called before each ``connect``: only the owner of the public key ``other`` can answer."""
    socket.curve_publickey, socket.curve_secretkey = own.public.encode(), own.secret.encode()
    socket.curve_server = 0
    socket.curve_serverkey = other.encode()


def next_event(monitor: zmq.Socket) -> tuple[int, int]:
    """(kind, value) of a monitor's next event, e.g. (zmq.EVENT_CONNECTED, file descriptor); blocks as ``monitor`` does.
    pyzmq's own reader of this loads the whole of asyncio."""
    event, _endpoint = monitor.recv_multipart()
    return struct.unpack("=Hi", event)


class ZapHandler:
    """Lets in those whose public keys it knows, each under its own number (libzmq asks it through ZAP, RFC 27). It has
    no thread: its owner polls ``socket`` and calls ``answer``. Until then those who connect wait, and no one else. A
    context has one handler at most. While there are ``more`` to come, unknown keys wait, too, as long as libzmq lets
    them, or until they are told to ``turn_away``."""

    def __init__(self, context: zmq.Context, others: Mapping[int, str], *, more: bool = False):
        self._known: dict[bytes, bytes] = {}  # key -> number
        self.waiting: deque[list[bytes]] = deque()  # requests with a key that is not known yet
        self._unproven: set[int] = set()  # descriptors of connections whose handshake may not be over
        self._proven, self._failed = 0, False  # how many of them have succeeded: libzmq does not tell which
        self.socket = context.socket(zmq.ROUTER)  # it need not answer in the order of requests
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")
        self.close = self.socket.close
        self.learn(others, more=more)

    def learn(self, others: Mapping[int, str], *, more: bool = False) -> None:
        """A number has one key at a time, its latest."""
        numbers = {b"%d" % number for number in others}
        self._known = {key: number for key, number in self._known.items() if number not in numbers}
        self._known |= {z85.decode(key): b"%d" % number for number, key in others.items()}
        self._more = more
        for _ in range(len(self.waiting)):
            self._judge(self.waiting.popleft())

    def turn_away(self) -> None:
        """Those who wait with a key that is still not known."""
        while self.waiting:
            self._reply(self.waiting.popleft(), b"400", b"unknown key", b"")

    def answer(self) -> None:
        """Those who wait; a flood of them does not hold up its owner for long."""
        for _ in range(_ANSWERED_AT_ONCE):
            try:
                self._judge(self.socket.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return

    def _judge(self, request: list[bytes]) -> None:
        key = request[8]  # after: route, "", version, number, domain, address, name, mechanism
        if key in self._known:
            self._reply(request, b"200", b"", self._known[key])
        elif not self._more:
            self._reply(request, b"400", b"unknown key", b"")
        else:
            self.waiting.append(request)
            if len(self.waiting) > _WAITING:
                self.waiting.popleft()  # without an answer: who is refused does not come back

    def _reply(self, request: list[bytes], *status: bytes) -> None:
        route, _, version, number, *_ = request
        self.socket.send_multipart([route, b"", version, number, *status, b""])

    def refused(self, kind: int, value: int, *, sure: bool = False) -> bool:
        """Given every event of a socket's monitor: whether this ends a connection without a right key. Connections that
        speak another protocol are only reported as opened and closed. Where handshakes of others are under way then,
        those that have not succeeded are taken to close; and one that is broken off may be that of an unauthenticated
        peer, or of another who has ended. ``sure``: only what has a wrong key counts."""
        refused = False
        if kind & OPENED:
            self._unproven.add(value)
        elif kind == _SUCCEEDED:
            self._proven += 1
        elif kind == _DISCONNECTED:
            unproven = value in self._unproven and len(self._unproven) > self._proven
            refused = self._failed or (unproven and not sure)
            self._failed = False
            self._unproven.discard(value)
        else:
            self._failed = not sure or kind != _BROKEN_OFF  # its DISCONNECTED comes next
        if len(self._unproven) <= self._proven:
            self._unproven.clear()
            self._proven = 0
        return refused


def authenticated_number(frame: zmq.Frame) -> int | None:
    """The number under which the sender of a frame was authenticated; None: it was not."""
    try:
        return int(frame.get("User-Id"))
    except zmq.ZMQError:
        return None
