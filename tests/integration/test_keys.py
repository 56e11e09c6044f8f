"""A run over tcp whose every socket asks for keys: it does what it does without them, whoever connects meanwhile."""

import contextlib
import ctypes
import functools
import os
import socket
import stat
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgpack
import numpy as np
import psutil
import pytest
import zmq
from zmq.utils import z85

from runs import RunFolder, assert_same_states, until
from sheafgossip.launcher.config.sections import ConfigError, validate
from sheafgossip.launcher.prepare.assignments import Site
from sheafgossip.launcher.prepare.preparation import prepare_run
from sheafgossip.launcher.prepare.prepared import Prepared
from sheafgossip.launcher.processes.engines import LocalEngine
from sheafgossip.launcher.run.run import Run
from sheafgossip.launcher.studies.runner import Preparation
from sheafgossip.metrics.records import COLLECTOR, EventRecord, pack_batch, pack_end
from sheafgossip.transport.keys import KeyPair, dial_with

ROUNDS = 300
HOLDS = "; ".join(f"state renamed@node-0000:{time}=delay 1" for time in range(3, 7))
"""A run that is attacked lasts longer than it takes attackers to come: client 0 dwells on its checkpoints."""


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHEAFGOSSIP_FAILPOINTS", HOLDS)
        with LocalEngine() as engine:
            yield engine


class Over(RunFolder):
    """A run that has ended."""

    def __init__(self, prepared: Prepared):
        super().__init__(prepared.folder)
        self.prepared = prepared


@contextlib.contextmanager
def meanwhile(work: Callable[[threading.Event], object]) -> Iterator[None]:
    """Lets a thread do this; the event is set at the end."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=[over])
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def carry_out(
    engine: LocalEngine,
    folder: Path,
    records: str = "tcp://127.0.0.1:*",
    attack: Callable[[Run, threading.Event], None] | None = None,
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
    with meanwhile(functools.partial(attack, started)) if attack else contextlib.nullcontext():
        outcome = started()
    assert outcome.status == "finish", outcome
    return Over(prepared)


@pytest.fixture
def run(engine, tmp_path) -> Callable[..., Over]:
    def run(records: str = "tcp://127.0.0.1:*", **options) -> Over:
        return carry_out(engine, tmp_path / f"run-{len(list(tmp_path.iterdir()))}", records, **options)

    return run


def attack(run: Run, over: threading.Event, namespace: str = "") -> None:
    """At all ports of a run, from its start to its end, is who knows everything but secret keys: addresses, names,
    public keys, the run's number, and legal messages. Each connection is tried again as soon as it has been refused."""
    met: set[int] = set()
    if namespace:
        enter(f"/run/netns/{namespace}")  # this thread, and those of the context
    with zmq.Context() as context:
        sockets: list[zmq.Socket] = []
        while not over.wait(0.002):
            if not sockets and run.clients.addresses:
                sockets += forgers_at_the_collector(context, run)
            for node, address in tuple(run.clients.addresses.items()):
                if node not in met:
                    met.add(node)
                    sockets += forgers_at_a_client(context, run, node, address)
                with contextlib.suppress(OSError), dial(address) as connection:
                    connection.sendall(os.urandom(300))
        for forger in sockets:
            forger.close()


def wrong_keys(of_server: str) -> list[tuple[KeyPair, str] | None]:
    return [None, (KeyPair.make(), of_server), (KeyPair.make(), KeyPair.make().public)]


def forgers_at_a_client(context: zmq.Context, run: Run, node: int, address: str) -> Iterator[zmq.Socket]:
    assignment, poison = run.prepared.assignments[node], np.full(650, 1e6, np.float32).tobytes()
    for peer in assignment.neighbours:
        headers = [[1, assignment.run.number, peer.node, node, round, 0, [[0, 650]]] for round in range(1, ROUNDS + 1)]
        messages = [[msgpack.packb(header), poison] for header in headers]
        for keys in wrong_keys(run.clients.keys[node]):
            yield forger(context, zmq.DEALER, address, keys, messages, b"node-%04d" % peer.node)


def forgers_at_the_collector(context: zmq.Context, run: Run) -> Iterator[zmq.Socket]:
    deployment = run.prepared.assignments[0].deployment
    messages = [[pack_batch(0, 0, [EventRecord(0.0, None, 0, "forged", "")])], [pack_end({})]]
    for keys in wrong_keys(deployment.records_key):
        yield forger(context, zmq.PUSH, deployment.records, keys, messages)


def forger(context, kind: int, address: str, keys: tuple | None, messages, name: bytes = b"unknown") -> zmq.Socket:
    socket = context.socket(kind)
    socket.linger, socket.reconnect_ivl, socket.identity = 0, 2, name
    socket.sndtimeo = 5  # ms: all ports are to be tried before the run is over
    if keys:
        dial_with(socket, *keys)
    socket.connect(address)
    with contextlib.suppress(zmq.Again):  # one that has been refused may have no way to send any more
        for message in messages:
            socket.send_multipart(message)
    return socket


def dial(address: str) -> socket.socket:
    host, port = address.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), timeout=1)


def test_records_go_over_tcp_to_a_port_that_the_collector_picks(run):
    keyed, plain, unix = run(), run(keys=False), run(records="")
    assert keyed.prepared.keyed_records
    assert not plain.prepared.keyed_records
    for one in (keyed, plain, unix):
        assert one.rows("SELECT count(*) FROM round") == [(5 * (ROUNDS + 1),)]
        assert one.rows("SELECT count(*) FROM event WHERE kind IN ('drop', 'lost-records')") == [(0,)]
    [(address,)] = keyed.rows("SELECT address FROM node WHERE role = 'collector'")
    assert address.startswith("tcp://127.0.0.1:")
    assert_same_states(keyed, plain, ROUNDS)
    assert_same_states(keyed, unix, ROUNDS)


def until_all_are_there(run: Run) -> None:
    until(lambda: len(run.clients.addresses) == 5, seconds=60)


def test_a_collector_that_stands_still_holds_up_no_one_and_gets_everything_later(run):
    """It neither reads nor answers, from when clients are there until they have learnt to the end."""
    learnt: list[int] = []

    def freeze(run: Run, _: threading.Event) -> None:
        until_all_are_there(run)
        children = psutil.Process().children()
        (collector,) = [child for child in children if "sheafgossip.metrics.collector" in child.cmdline()]
        last = run.prepared.folder / "state" / f"round-{ROUNDS:06d}"
        collector.suspend()
        try:
            until(lambda: len(list(last.glob("*.safetensors"))) == 5, seconds=30)
            learnt.append(5)
        finally:
            collector.resume()

    over = run(attack=freeze)
    assert learnt == [5]
    assert over.rows("SELECT count(*) FROM round") == [(5 * (ROUNDS + 1),)]
    assert over.rows("SELECT count(*) FROM event WHERE kind = 'lost-records'") == [(0,)]


def changes_nothing_and_is_told(attacked: Over, quiet: Over) -> None:
    assert_same_states(attacked, quiet, ROUNDS)
    for query in (
        "SELECT src, dst, round, messages, payload_bytes, message_bytes FROM traffic ORDER BY 1, 2, 3",
        "SELECT node, round, theta_norm, train_loss FROM round ORDER BY 1, 2",
        "SELECT count(*) FROM event WHERE kind IN ('forged', 'lost-records', 'failure')",
    ):
        assert attacked.rows(query) == quiet.rows(query)
    told = attacked.rows("SELECT node, detail FROM event WHERE kind = 'drop'")
    assert {node for node, _ in told} == {COLLECTOR, *range(5)}
    assert {detail.split(maxsplit=1)[1] for node, detail in told if node >= 0} == {"x connection without the right key"}


def test_unauthenticated_peers_at_every_port_change_nothing_in_a_run_and_are_told(run):
    changes_nothing_and_is_told(run(attack=attack), run())


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


def test_unauthenticated_peers_on_another_machine_change_nothing_in_a_run_and_are_told(
    namespaces, tmp_path, monkeypatch
):
    """Which is a network namespace of its own, with a cable to that of the run."""
    here, there = namespaces
    monkeypatch.setenv("SHEAFGOSSIP_FAILPOINTS", HOLDS)
    with within(here), LocalEngine() as engine:
        quiet = carry_out(engine, tmp_path / "quiet", f"tcp://{HERE}:*", host=HERE)
        from_there = functools.partial(attack, namespace=there)
        attacked = carry_out(engine, tmp_path / "attacked", f"tcp://{HERE}:*", from_there, host=HERE)
    addresses = attacked.rows("SELECT address FROM node WHERE role IN ('client', 'collector')")
    assert len(addresses) == 6
    assert all(address.startswith(f"tcp://{HERE}:") for (address,) in addresses)
    changes_nothing_and_is_told(attacked, quiet)


def secrets_by_process(run: Run) -> dict[int, set[bytes]]:
    """The secrets in the memory of processes of a run, which stands still meanwhile: of the collector, the fork server
    and two clients, once all are there."""
    until_all_are_there(run)
    family = psutil.Process().children(recursive=True)
    for process in family:
        process.suspend()
    try:
        looked_at = [process for process in family if process not in of_clients(family)[2:]]
        memories = {process.pid: memory_of(process.pid) for process in looked_at}
    finally:
        for process in family:
            process.resume()
    found = set().union(*map(secrets_in, memories.values()))
    return {
        pid: {secret for secret in found if secret in memory or z85.decode(secret) in memory}
        for pid, memory in memories.items()
    }


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
    of: dict[int, set[bytes]] = {}

    def look(run: Run, _: threading.Event) -> None:
        of.update(secrets_by_process(run))

    over = carry_out(engine, tmp_path / "run", attack=look, timeout=600.0)
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


def test_restarted_clients_and_latecomers_with_keys_of_their_own_are_let_in_at_once(run_in_processes):
    quiet, keyed = run_in_processes(RESTART), run_in_processes(RESTART, "transport.protocol=tcp")
    assert keyed.rows("SELECT node, kind FROM event WHERE kind IN ('join', 'restart') ORDER BY 1") == [
        (0, "join"),
        (1, "restart"),
    ]
    assert keyed.rows("SELECT * FROM event WHERE kind = 'drop'") == []
    assert_same_states(keyed, quiet, 20)


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
    prepared = Preparation(engine)(config, tmp_path / "run")
    for address in (prepared.assignments[0].deployment.address, prepared.assignments[0].deployment.records):
        folder = Path(address.removeprefix("ipc://")).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert folder.parent == engine.sockets
    assert not any(each.transport.keyed for each in prepared.assignments)
