"""The kernel's byte counters of TCP connections, on bare sockets."""

import socket
import struct
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from sheafgossip.transport.kernel import KernelCounters, counts_bytes

pytestmark = pytest.mark.skipif(not counts_bytes(), reason="this kernel does not count the bytes of TCP connections")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        with one, other:
            yield one, other


@pytest.fixture
def counters() -> Iterator[KernelCounters]:
    counters = KernelCounters()
    yield counters
    counters.close()


@pytest.mark.parametrize("reset", [False, True])
def test_the_end_or_a_reset_by_the_other_side_changes_no_count(pair, counters, reset):
    one, other = pair
    counters.watch(one.fileno())
    other.sendall(b"y" * 7)
    assert len(one.recv(7, socket.MSG_WAITALL)) == 7
    if reset:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()
    with pytest.raises(ConnectionResetError) if reset else nullcontext():
        assert one.recv(1) == b""  # the end has come
    one.close()  # which the counters outlive
    assert counters.read()[0].received == 7
