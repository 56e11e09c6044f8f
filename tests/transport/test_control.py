"""The control line: whole messages, however the bytes come."""

import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sheafgossip.transport import control as words
from sheafgossip.transport.control import FROM_LAUNCHER, TO_LAUNCHER, Control, ControlClosed, Done, Failed, Go, Tally

numbers, text = st.integers(-5, 1 << 60), st.text(max_size=20)
places = st.builds(words.Place, numbers, text, numbers, text)
to_clients = st.one_of(
    st.builds(words.Connect, st.lists(places, max_size=3)),
    st.builds(words.Go, st.floats(allow_nan=False)),
    st.just(words.Exit()),
    st.builds(words.Stop, text),
    st.builds(words.NeighbourDied, numbers, numbers),
    st.builds(words.NeighbourLeft, numbers, numbers),
    st.builds(words.NeighbourFinished, numbers),
    st.builds(words.NeighbourCame, places, numbers),
)
to_fork_servers = st.one_of(
    st.builds(words.Fork, st.lists(st.dictionaries(st.sampled_from("abc"), numbers | text), max_size=2), numbers),
    st.builds(words.Tell, numbers, to_clients),
    st.builds(words.TellAll, to_clients),
    st.just(words.Kill()),
)
from_clients = st.one_of(
    st.builds(words.Bound, text, text),
    st.just(words.Ready()),
    st.just(Done()),
    st.builds(words.Leaving, numbers, numbers),
    st.builds(Failed, text, text),
    st.builds(words.Waiting, st.lists(st.lists(numbers)), numbers, st.lists(st.lists(numbers)), st.floats(0, 1e9)),
    st.just(words.WaitOver()),
    st.builds(words.StepTimed, st.floats(0, 1e9)),
)
from_fork_servers = st.one_of(
    st.builds(words.FromClient, numbers, from_clients),
    st.builds(words.Exited, numbers, st.none() | numbers, st.lists(numbers), st.lists(numbers), st.none() | numbers),
)


@pytest.fixture
def line() -> Iterator[tuple[Control, socket.socket]]:
    """The launcher's end as the code has it, the other as a bare socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Control(ours, TO_LAUNCHER), theirs


@given(
    st.lists(to_clients | to_fork_servers, min_size=1, max_size=4),
    st.lists(from_clients | from_fork_servers, min_size=1, max_size=4),
)
def test_what_is_sent_comes_out_the_same_and_in_order(down, up):
    one, other = socket.socketpair()
    with one, other:
        here, there = Control(one, TO_LAUNCHER), Control(other, FROM_LAUNCHER)
        for source, target, sent in ((here, there, down), (there, here, up)):
            for message in sent:
                source.send(message)
            received = []
            while len(received) < len(sent):
                received += target.receive()
            assert received == sent


@pytest.mark.parametrize("sent", [Go(1.0), words.FromClient(1, Go(1.0))])
def test_a_message_of_the_other_direction_is_none(sent):
    with pytest.raises(ValueError, match="no message of this direction: 'Go'"):
        words.decode(words.encode(sent), TO_LAUNCHER)


def test_messages_come_out_whole_whether_split_over_reads_or_many_in_one(line):
    control, theirs = line
    sent = [Failed("\u00e4" + "x" * 150_000), Done(), Failed("b")]
    data = b"".join(words.encode(message) + b"\n" for message in sent)
    for byte in data[:40]:
        theirs.send(bytes([byte]))
        assert control.receive_some() == []
    assert control.received == Tally(0, 40)
    theirs.sendall(data[40:-3])
    received = []
    while len(received) < 2:
        received += control.receive()
    theirs.sendall(data[-3:])
    assert received + control.receive() == sent
    assert control.received == Tally(3, len(data))


def test_what_was_sent_before_the_end_was_closed_still_comes_out_but_no_part_of_a_message(line):
    control, theirs = line
    theirs.send(words.encode(Done()) + b"\n" + words.encode(Done()))
    theirs.close()
    assert control.receive() == [Done()]
    with pytest.raises(ControlClosed):
        control.receive()


@pytest.mark.parametrize("unread", [True, False])
def test_a_closed_end_raises_control_closed_and_what_is_sent_to_it_is_not_counted(line, unread):
    control, theirs = line
    if unread:
        control.send(words.Stop("never read"))
    sent = control.sent
    theirs.close()  # with unread bytes the kernel resets the connection
    with pytest.raises(ControlClosed):
        control.receive() if unread else control.send(words.Exit())
    assert control.sent == sent


def test_both_ends_count_whole_messages_and_every_byte(line):
    control, theirs = line
    control.send(Go(1.5))
    control.send(words.Stop("\u00e4"))
    there = Control(theirs, FROM_LAUNCHER)
    heard = []
    while len(heard) < 2:
        heard += there.receive()
    size = len(b'{"is":"Go","epoch":1.5}\n{"is":"Stop","reason":"\\u00e4"}\n')
    assert (control.sent, there.received) == (Tally(2, size), Tally(2, size))
    assert (control.received, there.sent) == (Tally(), Tally())


def test_a_burst_in_both_directions_hangs_nobody():
    """More than both sockets' buffers hold, and neither end reads before it has sent all."""
    one, other = socket.socketpair()
    with one, other:
        here, there = Control(one, TO_LAUNCHER, attentive=True), Control(other, FROM_LAUNCHER)
        sent = [Failed(f"{number}" + "x" * 1000) for number in range(3000)]

        def answer() -> None:
            for message in sent:
                there.send(message)
            heard = 0
            while heard < len(sent):
                heard += len(there.receive())

        neighbour = threading.Thread(target=answer)
        neighbour.start()
        for message in sent:
            here.send(words.Stop(message.text))
        received: list[Failed] = []
        while len(received) < len(sent):
            assert here.wait(5)
            received += here.receive_some()
        neighbour.join(5)
        assert not neighbour.is_alive()
        assert received == sent


def test_waiting_ends_at_once_where_something_is_there_and_in_time_where_nothing_is(line):
    control, other = line
    assert not control.wait(0.01)
    other.sendall(words.encode(Done()) + b"\n")
    assert control.wait(5)
