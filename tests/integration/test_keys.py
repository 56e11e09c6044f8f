"""A run over tcp whose every socket asks for keys: it does what it does without them, whoever knocks meanwhile."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgpack
import numpy as np
import pytest
import zmq
from safetensors.numpy import load_file

from sheafgossip.launcher.config import validate
from sheafgossip.launcher.forkserver import ForkServer
from sheafgossip.launcher.preparation import Prepared, prepare_run
from sheafgossip.launcher.run import Run
from sheafgossip.launcher.session import _prepare
from sheafgossip.metrics.records import COLLECTOR, EventRecord, pack_batch, pack_end
from sheafgossip.transport.keys import KeyPair, dial_with

ROUNDS = 40


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


@dataclass
class Over:
    """A run that has ended, and its secrets."""

    prepared: Prepared

    def rows(self, query: str) -> list[tuple]:
        with contextlib.closing(sqlite3.connect(self.prepared.folder / "run.sqlite", timeout=10)) as records:
            return records.execute(query).fetchall()

    def thetas(self) -> list[np.ndarray]:
        files = sorted((self.prepared.folder / "state" / f"round-{ROUNDS:06d}").glob("node-*.safetensors"))
        return [load_file(file)["theta"] for file in files]

    @property
    def secrets(self) -> list[str]:
        own = [each.keys.secret for each in self.prepared.assignments if each.keys]
        keys = self.prepared.record_keys
        return own + ([keys.collector.secret, keys.launcher.secret] if keys else [])


@pytest.fixture
def run(server, tmp_path) -> Callable[..., Over]:
    count = 0

    def run(records: str = "tcp://127.0.0.1:*", attack: type[Attack] | None = None, **transport) -> Over:
        nonlocal count
        count += 1
        config = validate(
            {
                "clients": 5,
                "rounds": ROUNDS,
                "data": {"samples": 100},
                "topology": {"kind": "ring"},
                "algorithm": {"name": "d-psgd"},
                "training": {"work": "steps", "steps": 5},
                "transport": {"protocol": "tcp", "timeout": 30.0} | transport,
                "evaluation": {"every": 0},
            }
        )
        sockets = server.sockets / f"{tmp_path.name[-20:]}-{count}"
        sockets.mkdir(mode=0o700)
        address = records or f"ipc://{sockets}/records"
        prepared = prepare_run(config, tmp_path / f"run-{count}", sockets=sockets, records=address)
        started = Run(prepared, server, lambda: None)
        with attack(prepared, started._clients.addresses) if attack else contextlib.nullcontext():
            outcome = started()
        assert outcome.status == "finish", outcome
        return Over(prepared)

    return run


class Attack:
    """Strangers at all ports of a run, from its start to its end.

    They know everything but secret keys: addresses, names, public keys, the run's number, and what legal messages look
    like. Each connection is tried again as soon as it has been refused.
    """

    def __init__(self, prepared: Prepared, addresses: Mapping[int, str]):
        self._prepared = prepared
        self._addresses = addresses
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go)

    def __enter__(self) -> Attack:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _go(self) -> None:
        met: set[int] = set()
        with zmq.Context() as context:
            sockets: list[zmq.Socket] = []
            self._at_the_collector(context, sockets)
            while not self._over.wait(0.002):
                for node, address in tuple(self._addresses.items()):
                    if node not in met:
                        met.add(node)
                        self._at_a_client(context, sockets, node, address)
                    with contextlib.suppress(OSError), dial(address) as stranger:
                        stranger.sendall(os.urandom(300))
            for stranger in sockets:
                stranger.close()

    def _at_a_client(self, context: zmq.Context, sockets: list[zmq.Socket], node: int, address: str) -> None:
        assignment = self._prepared.assignments[node]
        poison = np.full(650, 1e6, np.float32).tobytes()
        for peer in assignment.neighbours:
            for keys in (None, (KeyPair.make(), assignment.keys.public), (KeyPair.make(), KeyPair.make().public)):
                stranger = self._stranger(context, zmq.DEALER, address, keys, b"node-%04d" % peer.node)
                sockets.append(stranger)
                for round in range(1, ROUNDS + 1):
                    header = [1, assignment.run, peer.node, node, round, 0, [[0, 650]]]
                    stranger.send_multipart([msgpack.packb(header), poison])

    def _at_the_collector(self, context: zmq.Context, sockets: list[zmq.Socket]) -> None:
        door = self._prepared.record_keys.collector.public
        for keys in (None, (KeyPair.make(), door), (KeyPair.make(), KeyPair.make().public)):
            stranger = self._stranger(context, zmq.PUSH, self._prepared.assignments[0].records, keys)
            sockets.append(stranger)
            stranger.send(pack_batch(0, 0, [EventRecord(0.0, None, 0, "forged", "")]))
            stranger.send(pack_end({}))

    @staticmethod
    def _stranger(context, kind: int, address: str, keys: tuple | None, name: bytes = b"stranger") -> zmq.Socket:
        stranger = context.socket(kind)
        stranger.linger, stranger.reconnect_ivl, stranger.identity = 0, 2, name
        if keys:
            dial_with(stranger, *keys)
        stranger.connect(address)
        return stranger


def dial(address: str) -> socket.socket:
    host, port = address.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), timeout=1)


def same_bits(one: Over, other: Over) -> bool:
    pairs = list(zip(one.thetas(), other.thetas(), strict=True))
    return len(pairs) == 5 and all(np.array_equal(a, b) for a, b in pairs)


def test_records_go_over_tcp_to_a_port_that_the_collector_picks(run):
    keyed, plain, unix = run(), run(keys=False), run(records="")
    assert keyed.prepared.record_keys is not None
    assert plain.prepared.record_keys is None
    for one in (keyed, plain, unix):
        assert one.rows("SELECT count(*) FROM round") == [(5 * (ROUNDS + 1),)]
        assert one.rows("SELECT count(*) FROM event WHERE kind IN ('drop', 'lost-records')") == [(0,)]
    [(address,)] = keyed.rows("SELECT address FROM node WHERE role = 'collector'")
    assert address.startswith("tcp://127.0.0.1:")
    assert same_bits(keyed, plain)
    assert same_bits(keyed, unix)


def test_strangers_at_every_port_change_nothing_in_a_run_and_are_told(run):
    quiet = run()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        records = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    attacked = run(records=records, attack=Attack)
    assert same_bits(attacked, quiet)
    for query in (
        "SELECT src, dst, round, messages, payload_bytes, message_bytes FROM traffic ORDER BY 1, 2, 3",
        "SELECT node, round, theta_norm, train_loss FROM round ORDER BY 1, 2",
        "SELECT count(*) FROM event WHERE kind IN ('forged', 'lost-records', 'failure')",
    ):
        assert attacked.rows(query) == quiet.rows(query)
    told = attacked.rows("SELECT node, detail FROM event WHERE kind = 'drop'")
    assert {node for node, _ in told} == {COLLECTOR, *range(5)}
    assert {detail.split(maxsplit=1)[1] for node, detail in told if node >= 0} == {"x connection without the right key"}


def test_no_secret_key_is_in_any_file_of_the_run(run):
    over = run()
    assert len(set(over.secrets)) == 5 + 2
    files = [path for path in over.prepared.folder.rglob("*") if path.is_file()]
    assert {"run.sqlite", "config.toml", "collector.log", "node-0000.log"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        assert not [secret for secret in over.secrets if secret.encode() in content], path
    assert not [secret for secret in over.secrets if secret in repr(over.prepared)]


def test_unix_sockets_lie_where_only_their_user_can_open_them(server, tmp_path):
    assert stat.S_IMODE(server.sockets.stat().st_mode) == 0o700
    config = validate({"clients": 5, "rounds": 1, "data": {"samples": 100}, "topology": {"kind": "ring"}})
    prepared = _prepare(config, tmp_path / "run", server, server.time_a_step, number=99)
    for address in (prepared.assignments[0].address, prepared.assignments[0].records):
        folder = Path(address.removeprefix("ipc://")).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert folder.parent == server.sockets
    assert all(each.keys is None for each in prepared.assignments)
