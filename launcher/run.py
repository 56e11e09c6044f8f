"""One run: its processes from start to end, whatever happens to them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import zmq

from ..metrics.reader import open_records
from ..metrics.records import (
    COLLECTOR,
    FORK_SERVER,
    LAUNCHER,
    EventRecord,
    NodeRecord,
    OverheadRecord,
    Record,
    pack_end,
)
from ..metrics.store import Store
from ..node.assignment import Assignment, name_of
from ..node.resources import sample
from ..transport.control import ControlClosed
from ..transport.keys import KeyPair
from ..transport.recorder import Recorder
from .engines import Engine, EngineError
from .lives import Lives
from .preparation import Prepared

_GRACE_S = 1.5
"""How long clients that were asked to stop may take before they are killed."""

_COMPANY_S = 0.3
"""A failure rarely comes alone: how long to listen for the one that caused it."""

_PATIENCE_S = 60.0
"""How long processes that are done may take to leave."""

_STORING_S = 60.0
"""How long the collector may take to store what has piled up; by itself it ends once nothing more comes."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended. ``causes`` are texts for the user, the root of the trouble first."""

    status: Literal["finish", "failure", "interrupt"]
    causes: tuple[str, ...] = ()


class _Failure(Exception):
    """The run cannot go on."""


@dataclass
class _Clients:
    """What is known of the client processes."""

    running: dict[int, Assignment] = field(default_factory=dict)
    """{client: its present life}"""
    addresses: dict[int, str] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    """The public ones, of the clients' present lives."""
    ready: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    """Those without a further life, before the others are done."""
    returning: dict[int, float] = field(default_factory=dict)
    """{client: when its next life begins (time.monotonic() seconds)}"""
    batches: dict[int, int] = field(default_factory=dict)
    planes: list[OverheadRecord] = field(default_factory=list)
    """Bytes beside the data plane: of the clients' control lines, and of the records they sent."""
    errors: dict[int, dict[str, str]] = field(default_factory=dict)
    deaths: dict[int, int] = field(default_factory=dict)


class Run:
    """Drives one prepared run on an engine. ``watch`` is called a few times a second while the clients work."""

    def __init__(self, prepared: Prepared, engine: Engine, watch: Callable[[], None]):
        self._prepared = prepared
        self._engine = engine
        self._watch = watch
        self._total = len(prepared.assignments)
        self._survives = prepared.config.time.deaths == "continue"
        self._clients = _Clients()
        self._going = self._leaving = False
        self._parting: set[int] = set()  # clients that have said their last word
        self._lost_hosts: list[str] = []
        self._lost_nodes: set[int] = set()
        self._dead: set[int] = set()  # those that died unexpectedly, where the run goes on without them
        self._started = self._epoch = time.monotonic()
        self.ready_s: float | None = None
        """Seconds from the call until all clients had met their neighbours."""

    def __call__(self) -> Outcome:
        """Raises nothing but what is a fault of this program; no client is left running in any case."""
        self._started = self._epoch = time.monotonic()
        for _ in self._engine.planes():  # what went before is not this run's
            pass
        with _Collector(self._prepared) as self._collector:
            self._prepared = self._collector.found(self._prepared)
            self._lives = Lives(self._prepared)
            outcome = self._attempt()
            with _deaf_to_ctrl_c():  # what follows is short, and must not be cut
                if self._clients.running:
                    self._stop_clients(outcome.status)
                if absent := self._engine.bring_home():
                    self._tell_launcher("warning", f"not all that clients wrote on {', '.join(absent)} is here")
                self._collector.write(*self._last_words())
                lost = self._collector.end(self._clients.batches)
                if outcome.status == "failure":
                    outcome = Outcome("failure", tuple(self._causes()) + outcome.causes)
                elif lost:
                    outcome = Outcome("failure", ("the collector ended early: records of this run are missing",))
                self._note(outcome)
        return outcome

    def _attempt(self) -> Outcome:
        try:
            self._conduct()
        except KeyboardInterrupt:
            return Outcome("interrupt")
        except _Failure as failure:
            return Outcome("failure", failure.args)
        except EngineError as error:
            return Outcome("failure", error.args)
        except ControlClosed:
            self._clients.running.clear()
            return Outcome("failure", ("the fork server ended, and every client with it",))
        return Outcome("finish")

    def _conduct(self) -> None:
        """The run's steps; each begins when every client has completed the one before."""
        clients = self._clients
        late = self._lives.late()
        clients.ended.update(self._lives.none())
        first = {assignment.node: assignment for assignment in self._lives.first()}
        self._engine.begin(self._prepared.folder)
        self._engine.equip(first.values())
        clients.running.update(first)
        self._engine.fork(first.values())
        self._until(lambda: len(clients.addresses) == len(first))
        for node in first:
            self._engine.tell(node, {"connect": self._present_neighbours(node)})
        self._until(lambda: len(clients.ready) == len(first))
        self.ready_s = time.monotonic() - self._started
        self._epoch = time.monotonic() - self._prepared.went_on_s
        self._collector.write(*self._introductions())
        self._engine.tell_all({"go": self._epoch})
        self._going = True
        for node in late:
            clients.returning[node] = self._time_of_return(node, since_s=0.0)
        self._until(lambda: len(clients.done | clients.ended) == self._total)
        self._leaving = True
        self._engine.tell_all({"exit": True})
        self._until(lambda: not clients.running, seconds=_PATIENCE_S)

    # -- comings and goings --------------------------------------------------------------------------------------------

    def _present_neighbours(self, node: int) -> dict[int, tuple[str, int, str]]:
        """{neighbour: its address, life and public key}, of those that are there."""
        clients = self._clients
        return {
            peer.node: (clients.addresses[peer.node], clients.running[peer.node].life, clients.keys[peer.node])
            for peer in self._prepared.assignments[node].neighbours
            if peer.node in clients.addresses
        }

    def _time_of_return(self, node: int, since_s: float) -> float:
        """On the wall clock the pause really passes; on the virtual one it is part of the plan."""
        wall = self._prepared.config.time.clock == "wall"
        return time.monotonic() + (self._lives.pause_s(node, since_s) if wall else 0.0)

    def _begin_lives(self) -> None:
        """Starts the clients whose time has come."""
        now = time.monotonic()
        for node in [node for node, due in self._clients.returning.items() if due <= now]:
            del self._clients.returning[node]
            if (assignment := self._lives.next(node)) is not None:
                self._clients.running[node] = assignment
                self._engine.equip([assignment])
                self._engine.fork([assignment])

    def _introduce(self, node: int) -> None:
        """A client has come that the others have not met yet."""
        neighbours, life = self._present_neighbours(node), self._clients.running[node]
        for other in self._dead & {peer.node for peer in life.neighbours}:
            self._engine.tell(node, {"gone": other})
        self._engine.tell(node, {"connect": neighbours})
        place = {"address": self._clients.addresses[node], "life": life.life, "key": self._clients.keys[node]}
        news = {"rejoin": node, **place, "first_round": life.first_round}
        for other in neighbours:
            self._engine.tell(other, news)
        kind = "restart" if life.life > 1 else "join"
        self._tell_event(node, kind, f"takes part from round {life.first_round}", self._lives.of(life).start_s)

    def _part_with(self, node: int, kind: str, detail: str, virtual_s: float | None = None) -> None:
        """A client has ended before the others, as planned or not."""
        for other in self._present_neighbours(node):
            self._engine.tell(other, {"gone" if kind == "death" else "left": node})
        self._tell_event(node, kind, detail, virtual_s)

    def _tell_of_finish(self, node: int) -> None:
        """On the wall clock nobody knows how many rounds behind the others are: no one should wait for who is done."""
        if self._prepared.plan and self._prepared.config.time.clock == "wall":
            for other in self._present_neighbours(node):
                self._engine.tell(other, {"finished": node})

    def _tell_event(self, node: int, kind: str, detail: str, virtual_s: float | None) -> None:
        when = virtual_s if self._prepared.config.time.clock == "virtual" else None
        if when is None or (node, kind, when) not in self._prepared.told:
            self._collector.write(EventRecord(time.monotonic() - self._epoch, when, node, kind, detail))

    def _until(self, reached: Callable[[], bool], seconds: float = float("inf")) -> None:
        """Acts on what the clients say until ``reached``. Raises _Failure when one fails, or after ``seconds``."""
        deadline = time.monotonic() + seconds
        while not reached():
            if self._clients.errors or self._clients.deaths:
                self._listen(_COMPANY_S)
                raise _Failure
            if not self._collector.alive:
                raise _Failure("the collector of the records ended unexpectedly")
            if time.monotonic() > deadline:
                raise _Failure(f"{len(self._clients.running)} clients did not leave within {seconds:g} s")
            self._begin_lives()
            next_ = min(self._clients.returning.values(), default=math.inf) - time.monotonic()
            if not self._listen_once(max(0.0, min(0.25, next_))):
                self._watch()

    def _listen(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._clients.running and (remaining := deadline - time.monotonic()) > 0:
            self._listen_once(remaining)

    def _listen_once(self, seconds: float) -> bool:
        """Waits for word from the engine and notes it down; False when none came."""
        if not self._engine.wait(seconds):
            return False
        for message in self._engine.receive():
            match message:
                case {"from": node, "message": {"bound": address, "key": key}}:
                    self._collector.let_in(node, key)
                    self._clients.addresses[node], self._clients.keys[node] = address, key
                    if self._going:
                        self._introduce(node)
                case {"from": node, "message": {"ready": True}}:
                    self._clients.ready.add(node)
                    if self._going:
                        self._engine.tell(node, {"go": self._epoch})
                case {"from": node, "message": {"done": True}}:
                    self._clients.done.add(node)
                    self._tell_of_finish(node)
                case {"from": node, "message": {"left": batches, "wire_bytes": size}}:
                    self._clients.batches[self._clients.running[node].sender] = batches
                    self._parting.add(node)
                    self._clients.planes.append(OverheadRecord(node, COLLECTOR, "records", batches, size))
                case {"from": node, "message": {"failed": _, **_rest} as error}:
                    self._clients.errors[node] = error
                case {"exit": node, "status": status, "told": told, "heard": heard, **rest}:
                    parent = rest.get("of", FORK_SERVER)
                    self._clients.planes.append(OverheadRecord(parent, node, "control", *told))
                    self._clients.planes.append(OverheadRecord(node, parent, "control", *heard))
                    self._note_exit(node, status)
                case {"lost": host, "clients": nodes, "cause": cause}:
                    self._note_lost(host, nodes, cause)
        return True

    def _note_lost(self, host: str, nodes: list[int], cause: str) -> None:
        """To the run this is a crash of all that ran there; the engine tells of each, after this."""
        text = f"host {host} was lost, and with it {_these(nodes)}: {cause}"
        self._tell_launcher("host-lost", text)
        self._lost_hosts.append(text)
        self._lost_nodes.update(nodes)

    def _tell_launcher(self, kind: str, text: str) -> None:
        self._collector.write(EventRecord(time.monotonic() - self._epoch, None, LAUNCHER, kind, text))

    def _note_exit(self, node: int, status: int) -> None:
        clients = self._clients
        life = clients.running.pop(node)
        clients.addresses.pop(node, None)
        clients.ready.discard(node)
        if node in self._parting and not self._leaving and life.ending != "finish":
            self._parting.discard(node)
            end_s = self._lives.of(life).end_s
            self._part_with(node, life.ending, f"before round {(life.last_round or 0) + 1}", end_s)
            if self._lives.has_more(node):
                clients.returning[node] = self._time_of_return(node, end_s)
            else:
                clients.ended.add(node)
        elif status < 0 and self._survives and self._going and node not in clients.errors:
            if node not in self._parting:
                self._part_with(node, "death", f"{_signal_name(-status)}; the others go on without it")
            self._dead.add(node)
            clients.ended.add(node)
        elif status < 0 or not self._leaving:
            clients.deaths[node] = status

    def _stop_clients(self, reason: str) -> None:
        deaths = dict(self._clients.deaths)  # those who end from here on are no cause of anything
        try:
            self._engine.tell_all({"stop": reason})
            self._listen(_GRACE_S)
            if self._clients.running:
                self._engine.kill_all()
                self._listen(_GRACE_S)
        except ControlClosed:
            self._clients.running.clear()
        self._clients.deaths = deaths

    def _causes(self) -> Iterator[str]:
        """Deaths by signal first: what they leave behind makes others fail."""
        rounds = _completed_rounds(self._prepared.folder)
        yield from self._lost_hosts
        for node, status in sorted(self._clients.deaths.items()):
            if status < 0 and node not in self._lost_nodes:
                yield f"{self._name(node)} died in {_round(rounds, node)}: {_signal_name(-status)}{self._memory(node)}"
        told: Counter[str] = Counter()
        for node, error in sorted(self._clients.errors.items()):
            alike = error.get("alike", "")
            if not (alike and told[alike]):
                yield f"{self._name(node)} failed in {_round(rounds, node)}: {error['failed'].rstrip()}"
            told[alike] += 1
        for node, status in sorted(self._clients.deaths.items()):
            if status >= 0 and node not in self._clients.errors:
                log = self._prepared.folder / "log" / f"{name_of(node)}.log"
                yield f"{self._name(node)} ended in {_round(rounds, node)} with exit status {status}; see {log}"

    def _memory(self, node: int) -> str:
        """Where ZeroMQ ended a client: its last words, in ours."""
        log = self._prepared.folder / "log" / f"{name_of(node)}.log"
        if log.exists() and b"FATAL ERROR: OUT OF MEMORY" in log.read_bytes()[-1000:]:
            return ", for what came in took all the memory that it may have"
        return ""

    def _name(self, node: int) -> str:
        return "the server" if self._prepared.assignments[node].role == "server" else f"client {node}"

    def _introductions(self) -> Iterator[Record]:
        yield NodeRecord(LAUNCHER, "launcher", "", 0, 0, 0, 0, socket.gethostname(), os.getpid(), "")
        yield from self._engine.introductions()
        now, resumed_at, plan = time.monotonic() - self._epoch, self._prepared.resumed_at, self._prepared.plan
        text = f"{len(self._clients.ready)} clients ready after {self.ready_s:.2f} s"
        again = f", resumed after round {resumed_at}" if resumed_at else ""
        yield EventRecord(now, None, LAUNCHER, "start", text + again)
        for when, text in plan.conditions if plan and not resumed_at else ():
            yield EventRecord(now, when, LAUNCHER, "scenario", text)

    def _last_words(self) -> Iterator[Record]:
        if not self._prepared.config.measuring.enabled:
            return
        now = time.monotonic() - self._epoch
        yield sample(LAUNCHER, now)
        yield from self._engine.last_words(now)

    def _planes(self) -> Iterator[Record]:
        """What the planes beside the data cost: they are complete only now that everyone has left."""
        yield from self._clients.planes
        yield OverheadRecord(LAUNCHER, COLLECTOR, "records", self._collector.messages, self._collector.wire_bytes)
        yield from self._engine.planes()

    def _note(self, outcome: Outcome) -> None:
        """The collector has ended: this process is the database's only writer now."""
        now = time.monotonic() - self._epoch
        store = Store(self._prepared.folder / "run.sqlite")
        store.write([*self._planes(), EventRecord(now, None, LAUNCHER, outcome.status, "\n".join(outcome.causes))])
        store.commit()
        store.close()


_NOWHERE = "tcp://127.0.0.1:1"
"""Where a collector is that could not listen: the run ends as soon as it looks after it."""


class _Collector:
    """The process that stores the records, and the launcher's own line to it."""

    def __init__(self, prepared: Prepared):
        endpoint, own = prepared.assignments[0].records, KeyPair.make() if prepared.keyed_records else None
        command = [sys.executable, "-m", "sheafgossip.metrics.collector", "--endpoint", endpoint]
        command += ["--database", str(prepared.folder / "run.sqlite"), "--parent", str(os.getpid())]
        command += ["--launcher-key", own.public] if own else []
        if endpoint.startswith("tcp://"):
            command += ["--connections", str(4 * len(prepared.assignments) + 8)]  # of later lives, too
        if not prepared.config.measuring.enabled:
            command += ["--no-resources"]
        log = (prepared.folder / "log" / "collector.log").open("w")
        with log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True, text=True
            )
        assert self._process.stdin
        assert self._process.stdout
        if not own:
            self._process.stdin.close()
        self._address, self._key = endpoint, ""
        if not endpoint.startswith("ipc://"):  # whose port is its own choice, and whose keys it makes itself
            _, self._address, *key = self._process.stdout.readline().split() or ("", _NOWHERE)
            self._key = "".join(key)
        self._context = zmq.Context()
        keys = (own, self._key or own.public) if own else None
        self._recorder = Recorder(self._context, self._address, LAUNCHER, keys=keys)

    def found(self, prepared: Prepared) -> Prepared:
        """The run, with the address where its records go, and whose public key is to be found there."""
        return replace(
            prepared,
            assignments=tuple(
                replace(each, records=self._address, records_key=self._key) for each in prepared.assignments
            ),
        )

    def let_in(self, node: int, key: str) -> None:
        """Tells the collector a writer's public key, before that writer learns that it may come."""
        if self._key and self._process.stdin:
            with contextlib.suppress(OSError):  # that it has ended is noticed elsewhere
                self._process.stdin.write(json.dumps([node, key]) + "\n")
                self._process.stdin.flush()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def messages(self) -> int:
        """Its batches, and its last word."""
        return self._recorder.batches + 1

    @property
    def wire_bytes(self) -> int:
        return self._recorder.wire_bytes

    def write(self, *records: Record) -> None:
        self._recorder.write(*records)

    def end(self, batches: dict[int, int]) -> bool:
        """Tells the collector what is still to come and waits for its end; True when it failed."""
        self._recorder.send(pack_end(batches | {LAUNCHER: self._recorder.batches}))
        try:
            return self._process.wait(timeout=_STORING_S) != 0
        except subprocess.TimeoutExpired:
            return True

    def __enter__(self) -> _Collector:
        return self

    def __exit__(self, *_: object) -> None:
        if self.alive:
            self._process.terminate()
            try:
                self._process.wait(timeout=_GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for line in (self._process.stdin, self._process.stdout):
            if line:
                with contextlib.suppress(OSError):
                    line.close()
        self._context.destroy(linger=0)


class _deaf_to_ctrl_c:
    def __enter__(self) -> None:
        self._before: Any = signal.signal(signal.SIGINT, signal.SIG_IGN)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)


def _completed_rounds(folder: Path) -> dict[int, int]:
    with open_records(folder) as records:
        return dict(records.execute("SELECT node, max(round) FROM round GROUP BY node").fetchall())


def _round(completed: dict[int, int], node: int) -> str:
    return f"round {completed[node] + 1}" if node in completed else "start-up"


def _these(nodes: list[int]) -> str:
    if len(nodes) > 5:
        return f"{len(nodes)} clients"
    return "client " + ", ".join(map(str, nodes)) if nodes else "no client"


def _signal_name(number: int) -> str:
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return f"killed by signal {number}"
