"""The kernel's own byte counters of TCP connections: the truth that wire bytes are held against. Linux only."""

import contextlib
import socket
import struct
import sys
from dataclasses import dataclass

_TCP_INFO_BYTES = 240
_BYTES_RECEIVED, _BYTES_SENT, _BYTES_RETRANS = 128, 200, 208  # offsets in struct tcp_info, uint64 each
_FIN_HAS_COME = (8, 9, 11)  # tcpi_state, the first byte: CLOSE_WAIT, LAST_ACK, CLOSING


def counts_bytes() -> bool:
    """Whether this system's kernel has such counters: Linux since 4.19."""
    if sys.platform != "linux":
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        return len(_info(sock)) >= _BYTES_RETRANS + 8


@dataclass(frozen=True, slots=True)
class KernelCount:
    """One end of a connection: "address:port" of both ends, and the bytes sent in each direction."""

    local: str
    peer: str
    sent: int
    received: int


class KernelCounters:
    """Keeps a descriptor of its own to every connection it is told of, so that the counters outlive ZeroMQ's use."""

    def __init__(self) -> None:
        self._sockets: dict[tuple[str, str], socket.socket] = {}
        self._latest: dict[int, tuple[str, str]] = {}  # descriptor of ZeroMQ's -> ends

    def watch(self, descriptor: int) -> None:
        """A connection that has gone since is let be: it had nothing of ours yet."""
        with contextlib.suppress(OSError):
            sock = socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM)
            ours, theirs = sock.getsockname(), sock.getpeername()  # which a reset makes forget
            ends = f"{ours[0]}:{ours[1]}", f"{theirs[0]}:{theirs[1]}"
            self._sockets[ends] = sock
            self._latest[descriptor] = ends

    def forget(self, descriptor: int) -> None:
        """The connection was that of an unauthenticated peer."""
        if (sock := self._sockets.pop(self._latest.pop(descriptor, ("", "")), None)) is not None:
            sock.close()

    def read(self) -> list[KernelCount]:
        return [KernelCount(*ends, *_bytes_each_way(sock)) for ends, sock in self._sockets.items()]

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()


def _bytes_each_way(sock: socket.socket) -> tuple[int, int]:
    """Sent, without what was sent again, and received."""
    info = _info(sock)
    while (later := _info(sock))[0] != info[0]:  # the kernel reads the state before the counts: a FIN may come between
        info = later
    received, sent, again = (
        struct.unpack_from("=Q", info, offset)[0] for offset in (_BYTES_RECEIVED, _BYTES_SENT, _BYTES_RETRANS)
    )
    fin = info[0] in _FIN_HAS_COME  # the other end has closed already; the kernel counts its FIN as a byte received
    return sent - again, received - fin


def _info(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
