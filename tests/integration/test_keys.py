"""A run over tcp whose every socket asks for keys: it does what it does without them, whoever knocks meanwhile."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import socket
import sqlite3
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgpack
import numpy as np
import psutil
import pytest
import zmq
from safetensors.numpy import load_file
from zmq.utils import z85

from sheafgossip.launcher.config.sections import ConfigError, validate
from sheafgossip.launcher.prepare.assignments import Site
from sheafgossip.launcher.prepare.preparation import prepare_run
from sheafgossip.launcher.prepare.prepared import Prepared
from sheafgossip.launcher.processes.engines import LocalEngine
from sheafgossip.launcher.run.run import Run
from sheafgossip.launcher.studies.runner import prepare
from sheafgossip.metrics.records import COLLECTOR, EventRecord, pack_batch, pack_end
from sheafgossip.transport.keys import KeyPair, dial_with

ROUNDS = 300
HOLDS = "; ".join(f"state renamed@node-0000:{time}=delay 1" for time in range(3, 7))
"""A run that is attacked lasts longer than it takes strangers to come: client 0 dwells on its checkpoints."""


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHEAFGOSSIP_FAILPOINTS", HOLDS)
        with LocalEngine() as engine:
            yield engine


@dataclass
class Over:
    """A run that has ended."""

    prepared: Prepared

    def rows(self, query: str) -> list[tuple]:
        with contextlib.closing(sqlite3.connect(self.prepared.folder / "run.sqlite", timeout=10)) as records:
            return records.execute(query).fetchall()

    def thetas(self) -> list[np.ndarray]:
        files = sorted((self.prepared.folder / "state" / f"round-{ROUNDS:06d}").glob("node-*.safetensors"))
        return [load_file(file)["theta"] for file in files]


def carry_out(
    engine: LocalEngine,
    folder: Path,
    records: str = "tcp://127.0.0.1:*",
    attack: Callable[[Run], contextlib.AbstractContextManager] | None = None,
    **transport,
) -> Over:
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
            "checkpoints": {"every": ROUNDS // 6 if attack else 0},
        }
    )
    sockets = engine.sockets / f"{len(list(engine.sockets.iterdir()))}"
    sockets.mkdir(mode=0o700)
    prepared = prepare_run(config, folder, Site(sockets, records or f"ipc://{sockets}/records"))
    started = Run(prepared, engine, lambda *_: None)
    with attack(started) if attack else contextlib.nullcontext():
        outcome = started()
    assert outcome.status == "finish", outcome
    return Over(prepared)


@pytest.fixture
def run(engine, tmp_path) -> Callable[..., Over]:
    def run(records: str = "tcp://127.0.0.1:*", **options) -> Over:
        return carry_out(engine, tmp_path / f"run-{len(list(tmp_path.iterdir()))}", records, **options)

    return run


class Attack:
    """Strangers at all ports of a run, from its start to its end.

    They know everything but secret keys: addresses, names, public keys, the run's number, and what legal messages look
    like. Each connection is tried again as soon as it has been refused.
    """

    def __init__(self, run: Run, namespace: str = ""):
        self._run = run
        self._addresses, self._keys = run.clients.addresses, run.clients.keys
        self._namespace = namespace
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
        if self._namespace:
            enter(f"/run/netns/{self._namespace}")  # this thread, and those of the context
        with zmq.Context() as context:
            sockets: list[zmq.Socket] = []
            while not self._over.wait(0.002):
                if not sockets and self._addresses:
                    self._at_the_collector(context, sockets)
                for node, address in tuple(self._addresses.items()):
                    if node not in met:
                        met.add(node)
                        self._at_a_client(context, sockets, node, address)
                    with contextlib.suppress(OSError), dial(address) as stranger:
                        stranger.sendall(os.urandom(300))
            for stranger in sockets:
                stranger.close()

    def _at_a_client(self, context: zmq.Context, sockets: list[zmq.Socket], node: int, address: str) -> None:
        assignment, key = self._run.prepared.assignments[node], self._keys[node]
        poison = np.full(650, 1e6, np.float32).tobytes()
        for peer in assignment.neighbours:
            for keys in (None, (KeyPair.make(), key), (KeyPair.make(), KeyPair.make().public)):
                stranger = self._stranger(context, zmq.DEALER, address, keys, b"node-%04d" % peer.node)
                sockets.append(stranger)
                with contextlib.suppress(zmq.Again):  # one that has been refused may have no way to send any more
                    for round in range(1, ROUNDS + 1):
                        header = [1, assignment.run.number, peer.node, node, round, 0, [[0, 650]]]
                        stranger.send_multipart([msgpack.packb(header), poison])

    def _at_the_collector(self, context: zmq.Context, sockets: list[zmq.Socket]) -> None:
        collector = self._run.prepared.assignments[0]
        door = collector.deployment.records_key
        for keys in (None, (KeyPair.make(), door), (KeyPair.make(), KeyPair.make().public)):
            stranger = self._stranger(context, zmq.PUSH, collector.deployment.records, keys)
            sockets.append(stranger)
            with contextlib.suppress(zmq.Again):
                stranger.send(pack_batch(0, 0, [EventRecord(0.0, None, 0, "forged", "")]))
                stranger.send(pack_end({}))

    @staticmethod
    def _stranger(context, kind: int, address: str, keys: tuple | None, name: bytes = b"stranger") -> zmq.Socket:
        stranger = context.socket(kind)
        stranger.linger, stranger.reconnect_ivl, stranger.identity = 0, 2, name
        stranger.sndtimeo = 5  # ms: all ports are to be tried before the run is over
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
    assert keyed.prepared.keyed_records
    assert not plain.prepared.keyed_records
    for one in (keyed, plain, unix):
        assert one.rows("SELECT count(*) FROM round") == [(5 * (ROUNDS + 1),)]
        assert one.rows("SELECT count(*) FROM event WHERE kind IN ('drop', 'lost-records')") == [(0,)]
    [(address,)] = keyed.rows("SELECT address FROM node WHERE role = 'collector'")
    assert address.startswith("tcp://127.0.0.1:")
    assert same_bits(keyed, plain)
    assert same_bits(keyed, unix)


class Frozen:
    """A collector that neither reads nor answers, from when clients are there until they have learnt to the end."""

    def __init__(self, run: Run):
        self._addresses = run.clients.addresses
        self._last = run.prepared.folder / "state" / f"round-{ROUNDS:06d}"
        self._thread = threading.Thread(target=self._go)
        self.learnt = 0

    def __enter__(self) -> Frozen:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _go(self) -> None:
        deadline = time.monotonic() + 30
        while len(self._addresses) < 5 and time.monotonic() < deadline:
            time.sleep(0.002)
        [collector] = [
            child for child in psutil.Process().children() if "sheafgossip.metrics.collector" in child.cmdline()
        ]
        collector.suspend()
        try:
            while self.learnt < 5 and time.monotonic() < deadline:
                time.sleep(0.05)
                self.learnt = len(list(self._last.glob("*.safetensors")))
        finally:
            collector.resume()


def test_a_collector_that_stands_still_holds_up_no_one_and_gets_everything_later(run):
    frozen: list[Frozen] = []

    def freeze(run: Run) -> Frozen:
        frozen.append(Frozen(run))
        return frozen[0]

    over = run(attack=freeze)
    assert frozen[0].learnt == 5
    assert over.rows("SELECT count(*) FROM round") == [(5 * (ROUNDS + 1),)]
    assert over.rows("SELECT count(*) FROM event WHERE kind = 'lost-records'") == [(0,)]


def changes_nothing_and_is_told(attacked: Over, quiet: Over) -> None:
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


def test_strangers_at_every_port_change_nothing_in_a_run_and_are_told(run):
    changes_nothing_and_is_told(run(attack=Attack), run())


HERE, THERE = "10.77.13.1", "10.77.13.2"


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces and a cable between them: HERE and THERE."""
    names = tuple(f"sheafgossip-{os.getpid()}-{end}" for end in "ab")
    commands = [f"ip netns add {name}" for name in names]
    commands += [f"ip link add veth0 netns {names[0]} type veth peer name veth0 netns {names[1]}"]
    for name, address in zip(names, (HERE, THERE), strict=True):
        commands += [f"ip -n {name} address add {address}/24 dev veth0"]
        commands += [f"ip -n {name} link set {device} up" for device in ("lo", "veth0")]
    with network(names, commands):
        yield names


@contextlib.contextmanager
def network(names: Iterable[str], commands: Iterable[str]) -> Iterator[None]:
    """Network namespaces of these names that the commands make and wire up; skips where that is not permitted."""
    try:
        for command in commands:
            try:
                done = subprocess.run(command.split(), capture_output=True, text=True)
            except OSError as error:
                pytest.skip(f"no ip command here: {error}")
            if done.returncode:
                pytest.skip(f"no network namespaces here: {command}: {done.stderr.strip()}")
        yield
    finally:
        for name in names:
            with contextlib.suppress(OSError):
                subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def enter(path: str) -> None:
    """Takes this thread, and what it starts, into a network namespace."""
    with Path(path).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), path)


@contextlib.contextmanager
def within(namespace: str) -> Iterator[None]:
    with Path("/proc/thread-self/ns/net").open() as before:
        enter(f"/run/netns/{namespace}")
        try:
            yield
        finally:
            ctypes.CDLL(None).setns(before.fileno(), 0)


def test_strangers_on_another_machine_change_nothing_in_a_run_and_are_told(namespaces, tmp_path, monkeypatch):
    """Which is a network namespace of its own, with a cable to that of the run."""
    here, there = namespaces
    monkeypatch.setenv("SHEAFGOSSIP_FAILPOINTS", HOLDS)
    with within(here), LocalEngine() as engine:
        quiet = carry_out(engine, tmp_path / "quiet", f"tcp://{HERE}:*", host=HERE)
        attack = functools.partial(Attack, namespace=there)
        attacked = carry_out(engine, tmp_path / "attacked", f"tcp://{HERE}:*", attack, host=HERE)
    addresses = attacked.rows("SELECT address FROM node WHERE role IN ('client', 'collector')")
    assert len(addresses) == 6
    assert all(address.startswith(f"tcp://{HERE}:") for (address,) in addresses)
    changes_nothing_and_is_told(attacked, quiet)


class Memories:
    """The secrets in the memory of processes of a run, which stands still meanwhile: of the collector, the fork server
    and two clients, once all are there."""

    def __init__(self, run: Run):
        self._addresses = run.clients.addresses
        self._thread = threading.Thread(target=self._go)
        self.of: dict[int, set[bytes]] = {}

    def __enter__(self) -> Memories:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _go(self) -> None:
        end = time.monotonic() + 60
        while len(self._addresses) < 5 and time.monotonic() < end:
            time.sleep(0.002)
        family = psutil.Process().children(recursive=True)
        for process in family:
            process.suspend()
        try:
            looked_at = [process for process in family if process not in of_clients(family)[2:]]
            memories = {process.pid: memory_of(process.pid) for process in looked_at}
            found = set().union(*map(secrets_in, memories.values()))
            for pid, memory in memories.items():
                self.of[pid] = {secret for secret in found if secret in memory or z85.decode(secret) in memory}
        finally:
            for process in family:
                process.resume()


def of_clients(family: list[psutil.Process]) -> list[psutil.Process]:
    return [each for each in family if "forkserver" in each.cmdline()[2] and each.ppid() != os.getpid()]


def memory_of(pid: int) -> bytes:
    """All that the process may write to."""
    pieces = []
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in maps:
            area, access, *_ = line.split()
            start, end = (int(bound, 16) for bound in area.split("-"))
            if access.startswith("rw"):
                with contextlib.suppress(OSError):
                    memory.seek(start)
                    pieces.append(memory.read(end - start))
    return b"\0".join(pieces)


OF_A_KEY = np.isin(np.arange(256), list(z85.Z85CHARS))


def secrets_in(memory: bytes) -> set[bytes]:
    """Texts of 40 characters that are a secret key whose public one is there, too."""
    numbers = np.frombuffer(memory, np.uint8)
    texts = set()
    for start in range(0, len(numbers), 1 << 22):
        ends = start + np.flatnonzero(~OF_A_KEY[numbers[start : start + (1 << 22) + 50]])
        texts |= {memory[end + 1 : end + 41] for end in ends[:-1][np.diff(ends) == 41]}
    return {text for text in texts if zmq.curve_public(text) in texts}


def test_no_process_but_its_owner_and_no_file_of_the_run_has_a_secret_key(engine, tmp_path):
    try:
        memory_of(engine._server.pid)
    except PermissionError as error:
        pytest.skip(f"other processes' memory cannot be read here: {error}")
    memories: list[Memories] = []

    def look(run: Run) -> Memories:
        memories.append(Memories(run))
        return memories[0]

    over = carry_out(engine, tmp_path / "run", attack=look, timeout=600.0)
    of = memories[0].of
    assert sorted(map(len, of.values())) == [0, 0, 1, 1]  # a client each has its own; the collector has wiped its
    assert of[engine._server.pid] == set()
    secrets = set().union(*of.values())
    assert len(secrets) == 2
    files = [path for path in over.prepared.folder.rglob("*") if path.is_file()]
    assert {"run.sqlite", "config.toml", "collector.log", "node-0000.log"} <= {path.name for path in files}
    for path in files:
        assert not [secret for secret in secrets if secret in path.read_bytes()], path


RESTART = """
clients = 4
rounds = 20
[topology]
kind = "complete"
[data]
samples = 100
[time]
clock = "virtual"
[compute]
step_s = 0.01
[algorithm]
name = "d-psgd"
[checkpoints]
every = 5
[[faults]]
kind = "crash"
clients = [1]
at_round = 8
restart_after = 3
[[faults]]
kind = "join"
clients = [0]
at_round = 4
"""


def test_later_lives_and_latecomers_with_keys_of_their_own_are_let_in_at_once(run_in_processes):
    quiet, keyed = run_in_processes(RESTART), run_in_processes(RESTART, "transport.protocol=tcp")
    assert keyed.rows("SELECT node, kind FROM event WHERE kind IN ('join', 'restart') ORDER BY 1") == [
        (0, "join"),
        (1, "restart"),
    ]
    assert keyed.rows("SELECT * FROM event WHERE kind = 'drop'") == []
    theta, expected = keyed.theta(20), quiet.theta(20)
    assert all(theta[node].tobytes() == expected[node].tobytes() for node in range(4))


def test_a_collector_that_cannot_listen_ends_the_run_with_its_reason_in_the_log(engine, tmp_path):
    with pytest.raises(AssertionError, match="the collector of the records ended unexpectedly"):
        carry_out(engine, tmp_path / "run", "tcp://192.0.2.1:*")  # an address that no machine has
    assert "cannot listen at tcp://192.0.2.1:*" in (tmp_path / "run" / "log" / "collector.log").read_text()


def test_where_libzmq_has_no_keys_that_is_told_in_one_line(engine, tmp_path, monkeypatch):
    monkeypatch.setattr("sheafgossip.launcher.prepare.preparation.there_are_keys", lambda: False)
    with pytest.raises(ConfigError, match=r"^transport.keys = true: .* built without CurveZMQ; allowed is false$"):
        carry_out(engine, tmp_path / "run")


def test_unix_sockets_lie_where_only_their_user_can_open_them(engine, tmp_path):
    assert stat.S_IMODE(engine.sockets.stat().st_mode) == 0o700
    config = validate({"clients": 5, "rounds": 1, "data": {"samples": 100}, "topology": {"kind": "ring"}})
    prepared = prepare(config, tmp_path / "run", engine)
    for address in (prepared.assignments[0].deployment.address, prepared.assignments[0].deployment.records):
        folder = Path(address.removeprefix("ipc://")).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert folder.parent == engine.sockets
    assert not any(each.transport.keyed for each in prepared.assignments)
