"""The kernel's own byte counters of TCP connections: the truth that wire bytes are held against. Linux only."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass

_TCP_INFO_BYTES = 240
_BYTES_RECEIVED, _BYTES_SENT, _BYTES_RETRANS = 128, 200, 208  # offsets in struct tcp_info, uint64 each


@dataclass(frozen=True, slots=True)
class KernelCount:
    """One end of a connection: "address:port" of both ends, and the bytes that went each way."""

    local: str
    peer: str
    sent: int
    received: int


class KernelCounters:
    """Keeps a descriptor of its own to every connection it is told of, so that the counters outlive ZeroMQ's use."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def watch(self, descriptor: int) -> None:
        self._sockets.append(socket.socket(fileno=os.dup(descriptor)))

    def read(self) -> list[KernelCount]:
        return [_count(sock) for sock in self._sockets]

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets = []


def _count(sock: socket.socket) -> KernelCount:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    received, sent, again = (
        struct.unpack_from("=Q", info, offset)[0] for offset in (_BYTES_RECEIVED, _BYTES_SENT, _BYTES_RETRANS)
    )
    return KernelCount(_name(sock.getsockname()), _name(sock.getpeername()), sent - again, received)


def _name(address: tuple) -> str:
    return f"{address[0]}:{address[1]}"
