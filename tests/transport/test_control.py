"""The control line: whole messages, however the bytes come."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, strategies as st

from sheafgossip.transport import control as words
from sheafgossip.transport.control import FROM_LAUNCHER, TO_LAUNCHER, Control, ControlClosed, Done, Failed, Go, Tally


def messages(table: dict[str, type]) -> st.SearchStrategy:
    """Of one direction, with whatever their fields may hold."""
    holders = {words.Tell, words.FromClient, words.Fork}
    plain = st.one_of(*(st.builds(each) for each in set(table.values()) - holders))
    numbers, parts = st.integers(-5, 1 << 60), st.lists(st.dictionaries(st.text("abc"), st.integers()), max_size=2)
    if table is TO_LAUNCHER:
        return plain | st.builds(words.FromClient, numbers, plain)
    return plain | st.builds(words.Tell, st.none() | numbers, plain) | st.builds(words.Fork, parts)


@pytest.fixture
def line() -> Iterator[tuple[Control, socket.socket]]:
    """The launcher's end as the code has it, the other as a bare socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Control(ours, TO_LAUNCHER), theirs


def heard_by(control: Control, count: int) -> list:
    heard = []
    while len(heard) < count:
        assert control.wait(5)
        heard += control.receive_some()
    return heard


@pytest.mark.parametrize("table", [FROM_LAUNCHER, TO_LAUNCHER], ids=["from", "to"])
@given(st.data())
def test_what_is_sent_comes_out_the_same_and_in_order(table, data):
    sent = data.draw(st.lists(messages(table), min_size=1, max_size=4))
    one, other = socket.socketpair()
    with one, other:
        source, target = Control(one, table), Control(other, table)
        for message in sent:
            source.send(message)
        received = heard_by(target, len(sent))
    assert [*map(type, received)] == [*map(type, sent)]
    assert [*map(words.encode, received)] == [*map(words.encode, sent)]  # a NaN is no other's equal


@pytest.mark.parametrize("sent", [Go(1.0), words.FromClient(1, Go(1.0))])
def test_a_message_of_the_other_direction_is_none(sent):
    with pytest.raises(ValueError, match="no message of this direction: 'Go'"):
        words.decode(words.encode(sent), TO_LAUNCHER)


def test_messages_come_out_whole_and_counted_whether_split_over_reads_or_many_in_one(line):
    control, theirs = line
    sent = [Failed("\u00e4" + "x" * 150_000), Done(), Failed("b")]
    data = b"".join(words.encode(message) + b"\n" for message in sent)
    assert data.endswith(b'{"is":"Done"}\n{"is":"Failed","text":"b","cause":""}\n')
    for byte in data[:40]:
        theirs.send(bytes([byte]))
        assert control.receive_some() == []
    assert control.received == Tally(0, 40)
    theirs.sendall(data[40:-3])
    received = heard_by(control, 2)
    theirs.sendall(data[-3:])
    assert received + control.receive_some() == sent
    assert control.received == Tally(3, len(data))
    control.send(Go(1.5))
    assert control.sent == Tally(1, len(theirs.recv(100)))


def test_what_was_sent_before_the_end_was_closed_still_comes_out_but_no_part_of_a_message(line):
    control, theirs = line
    theirs.send(words.encode(Done()) + b"\n" + words.encode(Done()))
    theirs.close()
    assert control.receive_some() == [Done()]
    with pytest.raises(ControlClosed):
        control.receive_some()


@pytest.mark.parametrize("unread", [True, False])
def test_a_closed_end_raises_control_closed_and_what_is_sent_to_it_is_not_counted(line, unread):
    control, theirs = line
    if unread:
        control.send(words.Stop("never read"))
    sent = control.sent
    theirs.close()  # with unread bytes the kernel resets the connection
    with pytest.raises(ControlClosed):
        control.receive_some() if unread else control.send(words.Exit())
    assert control.sent == sent


def test_a_burst_in_both_directions_hangs_nobody():
    """More than both sockets' buffers hold, and neither end reads before it has sent all."""
    one, other = socket.socketpair()
    with one, other:
        here, there = Control(one, TO_LAUNCHER, attentive=True), Control(other, FROM_LAUNCHER)
        sent = [Failed(f"{number}" + "x" * 1000) for number in range(3000)]

        def answer() -> None:
            for message in sent:
                there.send(message)
            heard_by(there, len(sent))

        with ThreadPoolExecutor() as threads:
            answered = threads.submit(answer)
            for message in sent:
                here.send(words.Stop(message.text))
            assert heard_by(here, len(sent)) == sent
            answered.result(5)
        assert not here.wait(0.01)
