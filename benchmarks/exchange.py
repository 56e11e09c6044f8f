"""Exchange rounds a second, against the same pattern over bare pyzmq.

Forty processes on an Erdős–Rényi graph (p = 0.15) send each neighbour one vector and wait for one from each, round
after round, without learning: through this project's Peers, where every message has a header that is checked and bytes
that are counted, and over bare ROUTER sockets that block. The two take turns within the same processes. What a message
takes of its client's thread and of ZeroMQ's is counted meanwhile; then, of a client alone, layer by layer.
"""

import multiprocessing
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import numpy as np
import zmq
from common import new_folder, options, spread, table, write

from sheafgossip.topology.generators import TopologySpec, draw
from sheafgossip.transport.channel import Channel, Channels
from sheafgossip.transport.clock import Clock
from sheafgossip.transport.connections import Options
from sheafgossip.transport.control import FROM_LAUNCHER, TO_LAUNCHER, Control, Place
from sheafgossip.transport.endpoint import Endpoint
from sheafgossip.transport.peers import Peers

FORK = multiprocessing.get_context("fork")
CLIENTS, P, TURNS, ROUNDS_A_TURN = 40, 0.15, 8, 60
ROUNDS = 500  # of each layer
CROWD = """Where the time goes meanwhile: microseconds of CPU for a message sent and one received, and how often in a
round a client's thread sleeps. What a client's thread takes longer than bare pyzmq's is Python."""
PROFILE = """Microseconds of the thread of a client with six neighbours, after a rest. What a run pays beyond
`send_multipart` and `recv_multipart` is to parse and check a header, to view and count a vector, to find out that it is
the one that is waited for."""
Exchange = Callable[[], None]
Part = Callable[[int, Sequence[int], int, Path], Exchange]


def client(node: int, neighbours: Sequence[int], numbers: int, folder: Path) -> tuple[Peers, Control]:
    """A client that is bound, and the launcher's end of its control."""
    control, launcher = map(Control, socket.socketpair(), (FROM_LAUNCHER, TO_LAUNCHER))
    endpoint = Endpoint(zmq.Context(), control, Options(node, 1, 4 * numbers))
    endpoint.connections.bind(f"ipc://{folder}/{node}")
    channels = Channels(node, {j: Channel((numbers,), (numbers,)) for j in neighbours}, np.float32)
    return Peers(Clock(endpoint, channels, timeout=60)), launcher


def ours(node: int, neighbours: Sequence[int], numbers: int, folder: Path) -> Exchange:
    peers, launcher = client(node, neighbours, numbers, folder)
    endpoint, vector = peers.clock.endpoint, np.ones(numbers, np.float32)
    time.sleep(0.5)
    endpoint.connect([Place(j, f"ipc://{folder}/{j}", 1, "") for j in neighbours], time.monotonic() + 60)
    peers.clock.begin(1)

    def exchange() -> None:
        peers.exchange(dict.fromkeys(neighbours, vector))
        peers.next_round()

    exchange.keep = launcher, endpoint  # type: ignore[attr-defined]
    return exchange


def bare(node: int, neighbours: Sequence[int], numbers: int, folder: Path) -> Exchange:
    router = zmq.Context().socket(zmq.ROUTER)
    router.identity = b"node-%04d" % node
    router.router_mandatory = True
    router.bind(f"ipc://{folder}/{node}")
    time.sleep(0.5)
    for j in neighbours:
        if node < j:
            router.setsockopt(zmq.CONNECT_ROUTING_ID, b"node-%04d" % j)
            router.connect(f"ipc://{folder}/{j}")
    routes = [b"node-%04d" % j for j in neighbours]
    payload = bytes(4 * numbers)
    kept: dict[tuple[bytes, int], bytes] = {}
    at = 0

    def exchange() -> None:
        nonlocal at
        for route in routes:
            while True:
                try:
                    router.send_multipart([route, b"%020d" % at, payload])
                    break
                except zmq.ZMQError:  # before the first round: it has not connected yet
                    time.sleep(0.01)
        wanted = {(route, at) for route in routes}
        while wanted - kept.keys():
            route, header, data = router.recv_multipart()
            kept[route, int(header)] = data
        for key in wanted:
            del kept[key]
        at += 1

    return exchange


class Reached(NamedTuple):
    """By all processes together, in the time between their common start and the last one's end."""

    rounds_a_second: float
    thread_us: float  # of a client's thread, for a message each way
    io_us: float  # of ZeroMQ's
    sleeps: float  # a round


def reached(parts: Sequence[Part], numbers: int, seed: int) -> list[Reached]:
    """What each of these ways comes to, which take turns in the same processes."""
    graph = draw(TopologySpec(kind="erdos-renyi", p=P), CLIENTS, seed)
    neighbours = [graph.neighbours(node) for node in range(CLIENTS)]
    gate, told = FORK.Barrier(CLIENTS + 1, timeout=60), FORK.SimpleQueue()

    def live(node: int) -> None:
        exchanges = [part(node, neighbours[node], numbers, folder / part.__name__) for part in parts]
        spent = np.zeros((len(parts), 3))
        for _ in range(TURNS):
            for place, exchange in enumerate(exchanges):
                exchange()
                gate.wait()
                before = so_far()
                for _ in range(ROUNDS_A_TURN):
                    exchange()
                spent[place] += so_far() - before
                gate.wait()
        told.put(spent)

    elapsed = np.zeros(len(parts))
    with new_folder() as folder:
        for part in parts:
            (folder / part.__name__).mkdir()
        with together(live, CLIENTS):
            for _ in range(TURNS):
                for place in range(len(parts)):
                    gate.wait()
                    started = time.perf_counter()
                    gate.wait()
                    elapsed[place] += time.perf_counter() - started
            spent = sum(told.get() for _ in range(CLIENTS))
    rounds, us = TURNS * ROUNDS_A_TURN, 1e6 / TURNS / ROUNDS_A_TURN / sum(map(len, neighbours))
    return [
        Reached(rounds / elapsed[place], us * thread_s, us * (process_s - thread_s), sleeps / rounds / CLIENTS)
        for place, (thread_s, process_s, sleeps) in enumerate(spent)
    ]


def so_far() -> np.ndarray:
    """CPU seconds of this thread, and of this process, and how often the thread has slept."""
    return np.array([time.thread_time(), time.process_time(), resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw])


@contextmanager
def together(live: Callable[[int], None], clients: int) -> Iterator[None]:
    """One process a client that calls ``live`` with its number; they have ended afterwards."""

    def begin(node: int) -> None:
        live(node)
        time.sleep(1)  # the last messages leave
        os._exit(0)

    processes = [FORK.Process(target=begin, args=(node,)) for node in range(clients)]
    for process in processes:
        process.start()
    yield
    for process in processes:
        process.join()


def _send_bare(peers: Peers, to: Sequence[int], round: int, vector: np.ndarray) -> None:
    end, payload = peers.clock.endpoint, vector.tobytes()
    for node in to:
        end.connections.router.send_multipart([end.route_to[node], b"%020d" % round, payload])


def _receive_bare(peers: Peers, senders: Sequence[int]) -> None:
    router, left = peers.clock.endpoint.connections.router, len(senders)
    while left:
        with suppress(zmq.Again):
            router.recv_multipart()
            left -= 1


def _receive_checked(peers: Peers, senders: Sequence[int]) -> None:
    left = len(senders)
    while left:
        left -= peers.clock.endpoint.receive(time.monotonic() + 60) is not None


LAYERS = (
    (_send_bare, _receive_bare),
    (lambda peers, to, round, vector: peers.clock.endpoint.send(to, round, 0, (vector,)), _receive_checked),
    (lambda peers, to, round, vector: peers.send(dict.fromkeys(to, vector)), Peers.receive),
)


def layers(numbers: int) -> list[list[float]]:
    """Microseconds that the thread of a client with six neighbours takes for a message that it sends, and for one that
    it receives: in pyzmq's own calls; with headers, counting and checks; and with all else that an exchange does."""
    vector, others, took = np.ones(numbers, np.float32), range(1, 7), [[0.0] * 3, [0.0] * 3]

    def timed(end: int, layer: int, call: Callable[[], object]) -> None:
        start = time.thread_time_ns()
        call()
        took[end][layer] += (time.thread_time_ns() - start) / 1000 / ROUNDS / len(others)

    with new_folder() as folder:
        made = [client(0, others, numbers, folder), *(client(node, [0], numbers, folder) for node in others)]
        clients = [peers for peers, _ in made]
        ends, until = [peers.clock.endpoint for peers in clients], time.monotonic() + 60
        places = [Place(node, f"ipc://{folder}/{node}", 1, "") for node in range(7)]
        answering = [Thread(target=end.connect, args=(places[:1], until)) for end in ends[1:]]
        for thread in answering:
            thread.start()
        ends[0].connect(places[1:], until)
        for thread in answering:
            thread.join()
        for peers in clients:
            peers.clock.begin(1)
        for round in range(1, ROUNDS + 1):
            for layer, (send, receive) in enumerate(LAYERS):
                for peers in clients[1:]:
                    send(peers, [0], round, vector)
                timed(0, layer, lambda send=send, round=round: send(clients[0], others, round, vector))
                time.sleep(0.002)  # all have come
                timed(1, layer, lambda receive=receive: receive(clients[0], others))
                for peers in clients[1:]:
                    receive(peers, [0])
            for peers in clients:
                peers.next_round()
        for end in ends:
            end.close()  # else a context may be collected before its sockets, and waits for them for ever
    return took


def main() -> None:
    arguments = options(__doc__, repeats=7).parse_args()
    rows, crowd = [], []
    for numbers, aim in ((500, 75), (5000, 88)):
        mine, theirs = list[Reached](), list[Reached]()
        for repeat in range(arguments.repeats):
            one, other = reached((ours, bare), numbers, repeat)
            mine.append(one)
            theirs.append(other)
        rates = [[each.rounds_a_second for each in found] for found in (mine, theirs)]
        shares = [100 * one / other for one, other in zip(*rates, strict=True)]
        rows.append((f"{4 * numbers / 1000:g} kB", *map(spread, rates), spread(shares), aim))
        for name, found in (("", mine), (", bare pyzmq", theirs)):
            each = [spread([one[place] for one in found]) for place in (1, 2, 3)]
            crowd.append((f"{4 * numbers / 1000:g} kB{name}", *each))
    made_by = f"`make bench-exchange`: medians of {arguments.repeats} (smallest to largest), graphs of as many seeds"
    parts = []
    for numbers in (500, 5000):
        found = [layers(numbers) for _ in range(arguments.repeats)]
        for end, what in enumerate(("sent", "received")):
            each = [spread([one[end][layer] for one in found]) for layer in range(3)]
            parts.append((f"{4 * numbers / 1000:g} kB, {what}", *each))
    tables = [
        table("vector|rounds a second|bare pyzmq|% of bare|aim", rows),
        CROWD,
        table("vector|client's thread, µs|ZeroMQ's thread, µs|sleeps a round", crowd),
        PROFILE,
        table("a message of|pyzmq's calls, µs|with header, counting, checks|all of an exchange", parts),
    ]
    write("exchange", made_by, "\n\n".join(tables))


if __name__ == "__main__":
    main()
