"""The process that receives the records of a run and stores them."""

import argparse
import contextlib
import json
import math
import os
import resource
import select
import socket
import sqlite3
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import zmq

from ..transport import keys, limits
from ..transport.environment import CONSTANTS, failpoint, this_is
from . import records
from .records import COLLECTOR, LAUNCHER, MAX_BATCH_BYTES, End, MalformedRecords, node_of, unpack
from .store import RunFolderError, Store, is_locked

_COMMIT_EVERY_S, _WAIT_FOR_MISSING_S = CONSTANTS.commit_every_s, CONSTANTS.missing_s
_DROPS_EVERY_S = 1.0
_DRAIN_S = 0.5
_LOCKED_S = 0.2  # between two attempts to write what somebody else has locked
_QUIET_MS = 50  # nothing for so long: nothing was waiting
# A sender waits once so many of its messages do. Far above what is usual: libzmq discards what is still in the kernel's
# buffer when a peer disconnects while the receiver is at this limit.
_WAITING_PER_SENDER = 10_000
_BACKLOG = 4096  # clients that connect at the same moment: all of a large run do
_GATHER_MS, _BURST, _BURST_ROWS = CONSTANTS.collector_gather_ms, CONSTANTS.burst, CONSTANTS.burst_rows


class Sequences:
    """Tells which batches of a sender have come in: nearly in order, so the memory needed is that of the gaps."""

    def __init__(self) -> None:
        self._next = 0  # every number below has been accepted
        self._ahead: set[int] = set()

    def accept(self, sequence: int) -> bool:
        if sequence < self._next or sequence in self._ahead:
            return False
        self._ahead.add(sequence)
        while self._next in self._ahead:
            self._ahead.remove(self._next)
            self._next += 1
        return True

    def missing(self, count: int) -> int:
        """Counts those of the numbers 0 to ``count`` - 1 that have not come."""
        return max(0, count - self._next) - sum(sequence < count for sequence in self._ahead)


class Authenticator:
    """Accepts only writers whose keys it knows, and counts the others. On standard input the launcher tells of a writer
    before that one comes: lines of [number, public key]."""

    def __init__(self, context: zmq.Context, receiver: zmq.Socket, launcher_key: str):
        own = keys.KeyPair.make()  # its secret is ZeroMQ's alone
        keys.listen_with(receiver, own)
        self.key = own.public
        self._handler = keys.ZapHandler(context, {LAUNCHER: launcher_key}, more=True)
        self._monitor = receiver.get_monitor_socket(keys.PROOF)
        self._announcements, self._unfinished = sys.stdin.fileno(), b""
        os.set_blocking(self._announcements, False)
        self.poller = zmq.Poller()
        for source in (self._handler.socket, self._monitor, self._announcements):
            self.poller.register(source, zmq.POLLIN)

    def answer(self) -> int:
        """Answers whoever has connected; returns how many connections were refused since."""
        self._handler.answer()
        announced: dict[int, str] = {}
        with contextlib.suppress(BlockingIOError):
            while self._announcements in self.poller:
                text = os.read(self._announcements, 1 << 16)
                *lines, self._unfinished = (self._unfinished + text).split(b"\n")
                announced |= dict(map(json.loads, lines))
                if not text:
                    self.poller.unregister(self._announcements)  # the launcher has said all
        self._handler.learn(announced, more=True)  # who has come was announced before
        self._handler.turn_away()
        refused = 0
        for _ in range(_BURST):
            if not self._monitor.poll(0):
                break
            refused += self._handler.refused(*keys.next_event(self._monitor))
        return refused


@dataclass(eq=False)
class Collector:
    receiver: zmq.Socket
    store: Store
    epoch: float  # the zero of the run's ``wall_s`` in terms of time.monotonic()
    resources: bool = True  # it ends with a record of its own memory and CPU time
    authenticator: Authenticator | None = None  # each writer is heard under its own number only

    def run(self, stop: socket.socket) -> None:
        """Stores until End and all it announces have come, or until ``stop`` is readable."""
        self._stop = stop
        self._sequences: defaultdict[int, Sequences] = defaultdict(Sequences)
        self._end: End | None = None
        self._taken = 0  # batches
        self._committed = self._drops_recorded = 0.0  # long ago
        self._dropped: Counter[str] = Counter()
        poller = self.authenticator.poller if self.authenticator else zmq.Poller()
        poller.register(self.receiver, zmq.POLLIN)
        poller.register(stop, zmq.POLLIN)
        end_due = math.inf
        while self._end is None or (self._missing() and time.monotonic() < end_due):
            due = end_due  # the next thing to do unasked
            if self.store.uncommitted or self._dropped:
                due = min(due, self._committed + _COMMIT_EVERY_S)
            wait_ms = None if due == math.inf else max(0, math.ceil((due - time.monotonic()) * 1000))
            if stop.fileno() in dict(poller.poll(wait_ms)):
                due = time.monotonic() + _DRAIN_S
                while time.monotonic() < due and self.receiver.poll(_QUIET_MS):
                    self._receive()
                break
            if self.authenticator is not None and (refused := self.authenticator.answer()):
                self._dropped["connections without the right key"] += refused
            before = self._taken, self._end
            emptied = self._receive()
            now = time.monotonic()
            if (self.store.uncommitted or self._dropped) and now - self._committed >= _COMMIT_EVERY_S:
                if now - self._drops_recorded >= _DROPS_EVERY_S:
                    self._record_drops()
                failpoint("commit")
                self.store.commit()
                failpoint("committed")
                self._committed = time.monotonic()
                self._tell_stored()
                limits.give_memory_back()  # of messages that have waited, in the heap of ZeroMQ's thread
            if self._end is not None and before != (self._taken, self._end):  # where some came, the rest is on its way
                end_due = time.monotonic() + _WAIT_FOR_MISSING_S
            if emptied and self._end is None:
                select.select([stop], [], [], _GATHER_MS / 1000)
        self._write_the_end()
        failpoint("last words")
        self.store.close()
        failpoint("closed")
        self._tell_stored()

    def _missing(self) -> dict[int, int]:
        """Returns {sender: batches that it has sent and that have not come}."""
        announced = self._end.batches if self._end else {}
        return {at: lacking for at, count in announced.items() if (lacking := self._sequences[at].missing(count))}

    def _receive(self) -> bool:
        """Takes a burst of messages. Returns whether that was all for now."""
        emptied = False
        tables: defaultdict[str, list] = defaultdict(list)
        messages = rows_taken = 0
        while messages < _BURST and rows_taken < _BURST_ROWS:
            messages += 1
            try:
                frame = self.receiver.recv(zmq.NOBLOCK, copy=False)
                message = unpack(frame.bytes)
            except zmq.Again:
                emptied = True
                break
            except MalformedRecords:
                self._dropped["malformed messages"] += 1
                continue
            writer = LAUNCHER if isinstance(message, End) else node_of(message.sender)
            if self.authenticator is not None and keys.authenticated_number(frame) != writer:
                self._dropped["messages under another's number"] += 1
            elif isinstance(message, End):
                self._end = message
            elif self._sequences[message.sender].accept(message.sequence):
                self._taken += 1
                for name, rows in message.tables.items():
                    tables[name] += rows
                    rows_taken += len(rows)
        self._write(tables)
        return emptied

    def _write(self, tables: Mapping[str, list]) -> None:
        """Waits as long as somebody else keeps the database locked, unless this process is asked to stop."""
        while True:
            try:
                return self.store.write_rows(tables)
            except sqlite3.OperationalError as error:  # before anything was written: a lock is taken first
                if not is_locked(error) or select.select([self._stop], [], [], _LOCKED_S)[0]:
                    raise

    def _write_the_end(self) -> None:
        self._record_drops()
        if self._end is None:
            self._record("interrupt", "asked to end before the launcher's last word")
        elif missing := self._missing():
            senders = (f"{count} of {self._end.batches[at]} from sender {at}" for at, count in missing.items())
            self._record("lost-records", f"batches that never came: {', '.join(senders)}")
        endpoint, host = self.receiver.getsockopt_string(zmq.LAST_ENDPOINT), socket.gethostname()
        self._write({"node": [records.NodeRecord(COLLECTOR, "collector", "", 0, 0, 0, 0, host, os.getpid(), endpoint)]})
        if self.resources:
            import psutil  # needed once, at the end; the start should be quick

            memory = psutil.Process().memory_full_info()
            peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            sizes = (memory.rss, getattr(memory, "pss", memory.rss), memory.uss, peak_rss)  # PSS: Linux only
            wall_s, cpu_s = time.monotonic() - self.epoch, time.process_time()
            self._write({"resource": [records.ResourceRecord(COLLECTOR, wall_s, *sizes, cpu_s, 0)]})

    def _record_drops(self) -> None:
        for what, count in self._dropped.items():
            self._record("drop", f"{count} {what} on the metrics plane")
            self._drops_recorded = time.monotonic()
        self._dropped.clear()

    def _record(self, kind: str, detail: str) -> None:
        self._write({"event": [records.EventRecord(time.monotonic() - self.epoch, None, COLLECTOR, kind, detail)]})

    def _tell_stored(self) -> None:
        """Tells who has started this process; nobody needs to read it."""
        with contextlib.suppress(OSError, ValueError):
            if select.select([], [sys.stdout], [], 0)[1]:
                print("stored", self._taken, flush=True)


def main() -> None:
    this_is("collector")
    parser = argparse.ArgumentParser(prog="sheafgossip.metrics.collector", description="Stores the records of a run.")
    option = parser.add_argument
    option("--endpoint", required=True, help="where to listen: ipc://PATH or tcp://ADDRESS:PORT (port *: any)")
    option("--database", required=True, help="the run.sqlite to write")
    option("--epoch", type=float, default=time.monotonic(), help="the run's second 0 (time.monotonic())")
    option("--no-resources", action="store_true", help="record no memory and CPU time of its own")
    key = "ask for keys: the launcher's public one; those of writers come on standard input, a [number, key] a line"
    option("--launcher-key", help=key)
    option("--connections", type=int, default=0, help="over tcp: how many may be open, unauthenticated peers' aside")
    option("--parent", type=int, help="process number of the launcher, to end with it")
    arguments = parser.parse_args()
    stop = limits.stop_requests()
    limits.end_with_parent(arguments.parent)
    limits.allow_open_files()  # one for every client, unless it is told how many
    context = zmq.Context()
    try:
        receiver = context.socket(zmq.PULL)
        receiver.maxmsgsize, receiver.rcvhwm, receiver.backlog = MAX_BATCH_BYTES, _WAITING_PER_SENDER, _BACKLOG
        receiver.handshake_ivl = keys.HANDSHAKE_MS
        authenticator = Authenticator(context, receiver, arguments.launcher_key) if arguments.launcher_key else None
        receiver.bind(arguments.endpoint)
        store = Store(arguments.database)
        failpoint("open")
        if arguments.connections:
            limits.bound_connections(arguments.connections)
            limits.bound_memory()
            limits.keep_own_files()
        public = [authenticator.key] if authenticator else []
        print("ready", receiver.getsockopt_string(zmq.LAST_ENDPOINT), *public, flush=True)
        Collector(receiver, store, arguments.epoch, not arguments.no_resources, authenticator).run(stop)
    except zmq.ZMQError as error:
        sys.exit(f"the collector cannot listen at {arguments.endpoint}: {error}")
    except RunFolderError as error:
        sys.exit(str(error))
    except sqlite3.Error as error:
        sys.exit(f"the collector cannot write {arguments.database}: {error}")
    finally:
        context.destroy(linger=0)


if __name__ == "__main__":
    main()
