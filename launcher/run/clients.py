"""The clients of a run: who is there, who comes and goes, and what each is told about the others."""

import math
import time
from collections.abc import Callable, Iterator

from ...metrics.records import COLLECTOR, FORK_SERVER, OverheadRecord
from ...node.assignment import Assignment
from ...transport import control
from ...transport.control import Exited, FromClient, Place, Tell, TellAll
from ...transport.failpoints import failpoint
from ..prepare.prepared import Prepared
from ..processes.engines.base import Engine, HostLost, Message
from .incarnations import Incarnations
from .journal import Failures, Journal, name_in, signal_name
from .waits import Wait, Waits


class Clients:
    def __init__(self, prepared: Prepared, engine: Engine):
        self._prepared, self._engine = prepared, engine
        self.running: dict[int, Assignment] = {}  # {client: its present incarnation}
        self.addresses: dict[int, str] = {}
        self.keys: dict[int, str] = {}  # the public ones, of the present incarnations
        self.done: set[int] = set()
        self.batches: dict[int, int] = {}
        self.overhead: list[OverheadRecord] = []  # of the clients' control lines, and of the records they sent
        self.failures = Failures()
        self.waits = Waits(lambda node: name_in(self._prepared, node))
        self._ready: set[int] = set()
        self._ended: set[int] = set()  # those without a further incarnation, before the others are done
        self._returning: dict[int, float] = {}  # {client: when its next one begins (time.monotonic() seconds)}
        self._leaving: set[int] = set()  # those that have sent their last message
        self._dead: set[int] = set()  # those that died unexpectedly, where the run goes on without them
        self._are_learning = self._are_exiting = False

    def course(self, prepared: Prepared, journal: Journal, began: float) -> Iterator[Callable[[], bool]]:
        """The steps of a run, for all clients; yields what each but the last has to reach before the next begins.
        ``prepared`` knows where the collector is; ``began`` is in seconds of time.monotonic()."""
        self._prepared, self._journal = prepared, journal
        self._incarnations = Incarnations(prepared)
        late = self._incarnations.late()
        self._ended.update(self._incarnations.none())
        first = list(self._incarnations.first())  # those that are there when the run begins
        self._engine.begin(prepared.folder)
        self._start(*first)
        yield lambda: len(self.addresses) == len(first)
        for assignment in first:
            self._engine.send(Tell(assignment.node, control.Connect(self._present_neighbours(assignment.node))))
        yield lambda: len(self._ready) == len(first)
        journal.start(len(self.running), time.monotonic() - began, self._engine.introductions())
        failpoint("go")
        self._engine.send(TellAll(control.Go(journal.epoch)))
        self._are_learning = True
        for node in late:
            self._returning[node] = self._time_of_return(node, since_s=prepared.went_on_s)
        yield lambda: len(self.done | self._ended) == len(prepared.assignments)
        failpoint("exit")
        self._are_exiting = True
        self._engine.send(TellAll(control.Exit()))

    def start_returning(self) -> float:
        """Starts the clients whose time has come. Returns the seconds until the next one's has."""
        now = time.monotonic()
        for node in [node for node, due in self._returning.items() if due <= now]:
            del self._returning[node]
            self._start(self._incarnations.next(node))
        return min(self._returning.values(), default=math.inf) - time.monotonic()

    def _start(self, *assignments: Assignment) -> None:
        self._engine.equip(assignments)
        self.running |= {each.node: each for each in assignments}
        self._engine.fork(assignments)

    def take(self, message: Message) -> None:
        """Notes what the engine has to say, and tells those whom it concerns."""
        match message:
            case FromClient(node, control.Bound(address, key)):
                self._journal.collector.let_in(node, key)
                self.addresses[node], self.keys[node] = address, key
                if self._are_learning:
                    self._introduce(node)
            case FromClient(node, control.Ready()):
                self._ready.add(node)
                if self._are_learning:
                    self._engine.send(Tell(node, control.Go(self._journal.epoch)))
            case FromClient(node, control.Done()):
                self.done.add(node)
                # nobody knows on the wall clock how many rounds behind others are: none should wait for who is done
                if self._prepared.plan and self._prepared.config.time.clock == "wall":
                    self._tell_neighbours(node, control.NeighbourFinished(node))
            case FromClient(node, control.Leaving(batches, size)):
                self.batches[self.running[node].sender] = batches
                self._leaving.add(node)
                self.overhead.append(OverheadRecord(node, COLLECTOR, "records", batches, size))
            case FromClient(node, control.WaitOver()):
                self.waits.over(node)
            case FromClient(node, control.Waiting() as wait):
                self.waits.note(node, Wait.of(wait), wait.seconds, time.monotonic())
            case FromClient(node, control.Failed() as error):
                self.failures.errors[node] = error
            case Exited(node, status, told, heard, parent):
                parent = FORK_SERVER if parent is None else parent
                self.overhead.append(OverheadRecord(parent, node, "control", *told))
                self.overhead.append(OverheadRecord(node, parent, "control", *heard))
                self._note_exit(node, status)
            case HostLost(host, nodes, cause):  # to the run a crash of all that ran there; the engine tells of each
                text = f"host {host} was lost, and with it {_these(nodes)}: {cause}"
                self._journal.event("host-lost", text)
                self.failures.lost_hosts.append(text)
                self.failures.lost_clients.update(nodes)

    def _note_exit(self, node: int, status: int | None) -> None:
        assignment = self.running.pop(node)
        incarnation = assignment.incarnation
        self.waits.over(node)
        self.addresses.pop(node, None)
        self._ready.discard(node)
        survives = self._prepared.config.time.deaths == "continue"
        if node in self._leaving and not self._are_exiting and incarnation.ending != "finish":
            self._leaving.discard(node)
            end_s = self._incarnations.of(assignment).end_s
            self._part_with(assignment, incarnation.ending, f"before round {(incarnation.last_round or 0) + 1}", end_s)
            if self._incarnations.has_more(node):
                self._returning[node] = self._time_of_return(node, end_s)
            else:
                self._ended.add(node)
        elif status is None:  # it never was; the first of its kind has told why
            self._ended.add(node)
        elif status < 0 and survives and self._are_learning and node not in self.failures.errors:
            if node not in self._leaving:
                self._part_with(assignment, "death", f"{signal_name(-status)}; the others go on without it")
            self._dead.add(node)
            self._ended.add(node)
        elif status < 0 or not self._are_exiting:
            self.failures.deaths[node] = status

    def _introduce(self, node: int) -> None:
        """A client has come that the others have not met yet."""
        assignment = self.running[node]
        first_round = assignment.incarnation.first_round
        for dead in self._dead & {peer.node for peer in assignment.neighbours}:
            self._engine.send(Tell(node, control.NeighbourDied(dead)))
        self._engine.send(Tell(node, control.Connect(self._present_neighbours(node))))
        self._tell_neighbours(node, control.NeighbourCame(self._place(node), first_round))
        kind = "restart" if assignment.incarnation.number > 1 else "join"
        start_s = self._incarnations.of(assignment).start_s
        self._journal.planned_event(kind, f"takes part from round {first_round}", node, start_s)

    def _part_with(self, assignment: Assignment, kind: str, text: str, virtual_s: float | None = None) -> None:
        """A client has ended before the others, as planned or not."""
        news = control.NeighbourDied if kind == "death" else control.NeighbourLeft
        self._tell_neighbours(assignment.node, news(assignment.node, assignment.incarnation.number))
        self._journal.planned_event(kind, text, assignment.node, virtual_s)

    def _tell_neighbours(self, node: int, news: object) -> None:
        for other in self._present_neighbours(node):
            self._engine.send(Tell(other.node, news))

    def _present_neighbours(self, node: int) -> list[Place]:
        peers = self._prepared.assignments[node].neighbours
        return [self._place(peer.node) for peer in peers if peer.node in self.addresses]

    def _place(self, node: int) -> Place:
        return Place(node, self.addresses[node], self.running[node].incarnation.number, self.keys[node])

    def _time_of_return(self, node: int, since_s: float) -> float:
        """On the wall clock the pause really passes; on the virtual one it is part of the plan."""
        wall = self._prepared.config.time.clock == "wall"
        return time.monotonic() + (self._incarnations.pause_s(node, since_s) if wall else 0.0)


def _these(nodes: list[int]) -> str:
    if len(nodes) > 5:
        return f"{len(nodes)} clients"
    return "client " + ", ".join(map(str, nodes)) if nodes else "no client"
