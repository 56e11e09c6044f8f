"""The clients of a run: who is there, who comes and goes, and what each is told about the others."""

import math
import time

from ...metrics.records import COLLECTOR, FORK_SERVER, OverheadRecord
from ...node.assignment import Assignment
from ...transport.control import (
    Bound,
    Connect,
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
    Waiting,
    WaitOver,
)
from ..prepare.prepared import Prepared
from ..processes.engines import Engine
from ..processes.engines.base import HostLost, Message
from .incarnations import Incarnations
from .journal import Journal
from .outcome import Failures, name_in, signal_name
from .waits import Wait, Waits


class Clients:
    def __init__(self, prepared: Prepared, engine: Engine):
        self._prepared, self._engine = prepared, engine
        self.running: dict[int, Assignment] = {}
        """{client: its present incarnation}"""
        self.addresses: dict[int, str] = {}
        self.keys: dict[int, str] = {}
        """The public ones, of the present incarnations."""
        self.done: set[int] = set()
        self.batches: dict[int, int] = {}
        self.overhead: list[OverheadRecord] = []
        """Bytes beside the data plane: of the clients' control lines, and of the records they sent."""
        self.failures = Failures()
        self.waits = Waits(lambda node: name_in(self._prepared, node))
        self._ready: set[int] = set()
        self._ended: set[int] = set()
        """Those without a further incarnation, before the others are done."""
        self._returning: dict[int, float] = {}
        """{client: when its next incarnation begins (time.monotonic() seconds)}"""
        self._leaving: set[int] = set()
        """Those that have sent their last message."""
        self._dead: set[int] = set()
        """Those that died unexpectedly, where the run goes on without them."""
        self._are_learning = self._are_exiting = False

    # -- the steps of a run, each of them for all clients --------------------------------------------------------------

    def fork(self, prepared: Prepared, journal: Journal) -> None:
        """Starts those that are there when the run begins. ``prepared`` knows where the collector is."""
        self._prepared, self._journal = prepared, journal
        self._incarnations = Incarnations(prepared)
        self._late = self._incarnations.late()
        self._ended.update(self._incarnations.none())
        self._first = {assignment.node: assignment for assignment in self._incarnations.first()}
        self._engine.begin(prepared.folder)
        self._engine.equip(self._first.values())
        self.running.update(self._first)
        self._engine.fork(self._first.values())

    def are_bound(self) -> bool:
        return len(self.addresses) == len(self._first)

    def connect(self) -> None:
        for node in self._first:
            self._engine.tell(node, Connect(self._present_neighbours(node)))

    def are_ready(self) -> bool:
        return len(self._ready) == len(self._first)

    def go(self) -> None:
        self._engine.tell_all(Go(self._journal.epoch))
        self._are_learning = True
        for node in self._late:
            self._returning[node] = self._time_of_return(node, since_s=self._prepared.went_on_s)

    def are_done(self) -> bool:
        return len(self.done | self._ended) == len(self._prepared.assignments)

    def exit(self) -> None:
        self._are_exiting = True
        self._engine.tell_all(Exit())

    # -- one client ----------------------------------------------------------------------------------------------------

    def start_returning(self) -> float:
        """Starts the clients whose time has come. Returns the seconds until the next one's has."""
        now = time.monotonic()
        for node in [node for node, due in self._returning.items() if due <= now]:
            del self._returning[node]
            if (assignment := self._incarnations.next(node)) is not None:
                self.running[node] = assignment
                self._engine.equip([assignment])
                self._engine.fork([assignment])
        return min(self._returning.values(), default=math.inf) - time.monotonic()

    def take(self, message: Message) -> None:
        """Notes what the engine has to say, and tells those whom it concerns."""
        match message:
            case FromClient(node, Bound(address, key)):
                self._journal.collector.let_in(node, key)
                self.addresses[node], self.keys[node] = address, key
                if self._are_learning:
                    self._introduce(node)
            case FromClient(node, Ready()):
                self._ready.add(node)
                if self._are_learning:
                    self._engine.tell(node, Go(self._journal.epoch))
            case FromClient(node, Done()):
                self.done.add(node)
                self._tell_of_finish(node)
            case FromClient(node, Leaving(batches, size)):
                self.batches[self.running[node].sender] = batches
                self._leaving.add(node)
                self.overhead.append(OverheadRecord(node, COLLECTOR, "records", batches, size))
            case FromClient(node, WaitOver()):
                self.waits.over(node)
            case FromClient(node, Waiting() as wait):
                self.waits.note(node, Wait.of(wait), wait.seconds, time.monotonic())
            case FromClient(node, Failed() as error):
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
        self.waits.over(node)
        self.addresses.pop(node, None)
        self._ready.discard(node)
        survives = self._prepared.config.time.deaths == "continue"
        if node in self._leaving and not self._are_exiting and assignment.incarnation.ending != "finish":
            self._leaving.discard(node)
            end_s = self._incarnations.of(assignment).end_s
            last = assignment.incarnation.last_round or 0
            self._part_with(assignment, assignment.incarnation.ending, f"before round {last + 1}", end_s)
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
        neighbours, assignment = self._present_neighbours(node), self.running[node]
        for dead in self._dead & {peer.node for peer in assignment.neighbours}:
            self._engine.tell(node, NeighbourDied(dead))
        self._engine.tell(node, Connect(neighbours))
        for other in neighbours:
            self._engine.tell(other.node, NeighbourCame(self._place(node), assignment.incarnation.first_round))
        kind = "restart" if assignment.incarnation.number > 1 else "join"
        text = f"takes part from round {assignment.incarnation.first_round}"
        self._journal.planned_event(kind, text, node, self._incarnations.of(assignment).start_s)

    def _part_with(self, assignment: Assignment, kind: str, text: str, virtual_s: float | None = None) -> None:
        """A client has ended before the others, as planned or not."""
        news = (NeighbourDied if kind == "death" else NeighbourLeft)(assignment.node, assignment.incarnation.number)
        for other in self._present_neighbours(assignment.node):
            self._engine.tell(other.node, news)
        self._journal.planned_event(kind, text, assignment.node, virtual_s)

    def _tell_of_finish(self, node: int) -> None:
        """On the wall clock nobody knows how many rounds behind the others are: no one should wait for who is done."""
        if self._prepared.plan and self._prepared.config.time.clock == "wall":
            for other in self._present_neighbours(node):
                self._engine.tell(other.node, NeighbourFinished(node))

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
