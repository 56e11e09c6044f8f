"""A client's data socket over real TCP: what it takes in, what it drops, and what ends its waiting."""

import select
import threading
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from sheafgossip.transport import endpoint, messages
from sheafgossip.transport.channel import Channel
from sheafgossip.transport.control import Call, ControlClosed, NeighbourCalls, NeighbourCame, NeighbourGone, Place, Stop
from sheafgossip.transport.endpoint import NeighbourTimeout, Stopped
from sheafgossip.transport.stopwatch import Stopwatch

VECTOR = np.arange(10, dtype=np.float32)


def legal_from(network, src: int, dst: int, vector: np.ndarray = VECTOR) -> list[bytes]:
    return [network.header(src=src, dst=dst, round=1, shapes=[[0, 10]]), vector.tobytes()]


@pytest.mark.parametrize("keys", [False, True])
def test_clients_meet_soon_and_every_message_arrives_where_it_should(network, keys):
    start = time.monotonic()
    clients = network.linked(4, [(i, j) for i in range(4) for j in range(i)], keys=keys)
    assert time.monotonic() - start < 15  # a lost handshake would take libzmq 30 s
    for i, client in enumerate(clients):
        for j in {0, 1, 2, 3} - {i}:
            client.endpoint.send([j], round=7, phase=i, tensors=(VECTOR + 10 * i + j, np.ones((2, 3))))
    for j, client in enumerate(clients):
        for _ in range(3):
            i, round, phase, tensors, _ = client.receive()
            assert (round, phase) == (7, i)
            np.testing.assert_array_equal(tensors[0], VECTOR + 10 * i + j, strict=True)
            np.testing.assert_array_equal(tensors[1], np.ones((2, 3)), strict=True)
        assert not client.endpoint.rejected


def test_the_time_that_it_takes_to_take_in_a_large_message_is_no_waiting(network, monkeypatch):
    sender, receiver = network.linked(2, [(0, 1)])
    clock = SimpleNamespace(now=time.monotonic(), monotonic=lambda: clock.now)  # stands still but for the message
    view_tensor = messages.view_tensor

    def large(*frame_and_form):
        clock.now += 5
        return view_tensor(*frame_and_form)

    for module in (endpoint, messages):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(messages, "view_tensor", large)
    receiver.endpoint.stopwatch = Stopwatch("exchange", clock=lambda: round(1e9 * clock.now))
    sender.send(1, VECTOR)
    assert receiver.receive() is not None
    spent = {part: elapsed for part, (_, elapsed) in receiver.endpoint.stopwatch.read().items()}
    assert spent["exchange"] == pytest.approx(5)
    assert spent.get("waiting", 0) == 0


@pytest.mark.parametrize("first", [0, 1])
def test_a_connection_that_is_needed_late_is_opened_by_the_lower_number_or_asked_for_once(network, first):
    clients = [network.client(node, late=True) for node in (0, 1)]
    for client, other in zip(clients, reversed(clients), strict=True):
        assert client.connect({other.endpoint.node: other.address}) == {}
        client.endpoint.presence.latecomers = frozenset({0, 1})
    low, high = clients

    def launcher():
        if first == 1:
            assert high.launcher.receive_some() == [Call(0)]
            low.launcher.send(NeighbourCalls(Place(1, high.address, 1, "")))

    def takes_part(client):
        other = 1 - client.endpoint.node
        peers = client.peers({other: Channel((10,), (10,))})
        if client.endpoint.node == first:
            peers.send({other: VECTOR})
            return peers.receive([other])[other]
        heard = peers.receive([other])[other]
        peers.send({other: VECTOR})
        return heard

    heard = network.in_parallel(launcher, lambda: takes_part(low), lambda: takes_part(high))
    assert [list(each) for each in heard[1:]] == [list(VECTOR)] * 2
    assert [client.endpoint.presence.linked for client in clients] == [{1: 1}, {0: 1}]
    assert [node for client in clients for node, _ in client.endpoint.hellos] == [1, 0]
    assert not low.endpoint.unanswered
    assert select.select([client.launcher for client in clients], [], [], 0)[0] == []


@pytest.mark.parametrize("place", [slice(None), slice(None, None, 2), slice(None, None, -1), slice(0, 0)])
@pytest.mark.parametrize("size", [3, 500, 4_000_000])  # the last is more than the kernel takes in at once
def test_a_vector_arrives_as_it_looked_and_may_be_changed_right_after_it_was_sent(network, size, place):
    client, other = network.linked(2, [(0, 1)], max_frame=1 << 24)
    vector = np.arange(size, dtype=np.float32)
    client.send(1, vector[place])
    vector[:] = -1
    (received,) = other.receive().tensors
    np.testing.assert_array_equal(received, np.arange(size, dtype=np.float32)[place], strict=True)
    assert not received.flags.writeable


def test_what_an_unknown_peer_sends_or_one_with_a_neighbours_name_is_not_heard(network):
    client, [neighbour] = network.client_of_puppets(1)
    for name in (b"node-0000", None):
        network.puppet(client, name).send_multipart(legal_from(network, 0, 1, -VECTOR))
    client.receive_nothing_until("unknown peer")
    neighbour.send_multipart(legal_from(network, 0, 1))
    np.testing.assert_array_equal(client.receive().tensors[0], VECTOR)
    assert client.receive(0.05) is None
    assert client.endpoint.rejected == {"unknown peer": 1}


def test_a_client_of_another_run_with_a_neighbours_name_is_not_taken_for_it(network):
    client = network.client(1)
    network.puppet(client, b"node-0000").send(network.header(src=0, dst=1, run=78))
    with pytest.raises(NeighbourTimeout, match="no connection to client 0"):
        client.connect({0: "never used"}, 0.1)
    client.receive_nothing_until("foreign run id")


def test_an_unknown_peer_who_took_a_neighbours_name_first_does_not_keep_a_client_from_connecting_to_it(network):
    client, other = network.client(0), network.client(1)
    impostor = network.puppet(client, b"node-0001")
    impostor.send_multipart(legal_from(network, 1, 0, -VECTOR))
    client.receive_nothing_until("unknown peer")  # it is connected now
    network.meet(client, other)
    impostor.send_multipart(legal_from(network, 1, 0, -VECTOR))
    client.receive_nothing_until("unknown peer", 2)
    other.send(0, VECTOR)
    np.testing.assert_array_equal(client.receive().tensors[0], VECTOR)


def test_an_oversized_frame_closes_its_connection_and_is_counted_and_others_go_on(network):
    client, [first, second] = network.client_of_puppets(2, max_frame=1000)
    first.send_multipart([network.header(src=0, dst=2, round=1, shapes=[[0, 251]]), bytes(1004)])
    client.receive_nothing_until("connection closed by its peer, or for a frame over 1000 bytes")
    second.send_multipart(legal_from(network, 1, 2))
    np.testing.assert_array_equal(client.receive().tensors[0], VECTOR)


def test_at_the_deadline_what_is_there_is_still_looked_at_but_garbage_does_not_hold_it_up(network):
    client, [neighbour] = network.client_of_puppets(1)
    for _ in range(20):
        neighbour.send(b"garbage")
    neighbour.send_multipart(legal_from(network, 0, 1))
    end, looks, message = time.monotonic() + 100, 0, None
    while message is None and time.monotonic() < end:
        message = client.endpoint.receive(deadline=0)
        looks += 1
    assert message.round == 1
    assert looks > client.endpoint.rejected["malformed header"] == 20


@pytest.mark.parametrize("linked", [True, False], ids=["receiving", "linking up"])
@pytest.mark.parametrize("gone", [True, False], ids=["gone", "says stop"])
def test_a_launcher_that_says_stop_or_is_gone_ends_every_wait(network, linked, gone):
    client = network.linked(2, [(0, 1)])[1] if linked else network.client(1)
    end = partial(client.launcher.close) if gone else partial(client.launcher.send, Stop("Ctrl-C"))
    threading.Timer(0.1, end).start()
    with pytest.raises(ControlClosed) if gone else pytest.raises(Stopped, match="Ctrl-C"):
        client.receive() if linked else client.connect({0: "never used"})


@pytest.mark.parametrize("pause_s", [0.0, 0.1], ids=["just heard", "not heard for a while"])
def test_any_word_of_the_launcher_ends_a_wait(network, pause_s):
    """Also one that is there before the wait begins: who waits for a neighbour must learn in time that it has died."""
    client, _ = network.linked(2, [(0, 1)])
    time.sleep(pause_s)
    client.launcher.send(NeighbourGone(1, 1, died=True))
    began = time.monotonic()
    while 1 not in client.endpoint.presence.died:
        assert client.endpoint.receive(began + 100) is None
    assert time.monotonic() - began < 2


def test_a_neighbour_that_is_gone_is_counted_and_not_weighed_and_the_others_are_served(network):
    gone, stays, client = network.linked(3, [(0, 2), (1, 2)])
    network.end(gone)
    sent, end = {0: None}, time.monotonic() + 100
    while 0 in sent and time.monotonic() < end:  # until the news of the closed connection is here
        sent = client.endpoint.send((0, 1), round=1, phase=0, tensors=(VECTOR,))
        time.sleep(0.01)
    assert set(sent) == {1}
    assert client.endpoint.rejected["neighbour is gone, message not sent"] == 1
    assert stays.receive().src == 2


def test_what_a_neighbour_sent_before_its_end_is_read_also_after_it_has_come_back(network):
    client, before = network.linked(2, [(0, 1)])
    before.send(0, np.full(3, 7, np.float32), round=2)
    assert client.endpoint.connections.router.poll(100_000)
    after = network.client(1)
    client.launcher.send(NeighbourCame(Place(1, after.address, 2, ""), first_round=4))
    client.endpoint.wait_for_launcher()
    message = client.receive()
    assert (message.round, message.incarnation, message.tensors[0].tolist()) == (2, 1, [7, 7, 7])
