"""Exchange rounds a second, against the same pattern over bare pyzmq.

Forty processes on an Erdős–Rényi graph (p = 0.15) send each neighbour one vector and wait for one from each, round
after round, without learning: once through this project's Peers, where every message has a header that is checked and
bytes that are counted, and once over bare ROUTER sockets that block. The two take turns.
"""

import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

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
CLIENTS, P, SECONDS = 40, 0.15, 4.0
Exchange = Callable[[], None]
Part = Callable[[int, Sequence[int], int, Path], Exchange]


def ours(node: int, neighbours: Sequence[int], numbers: int, folder: Path) -> Exchange:
    control, launcher = map(Control, socket.socketpair(), (FROM_LAUNCHER, TO_LAUNCHER))
    vector = np.ones(numbers, np.float32)
    endpoint = Endpoint(zmq.Context(), control, Options(node, 1, vector.nbytes))
    endpoint.connections.bind(f"ipc://{folder}/{node}")
    channels = Channels(node, {j: Channel((numbers,), (numbers,)) for j in neighbours}, vector.dtype)
    peers = Peers(Clock(endpoint, channels, timeout=60))
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


def rounds_a_second(part: Part, numbers: int, seed: int) -> float:
    """What all processes reach together, in the time between their common start and the last one's end."""
    graph = draw(TopologySpec(kind="erdos-renyi", p=P), CLIENTS, seed)
    neighbours = [graph.neighbours(node) for node in range(CLIENTS)]
    rounds = 50
    while True:  # as many rounds as take long enough
        with new_folder() as folder:
            elapsed = _timed(part, numbers, neighbours, folder, rounds)
        if elapsed >= SECONDS / 2:
            return rounds / elapsed
        rounds = int(rounds * min(20, 1.2 * SECONDS / elapsed))


def _timed(part: Part, numbers: int, neighbours: Sequence[Sequence[int]], folder: Path, rounds: int) -> float:
    start, end = (FORK.Barrier(CLIENTS + 1, timeout=60) for _ in range(2))

    def live(node: int) -> None:
        exchange = part(node, neighbours[node], numbers, folder)
        exchange()
        start.wait()
        for _ in range(rounds):
            exchange()
        end.wait()

    with together(live, CLIENTS):
        start.wait()
        started = time.perf_counter()
        end.wait()
        return time.perf_counter() - started


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


def main() -> None:
    arguments = options(__doc__, repeats=5).parse_args()
    rows = []
    for numbers in (500, 5000):
        mine, theirs = [], []
        for repeat in range(arguments.repeats):
            mine.append(rounds_a_second(ours, numbers, repeat))
            theirs.append(rounds_a_second(bare, numbers, repeat))
        shares = [100 * one / other for one, other in zip(mine, theirs, strict=True)]
        rows.append((f"{4 * numbers / 1000:g} kB", spread(mine), spread(theirs), spread(shares), 60))
    made_by = f"`make bench-exchange`: medians of {arguments.repeats} (smallest to largest), graphs of as many seeds"
    write("exchange", made_by, table("vector|rounds a second|bare pyzmq|% of bare|aim", rows))


if __name__ == "__main__":
    main()
