"""Byte arithmetic of ZMTP 3.1, the protocol under every ZeroMQ socket: what a message becomes on the wire, with and
without keys."""

from collections.abc import Iterable

GREETING_BYTES = 64
"""Each end of a new connection opens with a greeting (signature, version, security mechanism, filler)."""
SEAL_BYTES = 8 + 8 + 16 + 1
"""What keys add to each frame, which then is the box of a MESSAGE command: its name, a nonce, a tag, flags."""
HANDSHAKE_FRAME = 512
"""What a frame must be allowed to have for a connection with keys to open: INITIATE has 257 bytes and an identity."""
PUSH_READY_BYTES = 2 + (1 + 5) + (1 + 11 + 4 + 4)
"""The READY command of a PUSH socket: Socket-Type = PUSH, and no Identity (see ``ready_bytes``)."""


def frame_bytes(length: int) -> int:
    """Wire bytes of one message frame: a flag byte, a length of 1 or 8 bytes, the body."""
    return length + 2 if length <= 255 else length + 9


def message_wire_bytes(lengths: Iterable[int], *, sealed: bool = False) -> int:
    """``sealed``: on a connection with keys."""
    return sum(map(frame_bytes, (length + SEAL_BYTES for length in lengths) if sealed else lengths))


def ready_bytes(identity: bytes) -> int:
    """Wire bytes of the READY command that a ROUTER sends after its greeting: 43 + len(identity). A command frame (2
    bytes), the name READY (1 + 5), the properties Socket-Type = ROUTER (1 + 11 + 4 + 6) and Identity (1 + 8 + 4 + its
    length)."""
    return 2 + (1 + 5) + (1 + 11 + 4 + 6) + (1 + 8 + 4 + len(identity))


def handshake_bytes(ready: int, *, connects: bool) -> int:
    """What keys add to opening a connection, at the end that connects or at the one that is bound: 460, or 194.
    ``ready`` are the wire bytes of that end's READY without keys. With them the one that connects sends HELLO and
    INITIATE, which has READY's properties in a box; the other one WELCOME, and READY as a box."""
    properties = ready - 2 - (1 + 5)
    first, then = (200, 257 + properties) if connects else (168, 30 + properties)
    return frame_bytes(first) + frame_bytes(then) - ready
