"""Byte arithmetic of ZMTP, against the layout in its specification; test_keys.py holds it against the kernel."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sheafgossip.transport.wire import frame_bytes, handshake_bytes, message_wire_bytes, ready_bytes


@pytest.mark.parametrize(("length", "wire"), [(0, 2), (1, 3), (254, 256), (255, 257), (256, 265), (257, 266)])
def test_a_frame_costs_2_bytes_up_to_255_and_9_above(length, wire):
    assert frame_bytes(length) == wire


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
