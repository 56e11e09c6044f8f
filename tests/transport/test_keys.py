"""Keys on real sockets: who gets in, who does not, and what it costs."""

import os
import select
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress

import msgpack
import numpy as np
import psutil
import pytest
import zmq

from sheafgossip.transport import endpoint
from sheafgossip.transport.channel import Format
from sheafgossip.transport.connections import KernelCounters, counts_bytes
from sheafgossip.transport.endpoint import NeighbourTimeout
from sheafgossip.transport.keys import ZapHandler
from sheafgossip.transport.wire import GREETING_BYTES, handshake_bytes, ready_bytes

VECTOR = np.arange(10, dtype=np.float32)
REFUSED = "connection without the right key"
needs_kernel_counts = pytest.mark.skipif(not counts_bytes(), reason="this kernel counts no bytes of TCP connections")


def plain(length: int) -> int:
    """Wire bytes of a frame: flag and length, then the frame."""
    return length + (2 if length <= 255 else 9)


def sealed(length: int) -> int:
    """With keys: MESSAGE with its own length, a nonce, a tag, flags, the frame."""
    return plain(len(b"\x07MESSAGE") + 8 + 16 + 1 + length)


@pytest.mark.parametrize(("limit", "keys"), [(1000, False), (1, True), (256, True)])
def test_a_frame_of_exactly_the_limit_is_taken_in(network, limit, keys):
    client, other = network.linked(2, [(0, 1)], keys=keys, max_frame=limit)
    client.send(1, np.zeros(limit, dtype=np.uint8))
    assert other.receive().tensors[0].nbytes == limit


@needs_kernel_counts
@pytest.mark.parametrize("keys", [False, True])
def test_hello_and_messages_weigh_what_the_kernel_sent(network, keys):
    frame = sealed if keys else plain
    kernel = [KernelCounters(), KernelCounters()]
    client, other = (network.client(i, neighbours=[1 - i] if keys else None, kernel=kernel[i]) for i in (0, 1))
    hellos = network.meet(client, other)
    hello = frame(len(msgpack.packb([1, 77, 0, 1, 0, 0, []])))
    assert hellos == [{1: hello}, {0: hello}]
    properties = len(b"\x0bSocket-Type\0\0\0\x06ROUTER") + len(b"\x08Identity\0\0\0\x09node-0000")
    ready = 2 + len(b"\x05READY") + properties
    assert ready == ready_bytes(b"node-0000")
    wire = [GREETING_BYTES + ready + hello] * 2
    if keys:
        wire[0] = GREETING_BYTES + (2 + 200) + (9 + 257 + properties) + hello  # HELLO, INITIATE
        wire[1] = GREETING_BYTES + (2 + 168) + (2 + 30 + properties) + hello  # WELCOME, READY
        added = [handshake_bytes(connects=True), handshake_bytes(connects=False)]
        assert added == [each - GREETING_BYTES - ready - hello for each in wire]
    total, sizes = np.zeros((2, 4), int), (1, 50, 55, 56, 60, 63, 64, 65_535, 65_536)
    for size, round in zip(sizes, (1, 127, 128, 255, 256, 1, 65_535, 65_536, 2), strict=True):
        for here, vector in ((0, np.zeros(size, np.float32)), (1, np.zeros(size, np.float64))):
            sent = (client, other)[here].send(1 - here, vector, round)
            header = len(msgpack.packb([1, 77, here, 1 - here, round, 0, [[here, size]]]))
            assert sent == (1, vector.nbytes, vector.nbytes + header, frame(header) + frame(vector.nbytes))
            total[here] += sent
            (other, client)[here].receive()
    for here, ours in enumerate((client, other)):
        assert ours.endpoint.sent[""] == {1 - here: (*total[here],)}
        wire[here] += total[here, -1]
    for here, ours in enumerate((client, other)):
        ours.endpoint.connections.note()
        [count] = kernel[here].read()
        assert count[2:4] == (wire[here], wire[1 - here])
        kernel[here].close()


def test_who_dials_before_keys_are_known_waits_and_is_let_in_or_refused_once_they_are(network):
    client, other = network.client(0, neighbours=[1]), network.client(1, neighbours=[], more=True)
    waiting = other.endpoint.connections.zap.waiting
    network.puppet(other, b"node-0000", keys=(network.pairs[4], network.pairs[1].public))
    other.listen_until(lambda: waiting)
    with ThreadPoolExecutor() as threads:
        meeting = threads.submit(client.connect, {1: other.address})
        other.listen_until(lambda: len(waiting) == 2)
        assert other.endpoint.rejected == {}
        other.endpoint.connections.learn({0: network.pairs[0].public})
        other.connect({0: client.address})
        meeting.result()
    client.send(1, VECTOR)
    np.testing.assert_array_equal(other.receive().tensors[0], VECTOR)
    other.receive_nothing_until(REFUSED)
    assert client.endpoint.rejected == {}


def connect_and_send(client, data: bytes) -> None:
    with socket.create_connection(client.place) as unknown:
        unknown.sendall(data)
        unknown.settimeout(2)
        with suppress(OSError):
            while unknown.recv(1000):
                pass


@pytest.mark.parametrize(
    "keys", [None, (4, 1), (0, 2), (0, 1)], ids=["no key", "another key", "a key for another client", "an earlier key"]
)
def test_one_with_a_neighbours_name_and_without_the_right_keys_is_refused_counted_and_survived(network, keys):
    client, other = network.linked(2, [(0, 1)], keys=True)
    own, expected = (network.pairs[place] for place in keys or (0, 0))
    other.endpoint.connections.learn({0: network.pairs[3].public})  # that of its next incarnation
    network.puppet(other, b"node-0000", keys=(own, expected.public) if keys else None)
    other.listen_until(lambda: other.endpoint.rejected)
    client.send(1, VECTOR)
    np.testing.assert_array_equal(other.receive().tensors[0], VECTOR)
    assert set(other.endpoint.rejected) == {REFUSED}


def test_a_neighbour_cannot_speak_as_another(network):
    other = network.client(2, neighbours=[0, 1])
    liar = network.puppet(other, b"node-0000", keys=(network.pairs[1], network.pairs[2].public))
    liar.send_multipart([network.header(src=0, dst=2)])
    with pytest.raises(NeighbourTimeout, match="no connection to client 0, 1"):
        other.connect(dict.fromkeys((0, 1), "never used"), 0.5)
    assert other.endpoint.rejected == {"another client's name": 1}


def test_a_neighbour_cannot_speak_as_another_that_has_been_there(network, monkeypatch):
    monkeypatch.setattr(endpoint, "_LOOK_EVERY_S", 100.0)
    client, [gone, _] = network.client_of_puppets(2, keys=True)
    client.endpoint.send([0], 1, 0, (VECTOR,))  # from now on it knows the headers of such messages
    gone.close()
    rejected, end = client.endpoint.rejected, time.monotonic() + 100
    while not rejected["another client's name"] and time.monotonic() < end:  # the one that is gone has the name yet
        liar = network.puppet(client, b"node-0000", keys=(network.pairs[1], network.pairs[2].public))
        liar.send_multipart([network.header(src=0, dst=2)])
        client.receive(0.2)
    liar.send_multipart([network.header(src=0, dst=2, round=1, shapes=[[0, len(VECTOR)]]), VECTOR.tobytes()])
    taken, forms = {}, {(0, 0, True): Format(None, VECTOR.dtype, len(VECTOR), 0).plain}
    intake = endpoint.Intake(forms, taken, taken.__setitem__, lambda message: None)
    while rejected["another client's name"] < 2 and not taken and time.monotonic() < end:
        client.endpoint.receive_soon({(0, 1, 0)}, [], intake)
    assert rejected["another client's name"] == 2
    assert not taken


def test_who_sits_at_a_neighbours_address_without_its_key_hears_nothing(network):
    client = network.client(0, neighbours=[1])
    with network.context.socket(zmq.ROUTER) as impostor:
        impostor.linger = 0
        own = network.pairs[4]
        impostor.curve_server = 1
        impostor.curve_publickey, impostor.curve_secretkey = own.public.encode(), own.secret.encode()
        port = impostor.bind_to_random_port("tcp://127.0.0.1")
        with pytest.raises(NeighbourTimeout):
            client.connect({1: f"tcp://127.0.0.1:{port}"}, 0.2)
        assert impostor.poll(0) == 0
    assert client.endpoint.rejected[REFUSED] > 0


class Wire(threading.Thread):
    """A TCP relay that writes down what goes from the one who connects to the other."""

    def __init__(self, place: tuple[str, int]):
        super().__init__(daemon=True)
        self.recorded = b""
        self._there, self._listener = socket.create_connection(place), socket.create_server(("127.0.0.1", 0))
        self.address = "tcp://{}:{}".format(*self._listener.getsockname())
        self.start()

    def run(self) -> None:
        here, there = self._listener.accept()[0], self._there
        with here, there, self._listener, suppress(OSError):
            while True:
                for source in select.select([here, there], [], [])[0]:
                    if not (data := source.recv(1 << 16)):
                        return
                    self.recorded += data if source is here else b""
                    (there if source is here else here).sendall(data)


@pytest.mark.parametrize("keys", [True, False])
def test_what_goes_over_the_wire_cannot_be_read_and_not_be_sent_again_with_keys(network, keys):
    client, other = (network.client(i, neighbours=[1 - i] if keys else None) for i in (0, 1))
    wire = Wire(other.place)
    network.meet(client, other, wire.address)
    secret = np.random.default_rng(5).standard_normal(100)
    client.send(1, secret)
    other.receive()
    assert (secret.tobytes() in wire.recorded) is not keys
    if keys:
        network.end(client)
        for _ in range(3):
            connect_and_send(other, wire.recorded)
        other.receive_nothing_until(REFUSED, 3)


def test_a_flood_of_unknown_peers_leaves_nothing_behind(network):
    kernel = KernelCounters()
    client, other = network.client(0, neighbours=[1]), network.client(1, neighbours=[0], kernel=kernel)
    network.meet(client, other)
    process, before = psutil.Process(), []
    for flood in range(3):
        for unknown in range(150):
            connect_and_send(other, os.urandom(100) if unknown % 2 else b"\xff" * 100)
            client.send(1, VECTOR, round=1 + unknown)
            assert other.receive().round == 1 + unknown
        other.receive_nothing_until(REFUSED, 150 * (flood + 1))
        before.append((process.num_fds(), process.memory_info().rss))
    assert before[-1][0] <= before[0][0] + 2
    assert before[-1][1] <= before[0][1] + (1 << 20)
    assert set(other.endpoint.rejected) == {REFUSED}
    if counts_bytes():
        assert len(kernel.read()) == 1  # those of unknown peers are not watched any more
    kernel.close()


def test_of_connections_under_way_those_that_did_not_succeed_are_taken_to_close():
    accepted, succeeded, closed = zmq.EVENT_ACCEPTED, zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED
    story = [
        *((accepted, 7, False), (accepted, 8, False), (succeeded, 0, False), (closed, 8, True)),  # 7 or 8 has succeeded
        *((accepted, 9, False), (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0, False), (closed, 9, True)),
        (closed, 7, False),  # it had succeeded
    ]
    with zmq.Context() as context:
        authenticator = ZapHandler(context, {})
        for kind, value, refused in story:
            assert authenticator.refused(kind, value) is refused, (kind, value)
        authenticator.close()


@needs_kernel_counts
@pytest.mark.parametrize("reset", [False, True])
def test_the_end_or_a_reset_by_the_other_side_changes_no_count_of_the_kernels(reset):
    counters = KernelCounters()
    with socket.create_server(("127.0.0.1", 0)) as server:
        one, (other, _) = socket.create_connection(server.getsockname()), server.accept()
    with one, other:
        counters.watch(one.fileno())
        other.sendall(b"y" * 7)
        assert len(one.recv(7, socket.MSG_WAITALL)) == 7
        if reset:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.close()
        with pytest.raises(ConnectionResetError) if reset else nullcontext():
            assert one.recv(1) == b""  # the end has come
    assert counters.read()[0][3] == 7  # the counters outlive the socket
    counters.close()
