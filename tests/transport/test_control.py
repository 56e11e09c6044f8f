"""The control line: whole JSON messages, however the bytes come."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sheafgossip.transport.control import Control, ControlClosed, Tally

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
messages = st.dictionaries(st.text(), json_values, min_size=1, max_size=3)


@pytest.fixture
def line() -> Iterator[tuple[Control, socket.socket]]:
    """One end as the code has it, the other as a bare socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Control(ours), theirs


@given(st.lists(messages, min_size=1, max_size=4))
def test_what_is_sent_comes_out_the_same_and_in_order(sent):
    one, other = socket.socketpair()
    with one, other:
        here, there = Control(one), Control(other)
        for message in sent:
            here.send(message)
        received = []
        while len(received) < len(sent):
            received += there.receive()
    assert received == sent


def test_a_message_split_over_many_reads_comes_out_whole(line):
    control, theirs = line
    parts = []
    for byte in json.dumps({"connect": {"3": "tcp://\u00e4"}}, ensure_ascii=False).encode() + b"\n":
        theirs.send(bytes([byte]))
        parts.append(control.receive_some())
    assert parts == [[]] * (len(parts) - 1) + [[{"connect": {"3": "tcp://ä"}}]]


def test_one_read_may_complete_many_messages_and_begin_another(line):
    control, theirs = line
    theirs.send(b'{"a":1}\n{"b":2}\n{"c"')
    assert control.receive() == [{"a": 1}, {"b": 2}]
    theirs.send(b":3}\n")
    assert control.receive() == [{"c": 3}]


def test_a_message_longer_than_a_read_comes_out_whole(line):
    control, theirs = line
    long = {"failed": "x" * 150_000}
    theirs.sendall(json.dumps(long).encode() + b"\n")
    assert control.receive() == [long]


def test_what_was_sent_before_the_end_was_closed_still_comes_out(line):
    control, theirs = line
    theirs.send(b'{"done":4}\n')
    theirs.close()
    assert control.receive() == [{"done": 4}]
    with pytest.raises(ControlClosed):
        control.receive()


def test_a_message_cut_off_by_the_close_is_not_a_message(line):
    control, theirs = line
    theirs.send(b'{"done":')
    theirs.close()
    with pytest.raises(ControlClosed):
        control.receive()


def test_sending_to_a_closed_end_raises_control_closed(line):
    control, theirs = line
    theirs.close()
    with pytest.raises(ControlClosed):
        control.send({"ready": True})


def test_a_reset_by_the_other_end_raises_control_closed(line):
    control, theirs = line
    control.send({"never": "read"})
    theirs.close()  # with unread bytes: the kernel resets the connection
    with pytest.raises(ControlClosed):
        control.receive()


def test_both_ends_count_whole_messages_and_every_byte(line):
    control, theirs = line
    control.send({"go": 1.5})
    control.send({"word": "\u00e4"})
    there = Control(theirs)
    heard = []
    while len(heard) < 2:
        heard += there.receive()
    size = len(b'{"go":1.5}\n{"word":"\\u00e4"}\n')
    assert (control.sent, there.received) == (Tally(2, size), Tally(2, size))
    assert (control.received, there.sent) == (Tally(), Tally())


def test_bytes_of_an_unfinished_message_are_counted_as_they_come(line):
    control, theirs = line
    theirs.send(b'{"a"')
    control.receive_some()
    assert control.received == Tally(0, 4)
    theirs.send(b":1}\n")
    control.receive_some()
    assert control.received == Tally(1, 8)


def test_what_could_not_be_sent_is_not_counted(line):
    control, theirs = line
    theirs.close()
    with pytest.raises(ControlClosed):
        control.send({"ready": True})
    assert control.sent == Tally()


def test_a_burst_in_both_directions_hangs_nobody():
    """More than both sockets' buffers hold, and neither end reads before it has sent all."""
    one, other = socket.socketpair()
    with one, other:
        here, there = Control(one, attentive=True), Control(other)
        count, text = 3000, "x" * 1000

        def answer() -> None:
            for number in range(count):
                there.send({"back": number, "text": text})
            heard = 0
            while heard < count:
                heard += len(there.receive())

        neighbour = threading.Thread(target=answer)
        neighbour.start()
        for number in range(count):
            here.send({"out": number, "text": text})
        received: list[dict] = []
        while len(received) < count:
            assert here.wait(5)
            received += here.receive_some()
        neighbour.join(5)
        assert not neighbour.is_alive()
        assert [message["back"] for message in received] == list(range(count))


def test_waiting_ends_at_once_where_something_is_there_and_in_time_where_nothing_is(line):
    control, other = line
    assert not control.wait(0.01)
    other.sendall(b'{"a":1}\n')
    assert control.wait(5)
