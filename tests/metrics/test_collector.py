"""The collector as a real process behind real sockets."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing

import pytest
import zmq

from chaos.records import Records
from runs import until
from sheafgossip.metrics.collector import Collector
from sheafgossip.metrics.records import (
    COLLECTOR,
    LAUNCHER,
    MAX_BATCH_BYTES,
    EventRecord,
    RoundRecord,
    pack_batch,
    pack_end,
)
from sheafgossip.metrics.store import Store
from sheafgossip.transport.keys import KeyPair, dial_with

COMMAND = [sys.executable, "-m", "sheafgossip.metrics.collector"]


class RunningCollector(Records):
    def __init__(
        self, folder, context: zmq.Context, endpoint: str | None = None, keys: dict[int, KeyPair] | None = None
    ):
        """``keys``: of the writers; its own public one is in ``key``."""
        super().__init__(folder)
        self._context = context
        options = ["--endpoint", endpoint or f"ipc://{folder}/records", "--database", str(folder / "run.sqlite")]
        options += ["--epoch", str(time.monotonic()), "--parent", str(os.getpid())]
        options += [f"--launcher-key={keys[LAUNCHER].public}"] if keys else []
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([*COMMAND, *options], **pipes, text=True)
        for node, pair in (keys or {}).items():
            self.process.stdin.write(json.dumps([node, pair.public]) + "\n")
        self.process.stdin.close()
        word, self.endpoint, *key = self.process.stdout.readline().split()
        assert word == "ready"
        self.key = "".join(key)

    def push(self, keys: tuple[KeyPair, str] | None = None) -> zmq.Socket:
        socket = self._context.socket(zmq.PUSH)
        if keys:
            dial_with(socket, *keys)
        socket.connect(self.endpoint)
        return socket

    def send(self, *messages: bytes, keys: tuple[KeyPair, str] | None = None) -> None:
        with self.push(keys) as socket:
            for message in messages:
                socket.send(message)

    def exit_code(self) -> int:
        return self.process.wait(timeout=100)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def collector(tmp_path, context):
    collector = RunningCollector(tmp_path, context)
    yield collector
    collector.close()


def batch(sender: int, sequence: int) -> bytes:
    return pack_batch(sender, sequence, [RoundRecord(sender, sequence, 0.5, None, None, 1.0, 0.1)])


def test_it_stores_what_is_sent_and_ends_with_the_last_announced_batch(collector):
    collector.process.send_signal(signal.SIGINT)  # Ctrl-C is left to the launcher
    collector.send(b"\x00" * (MAX_BATCH_BYTES + 1))  # does not even reach it
    event = pack_batch(1, 0, [EventRecord(1.0, None, 0, "warning", "once")])
    collector.send(*(batch(0, number) for number in range(50)), event, event, pack_end({0: 50, 1: 1}))
    assert collector.exit_code() == 0
    assert collector.rows("SELECT count(*) FROM round") == [(50,)]
    assert collector.rows("SELECT detail FROM event") == [("once",)]


def test_batches_that_never_come_are_told_by_sender(collector):
    collector.send(batch(0, 0), batch(1, 0), pack_end({0: 1, 1: 3}))
    assert collector.exit_code() == 0
    [(detail,)] = collector.rows("SELECT detail FROM event WHERE kind = 'lost-records'")
    assert "2 of 3 from sender 1" in detail
    assert "sender 0" not in detail


def test_drops_are_told_at_most_once_a_second(collector):
    for _ in range(15):
        collector.send(b"nonsense")
        time.sleep(0.1)
    told = collector.rows("SELECT wall_s FROM event WHERE kind = 'drop' ORDER BY wall_s")
    assert 1 <= len(told) <= 2


def test_records_are_committed_within_a_second_without_further_messages(collector):
    collector.send(batch(0, 0))
    collector.send(batch(0, 1))
    until(lambda: collector.rows("SELECT * FROM round WHERE round = 1"), seconds=1.0)


def test_a_kill_loses_at_most_the_last_second(collector):
    sent_at = {}
    with collector.push() as socket:
        for number in range(150):
            socket.send(batch(0, number))
            sent_at[number] = time.monotonic()
            time.sleep(0.01)
        killed_at = time.monotonic()
        collector.process.kill()
        collector.process.wait()
    stored = {number for (number,) in collector.rows("SELECT round FROM round")}
    assert {number for number, when in sent_at.items() if when < killed_at - 1.0} <= stored
    assert collector.rows("PRAGMA integrity_check") == [("ok",)]


class Slow(Store):
    def commit(self) -> None:
        time.sleep(0.5)
        super().commit()


@pytest.fixture
def collected(tmp_path, context):
    """Rows of rounds and events that a collector in a thread has stored, of what ``send`` sends."""

    def collected(store: type[Store], send: Callable[[zmq.Socket], None]) -> tuple[int, int]:
        receiver, sender = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        ours, theirs = socket.socketpair()
        with receiver, sender, ours, theirs:
            receiver.bind("inproc://records")
            sender.connect("inproc://records")

            def collect() -> None:
                Collector(receiver, store(tmp_path / "run.sqlite"), time.monotonic()).run(theirs)

            thread = threading.Thread(target=collect)
            thread.start()
            send(sender)
            thread.join(10)
        return Records(tmp_path).rows("SELECT (SELECT count(*) FROM round), (SELECT count(*) FROM event)")[0]

    return collected


def test_it_waits_as_long_as_something_comes(collected, monkeypatch):
    """A second at most, here, from one batch to the next."""
    monkeypatch.setattr("sheafgossip.metrics.collector._WAIT_FOR_MISSING_S", 1.0)

    def send(sender: zmq.Socket) -> None:
        sender.send(pack_end({0: 3}))
        for number in range(3):
            time.sleep(0.6)
            sender.send(batch(0, number))

    assert collected(Store, send) == (3, 0)


def test_time_spent_on_a_slow_disk_is_no_reason_to_miss_what_has_come_meanwhile(collected, monkeypatch):
    for name, value in {"_WAIT_FOR_MISSING_S": 0.2, "_BURST": 1, "_COMMIT_EVERY_S": 0.0}.items():
        monkeypatch.setattr(f"sheafgossip.metrics.collector.{name}", value)

    def send(sender: zmq.Socket) -> None:
        for message in (pack_end({0: 3}), *(batch(0, number) for number in range(3))):
            sender.send(message)

    assert collected(Slow, send) == (3, 0)


def test_when_told_to_stop_it_stores_what_is_waiting(collector):
    collector.send(*(batch(0, number) for number in range(2000)))
    time.sleep(0.1)
    collector.process.send_signal(signal.SIGTERM)
    assert collector.exit_code() == 0
    assert collector.rows("SELECT count(*) FROM round") == [(2000,)]
    assert collector.rows(f"SELECT kind FROM event WHERE node = {COLLECTOR}") == [("interrupt",)]


def test_it_reports_itself_last(collector):
    collector.send(pack_end({}))
    assert collector.exit_code() == 0
    assert collector.rows("SELECT node, role, pid FROM node") == [(COLLECTOR, "collector", collector.process.pid)]
    [(wall_s, rss, peak_rss)] = collector.rows("SELECT wall_s, rss, peak_rss FROM resource")
    assert 0 < wall_s < 60
    assert 0 < rss < 2 * peak_rss


def test_waiting_costs_no_cpu(collector):
    import psutil

    collector.send(batch(0, 0))
    time.sleep(0.7)
    process = psutil.Process(collector.process.pid)
    before, switches = sum(process.cpu_times()[:2]), process.num_ctx_switches().voluntary
    time.sleep(1.0)
    assert sum(process.cpu_times()[:2]) - before <= 0.02
    assert process.num_ctx_switches().voluntary - switches <= 20


@pytest.fixture
def keys() -> dict[int, KeyPair]:
    return {node: KeyPair.make() for node in (LAUNCHER, 0, 1)}


@pytest.fixture
def keyed(tmp_path, context, keys):
    with closing(RunningCollector(tmp_path, context, "tcp://127.0.0.1:*", keys)) as collector:
        yield collector


def drops_of(collector: RunningCollector) -> Counter[str]:
    drops: Counter[str] = Counter()
    for (detail,) in collector.rows("SELECT detail FROM event WHERE kind = 'drop'"):
        count, what = detail.split(maxsplit=1)
        drops[what] += int(count)
    return drops


def test_with_keys_each_writer_is_heard_under_its_own_number_only(keyed, keys):
    public = keyed.key
    second_start = 1_000_001
    keyed.send(batch(0, 0), batch(0, 1), keys=(keys[0], public))
    # a connection that closes while another one's handshake is under way may be taken for that one
    until(lambda: keyed.rows("SELECT count(*) FROM round") == [(2,)])
    keyed.send(batch(1, 0), batch(second_start, 0), batch(0, 2), pack_end({}), keys=(keys[1], public))
    until(lambda: drops_of(keyed))
    keyed.send(pack_end({0: 2, 1: 1, second_start: 1}), keys=(keys[LAUNCHER], public))
    assert keyed.exit_code() == 0
    assert keyed.rows("SELECT count(*) FROM round") == [(4,)]
    assert drops_of(keyed) == {"messages under another's number on the metrics plane": 2}


def test_unauthenticated_peers_are_refused_and_counted_with_keys(keyed, keys):
    host, port = keyed.endpoint.removeprefix("tcp://").split(":")
    public, foreign_pair = keyed.key, KeyPair.make()
    with (
        keyed.push() as plain,
        keyed.push((foreign_pair, public)) as unknown,
        keyed.push((keys[0], foreign_pair.public)) as other,
    ):
        for wrong in (plain, unknown, other):
            wrong.linger = 0
            wrong.send(batch(0, 0))
        for _ in range(20):
            with socket.create_connection((host, int(port))) as foreign:
                foreign.sendall(b"\xff" * 200)
        refused = "connections without the right key on the metrics plane"
        until(lambda: drops_of(keyed)[refused] >= 23)
    keyed.send(pack_end({}), keys=(keys[LAUNCHER], public))
    assert keyed.exit_code() == 0
    assert set(drops_of(keyed)) == {refused}
    assert drops_of(keyed)[refused] >= 23  # sockets try again
    assert keyed.rows("SELECT count(*) FROM round") == [(0,)]


def test_the_death_of_its_parent_ends_it_with_all_committed(tmp_path, context):
    options = ["--endpoint", f"ipc://{tmp_path}/records", "--database", str(tmp_path / "run.sqlite")]
    launcher = f"""if True:
        import os, subprocess, time
        process = subprocess.Popen({[*COMMAND, *options]!r} + ["--parent", str(os.getpid())], stdout=subprocess.PIPE)
        process.stdout.readline()
        print(process.pid, flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", launcher], stdout=subprocess.PIPE, text=True) as parent:
        collector = int(parent.stdout.readline())
        with context.socket(zmq.PUSH) as socket:
            socket.connect(f"ipc://{tmp_path}/records")
            socket.send(batch(0, 0))
        time.sleep(0.2)
        parent.kill()
    until(lambda: not is_running(collector))
    assert Records(tmp_path).rows("SELECT count(*) FROM round") == [(1,)]


def test_it_does_not_start_for_a_parent_that_is_gone(tmp_path):
    options = ["--endpoint", f"ipc://{tmp_path}/records", "--database", str(tmp_path / "run.sqlite"), "--parent", "1"]
    ended = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 1
    assert ended.stderr.strip() == "the parent process 1 has ended"


@pytest.mark.parametrize(
    ("endpoint", "database", "complaint"),
    [
        ("ipc:///no/such/folder/records", "run.sqlite", "cannot listen"),
        ("ipc://{}/records", "no/run.sqlite", "cannot be opened"),
    ],
)
def test_what_it_cannot_open_is_told_in_one_line(tmp_path, endpoint, database, complaint):
    options = ["--endpoint", endpoint.format(tmp_path), "--database", str(tmp_path / database)]
    ended = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert complaint in ended.stderr


def is_running(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
