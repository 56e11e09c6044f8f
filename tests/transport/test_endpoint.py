"""A client's data socket over real TCP: what it takes in, what it drops, and what ends its waiting."""

import socket
import threading
import time
from collections import Counter
from functools import partial

import numpy as np
import pytest

from sheafgossip.transport.control import ControlClosed, Go, NeighbourDied, Stop
from sheafgossip.transport.endpoint import Endpoint, NeighbourTimeout, SentBytes, Stopped

VECTOR = np.arange(10, dtype=np.float32)
LEGAL = {"src": 0, "dst": 1, "round": 1, "shapes": [[0, 10]]}


def send(endpoint: Endpoint, *to: int, vector: np.ndarray = VECTOR) -> dict[int, SentBytes]:
    return endpoint.send(to, round=1, phase=0, tensors=(vector,))


def soon(seconds: float = 100) -> float:
    return time.monotonic() + seconds


def legal_from(network, src: int, dst: int, vector: np.ndarray = VECTOR) -> list[bytes]:
    return [network.header(**LEGAL | {"src": src, "dst": dst}), vector.tobytes()]


def assert_still_heard(network, neighbour, client) -> None:
    neighbour.send_multipart(legal_from(network, 0, 1))
    np.testing.assert_array_equal(client.receive().tensors[0], VECTOR)


# -- meeting and talking -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [False, True])
def test_three_clients_meet_and_every_message_arrives_where_it_should(network, keys):
    clients = network.linked(3, ((0, 1), (0, 2), (1, 2)), keys=keys)
    for i in range(3):
        for j in {0, 1, 2} - {i}:
            clients[i].endpoint.send([j], round=7, phase=i, tensors=(VECTOR + 10 * i + j, np.ones((2, 3))))
    for j, client in enumerate(clients):
        for message in (client.receive(), client.receive()):
            i = message.src
            assert message[:3] == (i, 7, i)
            np.testing.assert_array_equal(message.tensors[0], VECTOR + 10 * i + j, strict=True)
            np.testing.assert_array_equal(message.tensors[1], np.ones((2, 3)), strict=True)
        assert client.endpoint.rejected == Counter()


def test_a_neighbour_that_is_never_there_is_named(network):
    client = network.client(5)
    with pytest.raises(NeighbourTimeout, match=r"no connection to client 2, 4$"):
        client.connect({4: "never used", 2: "never used"}, 0.05)


@pytest.mark.parametrize("place", [slice(None), slice(None, None, 2), slice(None, None, -1), slice(0, 0)])
@pytest.mark.parametrize("size", [3, 500, 4_000_000])  # the last is more than the kernel takes in at once
def test_a_vector_arrives_as_it_looked_and_may_be_changed_right_after_it_was_sent(network, size, place):
    client, other = network.linked(2, [(0, 1)], max_frame=1 << 24)
    vector = np.arange(size, dtype=np.float32)
    send(client.endpoint, 1, vector=vector[place])
    vector[:] = -1
    expected = np.arange(size, dtype=np.float32)[place]
    np.testing.assert_array_equal(other.receive().tensors[0], expected, strict=True)


# -- what comes in is not trusted --------------------------------------------------------------------------------------


def test_what_an_unknown_peer_sends_or_one_with_a_neighbours_name_is_not_heard(network):
    client, [neighbour] = network.client_of_puppets(1)
    liar = network.puppet(client, b"node-0000")
    liar.send_multipart(legal_from(network, 0, 1, -VECTOR))
    network.puppet(client).send_multipart(legal_from(network, 0, 1, -VECTOR))
    client.receive_nothing_until("unknown peer")
    assert_still_heard(network, neighbour, client)
    assert client.receive(0.05) is None
    assert client.endpoint.rejected == {"unknown peer": 1}


def test_a_client_of_another_run_with_a_neighbours_name_is_not_taken_for_it(network):
    client = network.client(1)
    impostor = network.puppet(client, b"node-0000")
    impostor.send(network.header(src=0, dst=1, run=78))
    with pytest.raises(NeighbourTimeout, match="no connection to client 0"):
        client.connect({0: "never used"}, 0.1)
    client.receive_nothing_until("foreign run id")
    assert client.endpoint.rejected == {"foreign run id": 1}


def test_an_unknown_peer_who_took_a_neighbours_name_first_does_not_keep_a_client_from_connecting_to_it(network):
    client, other = network.client(0), network.client(1)
    impostor = network.puppet(client, b"node-0001")
    impostor.send_multipart(legal_from(network, 1, 0, -VECTOR))
    client.receive_nothing_until("unknown peer")  # it is connected now
    network.meet(client, other)
    impostor.send_multipart(legal_from(network, 1, 0, -VECTOR))
    client.receive_nothing_until("unknown peer", 2)
    send(other.endpoint, 0)
    np.testing.assert_array_equal(client.receive().tensors[0], VECTOR)


def test_an_oversized_frame_closes_its_connection_and_is_counted_and_others_go_on(network):
    client, [first, second] = network.client_of_puppets(2, max_frame=1000)
    first.send_multipart([network.header(src=0, dst=2, round=1, shapes=[[0, 251]]), bytes(1004)])
    client.receive_nothing_until("connection closed by its peer, or for a frame over 1000 bytes")
    second.send_multipart(legal_from(network, 1, 2))
    np.testing.assert_array_equal(client.receive().tensors[0], VECTOR)


def test_a_foreign_protocol_does_no_harm(network):
    client, [neighbour] = network.client_of_puppets(1)
    host, port = client.address.removeprefix("tcp://").split(":")
    for speech in (b"GET / HTTP/1.1\r\n\r\n" * 20, b"\xff" * 500, b"\x16\x03\x01\x02\x00\x01"):
        with socket.create_connection((host, int(port))) as foreign:
            foreign.sendall(speech)
            assert_still_heard(network, neighbour, client)


# -- waiting and its ends ----------------------------------------------------------------------------------------------


def test_at_the_deadline_what_is_there_is_still_looked_at_but_garbage_does_not_hold_it_up(network):
    client, [neighbour] = network.client_of_puppets(1)
    for _ in range(20):
        neighbour.send(b"garbage")
    neighbour.send_multipart(legal_from(network, 0, 1))
    end, looks, message = soon(), 0, None
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


def test_other_words_of_the_launcher_do_not_end_a_receive(network):
    client, [neighbour] = network.client_of_puppets(1)
    client.launcher.send(Go(1.5))
    threading.Timer(0.1, neighbour.send_multipart, [legal_from(network, 0, 1)]).start()
    assert client.receive().src == 0


@pytest.mark.parametrize("pause_s", [0.0, 0.1], ids=["just heard", "not heard for a while"])
def test_any_word_of_the_launcher_ends_the_wait_of_who_wants_to_hear(network, pause_s):
    """Also one that is there before the wait begins: who waits for a neighbour must learn in time that it has died."""
    client, _ = network.linked(2, [(0, 1)])
    time.sleep(pause_s)
    client.launcher.send(NeighbourDied(1))
    began = time.monotonic()
    while 1 not in client.endpoint.presence.died:
        assert client.endpoint.receive(soon()) is None
    assert time.monotonic() - began < 2


def test_a_neighbour_that_is_gone_is_counted_and_not_weighed_and_the_others_are_served(network):
    gone, stays, client = network.linked(3, [(0, 2), (1, 2)])
    network.end(gone)
    sent, end = send(client.endpoint, 0, 1), soon()
    while 0 in sent and time.monotonic() < end:  # until the news of the closed connection is here
        time.sleep(0.01)
        sent = send(client.endpoint, 0, 1)
    assert set(sent) == {1}
    assert client.endpoint.rejected["neighbour is gone, message not sent"] == 1
    assert stays.receive().src == 2
