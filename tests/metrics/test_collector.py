"""The collector as a real process behind real sockets; also with what is no batch of records, in great number and
variety: ``make fuzz`` feeds 100,000 messages; SHEAFGOSSIP_FUZZ is their number."""

import contextlib
import json
import os
import platform
import random
import re
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import msgpack
import psutil
import pytest
import zmq

from chaos.records import Records
from made import damaged, done, event, sent
from runs import until
from sheafgossip.metrics import collector as collector_module, records
from sheafgossip.metrics.store import Store
from sheafgossip.transport.keys import KeyPair, dial_with

MESSAGES = int(os.environ.get("SHEAFGOSSIP_FUZZ", "3000"))
AT_ONCE = 200
GROWTH = 8 << 20  # bytes of memory that may come and go


def command(folder, *options: str) -> list[str]:
    where = ["--endpoint", f"ipc://{folder}/records", "--database", str(folder / "run.sqlite")]
    return [sys.executable, "-m", "sheafgossip.metrics.collector", *where, *options]


def batch(sender: int, sequence: int) -> bytes:
    return records.pack_batch(sender, sequence, [done(sender, sequence, wall_s=0.1)])


class RunningCollector(Records):
    def __init__(self, folder, context: zmq.Context, keys: dict[int, KeyPair] | None = None):
        """``keys``: of the writers, over tcp; its own public one is in ``key``."""
        super().__init__(folder)
        self._context = context
        options = ["--epoch", str(time.monotonic()), "--parent", str(os.getpid())]
        options += [f"--launcher-key={keys[records.LAUNCHER].public}", "--endpoint=tcp://127.0.0.1:*"] if keys else []
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command(folder, *options), **pipes, text=True)
        for node, pair in (keys or {}).items():
            self.process.stdin.write(json.dumps([node, pair.public]) + "\n")
        self.process.stdin.close()
        word, self.endpoint, *key = self.process.stdout.readline().split()
        assert word == "ready"
        self.key = "".join(key)

    def push(self, own: KeyPair | None = None) -> zmq.Socket:
        socket = self._context.socket(zmq.PUSH)
        if own:
            dial_with(socket, own, self.key)
        socket.connect(self.endpoint)
        return socket

    def send(self, *messages: bytes, own: KeyPair | None = None) -> None:
        with self.push(own) as socket:
            for message in messages:
                socket.send(message)

    def count(self, table: str = "round") -> int:
        return self.rows(f"SELECT count(*) FROM {table}")[0][0]

    def drops(self) -> dict[str, int]:
        what, count = "substr(detail, 1 + instr(detail, ' '))", "sum(CAST(detail AS INTEGER))"
        return dict(self.rows(f"SELECT {what}, {count} FROM event WHERE kind = 'drop' GROUP BY 1"))

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
    with contextlib.closing(RunningCollector(tmp_path, context)) as collector:
        yield collector


def test_it_stores_what_is_sent_and_ends_with_the_last_announced_batch_and_a_report_of_itself(collector):
    collector.process.send_signal(signal.SIGINT)  # Ctrl-C is left to the launcher
    collector.send(b"\x00" * (records.MAX_BATCH_BYTES + 1))  # does not even reach it
    once = records.pack_batch(1, 0, [event(0, "warning", detail="once")])
    collector.send(*(batch(0, number) for number in range(50)), once, once, records.pack_end({0: 50, 1: 1}))
    assert collector.process.wait(100) == 0
    assert collector.count() == 50
    assert collector.rows("SELECT detail FROM event") == [("once",)]
    processes = collector.rows("SELECT node, role, pid FROM node")
    assert processes == [(records.COLLECTOR, "collector", collector.process.pid)]
    [(wall_s, rss, peak_rss)] = collector.rows("SELECT wall_s, rss, peak_rss FROM resource")
    assert 0 < wall_s < 60
    assert 0 < rss < 2 * peak_rss


def test_records_are_committed_within_a_second_and_a_kill_loses_no_more(collector):
    sent_at = []
    with collector.push() as socket:
        for number in range(150):
            socket.send(batch(0, number))
            sent_at.append(time.monotonic())
            time.sleep(0.01)
        killed_at = time.monotonic()
        collector.process.kill()
        collector.process.wait()
    stored = {number for (number,) in collector.rows("SELECT round FROM round")}
    assert {number for number, when in enumerate(sent_at) if when < killed_at - 1.0} <= stored
    assert collector.rows("PRAGMA integrity_check") == [("ok",)]


@pytest.fixture
def collected(tmp_path, context, monkeypatch):
    """How many rounds, and which details of events, a collector in a thread has stored of what ``messages`` yields."""

    def collected(messages, store: type[Store] = Store, **constants: float) -> tuple[int, list[str]]:
        for name, value in constants.items():
            monkeypatch.setattr(collector_module, f"_{name.upper()}", value)
        receiver, sender = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        ours, theirs = socket.socketpair()

        def collect() -> None:
            collector_module.Collector(receiver, store(tmp_path / "run.sqlite"), time.monotonic()).run(theirs)

        with receiver, sender, ours, theirs, ThreadPoolExecutor() as threads:
            receiver.bind("inproc://records")
            sender.connect("inproc://records")
            ended = threads.submit(collect)
            for message in messages:
                sender.send(message)
            try:
                ended.result(10)
            finally:
                ours.close()  # one that does not end by itself
        told = [detail for (detail,) in Records(tmp_path).rows("SELECT detail FROM event")]
        return len(Records(tmp_path).rows("SELECT 1 FROM round")), told

    return collected


def test_time_spent_on_a_slow_disk_is_no_reason_to_miss_what_has_come_meanwhile(collected):
    class Slow(Store):
        def commit(self) -> None:
            time.sleep(0.3)
            super().commit()

    messages = [records.pack_end({0: 3}), *(batch(0, number) for number in range(3))]
    assert collected(messages, Slow, wait_for_missing_s=0.2, burst=1, commit_every_s=0.0) == (3, [])


def test_it_waits_as_long_as_something_comes_and_tells_of_batches_that_never_came_by_sender(collected):
    def messages():
        yield batch(1, 0)
        yield records.pack_end({0: 2, 1: 3})
        for number in range(2):
            time.sleep(0.6)
            yield batch(0, number)

    assert collected(messages(), wait_for_missing_s=1.0) == (3, ["batches that never came: 2 of 3 from sender 1"])


def test_drops_are_told_at_most_once_in_a_while_and_all_of_them_in_the_end(collected, tmp_path):
    def is_told() -> bool:
        with contextlib.suppress(sqlite3.Error):
            return bool(Records(tmp_path).rows("SELECT * FROM event"))
        return False

    def messages():
        for number in range(3):
            yield b"nonsense"
            until(is_told)
            yield batch(0, number)
        yield records.pack_end({0: 3})

    told = [f"{count} malformed messages on the metrics plane" for count in (1, 2)]
    assert collected(messages(), drops_every_s=30.0, commit_every_s=0.0) == (3, told)


def test_when_told_to_stop_it_stores_what_is_waiting(collector):
    collector.send(*(batch(0, number) for number in range(2000)))
    time.sleep(0.1)
    collector.process.send_signal(signal.SIGTERM)
    assert collector.process.wait(100) == 0
    assert collector.count() == 2000
    assert collector.rows(f"SELECT kind FROM event WHERE node = {records.COLLECTOR}") == [("interrupt",)]


def test_waiting_costs_no_cpu_once_records_are_committed_without_further_messages(collector):
    collector.send(batch(0, 0), batch(0, 1))
    until(lambda: collector.count() == 2, seconds=1.0)
    process = psutil.Process(collector.process.pid)
    before, switches = sum(process.cpu_times()[:2]), process.num_ctx_switches().voluntary
    time.sleep(1.0)
    assert sum(process.cpu_times()[:2]) - before <= 0.02
    assert process.num_ctx_switches().voluntary - switches <= 20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries do as they do by themselves")
def test_memory_of_messages_that_had_to_wait_is_given_back(collector):
    """Those of several writers, who stay: what ZeroMQ keeps of each lies among them."""
    waiting, batches, writers = 24 << 20, 300, 16
    long = event(0, "warning", detail="x" * (waiting // batches // writers))
    process = psutil.Process(collector.process.pid)

    def own() -> int:
        return process.memory_full_info().uss

    with contextlib.ExitStack() as stack:
        pushes = [stack.enter_context(collector.push()) for _ in range(writers)]
        database = stack.enter_context(contextlib.closing(sqlite3.connect(collector.path / "run.sqlite")))
        before = own()
        database.execute("BEGIN IMMEDIATE")
        for number in range(batches):
            for writer, push in enumerate(pushes):
                push.send(records.pack_batch(writer, number, [long]))
        until(lambda: own() - before > 0.9 * waiting)
        database.rollback()
        until(lambda: collector.count("event") == batches * writers)
        until(lambda: own() - before < GROWTH)


def test_with_keys_each_writer_is_heard_under_its_own_number_only(tmp_path, context):
    keys, second_start = {node: KeyPair.make() for node in (records.LAUNCHER, 0, 1)}, 1_000_001
    with contextlib.closing(RunningCollector(tmp_path, context, keys)) as collector:
        collector.send(batch(0, 0), batch(0, 1), own=keys[0])
        # a connection that closes while another one's handshake is under way may be taken for that one
        until(lambda: collector.count() == 2)
        collector.send(batch(1, 0), batch(second_start, 0), batch(0, 2), records.pack_end({}), own=keys[1])
        until(collector.drops)
        collector.send(records.pack_end({0: 2, 1: 1, second_start: 1}), own=keys[records.LAUNCHER])
        assert collector.process.wait(100) == 0
        assert collector.count() == 4
        assert collector.drops() == {"messages under another's number on the metrics plane": 2}


def test_the_death_of_its_parent_ends_it_with_all_committed(tmp_path, context):
    launcher = f"""if True:
        import os, subprocess, time
        process = subprocess.Popen({command(tmp_path)!r} + ["--parent", str(os.getpid())], stdout=subprocess.PIPE)
        process.stdout.readline()
        print(process.pid, flush=True)
        time.sleep(60)
    """
    parent = subprocess.Popen([sys.executable, "-c", launcher], stdout=subprocess.PIPE, text=True)
    with parent, context.socket(zmq.PUSH) as socket:
        collector = os.pidfd_open(int(parent.stdout.readline()))
        socket.connect(f"ipc://{tmp_path}/records")
        socket.send(batch(0, 0))
        time.sleep(0.2)
        parent.kill()
        assert select.select([collector], [], [], 60)[0]
        os.close(collector)
    assert Records(tmp_path).rows("SELECT count(*) FROM round") == [(1,)]


def test_what_it_cannot_start_with_is_told_in_one_line(tmp_path):
    for option, complaint in (
        ("--parent=1", "the parent process 1 has ended"),
        ("--endpoint=ipc:///no/such/folder/records", "cannot listen"),
        ("--database=no/run.sqlite", "cannot be opened"),
    ):
        ended = subprocess.run(command(tmp_path, option), capture_output=True, text=True, timeout=100)
        assert ended.returncode == 1
        assert re.fullmatch(f".*{complaint}.*\n", ended.stderr)


def mutated(draw: random.Random, number: int) -> bytes:
    """A message made out of a legal batch; it is legal where the changes are to figures alone."""
    events = event(0, "warning", 0.5, "wröng"), event(0, "", virtual_s=1.5)
    legal = [done(0, number, wall_s=number / 10), sent(0, 1, number, 2), *events]
    batch = records.pack_batch(0, number, draw.choices(legal, k=draw.randint(1, 5)))
    for _ in range(draw.randint(1, 2)):
        batch = damaged(draw, batch) if draw.random() < 0.8 else msgpack.packb(odd(draw))
    return batch


def odd(draw: random.Random) -> object:
    value = draw.choice((None, True, 2**64 - 1, -1, 1.5, "x", b"x", [1], {1: 1}, msgpack.Timestamp(1), float("nan")))
    tag = draw.choice((0, 1, 3, 9, 10, -1, 2**63, "round"))
    row = [tag, *[value] * draw.choice((0, 1, len(records.TABLES["round"]._fields), 200))]
    return draw.choice(([0, 0, [row]], [value, 0, [row]], ["end", value], ["end", [[0, value]]], [row], value))


def test_nothing_illegal_is_stored_or_left_uncounted_or_kept(collector):
    draw, illegal, legal, memory = random.Random(7), 0, 0, []
    process = psutil.Process(collector.process.pid)
    with collector.push() as push:
        while illegal < MESSAGES:
            for _ in range(AT_ONCE):
                message = mutated(draw, 1 + illegal + legal)
                try:
                    records.unpack(message)
                    legal += 1
                except records.MalformedRecords:
                    push.send(message)
                    illegal += 1
            time.sleep(0.01)
            memory.append(process.memory_info().rss)
        push.send(records.pack_batch(1, 0, [event(1, "last", detail="after all that")]))
        push.send(records.pack_end({1: 1}))
    assert collector.process.wait(60) == 0
    assert 0 < legal < illegal
    assert collector.drops() == {"malformed messages on the metrics plane": illegal}
    assert collector.rows("SELECT detail FROM event WHERE kind <> 'drop'") == [("after all that",)]
    assert [table for table in records.TABLES if collector.count(table)] == ["node", "resource", "event"]
    assert collector.count("node") == collector.count("resource") == 1
    assert max(memory) < memory[len(memory) // 2] + GROWTH
