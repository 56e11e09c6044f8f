"""The process that receives the records of a run and stores them.

python -m sheafgossip.metrics.collector --endpoint ipc:///tmp/run/records --database RUN/run.sqlite
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import socket
import sqlite3
import sys
import time
from collections import Counter, defaultdict

import zmq

from ..transport.constants import CONSTANTS
from ..transport.failpoints import failpoint, this_is
from ..transport.keys import PROOF, Gate, KeyPair, Ring, listen_with, speaker
from ..transport.monitor import next_event
from .lifetime import allow_open_files, end_with_parent, stop_requests
from .records import (
    COLLECTOR,
    LAUNCHER,
    MAX_BATCH_BYTES,
    End,
    EventRecord,
    MalformedRecords,
    NodeRecord,
    ResourceRecord,
    Rows,
    node_of,
    unpack_rows,
)
from .schema import RunFolderError
from .sequences import Sequences
from .store import Store

_COMMIT_EVERY_S = CONSTANTS.commit_every_s
_DROPS_TOLD_EVERY_S = 1.0
_WAIT_FOR_MISSING_S = CONSTANTS.missing_s
_DRAIN_S = 0.5
_QUIET_MS = 50  # nothing for so long: nothing was waiting
# A sender waits once so many of its messages do. Far above what is usual: libzmq discards what is still in the kernel's
# buffer when a peer disconnects while the receiver is at this limit.
_WAITING_PER_SENDER = 10_000
_AT_THE_DOOR = 4096  # clients that connect at the same moment: all of a large run do
_GATHER_MS, _BURST, _BURST_ROWS = CONSTANTS.collector_gather_ms, CONSTANTS.burst, CONSTANTS.burst_rows


class Collector:
    """``epoch`` is the zero of the run's ``wall_s`` in terms of time.monotonic().

    With ``resources`` it ends with a record of its own memory and CPU time. With a ``door`` each writer is heard under
    its own number only.
    """

    def __init__(
        self, receiver: zmq.Socket, store: Store, epoch: float, *, resources: bool = True, door: Door | None = None
    ):
        self._receiver = receiver
        self._door = door
        self._store = store
        self._epoch = epoch
        self._resources = resources
        self._sequences: defaultdict[int, Sequences] = defaultdict(Sequences)
        self._end: End | None = None
        self._end_due = math.inf
        self._committed = self._drops_told = 0.0  # long ago
        self._dropped: Counter[str] = Counter()

    def run(self, stop: socket.socket) -> None:
        """Until End and all it announces, or until ``stop`` is readable."""
        poller = zmq.Poller()
        poller.register(self._receiver, zmq.POLLIN)
        poller.register(stop, zmq.POLLIN)
        only_stop = zmq.Poller()
        only_stop.register(stop, zmq.POLLIN)
        for other in self._door.sockets if self._door else ():
            poller.register(other, zmq.POLLIN)
        while not self._complete():
            if stop.fileno() in dict(poller.poll(self._patience_ms())):
                self._drain()
                break
            if self._door is not None and (refused := self._door.attend()):
                self._dropped["connections without the right key"] += refused
            emptied = self._receive()
            self._commit_if_due()
            if emptied and self._end is None:
                only_stop.poll(_GATHER_MS)
        self._last_words()
        failpoint("last words")
        self._store.close()
        failpoint("closed")

    def _complete(self) -> bool:
        return self._end is not None and (not self._missing() or time.monotonic() >= self._end_due)

    def _missing(self) -> dict[int, int]:
        """Sender -> batches that it has sent and that have not come."""
        announced = self._end.batches if self._end else {}
        missing = {sender: self._sequences[sender].missing(count) for sender, count in announced.items()}
        return {sender: count for sender, count in missing.items() if count}

    def _patience_ms(self) -> int | None:
        """Until the next thing to do unasked; None: there is none."""
        due = self._end_due
        if self._store.uncommitted or self._dropped:
            due = min(due, self._committed + _COMMIT_EVERY_S)
        return None if due == math.inf else max(0, math.ceil((due - time.monotonic()) * 1000))

    def _receive(self) -> bool:
        """Whether that was all for now."""
        emptied = False
        tables: defaultdict[str, list] = defaultdict(list)
        messages = rows_taken = 0
        while messages < _BURST and rows_taken < _BURST_ROWS:
            messages += 1
            try:
                frame = self._receiver.recv(zmq.NOBLOCK, copy=False)
                message = unpack_rows(frame.bytes)
            except zmq.Again:
                emptied = True
                break
            except MalformedRecords:
                self._dropped["malformed messages"] += 1
                continue
            if self._door is not None and speaker(frame) != _writer(message):
                self._dropped["messages under another's number"] += 1
                continue
            if isinstance(message, End):
                self._end, self._end_due = message, time.monotonic() + _WAIT_FOR_MISSING_S
            elif self._sequences[message.sender].accept(message.sequence):
                for name, rows in message.tables.items():
                    tables[name] += rows
                    rows_taken += len(rows)
        self._store.write_rows(tables)
        if tables and self._end is not None:  # where some has come, the rest is on its way
            self._end_due = time.monotonic() + _WAIT_FOR_MISSING_S
        return emptied

    def _commit_if_due(self) -> None:
        now = time.monotonic()
        if (self._store.uncommitted or self._dropped) and now - self._committed >= _COMMIT_EVERY_S:
            if now - self._drops_told >= _DROPS_TOLD_EVERY_S:
                self._tell_drops()
            failpoint("commit")
            self._store.commit()
            failpoint("committed")
            self._committed = time.monotonic()

    def _drain(self) -> None:
        due = time.monotonic() + _DRAIN_S
        while time.monotonic() < due and self._receiver.poll(_QUIET_MS):
            self._receive()

    def _last_words(self) -> None:
        self._tell_drops()
        if self._end is None:
            self._tell("interrupt", "asked to end before the launcher's last word")
        elif missing := self._missing():
            senders = ", ".join(
                f"{count} of {self._end.batches[sender]} from sender {sender}" for sender, count in missing.items()
            )
            self._tell("lost-records", f"batches that never came: {senders}")
        endpoint = self._receiver.getsockopt_string(zmq.LAST_ENDPOINT)
        host = socket.gethostname()
        self._store.write([NodeRecord(COLLECTOR, "collector", "", 0, 0, 0, 0, host, os.getpid(), endpoint)])
        if self._resources:
            self._store.write([_own_resources(time.monotonic() - self._epoch)])

    def _tell_drops(self) -> None:
        for what, count in self._dropped.items():
            self._tell("drop", f"{count} {what} on the metrics plane")
            self._drops_told = time.monotonic()
        self._dropped.clear()

    def _tell(self, kind: str, detail: str) -> None:
        self._store.write([EventRecord(time.monotonic() - self._epoch, None, COLLECTOR, kind, detail)])


def _writer(message: Rows | End) -> int:
    return LAUNCHER if isinstance(message, End) else node_of(message.sender)


class Door:
    """Lets in only writers whose keys it knows, and counts the others."""

    def __init__(self, context: zmq.Context, receiver: zmq.Socket, ring: Ring):
        listen_with(receiver, ring.own)
        self._gate = Gate(context, ring.others)
        self._monitor = receiver.get_monitor_socket(PROOF)
        self.sockets = self._gate.socket, self._monitor

    def attend(self) -> int:
        """To who has come; returns how many connections were refused since."""
        self._gate.answer()
        refused = 0
        for _ in range(_BURST):
            if not self._monitor.poll(0):
                break
            refused += self._gate.refused(*next_event(self._monitor))
        return refused


def _own_resources(wall_s: float) -> ResourceRecord:
    import psutil  # needed once, at the end; the start should be quick

    memory = psutil.Process().memory_full_info()
    peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return ResourceRecord(
        node=COLLECTOR,
        wall_s=wall_s,
        rss=memory.rss,
        pss=getattr(memory, "pss", memory.rss),  # Linux only
        uss=memory.uss,
        peak_rss=peak_rss,
        cpu_s=time.process_time(),
        state_bytes=0,
    )


def _bound_receiver(context: zmq.Context, endpoint: str, ring: Ring | None) -> tuple[zmq.Socket, Door | None]:
    receiver = context.socket(zmq.PULL)
    receiver.maxmsgsize = MAX_BATCH_BYTES
    receiver.rcvhwm = _WAITING_PER_SENDER
    receiver.backlog = _AT_THE_DOOR
    door = Door(context, receiver, ring) if ring else None
    receiver.bind(endpoint)
    return receiver, door


def _keys_from_stdin() -> Ring:
    """One line of JSON: the collector's own pair, and {number: public key} of those that may write."""
    told = json.loads(sys.stdin.readline())
    return Ring(KeyPair(**told["own"]), {int(number): key for number, key in told["others"].items()})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sheafgossip.metrics.collector", description="Stores the records of a run.")
    parser.add_argument(
        "--endpoint", required=True, help="where to listen: ipc://PATH or tcp://ADDRESS:PORT (port *: any)"
    )
    parser.add_argument("--database", required=True, help="the run.sqlite to write")
    parser.add_argument("--epoch", type=float, default=time.monotonic(), help="the run's second 0 (time.monotonic())")
    parser.add_argument("--no-resources", action="store_true", help="record no memory and CPU time of its own")
    parser.add_argument("--keys", action="store_true", help="take keys from a line of JSON on standard input")
    parser.add_argument("--parent", type=int, help="process number of the launcher, to end with it")
    return parser.parse_args()


def main() -> None:
    this_is("collector")
    arguments = _arguments()
    stop = stop_requests()
    end_with_parent(arguments.parent)
    allow_open_files()  # one for every client
    context = zmq.Context()
    try:
        receiver, door = _bound_receiver(context, arguments.endpoint, _keys_from_stdin() if arguments.keys else None)
        store = Store(arguments.database)
        failpoint("open")
        print("ready", receiver.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
        Collector(receiver, store, arguments.epoch, resources=not arguments.no_resources, door=door).run(stop)
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
