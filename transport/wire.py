"""What a message becomes on the wire: a small msgpack header frame, then one raw little-endian frame a tensor, nothing
pickled; and what ZMTP 3.1, the protocol under every ZeroMQ socket, makes of frames, with and without keys."""

from collections.abc import Iterable
from functools import cache, lru_cache
from typing import NamedTuple

import msgpack
import numpy as np

GREETING_BYTES = 64  # with which each end of a new connection opens: signature, version, security mechanism, filler
SEAL_BYTES = 8 + 8 + 16 + 1  # of keys for each frame, then the box of a MESSAGE command: its name, nonce, tag, flags
HANDSHAKE_FRAME = 512  # that a frame must be allowed to have for keys: INITIATE has 257 bytes and an identity
PUSH_READY_BYTES = 2 + (1 + 5) + (1 + 11 + 4 + 4)  # READY of a PUSH socket: Socket-Type = PUSH, and no Identity

VERSION = 1
MAX_HEADER_BYTES = 255

Layout = tuple[tuple[np.dtype, tuple[int, ...]], ...]  # (dtype, shape) of each tensor frame of a message
_DTYPES = tuple(map(np.dtype, ("<f4", "<f8", "<f2", "<i4", "<i8", "|u1", "|i1", "<u2")))
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_LIST_OF_SEVEN = b"\x97"  # msgpack's mark
_KNOWN_AT_MOST = 64


class Plain(NamedTuple):
    """The one tensor of a message that is a vector as it is."""

    layout: Layout
    dtype: np.dtype
    shape: tuple[int, ...]
    nbytes: int


class Rejected(Exception):
    """A message that is not legal. ``reason`` is one of few fixed phrases, so that events can be counted by it."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def frame_bytes(length: int) -> int:
    """Wire bytes of one message frame: a flag byte, a length of 1 or 8 bytes, the body."""
    return length + 2 if length <= 255 else length + 9


def message_wire_bytes(lengths: Iterable[int], *, sealed: bool = False) -> int:
    """``sealed``: on a connection with keys."""
    return sum(map(frame_bytes, (length + SEAL_BYTES for length in lengths) if sealed else lengths))


def ready_bytes(identity: bytes) -> int:
    """Wire bytes of a ROUTER's READY command: a command frame, its name, Socket-Type = ROUTER and Identity."""
    return 2 + (1 + 5) + (1 + 11 + 4 + 6) + (1 + 8 + 4 + len(identity))


def handshake_bytes(*, connects: bool) -> int:
    """What keys add to opening a connection, at the end that connects or at the one that is bound. The one that
    connects sends HELLO (200 bytes) and INITIATE (257), which has READY's properties in a box; the other one WELCOME
    (168), and READY as a box (30): that is their framing, less READY's own frame and name."""
    commands = (200, 257) if connects else (168, 30)
    return sum(map(frame_bytes, commands)) - (2 + 1 + 5)


def pack_header(run: int, src: int, dst: int, round: int, phase: int, layout: Layout) -> bytes:
    """``phase`` numbers the messages of a round from src to dst, from 0. Round 0 is the hello of a new link."""
    return pack_start(run, src, dst) + pack_end(round, phase, layout)


def pack_start(run: int, src: int, dst: int) -> bytes:
    return _LIST_OF_SEVEN + b"".join(map(msgpack.packb, (VERSION, run, src, dst)))


def pack_end(round: int, phase: int, layout: Layout) -> bytes:
    """What follows, the same for all who are sent the same. Raises TypeError."""
    return msgpack.packb(round) + _pack_phase_and_shapes(phase, layout)


@lru_cache(maxsize=256)
def _pack_phase_and_shapes(phase: int, layout: Layout) -> bytes:
    for dtype, _ in layout:
        if dtype not in _CODES:
            raise TypeError(f"arrays of {dtype} do not travel; use one of {', '.join(map(str, _CODES))}")
    return msgpack.packb(phase) + msgpack.packb([[_CODES[dtype], *shape] for dtype, shape in layout])


def layout_of(tensors: tuple[np.ndarray, ...]) -> Layout:
    return tuple([(tensor.dtype, tensor.shape) for tensor in tensors])


class HeaderReader:
    """Most headers of a round that neighbours send ``node`` end alike: this is parsed once, or told beforehand, and of
    the others only the start is compared with the one that this sender must write, byte by byte. ``known`` is what such
    an end says: round, phase, layout."""

    def __init__(self, run: int, node: int):
        self._run, self._node = run, node
        self.start_from = cache(lambda src: pack_start(run, src, node))
        self.known: dict[bytes, tuple[int, int, Layout]] = {}

    def expect(self, end: bytes, round: int, phase: int, layout: Layout) -> None:
        """``end`` is what was packed of these: neighbours mostly send what they are sent."""
        if end not in self.known:
            if len(self.known) >= _KNOWN_AT_MOST:
                self.known.clear()
            self.known[end] = round, phase, layout

    def read(self, src: int, frame: bytes, frames: int) -> tuple[int, int, Layout]:
        """The round, the phase and the layout. Raises Rejected, also where the message is not from ``src``."""
        start = self.start_from(src)
        end = frame[len(start) :] if frame.startswith(start) else b""
        known = self.known.get(end)
        if known is not None and len(known[2]) == frames:
            return known
        (run, from_, to, round, phase), layout = unpack_header(frame, frames)
        if run != self._run:
            raise Rejected("foreign run id")
        if (from_, to) != (src, self._node):
            raise Rejected("wrong source or destination")
        if end:
            self.expect(end, round, phase, layout)
        return round, phase, layout


def unpack_header(frame: bytes, frames: int) -> tuple[list[int], Layout]:
    """[run, src, dst, round, phase] and the layout. Raises Rejected, also for another number of tensor ``frames``."""
    if len(frame) > MAX_HEADER_BYTES:
        raise Rejected("malformed header", f"{len(frame)} bytes")
    try:
        version, *numbers, shapes = msgpack.unpackb(frame, max_ext_len=0, max_map_len=0)
        if type(version) is not int or version != VERSION:  # True and 1.0 are equal to 1
            raise Rejected("unknown protocol version", str(version)[:20])
        if len(numbers) != 5 or type(shapes) is not list or [*map(type, shapes)] != [list] * frames:
            raise Rejected("malformed header")
        if not all(type(code) is int and 0 <= code < len(_DTYPES) for code, *_ in shapes):
            raise Rejected("unknown dtype")
        if any(type(number) is not int or number < 0 for some in (numbers, *shapes) for number in some):
            raise Rejected("malformed header")
        return numbers, tuple([(_DTYPES[code], tuple(shape)) for code, *shape in shapes])
    except Rejected:
        raise
    except Exception as error:  # whatever msgpack or the shape of the data raises, the bytes are at fault
        raise Rejected("malformed header", type(error).__name__) from error


def view_tensor(frame: bytes | memoryview, form: tuple[np.dtype, tuple[int, ...]]) -> np.ndarray:
    """A read-only array of this (dtype, shape) over a frame's bytes. Raises Rejected when their number does not fit."""
    dtype, shape = form
    try:
        array = np.ndarray(shape, dtype, frame)
    except (TypeError, ValueError, OverflowError) as error:  # too many bytes, too many dimensions, a huge length
        raise Rejected("wrong shape", str(error)) from error
    if array.nbytes != len(frame):
        raise Rejected("wrong shape", f"{len(frame)} bytes for {dtype} {shape}"[:80])
    return array
