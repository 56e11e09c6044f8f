"""One message: a small msgpack header frame, then one raw little-endian frame a tensor. Nothing is ever pickled."""

import math
from functools import lru_cache
from typing import NamedTuple

import msgpack
import numpy as np

VERSION = 1
MAX_HEADER_BYTES = 255

_DTYPES = tuple(map(np.dtype, ("<f4", "<f8", "<f2", "<i4", "<i8", "|u1", "|i1", "<u2")))
_FIVE_NUMBERS = [int] * 5
_LIST_OF_SEVEN = b"\x97"  # msgpack's mark
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}


Layout = tuple[tuple[np.dtype, tuple[int, ...]], ...]
"""(dtype, shape) of each tensor frame of a message."""

_KNOWN_AT_MOST = 64


class Rejected(Exception):
    """A message that is not legal. ``reason`` is one of few fixed phrases, so that events can be counted by it."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class Header(NamedTuple):
    """``phase`` numbers the messages that src sends dst within a round, from 0. Round 0 is the hello of a new link."""

    run: int
    src: int
    dst: int
    round: int
    phase: int


def pack_header(header: Header, tensors: tuple[np.ndarray, ...]) -> bytes:
    """Raises TypeError for a dtype that does not travel."""
    run, src, dst, round, phase = header
    return HeaderStart(run, src).of(dst) + pack_rest(round, phase, layout_of(tensors))


class HeaderStart:
    """What all headers of a client have in common: [VERSION, run, src, and for each dst, that."""

    def __init__(self, run: int, src: int):
        self._common = _LIST_OF_SEVEN + b"".join(map(msgpack.packb, (VERSION, run, src)))
        self._of: dict[int, bytes] = {}

    def of(self, dst: int) -> bytes:
        start = self._of.get(dst)
        if start is None:
            start = self._of[dst] = self._common + msgpack.packb(dst)
        return start


def layout_of(tensors: tuple[np.ndarray, ...]) -> Layout:
    return tuple([(tensor.dtype, tensor.shape) for tensor in tensors])


def pack_rest(round: int, phase: int, layout: Layout) -> bytes:
    """What follows: round, phase, shapes], the same for all who are sent the same. Raises TypeError."""
    return msgpack.packb(round) + _pack_end(phase, layout)


@lru_cache(maxsize=256)
def _pack_end(phase: int, layout: Layout) -> bytes:
    shapes = []
    for dtype, shape in layout:
        if dtype not in _CODES:
            raise TypeError(f"arrays of {dtype} do not travel; use one of {', '.join(map(str, _CODES))}")
        shapes.append([_CODES[dtype], *shape])
    return msgpack.packb(phase) + msgpack.packb(shapes)


class HeaderReader:
    """Reads what neighbours send ``node`` in a run. Most headers of a round end alike, whoever sent them: this is
    parsed once, or told beforehand, and of the others only the start is compared, byte by byte, with the one that this
    sender must write.
    """

    def __init__(self, run: int, node: int):
        self._run = run
        self._node = node
        self._starts: dict[int, bytes] = {}
        self._known: dict[bytes, tuple[int, int, Layout]] = {}  # what follows the start: round, phase, layout

    def expect(self, rest: bytes, round: int, phase: int, layout: Layout) -> None:
        """``rest`` is what was packed of these: neighbours mostly send what they are sent."""
        if len(self._known) >= _KNOWN_AT_MOST:
            self._known.clear()
        self._known[rest] = round, phase, layout

    def read(self, src: int, frame: bytes, frames: int) -> tuple[int, int, Layout]:
        """The round, the phase and the layout. Raises Rejected, also where the message is not from ``src``."""
        start = self._starts.get(src)
        if start is None:
            start = self._starts[src] = HeaderStart(self._run, src).of(self._node)
        rest = frame[len(start) :] if frame.startswith(start) else b""
        known = self._known.get(rest)
        if known is not None and len(known[2]) == frames:
            return known
        header, layout = unpack_header(frame, frames)
        if header.run != self._run:
            raise Rejected("foreign run id")
        if header.src != src or header.dst != self._node:
            raise Rejected("wrong source or destination")
        if rest:
            self.expect(rest, header.round, header.phase, layout)
        return header.round, header.phase, layout


def unpack_header(frame: bytes, frames: int) -> tuple[Header, Layout]:
    """Raises Rejected, also where it is not that of so many tensor ``frames``."""
    if len(frame) > MAX_HEADER_BYTES:
        raise Rejected("malformed header", f"{len(frame)} bytes")
    try:
        version, *numbers, shapes = msgpack.unpackb(frame, max_ext_len=0, max_map_len=0)
        if type(version) is not int or version != VERSION:  # True and 1.0 are equal to 1
            raise Rejected("unknown protocol version", str(version)[:20])
        if [*map(type, numbers)] != _FIVE_NUMBERS or min(numbers) < 0:
            raise Rejected("malformed header")
        header = Header._make(numbers)
        if type(shapes) is not list or len(shapes) != frames or any(type(entry) is not list for entry in shapes):
            raise Rejected("malformed header")
        tensors = []
        for code, *shape in shapes:
            if type(code) is not int or not 0 <= code < len(_DTYPES):
                raise Rejected("unknown dtype")
            if any(type(length) is not int or length < 0 for length in shape):
                raise Rejected("malformed header")
            tensors.append((_DTYPES[code], tuple(shape)))
    except Rejected:
        raise
    except Exception as error:  # whatever msgpack or the shape of the data raises, the bytes are at fault
        raise Rejected("malformed header", type(error).__name__) from error
    return header, tuple(tensors)


def view_tensor(frame: bytes, form: tuple[np.dtype, tuple[int, ...]]) -> np.ndarray:
    """A read-only array of this (dtype, shape) over a frame's bytes. Raises Rejected when their number does not fit."""
    dtype, shape = form
    if math.prod(shape) * dtype.itemsize != len(frame):
        raise Rejected("wrong shape", f"{len(frame)} bytes for {dtype} {shape}"[:80])
    try:
        array = np.frombuffer(frame, dtype=dtype)
        return array if len(shape) == 1 else array.reshape(shape)
    except ValueError as error:  # more dimensions than numpy has, or a huge length beside a length of 0
        raise Rejected("wrong shape", str(error)) from error
