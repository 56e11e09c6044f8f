"""Real endpoints on TCP loopback, and puppets: bare ZeroMQ sockets that say whatever a test wants said."""

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count

import msgpack
import numpy as np
import pytest
import zmq

from sheafgossip.transport.channel import Channel, Channels
from sheafgossip.transport.clock import Clock
from sheafgossip.transport.connections import Options
from sheafgossip.transport.control import FROM_LAUNCHER, TO_LAUNCHER, Control, Place
from sheafgossip.transport.endpoint import Endpoint, Traffic
from sheafgossip.transport.keys import KeyPair, Ring, dial_with
from sheafgossip.transport.messages import Message
from sheafgossip.transport.peers import Peers

LONGEST_WAIT_S = 100.0  # after which a test gives up on something that takes milliseconds


@dataclass
class Client:
    """An endpoint, where it is bound, its control line, and the launcher's end of that."""

    endpoint: Endpoint
    address: str
    control: Control
    launcher: Control
    context: zmq.Context | None = None  # its own, where it has keys

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self.address.removeprefix("tcp://").split(":")
        return host, int(port)

    def peers(self, channels: Mapping[int, Channel], *, round: int = 1, timeout: float = 10, ahead: int = 1) -> Peers:
        """Its neighbours in a run without a scenario."""
        peers = Peers(Clock(self.endpoint, Channels(self.endpoint.node, channels, "f4"), timeout, ahead=ahead))
        peers.clock.begin(round)
        return peers

    def send(self, to: int, vector: np.ndarray, round: int = 1) -> Traffic:
        return self.endpoint.send([to], round=round, phase=0, tensors=(vector,))[to]

    def receive(self, seconds: float = LONGEST_WAIT_S) -> Message | None:
        """The next legal message, if one comes so soon."""
        end, message = time.monotonic() + seconds, None
        while message is None and time.monotonic() < end:
            message = self.endpoint.receive(end)
        return message

    def connect(self, addresses: Mapping[int, str], seconds: float = LONGEST_WAIT_S) -> dict[int, int]:
        """Returns {neighbour: wire bytes of the hello sent}."""
        places = [Place(node, address, 1, "") for node, address in addresses.items()]
        return dict(self.endpoint.connect(places, time.monotonic() + seconds))

    def listen_until(self, happened: Callable[[], object]) -> None:
        """Lets the endpoint take in what comes, none of which is a message."""
        end = time.monotonic() + LONGEST_WAIT_S
        while not happened() and time.monotonic() < end:
            assert self.endpoint.receive(time.monotonic() + 0.02) is None

    def receive_nothing_until(self, reason: str, times: int = 1) -> None:
        """Lets the endpoint take in what comes until it has dropped something for this reason so often."""
        self.listen_until(lambda: self.endpoint.rejected[reason] >= times)
        assert self.endpoint.rejected[reason] == times


class Network:
    """Makes clients and puppets, and closes them all."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.clients: list[Client] = []
        self.puppets: list[zmq.Socket] = []  # one that nobody holds is closed
        self._unnamed = count()
        self.pairs = [KeyPair.make() for _ in range(5)]  # those of clients 0 to 3, and an unknown peer's

    def client(
        self,
        node: int,
        max_frame: int = 1_000_000,
        *,
        neighbours: Iterable[int] | None = None,
        more=False,
        kernel=None,
        late=False,
    ) -> Client:
        """With keys where its ``neighbours`` are told; ``more``: others may come whose keys it is not told yet;
        ``late``: it opens connections when they are needed."""
        launcher, control = map(Control, socket.socketpair(), (TO_LAUNCHER, FROM_LAUNCHER))
        context = keys = None
        if neighbours is not None:
            context, keys = zmq.Context(), Ring(self.pairs[node], {j: self.pairs[j].public for j in neighbours}, more)
        options = Options(node, 77, max_frame, keys=keys, kernel=kernel, opens_late=late)
        endpoint = Endpoint(context or self.context, control, options)
        client = Client(endpoint, endpoint.connections.bind("tcp://127.0.0.1:*"), control, launcher, context)
        self.clients.append(client)
        return client

    def linked(
        self, nodes: int, edges: Iterable[tuple[int, int]], max_frame: int = 1_000_000, *, keys: bool = False
    ) -> list[Client]:
        """Clients 0, 1, ... that have met their neighbours."""
        neighbours = [[j for j in range(nodes) if {(i, j), (j, i)} & {*edges}] for i in range(nodes)]
        clients = [self.client(i, max_frame, neighbours=neighbours[i] if keys else None) for i in range(nodes)]
        addresses = [{j: clients[j].address for j in each} for each in neighbours]
        self.in_parallel(*(partial(client.connect, known) for client, known in zip(clients, addresses, strict=True)))
        return clients

    def meet(self, client: Client, other: Client, address: str | None = None) -> list[dict[int, int]]:
        """Connects two clients, each to the other's address, or the first to this one."""
        return self.in_parallel(
            lambda: client.connect({other.endpoint.node: address or other.address}),
            lambda: other.connect({client.endpoint.node: client.address}),
        )

    def puppet(
        self, client: Client, identity: bytes | None = None, *, keys: tuple[KeyPair, str] | None = None
    ) -> zmq.Socket:
        """``keys``: the puppet's own, and the public one that it expects the client to have."""
        puppet = self.context.socket(zmq.DEALER)
        if keys is not None:
            dial_with(puppet, *keys)
        puppet.identity = identity or b"unknown-%d" % next(self._unnamed)
        puppet.linger = 0
        puppet.rcvtimeo = int(LONGEST_WAIT_S * 1000)
        puppet.connect(client.address)
        self.puppets.append(puppet)
        return puppet

    def client_of_puppets(
        self, node: int, *, max_frame: int = 1_000_000, keys: bool = False
    ) -> tuple[Client, list[zmq.Socket]]:
        """Client ``node``, and a puppet in the place of each client of a lower number, all of them its neighbours."""
        client = self.client(node, max_frame, neighbours=range(node) if keys else None)
        puppets = []
        for i in range(node):
            pair = (self.pairs[i], self.pairs[node].public) if keys else None
            puppets.append(self.puppet(client, b"node-%04d" % i, keys=pair))
            puppets[-1].send(self.header(src=i, dst=node))
        client.connect(dict.fromkeys(range(node), "never used"))
        for puppet in puppets:
            puppet.recv_multipart()  # the answer to its hello
        return client, puppets

    @staticmethod
    def header(*, src: int, dst: int, round: int = 0, phase: int = 0, shapes=(), run: int = 77) -> bytes:
        """Written by hand: version, run, source, destination, round, phase, the code and lengths of each tensor."""
        return msgpack.packb([1, run, src, dst, round, phase, list(shapes)])

    @staticmethod
    def in_parallel(*calls: Callable) -> list:
        """Runs blocking calls side by side, a thread each; returns what they return, raises what they raise."""
        with ThreadPoolExecutor(len(calls)) as threads:
            return [future.result() for future in [threads.submit(call) for call in calls]]

    def end(self, client: Client) -> None:
        self.clients.remove(client)
        client.endpoint.close()
        client.launcher.close()
        client.control.close()
        if client.context is not None:
            client.context.term()

    def close(self) -> None:
        for client in tuple(self.clients):
            self.end(client)
        self.context.destroy(linger=0)


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()
