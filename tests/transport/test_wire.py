"""Byte arithmetic of ZMTP, against the layout in its specification; test_keys.py holds it against the kernel."""

import struct

from hypothesis import example, given
from hypothesis import strategies as st

from sheafgossip.transport.wire import handshake_bytes, message_wire_bytes, ready_bytes

sizes = st.integers(0, 10_000)


@given(st.lists(sizes))
@example([0, 1, 254, 255, 256, 257])
def test_a_message_weighs_what_its_frames_weigh_which_with_keys_travel_in_message_commands(lengths):
    assert message_wire_bytes(lengths) == sum(length + (2 if length <= 255 else 9) for length in lengths)
    commands = [len(b"\x07MESSAGE" + bytes(8) + bytes(16) + bytes(1)) + length for length in lengths]
    assert message_wire_bytes(lengths, sealed=True) == message_wire_bytes(commands)


@given(st.binary(min_size=9, max_size=18))
def test_ready_is_the_command_that_zmtp_writes_to_which_keys_add_the_same_whatever_the_name(identity):
    def property(name: bytes, value: bytes) -> bytes:
        return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value

    body = b"\x05READY" + property(b"Socket-Type", b"ROUTER") + property(b"Identity", identity)
    ready = ready_bytes(identity)
    assert ready == len(bytes([0x04, len(body)]) + body) == 43 + len(identity)
    assert (handshake_bytes(connects=True), handshake_bytes(connects=False)) == (460, 194)
