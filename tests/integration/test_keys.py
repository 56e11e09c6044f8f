"""A run over tcp does what it does, whoever connects meanwhile: without the right key, or to take what it needs."""

import contextlib
import os
import re
import resource
import socket
import sqlite3
import stat
import struct
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgpack
import numpy as np
import psutil
import pytest
import zmq
from zmq.utils import z85

from runs import RunFolder, alive, assert_same_states, small, until
from sheafgossip.launcher.config.sections import ConfigError, validate
from sheafgossip.launcher.prepare.assignments import Site
from sheafgossip.launcher.prepare.preparation import prepare_run
from sheafgossip.launcher.processes.engine import LocalEngine
from sheafgossip.launcher.run.run import Run
from sheafgossip.metrics.records import COLLECTOR, EventRecord, pack_batch, pack_end
from sheafgossip.transport.control import Place
from sheafgossip.transport.keys import KeyPair, dial_with

ROUNDS = 300
TCP = "tcp://127.0.0.1:*"
HOLDS = "; ".join(f"state renamed@node-0000:{time}=delay 1" for time in range(3, 7))
"""A run that is attacked lasts longer than it takes attackers to come: client 0 dwells on its checkpoints."""


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHEAFGOSSIP_FAILPOINTS", HOLDS)
        engine = LocalEngine()
    with engine:
        yield engine


@pytest.fixture(scope="module")
def run(engine, tmp_path_factory) -> Callable[..., RunFolder]:
    def run(
        records: str = TCP, attack: Callable[[Run, threading.Event], object] | None = None, **transport: object
    ) -> RunFolder:
        """What the thread of an ``attack`` gets last is set when the run is over."""
        text = small('training = {work = "steps", steps = 5}', "evaluation.every = 0", clients=5, rounds=ROUNDS)
        more = {"checkpoints": {"every": ROUNDS // 6 if attack else 0}}
        more["transport"] = {"protocol": "tcp", "timeout": 30.0} | transport
        config = validate(tomllib.loads(text) | more)
        sockets, folder = engine.folder_for_run(), tmp_path_factory.mktemp("run") / "run"
        started = Run(prepare_run(config, folder, Site(sockets, records)), engine, lambda *_: None)
        over = threading.Event()
        with ThreadPoolExecutor() as pool:
            attacking = pool.submit(attack or (lambda *_: None), started, over)
            try:
                outcome = started()
            finally:
                over.set()
        attacking.result()
        log = (folder / "log" / "collector.log").read_text()
        assert outcome.status == "finish", (outcome, log)
        return RunFolder(folder)

    return run


@pytest.fixture(scope="module")
def quiet(run) -> RunFolder:
    return run()


def attack(run: Run, over: threading.Event) -> None:
    """At all ports of a run, from its start to its end, is who knows everything but secret keys: addresses, names,
    public keys, the run's number, and legal messages. Each connection is tried again as soon as it has been refused."""
    met: set[int] = set()
    with zmq.Context() as context:
        sockets: list[zmq.Socket] = []
        messages = [[pack_batch(0, 0, [EventRecord(0.0, None, 0, "forged", "")])], [pack_end({})]]
        while not over.wait(0.002):
            if not sockets and run.clients.places:
                deployment = run.prepared.assignments[0].deployment
                sockets += forgers(context, zmq.PUSH, deployment.records, deployment.records_key, messages)
            for place in tuple(run.clients.places.values()):
                if place.node not in met:
                    met.add(place.node)
                    sockets += forgers_at_a_client(context, run, place)
                with contextlib.suppress(OSError), dial(place.address) as connection:
                    connection.sendall(os.urandom(300))
        for forger in sockets:
            forger.close()


def forgers_at_a_client(context: zmq.Context, run: Run, place: Place) -> Iterator[zmq.Socket]:
    assignment, poison = run.prepared.assignments[place.node], np.full(650, 1e6, np.float32).tobytes()
    for peer in assignment.neighbours:
        header = [1, assignment.run.number, peer.node, place.node]
        messages = [[msgpack.packb([*header, round, 0, [[0, 650]]]), poison] for round in range(1, ROUNDS + 1)]
        yield from forgers(context, zmq.DEALER, place.address, place.key, messages, b"node-%04d" % peer.node)


def forgers(
    context: zmq.Context, kind: int, address: str, key: str, messages: list[list[bytes]], name: bytes = b"unknown"
) -> Iterator[zmq.Socket]:
    """Without keys, with keys of their own, and for one who has another key than the server's."""
    for keys in ((), (KeyPair.make(), key), (KeyPair.make(), KeyPair.make().public)):
        socket = context.socket(kind)
        socket.linger, socket.reconnect_ivl, socket.identity = 0, 2, name
        socket.sndtimeo = 5  # ms: all ports are to be tried before the run is over
        if keys:
            dial_with(socket, *keys)
        socket.connect(address)
        with contextlib.suppress(zmq.Again):  # one that has been refused may have no way to send any more
            for message in messages:
                socket.send_multipart(message)
        yield socket


def dial(address: str) -> socket.socket:
    host, port = address.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), timeout=1)


def test_keys_and_where_records_go_change_nothing(run, quiet, engine):
    """The collector picks its port itself; over Unix sockets, which only their user can open, there are no keys."""
    plain, sockets = run(keys=False), engine.folder_for_run()
    unix = run(f"ipc://{sockets}/records")
    for one in (quiet, plain, unix):
        assert one.rows("SELECT count(*) FROM round") == [(5 * (ROUNDS + 1),)]
        assert one.rows("SELECT count(*) FROM event WHERE kind IN ('drop', 'lost-records')") == [(0,)]
        assert_same_states(one, quiet, ROUNDS)
    [(address,)] = quiet.rows("SELECT address FROM node WHERE role = 'collector'")
    assert address.startswith("tcp://127.0.0.1:")
    assert sockets.parent == engine.sockets
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (sockets, engine.sockets)] == [0o700, 0o700]


def until_all_are_there(run: Run) -> None:
    until(lambda: len(run.clients.places) == 5, seconds=60)


def test_a_collector_that_stands_still_holds_up_no_one_and_gets_everything_later(run):
    """It neither reads nor answers, from when clients are there until they have learnt to the end."""

    def freeze(run: Run, _: threading.Event) -> None:
        until_all_are_there(run)
        children = psutil.Process().children()
        (collector,) = [child for child in children if "sheafgossip.metrics.collector" in child.cmdline()]
        last = run.prepared.folder / "state" / f"round-{ROUNDS:06d}"
        collector.suspend()
        try:
            until(lambda: len(list(last.glob("*.safetensors"))) == 5, seconds=30)
        finally:
            collector.resume()

    over = run(attack=freeze)
    assert over.rows("SELECT count(*) FROM round") == [(5 * (ROUNDS + 1),)]
    assert over.rows("SELECT count(*) FROM event WHERE kind = 'lost-records'") == [(0,)]


def test_unauthenticated_peers_at_every_port_change_nothing_in_a_run_and_are_told(run, quiet):
    attacked = run(attack=attack)
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


def secrets_by_process(run: Run) -> dict[int, set[bytes]]:
    """The secrets in the memory of processes of a run, which stands still meanwhile: of the collector, the fork server
    and two clients, once all are there."""
    until_all_are_there(run)
    family = psutil.Process().children(recursive=True)
    for process in family:
        process.suspend()
    try:
        clients = [each for each in family if "forkserver" in " ".join(each.cmdline()) and each.ppid() != os.getpid()]
        memories = {process.pid: memory_of(process.pid) for process in family if process not in clients[2:]}
    finally:
        for process in family:
            process.resume()
    found = set().union(*map(secrets_in, memories.values()))
    return {
        pid: {secret for secret in found if secret in memory or z85.decode(secret) in memory}
        for pid, memory in memories.items()
    }


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


def secrets_in(memory: bytes) -> set[bytes]:
    """Texts of 40 characters that are a secret key whose public one is there, too."""
    texts = {text for text in re.findall(b"[%b]{40,}" % re.escape(z85.Z85CHARS), memory) if len(text) == 40}
    return {text for text in texts if zmq.curve_public(text) in texts}


def test_no_process_but_its_owner_and_no_file_of_the_run_has_a_secret_key(run, engine):
    server = engine.pid
    try:
        memory_of(server)
    except PermissionError as error:
        pytest.skip(f"other processes' memory cannot be read here: {error}")
    of: dict[int, set[bytes]] = {}
    over = run(attack=lambda run, _: of.update(secrets_by_process(run)), timeout=600.0)
    assert sorted(map(len, of.values())) == [0, 0, 1, 1]  # a client each has its own; the collector has wiped its
    assert of[server] == set()
    secrets = set().union(*of.values())
    assert len(secrets) == 2
    files = over.files("")
    assert {"run.sqlite", "config.toml", "log/collector.log", "log/node-0000.log"} <= files.keys()
    for path in files.values():
        assert not [secret for secret in secrets if secret in path.read_bytes()], path


def test_a_collector_that_cannot_listen_ends_the_run_with_its_reason_in_the_log(run):
    reason = r"(?s)the collector of the records ended unexpectedly.*cannot listen at tcp://192.0.2.1:\*"
    with pytest.raises(AssertionError, match=reason):
        run("tcp://192.0.2.1:*")  # an address that no machine has


def test_where_libzmq_has_no_keys_that_is_told_in_one_line(run, monkeypatch):
    monkeypatch.setattr("zmq.has", lambda _: False)
    with pytest.raises(ConfigError, match=r"^transport.keys = true: .* built without CurveZMQ; allowed: false$"):
        run()


# -- who connects takes neither the descriptors nor the memory that a run needs ----------------------------------------

CONFIG = small("checkpoints.every = 1", 'transport.protocol = "tcp"', rounds=150, algorithm="")
ENDLESS = small('transport.protocol = "tcp"', "transport.keys = false", rounds=100_000)
WAITING = """
import os, time
while client.node == 0 and peers.round == 2 and not os.path.exists("all are connected"):
    time.sleep(0.01)
client.learn()
peers.exchange(dict.fromkeys(client.neighbours, client.theta))
"""


def test_peers_who_say_nothing_leave_a_run_the_files_that_it_needs(with_round, start, tmp_path):
    """As many connections as can be opened, to one client, while another holds the run up."""
    few = 1000  # open files a process may have: less than there are connections
    config, options = CONFIG + with_round(WAITING), {"cwd": tmp_path}
    going = start(config, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (few, few)), **options)

    def address() -> str:
        with contextlib.suppress(sqlite3.Error, ValueError):  # there is no database yet, or no client in it
            [(found,)] = going.folder.rows("SELECT address FROM node WHERE node = 1")
            return found
        return ""

    going.until(address)
    host, port = address().removeprefix("tcp://").split(":")
    with contextlib.ExitStack() as idle:
        for _ in range(2 * few):
            peer = idle.enter_context(socket.socket())
            peer.setblocking(False)
            peer.connect_ex((host, int(port)))
        (tmp_path / "all are connected").touch()
        going.ends(0, seconds=150)
    quiet = start(config, "--set", "transport.protocol=ipc", "--engine", "threads", **options)
    quiet.ends(0, seconds=150)
    assert_same_states(going.folder, quiet.folder, 150)


def about_to_send(address: str) -> socket.socket:
    """A connection by hand that has sent its greeting and READY: ZMTP 3.0, NULL."""
    peer = dial(address)
    peer.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER\x08Identity" + struct.pack(">I", 0)
    peer.sendall(bytes([4, len(ready)]) + ready)
    peer.settimeout(100)
    heard = b""
    while b"READY" not in heard:
        heard += peer.recv(1000)
    return peer


@pytest.mark.skipif(sys.platform != "linux", reason="this system does not bound the memory of a process")
@pytest.mark.parametrize("frame", [b"\1\1x", b"\3" + struct.pack(">Q", 2000) + bytes(2000)], ids=["short", "long"])
def test_a_client_that_such_a_message_ends_is_told_in_one_line(start, frame):
    going = start(ENDLESS)
    going.until_round(3)
    [(pid, address)] = going.folder.rows("SELECT pid, address FROM node WHERE node = 1")
    client = psutil.Process(pid)
    limit, _ = client.rlimit(psutil.RLIMIT_DATA)
    assert 1 << 30 <= limit < 4 << 30
    fewer = client.memory_info().data + (50 << 20)  # a GiB takes its time
    client.rlimit(psutil.RLIMIT_DATA, (fewer, -1))
    many = frame * ((1 << 19) // len(frame))
    with about_to_send(address) as peer, contextlib.suppress(ConnectionError):
        while True:
            peer.sendall(many)
    dropped = "SELECT detail FROM event WHERE kind = 'drop' AND node = 1"
    going.until(lambda: not alive([client]) or going.folder.rows(dropped))
    if alive([client]) and len(frame) > 1000:  # libzmq had no memory for the frame itself: it ends the connection
        assert "connection closed by its peer" in str(going.folder.rows(dropped))
        going.ends(130, going.signal)
        return
    printed = going.ends(1)
    assert "client 1 died in round " in printed
    assert "killed by SIGABRT, for what came in took all the memory that it may have" in printed
