"""One message: a small msgpack header frame, then one raw little-endian frame a tensor. Nothing is ever pickled."""

from __future__ import annotations

from typing import NamedTuple

import msgpack
import numpy as np

VERSION = 1
MAX_HEADER_BYTES = 255

_DTYPES = ("<f4", "<f8", "<f2", "<i4", "<i8", "|u1", "|i1", "<u2")
_FIVE_NUMBERS = [int] * 5
_LIST_OF_SEVEN = b"\x97"  # msgpack's mark
_CODES = {np.dtype(name): code for code, name in enumerate(_DTYPES)}


Layout = list[tuple[np.dtype, tuple[int, ...]]]
"""(dtype, shape) of each tensor frame of a message."""

_PARSED_KEPT = 64


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
    return HeaderStart(run, src).of(dst) + pack_rest(round, phase, tensors)


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


def pack_rest(round: int, phase: int, tensors: tuple[np.ndarray, ...]) -> bytes:
    """What follows: round, phase, shapes], the same for all who are sent the same."""
    shapes = []
    for tensor in tensors:
        if tensor.dtype not in _CODES:
            raise TypeError(f"arrays of {tensor.dtype} do not travel; use one of {', '.join(map(str, _CODES))}")
        shapes.append([_CODES[tensor.dtype], *tensor.shape])
    return msgpack.packb(round) + msgpack.packb(phase) + msgpack.packb(shapes)


class HeaderReader:
    """Reads what neighbours send ``node`` in a run. Most headers of a round end alike, whoever sent them: this is
    parsed once, and of the others only the start is compared, byte by byte, with the one that this sender must write.
    """

    def __init__(self, run: int, node: int):
        self._run = run
        self._node = node
        self._starts: dict[int, bytes] = {}
        self._parsed: dict[bytes, tuple[int, int, Layout]] = {}  # what follows the start: round, phase, layout

    def read(self, src: int, frame: bytes, frames: int) -> tuple[Header, Layout]:
        """As ``unpack_header``; also raises Rejected unless it is from ``src``."""
        start = self._starts.get(src)
        if start is None:
            start = self._starts[src] = HeaderStart(self._run, src).of(self._node)
        rest = frame[len(start) :] if frame.startswith(start) else b""
        if rest in self._parsed:
            round, phase, layout = self._parsed[rest]
            if len(layout) == frames:
                return Header(self._run, src, self._node, round, phase), layout
        header, layout = unpack_header(frame, frames)
        if header.run != self._run:
            raise Rejected("foreign run id")
        if header.src != src or header.dst != self._node:
            raise Rejected("wrong source or destination")
        if rest:
            if len(self._parsed) == _PARSED_KEPT:
                self._parsed.clear()
            self._parsed[rest] = header.round, header.phase, layout
        return header, layout


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
            tensors.append((np.dtype(_DTYPES[code]), tuple(shape)))
    except Rejected:
        raise
    except Exception as error:  # whatever msgpack or the shape of the data raises, the bytes are at fault
        raise Rejected("malformed header", type(error).__name__) from error
    return header, tensors


def view_tensor(frame: bytes, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """A read-only array over the frame's bytes. Raises Rejected when their number does not fit."""
    count = 1
    for length in shape:  # Python integers: a hostile shape must not overflow
        count *= length
    if count * dtype.itemsize != len(frame):
        raise Rejected("wrong shape", f"{len(frame)} bytes for {dtype} {shape}"[:80])
    try:
        array = np.frombuffer(frame, dtype=dtype)
        return array if len(shape) == 1 else array.reshape(shape)
    except ValueError as error:  # more dimensions than numpy has, or a huge length beside a length of 0
        raise Rejected("wrong shape", str(error)) from error
