"""One run: its processes from start to end, whatever happens to them."""

from __future__ import annotations

import errno
import math
import os
import signal
import socket
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ...metrics.names import SERVER_NAME, client_name
from ...metrics.reader import open_records
from ...metrics.records import COLLECTOR, FORK_SERVER, LAUNCHER, EventRecord, NodeRecord, OverheadRecord, Record
from ...metrics.schema import RunFolderError
from ...metrics.store import Store, is_locked
from ...node.assignment import Assignment, name_of
from ...node.process.resources import sample
from ...transport.constants import CONSTANTS
from ...transport.control import (
    Bound,
    Connect,
    ControlClosed,
    Done,
    Exit,
    Exited,
    Failed,
    FromClient,
    Go,
    Leaving,
    NeighbourCame,
    NeighbourDied,
    NeighbourFinished,
    NeighbourLeft,
    Place,
    Ready,
    Stop,
    Waiting,
    WaitOver,
)
from ...transport.failpoints import failpoint
from .. import interrupts
from ..prepare.preparation import Prepared
from ..processes.collector import Collecting
from ..processes.engines import Engine, EngineError
from ..processes.engines.base import HostLost
from ..processes.lives import Lives
from .folder import unfinished_files
from .waits import Wait, Waits

_GRACE_S, _COMPANY_S = CONSTANTS.stop_grace_s, CONSTANTS.company_s
_PATIENCE_S, _LOCKED_S = CONSTANTS.patience_s, CONSTANTS.locked_s


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
    errors: dict[int, Failed] = field(default_factory=dict)
    deaths: dict[int, int] = field(default_factory=dict)


class Run:
    """Drives one prepared run on an engine. ``watch`` is called a few times a second while the clients work, and with
    a text where something else takes long."""

    def __init__(self, prepared: Prepared, engine: Engine, watch: Callable[..., None], lock: int | None = None):
        """``lock`` is the descriptor of the folder's: the collector holds it, too, until all is stored."""
        self._prepared, self._lock = prepared, lock
        self._engine = engine
        self._watch = watch
        self._total = len(prepared.assignments)
        self._survives = prepared.config.time.deaths == "continue"
        self._told: Counter[tuple[object, ...]] = Counter(prepared.told)
        self._clients = _Clients()
        self._waits = Waits(self._name)
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
        interrupts.check()
        with Collecting(self._prepared, self._lock) as self._collector:
            self._prepared = self._collector.found(self._prepared)
            failpoint("collector started")
            self._lives = Lives(self._prepared)
            outcome = self._attempt()
            with interrupts.deferred() as impatient:  # what follows must not be cut, but it may be asked to hurry
                if self._clients.running:
                    self._stop_clients(outcome.status)
                if absent := self._engine.bring_home():
                    self._tell_launcher("warning", f"not all that clients wrote on {', '.join(absent)} is here")
                for path in unfinished_files(self._prepared.folder):  # of clients that were killed
                    path.unlink()
                self._collector.write(*self._last_words())
                lost = self._collector.end(self._clients.batches, self._watch, impatient)
                outcome = self._note(self._with_causes(outcome, lost), impatient)
        return outcome

    def _with_causes(self, outcome: Outcome, lost: str | None) -> Outcome:
        """``lost``: why records are missing."""
        missing = (f"records of this run are missing: {lost}",) if lost else ()
        if outcome.status == "failure":
            return Outcome("failure", tuple(self._causes()) + outcome.causes + missing)
        if outcome.status == "interrupt" or not missing:
            return Outcome(outcome.status, missing)
        return Outcome("failure", missing)

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
            self._engine.tell(node, Connect(self._present_neighbours(node)))
        self._until(lambda: len(clients.ready) == len(first))
        self.ready_s = time.monotonic() - self._started
        self._epoch = time.monotonic() - self._prepared.went_on_s
        self._collector.write(*self._introductions())
        failpoint("go")
        self._engine.tell_all(Go(self._epoch))
        self._going = True
        for node in late:
            clients.returning[node] = self._time_of_return(node, since_s=self._prepared.went_on_s)
        self._until(lambda: len(clients.done | clients.ended) == self._total)
        self._leaving = True
        failpoint("exit")
        self._engine.tell_all(Exit())
        self._until(lambda: not clients.running, seconds=_PATIENCE_S)

    # -- comings and goings --------------------------------------------------------------------------------------------

    def _present_neighbours(self, node: int) -> list[Place]:
        peers = self._prepared.assignments[node].neighbours
        return [self._place(peer.node) for peer in peers if peer.node in self._clients.addresses]

    def _place(self, node: int) -> Place:
        clients = self._clients
        return Place(node, clients.addresses[node], clients.running[node].life, clients.keys[node])

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
        for dead in self._dead & {peer.node for peer in life.neighbours}:
            self._engine.tell(node, NeighbourDied(dead))
        self._engine.tell(node, Connect(neighbours))
        for other in neighbours:
            self._engine.tell(other.node, NeighbourCame(self._place(node), life.first_round))
        kind = "restart" if life.life > 1 else "join"
        self._tell_event(node, kind, f"takes part from round {life.first_round}", self._lives.of(life).start_s)

    def _part_with(self, life: Assignment, kind: str, detail: str, virtual_s: float | None = None) -> None:
        """A client has ended before the others, as planned or not."""
        news = (NeighbourDied if kind == "death" else NeighbourLeft)(life.node, life.life)
        for other in self._present_neighbours(life.node):
            self._engine.tell(other.node, news)
        self._tell_event(life.node, kind, detail, virtual_s)

    def _tell_of_finish(self, node: int) -> None:
        """On the wall clock nobody knows how many rounds behind the others are: no one should wait for who is done."""
        if self._prepared.plan and self._prepared.config.time.clock == "wall":
            for other in self._present_neighbours(node):
                self._engine.tell(other.node, NeighbourFinished(node))

    def _tell_event(self, node: int, kind: str, detail: str, virtual_s: float | None) -> None:
        when = virtual_s if self._prepared.config.time.clock == "virtual" else None
        if not self._has_told(node, kind, when, detail):
            self._collector.write(EventRecord(time.monotonic() - self._epoch, when, node, kind, detail))

    def _has_told(self, *event: object) -> bool:
        """Whether that is on record of before the run was taken up; as often as it is."""
        self._told[event] -= 1
        return self._told[event] >= 0

    def _until(self, reached: Callable[[], bool], seconds: float = float("inf")) -> None:
        """Acts on what the clients say until ``reached``. Raises _Failure when one fails, or after ``seconds``."""
        deadline, signs = time.monotonic() + seconds, self._collector.signs()
        while not reached():
            interrupts.check()
            if seconds < math.inf and signs != (signs := self._collector.signs()):
                deadline = time.monotonic() + seconds
            self._require_all_well()
            if not self._collector.alive:
                raise _Failure(f"the collector of the records ended unexpectedly{_last_line(self._collector.log)}")
            if time.monotonic() > deadline:
                raise _Failure(f"{len(self._clients.running)} clients did not leave within {seconds:g} s")
            self._begin_lives()
            if news := self._waits.news(self._clients.done, time.monotonic()):
                self._collector.write(
                    EventRecord(time.monotonic() - self._epoch, None, news.node, "waiting", news.text)
                )
            next_ = min(self._clients.returning.values(), default=math.inf) - time.monotonic()
            if not self._listen_once(max(0.0, min(0.25, next_))):
                self._watch()
        self._require_all_well()  # the last to go may have died

    def _require_all_well(self) -> None:
        if self._clients.errors or self._clients.deaths:
            self._listen(_COMPANY_S)
            raise _Failure

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
                case FromClient(node, Bound(address, key)):
                    self._collector.let_in(node, key)
                    self._clients.addresses[node], self._clients.keys[node] = address, key
                    if self._going:
                        self._introduce(node)
                case FromClient(node, Ready()):
                    self._clients.ready.add(node)
                    if self._going:
                        self._engine.tell(node, Go(self._epoch))
                case FromClient(node, Done()):
                    self._clients.done.add(node)
                    self._tell_of_finish(node)
                case FromClient(node, Leaving(batches, size)):
                    self._clients.batches[self._clients.running[node].sender] = batches
                    self._parting.add(node)
                    self._clients.planes.append(OverheadRecord(node, COLLECTOR, "records", batches, size))
                case FromClient(node, WaitOver()):
                    self._waits.over(node)
                case FromClient(node, Waiting() as wait):
                    self._waits.note(node, Wait.of(wait), wait.seconds, time.monotonic())
                case FromClient(node, Failed() as error):
                    self._clients.errors[node] = error
                case Exited(node, status, told, heard, parent):
                    parent = FORK_SERVER if parent is None else parent
                    self._clients.planes.append(OverheadRecord(parent, node, "control", *told))
                    self._clients.planes.append(OverheadRecord(node, parent, "control", *heard))
                    self._note_exit(node, status)
                case HostLost(host, nodes, cause):
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

    def _note_exit(self, node: int, status: int | None) -> None:
        clients = self._clients
        life = clients.running.pop(node)
        self._waits.over(node)
        clients.addresses.pop(node, None)
        clients.ready.discard(node)
        if node in self._parting and not self._leaving and life.ending != "finish":
            self._parting.discard(node)
            end_s = self._lives.of(life).end_s
            self._part_with(life, life.ending, f"before round {(life.last_round or 0) + 1}", end_s)
            if self._lives.has_more(node):
                clients.returning[node] = self._time_of_return(node, end_s)
            else:
                clients.ended.add(node)
        elif status is None:  # it never was; the first of its kind has told why
            clients.ended.add(node)
        elif status < 0 and self._survives and self._going and node not in clients.errors:
            if node not in self._parting:
                self._part_with(life, "death", f"{_signal_name(-status)}; the others go on without it")
            self._dead.add(node)
            clients.ended.add(node)
        elif status < 0 or not self._leaving:
            clients.deaths[node] = status

    def _stop_clients(self, reason: str) -> None:
        deaths = dict(self._clients.deaths)  # those who end from here on are no cause of anything
        try:
            self._engine.tell_all(Stop(reason))
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
                last = _last_line(self._log(node)) if -status == signal.SIGABRT else ""  # libraries say why
                yield f"{self._name(node)} died in {_round(rounds, node)}: {_signal_name(-status)}{last}"
        if self._waits.hopeless and self._clients.errors:
            yield f"{self._name(self._waits.hopeless.node)} {self._waits.hopeless.text}"
        told: Counter[str] = Counter()
        for node, error in sorted(self._clients.errors.items()):
            if not (error.cause and told[error.cause]):
                yield f"{self._name(node)} failed in {_round(rounds, node)}: {error.text.rstrip()}"
            told[error.cause] += 1
        for node, status in sorted(self._clients.deaths.items()):
            if status >= 0 and node not in self._clients.errors:
                text = f"with exit status {status}; see {self._log(node)}"
                yield f"{self._name(node)} ended in {_round(rounds, node)} {text}"

    def _log(self, node: int) -> Path:
        return self._prepared.folder / "log" / f"{name_of(node)}.log"

    def _name(self, node: int) -> str:
        if self._prepared.assignments[node].role == "server":
            return SERVER_NAME
        return client_name(node, {k: each.owner for k, each in enumerate(self._prepared.data.clients) if each.owner})

    def _introductions(self) -> Iterator[Record]:
        yield NodeRecord(LAUNCHER, "launcher", "", 0, 0, 0, 0, socket.gethostname(), os.getpid(), "")
        yield from self._engine.introductions()
        now, resumed_at, plan = time.monotonic() - self._epoch, self._prepared.resumed_at, self._prepared.plan
        text = f"{len(self._clients.ready)} clients ready after {self.ready_s:.2f} s"
        again = f", resumed after round {resumed_at}" if resumed_at else ""
        again += f"; now with {self._prepared.moved}" if self._prepared.moved else ""
        yield EventRecord(now, None, LAUNCHER, "start", text + again)
        for when, text in plan.conditions if plan else ():
            if not self._has_told(LAUNCHER, "scenario", when, text):
                yield EventRecord(now, when, LAUNCHER, "scenario", text)

    def _last_words(self) -> Iterator[Record]:
        if not self._prepared.config.measuring.enabled or self._engine.shares_process:
            return
        now = time.monotonic() - self._epoch
        yield sample(LAUNCHER, now)
        yield from self._engine.last_words(now)

    def _planes(self) -> Iterator[Record]:
        """What the planes beside the data cost: they are complete only now that everyone has left."""
        yield from self._clients.planes
        yield OverheadRecord(LAUNCHER, COLLECTOR, "records", self._collector.messages, self._collector.wire_bytes)
        yield from self._engine.planes()

    def _note(self, outcome: Outcome, impatient: Callable[[], bool]) -> Outcome:
        """The collector has ended: this process is the database's only writer now."""
        failpoint("note")
        now, deadline = time.monotonic() - self._epoch, time.monotonic() + _LOCKED_S
        end = EventRecord(now, None, LAUNCHER, outcome.status, "\n".join(outcome.causes))
        records = [*self._planes(), end]
        while True:
            try:
                store = Store(self._prepared.folder / "run.sqlite")
                store.write(records)
                store.close()
                return outcome
            except (RunFolderError, sqlite3.Error) as error:
                if not is_locked(error) or impatient() or time.monotonic() > deadline:
                    return Outcome("failure", (*outcome.causes, f"the end of this run could not be recorded: {error}"))


def _completed_rounds(folder: Path) -> dict[int, int]:
    """Of what is recorded, as far as that can be read."""
    with suppress(RunFolderError, sqlite3.Error), open_records(folder) as records:
        return dict(records.execute("SELECT node, max(round) FROM round GROUP BY node").fetchall())
    return {}


def _last_line(log: Path) -> str:
    """As the end of a sentence; empty where there is none."""
    with suppress(OSError):
        said = log.read_text(errors="replace").splitlines()[-1:]
        if "FATAL ERROR: OUT OF MEMORY" in "".join(said):
            return ", for what came in took all the memory that it may have"
        why = " (see ulimit -u, pids.max)" if os.strerror(errno.EAGAIN) in "".join(said) else ""
        return "".join(f"; it said: {line}{why}" for line in said)
    return ""


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
