"""The kernel's own byte counters of TCP connections: the truth that wire bytes are held against. Linux only."""

import contextlib
import socket
import struct
import sys

_TCP_INFO_BYTES = 240
_PLACES = 128, 200, 208  # tcpi_bytes_received, tcpi_bytes_sent, tcpi_bytes_retrans in struct tcp_info, uint64 each
_FIN_HAS_COME = (8, 9, 11)  # tcpi_state, the first byte: CLOSE_WAIT, LAST_ACK, CLOSING


def counts_bytes() -> bool:
    """Whether this system's kernel has such counters: Linux since 4.19."""
    if sys.platform != "linux":
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        return len(_info(sock)) >= _PLACES[-1] + 8


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

    def read(self) -> list[tuple[str, str, int, int]]:
        """Of each connection "address:port" of this end and of the other, and the bytes sent (what was sent again once)
        and received."""
        counts = []
        for ends, sock in self._sockets.items():
            info = _info(sock)
            while (later := _info(sock))[0] != info[0]:  # the kernel reads the state before the counts: a FIN may come
                info = later
            received, sent, again = (struct.unpack_from("=Q", info, place)[0] for place in _PLACES)
            fin = info[0] in _FIN_HAS_COME  # the other end has closed; the kernel counts its FIN as a byte received
            counts.append((*ends, sent - again, received - fin))
        return counts

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()


def _info(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
