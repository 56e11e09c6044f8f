"""Byte arithmetic of ZMTP, against the specification's layout and against the kernel's own counters."""

import os
import socket
import struct
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from sheafgossip.transport.monitor import next_event
from sheafgossip.transport.presence import identity_of
from sheafgossip.transport.wire import GREETING_BYTES, frame_bytes, handshake_bytes, message_wire_bytes, ready_bytes


@pytest.mark.parametrize(("length", "wire"), [(0, 2), (1, 3), (254, 256), (255, 257), (256, 265), (257, 266)])
def test_a_frame_costs_2_bytes_up_to_255_and_9_above(length, wire):
    assert frame_bytes(length) == wire


@given(st.integers(0, 255), st.integers(256, 2**40))
def test_a_short_header_before_a_long_tensor_costs_11_bytes_of_framing(header, tensor):
    assert message_wire_bytes([header, tensor]) - header - tensor == 11


@given(st.lists(st.integers(0, 10_000)))
def test_a_message_weighs_what_its_frames_weigh(lengths):
    assert message_wire_bytes(lengths) == sum(lengths) + sum(2 if length <= 255 else 9 for length in lengths)


@given(st.binary(max_size=100))
def test_ready_is_the_command_that_zmtp_writes(identity):
    def property(name: bytes, value: bytes) -> bytes:
        return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value

    body = b"\x05READY" + property(b"Socket-Type", b"ROUTER") + property(b"Identity", identity)
    assert ready_bytes(identity) == len(bytes([0x04, len(body)]) + body) == 43 + len(identity)


@given(st.integers(0, 10_000))
def test_with_keys_a_frame_travels_in_a_message_command(length):
    command = b"\x07MESSAGE" + bytes(8) + bytes(16) + bytes(1 + length)
    assert message_wire_bytes([length], sealed=True) == frame_bytes(len(command))


@given(st.binary(min_size=9, max_size=18))
def test_keys_add_the_same_to_opening_whatever_the_name(identity):
    ready = ready_bytes(identity)
    assert handshake_bytes(ready, connects=True) == 460
    assert handshake_bytes(ready, connects=False) == 194


# -- against the kernel ------------------------------------------------------------------------------------------------


class Connection:
    """The kernel's view of one end of a TCP connection."""

    def __init__(self, descriptor: int):
        self._sock = socket.socket(fileno=os.dup(descriptor))  # ours stays open whatever ZeroMQ does

    def counters(self) -> dict[str, int]:
        info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 240)
        if len(info) < 216:
            pytest.skip(f"this kernel's TCP_INFO has {len(info)} bytes, and no byte counters")
        acked, received = struct.unpack_from("=QQ", info, 120)
        sent, retransmitted = struct.unpack_from("=QQ", info, 200)
        return {"sent": sent - retransmitted, "received": received, "acked": acked}

    def close(self) -> None:
        self._sock.close()


class Router:
    """A bare ROUTER whose connection can be looked at."""

    def __init__(self, context: zmq.Context, node: int):
        self.identity = identity_of(node)
        self.socket = context.socket(zmq.ROUTER)
        self.socket.identity = self.identity
        self.socket.linger = 0
        self.socket.router_mandatory = True
        self.socket.rcvtimeo = 10_000
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_CONNECTED | zmq.EVENT_ACCEPTED)

    def connection(self) -> Connection:
        assert self.monitor.poll(10_000), "no connection"
        return Connection(next_event(self.monitor)[1])

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close()


@pytest.fixture
def pair() -> Iterator[tuple[Router, Router]]:
    """Client 3, which connects, and client 12, which is bound."""
    context = zmq.Context()
    connecting, bound = Router(context, 3), Router(context, 12)
    port = bound.socket.bind_to_random_port("tcp://127.0.0.1")
    connecting.socket.setsockopt(zmq.CONNECT_ROUTING_ID, bound.identity)
    connecting.socket.connect(f"tcp://127.0.0.1:{port}")
    yield connecting, bound
    connecting.close()
    bound.close()
    context.term()


def soon(counters, key: str, expected: int) -> int:
    """The counter once it is what is expected, or what it is after a while."""
    end = time.monotonic() + 2
    while counters()[key] != expected and time.monotonic() < end:
        time.sleep(0.005)
    return counters()[key]


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO with byte counters is Linux's")
def test_the_kernel_counts_exactly_the_bytes_of_the_formula_in_both_directions(pair):
    connecting, bound = pair
    header = b"h" * 30
    here_wire = there_wire = GREETING_BYTES
    here_wire += ready_bytes(connecting.identity)
    there_wire += ready_bytes(bound.identity)

    connecting.socket.send_multipart([bound.identity, header])  # a hello
    bound.socket.recv_multipart()
    here, there = connecting.connection(), bound.connection()
    here_wire += message_wire_bytes([len(header)])
    assert soon(here.counters, "sent", here_wire) == here_wire
    assert soon(there.counters, "sent", there_wire) == there_wire

    for floats in (10, 56, 63, 64, 1_000, 100_000):  # 63 floats are the last to fit a short frame
        vector = np.arange(floats, dtype=np.float32)
        connecting.socket.send_multipart([bound.identity, header, vector])
        assert bound.socket.recv_multipart()[2] == vector.tobytes()
        here_wire += message_wire_bytes([len(header), vector.nbytes])

        bound.socket.send_multipart([connecting.identity, header, vector[: floats // 2]])
        connecting.socket.recv_multipart()
        there_wire += message_wire_bytes([len(header), vector[: floats // 2].nbytes])

        assert soon(here.counters, "sent", here_wire) == here_wire
        assert soon(there.counters, "received", here_wire) == here_wire
        assert soon(here.counters, "acked", here_wire + 1) == here_wire + 1  # with the SYN
        assert soon(there.counters, "sent", there_wire) == there_wire
        assert soon(here.counters, "received", there_wire) == there_wire
    here.close()
    there.close()
