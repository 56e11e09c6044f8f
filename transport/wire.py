"""Byte arithmetic of ZMTP 3.1, the protocol under every ZeroMQ socket: what a message becomes on the wire."""

from collections.abc import Iterable

GREETING_BYTES = 64
"""Each end of a new connection opens with a greeting (signature, version, security mechanism NULL, filler)."""


def frame_bytes(length: int) -> int:
    """Wire bytes of one message frame: a flag byte, a length of 1 or 8 bytes, the body."""
    return length + 2 if length <= 255 else length + 9


def message_wire_bytes(lengths: Iterable[int]) -> int:
    return sum(map(frame_bytes, lengths))


def ready_bytes(identity: bytes) -> int:
    """Wire bytes of the READY command that a ROUTER sends after its greeting: 43 + len(identity).

    A command frame (2 bytes), the name READY (1 + 5), the properties Socket-Type = ROUTER (1 + 11 + 4 + 6) and
    Identity (1 + 8 + 4 + its length).
    """
    return 2 + (1 + 5) + (1 + 11 + 4 + 6) + (1 + 8 + 4 + len(identity))


PUSH_READY_BYTES = 2 + (1 + 5) + (1 + 11 + 4 + 4)
"""The same command of a PUSH socket: Socket-Type = PUSH, and no Identity."""
