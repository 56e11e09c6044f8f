"""The launcher's end of the collector: its process, a line of its own to it, and the wait until all is stored."""

import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

import psutil
import zmq

from ...metrics.recorder import Recorder
from ...metrics.records import COLLECTOR, LAUNCHER, OverheadRecord, Record, pack_end
from ...transport.environment import CONSTANTS
from ...transport.keys import KeyPair
from .. import command
from ..prepare.prepared import Prepared
from .engine import EngineError, stop

_GRACE_S, _STANDSTILL_S = CONSTANTS.stop_grace_s, CONSTANTS.standstill_s
_LOOK_EVERY_S = 0.5
_ZMQ_THREADS = 2
_COLLECTOR = command("sheafgossip.metrics.collector")
_NOWHERE = "tcp://127.0.0.1:1"  # where a collector is that could not listen: the run ends as soon as it looks after it


class CollectorProcess(AbstractContextManager["CollectorProcess"]):
    """A context manager: leaving it ends the collector in any case. ``lock`` is a descriptor for it to hold, too."""

    def __init__(self, prepared: Prepared, lock: int | None = None):
        endpoint = prepared.assignments[0].deployment.records
        own = KeyPair.make() if endpoint.startswith("tcp://") and prepared.config.transport.keys else None
        words = [*_COLLECTOR, "--endpoint", endpoint]
        words += ["--database", str(prepared.folder / "run.sqlite"), "--parent", str(os.getpid())]
        words += [f"--launcher-key={own.public}"] if own else []  # a key may begin with a dash
        if endpoint.startswith("tcp://"):
            words += ["--connections", str(4 * len(prepared.assignments) + 8)]  # of later incarnations, too
        words += [] if prepared.config.measuring.enabled else ["--no-resources"]
        _require_threads()
        self.log = prepared.folder / "log" / "collector.log"
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        try:
            self._process = subprocess.Popen(words, **pipes, stderr=log, pass_fds=() if lock is None else (lock,))
        except BlockingIOError as error:
            raise EngineError(f"no process can be made for the collector: {error.strerror} (ulimit -u)") from error
        finally:
            os.close(log)
        ends: Any = (self._process.stdin, self._process.stdout)
        self._keys, self._said = ends
        if not own:
            self._keys.close()
        self._address, self._key = endpoint, ""
        if not endpoint.startswith("ipc://"):  # whose port is its own choice, and whose keys it makes itself
            _, self._address, *key = self._said.readline().decode().split() or ("", _NOWHERE)
            self._key = "".join(key)
        self._stored, self._unread = 0, b""
        self._context = zmq.Context()
        keys = (own, self._key or own.public) if own else None
        self._recorder = Recorder(self._context, self._address, LAUNCHER, keys=keys)
        self.write = self._recorder.write

    def found(self, prepared: Prepared) -> Prepared:
        """The run, with the address where its records go, and whose public key is to be found there."""
        here: dict[str, Any] = {"records": self._address, "records_key": self._key}
        told = (replace(each, deployment=replace(each.deployment, **here)) for each in prepared.assignments)
        return replace(prepared, assignments=tuple(told))

    def let_in(self, node: int, key: str) -> None:
        """Tells the collector a writer's public key, before that writer learns that it may come."""
        if self._key:
            with suppress(OSError):  # that it has ended is noticed elsewhere
                self._keys.write(json.dumps([node, key]).encode() + b"\n")
                self._keys.flush()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def overhead(self) -> Record:
        """What the launcher has sent to it: batches, and its last word."""
        return OverheadRecord(LAUNCHER, COLLECTOR, "records", self._recorder.batches + 1, self._recorder.wire_bytes)

    def stored(self) -> int:
        """Batches that have been stored so far."""
        while select.select([self._said], [], [], 0)[0] and (read := self._said.read1(1 << 16)):
            *lines, self._unread = (self._unread + read).split(b"\n")
            for word, _, number in (each.partition(b" ") for each in lines):
                self._stored = int(number) if word == b"stored" else self._stored
        return self._stored

    def signs(self) -> tuple[int, ...]:
        """Something in it changes as long as the collector gets on."""
        written = 0
        with suppress(psutil.Error, OSError, AttributeError):  # not every system counts that
            written = psutil.Process(self._process.pid).io_counters().write_chars
        return self.stored(), written

    def end(self, batches: dict[int, int], tell: Callable[[str], None], impatient: Callable[[], bool]) -> str | None:
        """Tells the collector what is still to come and waits for its end, as long as it gets on and nobody is
        ``impatient``. Returns why records are missing, if any are."""
        self._recorder.send(pack_end(batches | {LAUNCHER: self._recorder.batches}))
        total = sum(batches.values()) + self._recorder.batches
        why, seen, began = "", self.signs(), time.monotonic()
        due = began + _STANDSTILL_S
        while not why and self.alive:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LOOK_EVERY_S)
                break
            tell(f"storing records: {self.stored():,} of {total:,} batches")
            if seen != (seen := self.signs()):
                due = time.monotonic() + _STANDSTILL_S
            if impatient() and time.monotonic() > began + _GRACE_S:
                why = "interrupted"
            elif time.monotonic() > due:
                why = f"the collector got nowhere for {_STANDSTILL_S:g} s"
        if why:
            stop(self._process, _GRACE_S)  # it stores what it has
        if self._process.returncode == 0 and (not why or self.stored() == total):
            return None
        why = why or f"the collector ended early, see {self.log}"
        of_all = f" of {total:,}" if self.stored() <= total else ""  # who failed has not told how many it sent
        return f"{self.stored():,}{of_all} batches are stored; {why}"

    def __exit__(self, *_: object) -> None:
        if self.alive:
            stop(self._process, _GRACE_S)
        for line in (self._keys, self._said):
            with suppress(OSError):
                line.close()
        self._context.destroy(linger=0)


def _require_threads() -> None:
    """Those that ZeroMQ is about to need: it ends the whole process where it does not get them. Raises EngineError."""
    done = threading.Event()
    try:
        for _ in range(_ZMQ_THREADS):
            threading.Thread(target=done.wait, daemon=True).start()
    except RuntimeError as error:
        raise EngineError(f"{error}: no more processes or threads are allowed (ulimit -u, pids.max)") from error
    finally:
        done.set()
