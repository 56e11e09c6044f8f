"""One run: its processes from start to end, whatever happens to them."""

import errno
import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...metrics.reader import SERVER_NAME, client_name
from ...metrics.records import COLLECTOR, FORK_SERVER, LAUNCHER, EventRecord, OverheadRecord
from ...metrics.store import RunFolderError
from ...node.assignment import Assignment
from ...node.process.reporting import sample
from ...transport import control
from ...transport.control import ControlClosed, Exited, Failed, FromClient, Kill, Place, Stop, Tell, Waiting
from ...transport.environment import CONSTANTS, failpoint
from .. import interrupts
from ..prepare.prepared import Prepared
from ..processes.collector import CollectorProcess
from ..processes.emulation import emulated
from ..processes.engine import Engine, EngineError, HostLost
from ..processes.tracker import TrackerProcess
from .folder import recorded, remove_unfinished
from .incarnations import Incarnations, beginning, ending
from .journal import Journal, Outcome, Waits

_SPARE_BYTES = 1 << 20  # less than that: a last word, or what SQLite frees when its process has died, did not fit
_LISTEN_S = 0.25


class Run:
    """Drives one prepared run on an engine. ``watch`` is called a few times a second while clients work, with a text
    where something else takes long. The collector holds ``lock``, the folder's descriptor, too, until all is stored."""

    def __init__(self, prepared: Prepared, engine: Engine, watch: Callable[..., None], lock: int | None = None):
        self.prepared, self._lock = prepared, lock
        self._engine, self._watch = engine, watch
        self.clients = Clients(prepared, engine)

    def __call__(self) -> Outcome:
        """Raises nothing but what is a fault of this program; no client is left running in any case."""
        began = time.monotonic()
        list(self._engine.overhead())  # what went before is not this run's
        interrupts.check()
        with (
            emulated(self.prepared) as placed,
            CollectorProcess(placed, self._lock) as self._collector,
            TrackerProcess(placed) as self._tracker,
        ):
            self.prepared = self._collector.found(placed)
            self._journal = Journal(self.prepared, self._collector, began)
            failpoint("collector started")
            outcome = self._attempt()
            with interrupts.deferred() as impatient:  # what follows must not be cut, but it may be asked to hurry
                deaths = self.clients.deaths.copy()  # those who end from here on are no cause of anything
                with suppress(ControlClosed):
                    for message in (Tell(None, Stop(outcome.status)), Kill()):
                        if self.clients.running:
                            self._engine.send(message)
                            self._listen(CONSTANTS.stop_grace_s)
                self.clients.deaths = deaths
                if absent := self._engine.bring_home():
                    self._journal.event("warning", f"not all that clients wrote on {', '.join(absent)} is here")
                remove_unfinished(self.prepared.folder)
                if self.prepared.config.measuring.enabled and not self._engine.shares_process:
                    resources = self._engine.final_resources(self._journal.now)
                    self._collector.write(sample(LAUNCHER, self._journal.now), *resources)
                lost = self._collector.end(self.clients.batches, self._watch, impatient)
                causes = [*self.clients.causes()] if outcome.status == "failure" else []
                causes += [*outcome.causes, *([f"records of this run are missing: {lost}"] if lost else [])]
                status = "failure" if causes and outcome.status == "finish" else outcome.status
                untracked = self._tracker.end(status, self._watch, impatient)
                # what the planes beside the data cost is complete only now that everyone has left
                overhead = [*self.clients.overhead, self._collector.overhead(), *self._engine.overhead()]
                told = [EventRecord(self._journal.now, None, LAUNCHER, "warning", untracked)] if untracked else []
                return self._journal.end(Outcome(status, tuple(causes)), [*overhead, *told], impatient)

    def _attempt(self) -> Outcome:
        """``causes`` are those beside what clients have failed of."""
        try:
            for reached in self.clients.course(self.prepared, self._journal):
                self._until(reached)
            self._until(lambda: not self.clients.running, seconds=CONSTANTS.exit_s)
        except KeyboardInterrupt:
            return Outcome("interrupt")
        except EngineError as failure:
            return Outcome("failure", failure.args)
        except ControlClosed:
            self.clients.running.clear()
            return Outcome("failure", ("the fork server ended, and every client with it",))
        return Outcome("finish")

    def _until(self, reached: Callable[[], bool], seconds: float = math.inf) -> None:
        """Acts on what clients say. Raises EngineError if one fails, or the collector gets nowhere for ``seconds``."""
        clients, collector = self.clients, self._collector
        deadline, signs = time.monotonic() + seconds, collector.signs()
        while not reached():
            interrupts.check()
            if seconds < math.inf and signs != (signs := collector.signs()):
                deadline = time.monotonic() + seconds
            self._require_all_well()
            if not collector.alive:
                raise EngineError(f"the collector of the records ended unexpectedly{_last_line(collector.log)}")
            if time.monotonic() > deadline:
                raise EngineError(f"{len(clients.running)} clients did not leave within {seconds:g} s")
            next_s = clients.start_returning()
            if news := clients.waits.news(clients.done, time.monotonic()):
                self._journal.event("waiting", news[1], news[0])
            if why := self._tracker.news():
                self._journal.event("warning", why)
            if not self._listen_once(max(0.0, min(_LISTEN_S, next_s))):
                self._watch()
        self._require_all_well()  # the last to go may have died

    def _require_all_well(self) -> None:
        if self.clients.errors or self.clients.deaths:
            self._listen(CONSTANTS.further_failures_s)
            raise EngineError

    def _listen(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.clients.running and (remaining := deadline - time.monotonic()) > 0:
            self._listen_once(remaining)

    def _listen_once(self, seconds: float) -> bool:
        """Waits for messages of the engine and acts on them; False when none came."""
        came = self._engine.receive(seconds)
        for message in came:
            self.clients.take(message)
        return bool(came)


class Clients:
    """Who is there, who comes and goes, what each is told about the others, and what fails."""

    def __init__(self, prepared: Prepared, engine: Engine):
        self._prepared, self._engine = prepared, engine
        self.running: dict[int, Assignment] = {}  # {client: its present incarnation}
        self.places: dict[int, Place] = {}  # of those that can be met
        self.done: set[int] = set()
        self.batches: dict[int, int] = {}
        self.overhead: list[OverheadRecord] = []  # of the clients' control lines, and of the records they sent
        self.waits = Waits(self._name)
        self.errors: dict[int, Failed] = {}
        self.deaths: dict[int, int] = {}  # {client: exit status}, of those that should not have ended
        self._lost: dict[str, set[int]] = {}  # {what is to be told of a lost host: its clients}
        self._ready: set[int] = set()
        self._ended: set[int] = set()  # those without a further incarnation, before the others are done
        self._returning: dict[int, float] = {}  # {client: when its next one begins (time.monotonic() seconds)}
        self._dead: set[int] = set()  # those that died unexpectedly, where the run goes on without them
        self._are_learning = self._are_exiting = False

    def course(self, prepared: Prepared, journal: Journal) -> Iterator[Callable[[], bool]]:
        """Yields what each step has to reach before the next begins. ``prepared`` knows where the collector is."""
        self._prepared, self._journal = prepared, journal
        self._incarnations = Incarnations(prepared)
        here, late = self._incarnations.at_first()
        self._ended.update(node for node, left in enumerate(self._incarnations.left) if not left)
        self._engine.begin(prepared.folder, prepared.assignments)
        self._start(*here)
        yield lambda: len(self.places) == len(here)
        for node in here:
            self._engine.send(Tell(node, control.Connect(self._present_neighbours(node))))
        yield lambda: len(self._ready) == len(here)
        journal.start(len(self.running), self._engine.introductions())
        for event in self._incarnations.past():
            journal.planned_event(*event)
        failpoint("go")
        self._engine.send(Tell(None, control.Go(journal.epoch)))
        self._are_learning = True
        for node in late:
            self._let_return(node, since_s=prepared.went_on_s)
        yield lambda: len(self.done | self._ended) == len(prepared.assignments)
        failpoint("exit")
        self._are_exiting = True
        self._engine.send(Tell(None, control.Exit()))

    @property
    def _done_is_told(self) -> bool:
        """Nobody knows on the wall clock how many rounds behind others are: none should wait for who is done."""
        return self._prepared.plan is not None and self._prepared.config.time.clock == "wall"

    def start_returning(self) -> float:
        """Starts the clients whose time has come. Returns the seconds until the next one's has."""
        now = time.monotonic()
        for node in [node for node, due in self._returning.items() if due <= now]:
            del self._returning[node]
            self._start(node)
        return min(self._returning.values(), default=math.inf) - time.monotonic()

    def _start(self, *nodes: int) -> None:
        assignments = list(map(self._incarnations.next, nodes))
        self.running |= dict(zip(nodes, assignments, strict=True))
        self._engine.fork(assignments)

    def take(self, message: Any) -> None:
        """Notes what the engine has to say, and tells those whom it concerns."""
        match message:
            case FromClient(node, control.Bound(address, key)):
                self._journal.collector.let_in(node, key)
                self.places[node] = Place(node, address, self.running[node].incarnation.number, key)
                if self._are_learning:
                    self._introduce(node)
            case FromClient(node, control.Ready()):
                self._ready.add(node)
                if self._are_learning:
                    self._engine.send(Tell(node, control.Go(self._journal.epoch)))
            case FromClient(node, control.Call(other)):
                if node in self.places and other in self.places:  # else the one who comes will be asked again
                    self._engine.send(Tell(other, control.NeighbourCalls(self.places[node])))
            case FromClient(node, control.Done()):
                self.done.add(node)
                if self._done_is_told:
                    self._tell_neighbours(node, control.NeighbourFinished(node))
            case FromClient(node, control.Leaving(batches, size)):
                self.batches[self.running[node].sender] = batches
                self.overhead.append(OverheadRecord(node, COLLECTOR, "records", batches, size))
            case FromClient(node, control.WaitOver()):
                self.waits.over(node)
            case FromClient(node, Waiting() as wait):
                self.waits.note(node, wait, time.monotonic())
            case FromClient(node, Failed() as error):
                self.errors[node] = error
            case Exited(node, status, told, heard, parent):
                parent = FORK_SERVER if parent is None else parent
                self.overhead.append(OverheadRecord(parent, node, "control", *told))
                self.overhead.append(OverheadRecord(node, parent, "control", *heard))
                self._note_exit(node, status)
            case HostLost(host, nodes, cause):  # to the run a crash of all that ran there; the engine tells of each
                these = ", ".join(map(str, nodes))
                clients = f"{len(nodes)} clients" if len(nodes) > 5 else f"client {these}" if nodes else "no client"
                text = f"host {host} was lost, and with it {clients}: {cause}"
                self._journal.event("host-lost", text)
                self._lost[text] = set(nodes)

    def _note_exit(self, node: int, status: int | None) -> None:
        assignment = self.running.pop(node)
        incarnation = assignment.incarnation
        self.waits.over(node)
        self.places.pop(node, None)
        self._ready.discard(node)
        survives = self._prepared.config.time.deaths == "continue"
        has_left = assignment.sender in self.batches  # it has sent its last message
        if has_left and not self._are_exiting and incarnation.ending != "finish":
            planned = self._incarnations.of(assignment)
            self._part_with(assignment, *ending(planned), planned.end_s)
            if self._incarnations.left[node]:
                self._let_return(node, since_s=planned.end_s)
            else:
                self._ended.add(node)
        elif status is None:  # it never was; the first of its kind has told why
            self._ended.add(node)
        elif status < 0 and survives and self._are_learning and node not in self.errors:
            if not has_left:
                self._part_with(assignment, "death", f"{_signal_name(-status)}; the others go on without it")
            self._dead.add(node)
            self._ended.add(node)
        elif status < 0 or not self._are_exiting:
            self.deaths[node] = status

    def _introduce(self, node: int) -> None:
        """A client has come that the others have not met yet."""
        assignment = self.running[node]
        neighbours = {peer.node for peer in assignment.neighbours}
        for dead in self._dead & neighbours:
            self._engine.send(Tell(node, control.NeighbourGone(dead, 0, died=True)))
        for done in self.done & neighbours if self._done_is_told else ():
            self._engine.send(Tell(node, control.NeighbourFinished(done)))
        self._engine.send(Tell(node, control.Connect(self._present_neighbours(node))))
        self._tell_neighbours(node, control.NeighbourCame(self.places[node], assignment.incarnation.first_round))
        planned = self._incarnations.of(assignment)
        self._journal.planned_event(*beginning(planned), node, planned.start_s)

    def _part_with(self, assignment: Assignment, kind: str, text: str, virtual_s: float | None = None) -> None:
        """A client has ended before the others, as planned or not."""
        news = control.NeighbourGone(assignment.node, assignment.incarnation.number, died=kind == "death")
        self._tell_neighbours(assignment.node, news)
        self._journal.planned_event(kind, text, assignment.node, virtual_s)

    def _tell_neighbours(self, node: int, news: object) -> None:
        for other in self._present_neighbours(node):
            self._engine.send(Tell(other.node, news))

    def _present_neighbours(self, node: int) -> list[Place]:
        peers = self._prepared.assignments[node].neighbours
        return [self.places[peer.node] for peer in peers if peer.node in self.places]

    def _let_return(self, node: int, since_s: float) -> None:
        """On the wall clock the pause from ``since_s`` really passes; on the virtual one it is part of the plan."""
        pause_s = max(0.0, self._incarnations.left[node][0].start_s - since_s)
        self._returning[node] = time.monotonic() + (pause_s if self._prepared.config.time.clock == "wall" else 0.0)

    def _name(self, node: int) -> str:
        if self._prepared.assignments[node].role == "server":
            return SERVER_NAME
        return client_name(node, {k: each.owner for k, each in enumerate(self._prepared.data.clients) if each.owner})

    def causes(self) -> Iterator[str]:
        """Why the run failed. Deaths by signal first: what they leave behind makes others fail."""
        completed: dict[int, int] = {}  # {client: its last round on record}, as far as that can be read
        with suppress(RunFolderError):
            completed = dict(recorded(self._prepared.folder, "SELECT node, max(round) FROM round GROUP BY node"))

        def failed(node: int, how: str) -> str:
            when = f"round {completed[node] + 1}" if node in completed else "start-up"
            return f"{self._name(node)} {how} in {when}"

        yield from self._lost
        deaths = [(self._prepared.assignments[node].log, node, self.deaths[node]) for node in sorted(self.deaths)]
        for log, node, status in deaths:
            if status < 0 and not any(node in clients for clients in self._lost.values()):
                last = _last_line(log) if -status == signal.SIGABRT else ""  # libraries say why
                yield f"{failed(node, 'died')}: {_signal_name(-status)}{last}"
        if self.waits.hopeless and self.errors:
            node, text = self.waits.hopeless
            yield f"{self._name(node)} {text}"
        told: set[str] = set()
        for node, error in sorted(self.errors.items()):
            if not error.cause or error.cause not in told:
                yield f"{failed(node, 'failed')}: {error.text.rstrip()}"
            told.add(error.cause)
        for log, node, status in deaths:
            if status >= 0 and node not in self.errors:
                yield f"{failed(node, 'ended')} with exit status {status}; see {log}"


def _signal_name(number: int) -> str:
    return f"killed by {next((each.name for each in signal.Signals if each == number), f'signal {number}')}"


def _last_line(log: Path) -> str:
    """Returns it as the end of a sentence; empty where there is none."""
    said: list[str] = []
    with suppress(OSError):
        said = log.read_text(errors="replace").splitlines()[-1:]
        if not said and shutil.disk_usage(log.parent).free < _SPARE_BYTES:
            return ", and cannot say why: the disk is full"
    if "FATAL ERROR: OUT OF MEMORY" in "".join(said):
        return ", for what came in took all the memory that it may have"
    why = " (see ulimit -u, pids.max)" if os.strerror(errno.EAGAIN) in "".join(said) else ""
    return "".join(f"; it said: {line}{why}" for line in said)
