"""Plans played without processes: the real peers of every client, each in a greenlet of its own, over queues instead of
sockets and on a clock that jumps to the next moment at which something happens.

Which client goes next is drawn at random, so any speed of any of them comes up. A run that cannot go on is told at
once.
"""

import math
import random
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from unittest.mock import patch

import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet

from sheafgossip.launcher.planner.plan import Incarnation, Plan
from sheafgossip.launcher.planner.scenario import Scenario
from sheafgossip.transport import clock, clock_wall, connections, waiting
from sheafgossip.transport.channel import Channel, Channels
from sheafgossip.transport.clock import Rules, ScheduledClock
from sheafgossip.transport.clock_planned import PlannedClock
from sheafgossip.transport.clock_wall import WallClock
from sheafgossip.transport.connections import Presence
from sheafgossip.transport.endpoint import Message, Traffic
from sheafgossip.transport.peers import Peers
from sheafgossip.transport.stopwatch import Stopwatch


class Stuck(Exception):
    """Nobody can go on."""


class _Weightless(np.ndarray):
    """Copies of it take no memory either."""

    def copy(self, order="C") -> np.ndarray:
        return self


@dataclass
class Wire:
    """What a run's messages look like: the lengths of a round's, both ways of every edge, and how they travel."""

    lengths: tuple[int, ...]
    opening: tuple[int, ...] = ()
    dtype: str = "float64"
    codec: object = None

    def vector(self, phase: int, round: int) -> np.ndarray:
        """Zeros that take no memory, however many they are."""
        lengths = self.opening + self.lengths if round == 1 else self.lengths
        return np.broadcast_to(np.zeros(1, self.dtype), (lengths[phase],)).view(_Weightless)


@dataclass
class Process:
    """One incarnation of a client, as its peers see it: this is their endpoint."""

    stage: "Stage"
    node: int
    incarnation: int
    presence: Presence
    sent: dict = field(default_factory=dict)
    rejected: Counter = field(default_factory=Counter)
    queue: deque[Message] = field(default_factory=deque)
    wakes_at: float = -math.inf  # when it goes on, if no message comes before
    spoken_to: bool = False
    stopwatch: Stopwatch = field(default_factory=lambda: Stopwatch("start", running=False))
    turn: greenlet | None = None
    peers: Peers | None = None
    most_under_way: Counter = field(default_factory=Counter)

    def send(self, to, round, phase, tensors=(), beside="") -> dict[int, Traffic]:
        nodes = list(to)
        for node in nodes:
            if (other := self.stage.there.get(node)) is not None:
                other.queue.append(Message(self.node, round, phase, tuple(tensors), self.incarnation))
                if self.peers:
                    flow = self.peers.clock._flows[node]
                    self.most_under_way[node] = max(self.most_under_way[node], flow.sent - flow.confirmed)
        if self.stage.random.random() < 0.05:  # perhaps others go on first
            self.wakes_at = self.stage.now
            self.stage.main.switch()
        return dict.fromkeys(nodes, Traffic())

    def receive(self, deadline: float) -> Message | None:
        if not (self.queue or self.spoken_to) and deadline > self.stage.now:
            self.wakes_at = deadline
            self.stage.main.switch()
        self.spoken_to = False
        return self.queue.popleft() if self.queue else None

    def welcome(self, message: Message) -> bool:
        return message.is_greeting and self.presence.welcome(message.src, message.incarnation)

    def reject(self, rejected: Exception) -> None:
        raise AssertionError(f"client {self.node} has rejected a message: {rejected}")


class Stage:
    """Plays a plan on one of the clocks. Raises Stuck, and whatever a client raises."""

    def __init__(self, scenario: Scenario, plan: Plan, wire: Wire, clock: str, seed: int, timeout: float = 1e4):
        self.scenario, self.plan, self.wire, self.clock = scenario, plan, wire, clock
        self.timeout = timeout
        self.evaluate_every = 1 + seed % 3
        self.now = 0.0
        self.there: dict[int, Process] = {}
        self.used: dict[tuple[int, int, int, int], int | None] = {}
        self.most_under_way: Counter[tuple[int, int]] = Counter()
        self._begun: list[Process] = []
        self.random = random.Random(seed)
        self._due: list[tuple[float, int, Incarnation]] = []
        self._done: set[int] = set()
        self.main = getcurrent()

    def monotonic(self) -> float:
        return self.now

    def play(self) -> None:
        with ExitStack() as patched:
            for module in (waiting, connections, clock, clock_wall):
                patched.enter_context(patch.object(module, "time", self))
            for node, incarnations in enumerate(self.plan.incarnations):
                if incarnations:
                    late = self.clock == "wall" and (incarnations[0].number, incarnations[0].first) != (1, 1)
                    self._due.append((incarnations[0].start_s if late else 0.0, node, incarnations[0]))
            here = {node for _, node, incarnation in self._due if incarnation.number == incarnation.first == 1}
            self._start_those_due(here)
            try:
                while self.there or self._due:
                    self._start_those_due(set())
                    self._go_on()
            finally:
                for process in self._begun:
                    process.turn.throw(GreenletExit)

    def _go_on(self) -> None:
        ready = [p for p in self.there.values() if p.queue or p.spoken_to or p.wakes_at <= self.now]
        if not ready:
            if len(self._done) == len(self.there) and not self._due:
                self.there.clear()
                return
            moments = [due for due, _, _ in self._due]
            if self.clock == "wall":
                moments += [p.wakes_at for p in self.there.values() if p.node not in self._done]
            if not moments or self.clock == "virtual":
                rounds = {p.node: p.peers.round for p in self.there.values() if p.peers and p.node not in self._done}
                raise Stuck(f"in rounds {rounds}")
            self.now = max(self.now, min(moments))
            return
        self.random.choice(ready).turn.switch()

    def _start_those_due(self, together: set[int]) -> None:
        """``together`` are those that meet before the run begins."""
        due = [entry for entry in self._due if entry[0] <= self.now or self.clock == "virtual"]
        self._due = [entry for entry in self._due if entry not in due]
        for _, node, incarnation in due:
            neighbours = self.scenario.neighbours[node]
            process = Process(self, node, incarnation.number, Presence(node))
            linked = process.presence.linked
            linked |= {j: self.there[j].incarnation for j in neighbours if j in self.there and j not in together}
            linked |= {j: 1 for j in neighbours if j in together}
            for j in neighbours:
                if node in together or j not in self.there:
                    continue
                self.there[j].presence.first_rounds[node] = incarnation.first
                self.there[j].queue.append(Message(node, 0, 0, (), incarnation.number))
            self.there[node] = process
            process.turn = greenlet(partial(self._live, process, incarnation), self.main)
            process.wakes_at = self.now
            self._begun.append(process)

    def _live(self, process: Process, incarnation: Incarnation) -> None:
        _Player(self, process, incarnation).play()
        node = process.node
        for j, most in process.most_under_way.items():
            self.most_under_way[node, j] = max(self.most_under_way[node, j], most)
        if incarnation.ending == "finish":
            self._done.add(node)
            for j in self.scenario.neighbours[node]:
                if self.clock == "wall" and j in self.there:
                    self.there[j].presence.finished.setdefault(node, self.now)
                    self.there[j].spoken_to = True
            while True:
                process.peers.clock.listen(self.now + 1)
        del self.there[node]
        for j in self.scenario.neighbours[node]:
            if j in self.there:
                self.there[j].presence.left[node] = process.incarnation
                self.there[j].spoken_to = True
        following = [each for each in self.plan.incarnations[node] if each.number > incarnation.number]
        if following:
            pause = following[0].start_s - incarnation.end_s if self.clock == "wall" else 0.0
            self._due.append((self.now + max(0.0, pause), node, following[0]))


class _Player:
    """The rounds of one incarnation: what an algorithm makes of its peers, without learning anything."""

    def __init__(self, stage: Stage, process: Process, incarnation: Incarnation):
        self.stage, self.incarnation, self.node = stage, incarnation, process.node
        self.clock = self._clock(process)
        self.peers = process.peers = Peers(self.clock)

    def _clock(self, process: Process) -> ScheduledClock:
        stage, scenario, node = self.stage, self.stage.scenario, self.node
        star, last = stage.scenario.star, stage.scenario.clients - 1
        is_shown = star is not None and node < last
        wire, both = stage.wire, (stage.wire.lengths, stage.wire.lengths, stage.wire.opening, stage.wire.opening)
        channels = {j: Channel(*both, codec=wire.codec, is_shown=is_shown) for j in stage.scenario.neighbours[node]}
        rules = Rules(
            silence=scenario.silence if star is None or node == last else "skip",
            bounded=stage.clock == "wall" or not stage.plan.synchronous,
        )
        arguments = process, Channels(node, channels, wire.dtype), stage.timeout, stage.plan.schedules[node]
        if stage.clock == "virtual":
            return PlannedClock(*arguments, rules)
        rules = replace(rules, staleness=scenario.staleness, deadline_s=scenario.deadline_s)
        if star is not None:
            anew = self.incarnation.first > 1 and self.incarnation.state_round != self.incarnation.first - 1
            rules = replace(rules, is_server=node == last, listens_in=self.incarnation.first if anew else 0)
        return WallClock(*arguments, rules)

    def play(self) -> None:
        self.clock.begin(self.incarnation.first)
        plays = self._all_neighbours if self.stage.scenario.star is None else self._star
        for round in range(self.incarnation.first, self.incarnation.last + 1):
            plays(round)
            if self.stage.scenario.star is not None and round % self.stage.evaluate_every == 0:
                self._evaluates(round)
            for use in self.peers.next_round().used:
                self.stage.used[self.node, round, use.phase, use.neighbour] = use.used
        if self.incarnation.ending != "finish" and isinstance(self.clock, PlannedClock):
            self.clock.drain(self.incarnation.number, 0)

    def _vectors(self, phase: int, round: int, nodes) -> Mapping[int, np.ndarray]:
        return dict.fromkeys(nodes, self.stage.wire.vector(phase, round))

    def _all_neighbours(self, round: int) -> None:
        for phase in range(len(self.stage.wire.lengths)):
            self.peers.exchange(self._vectors(phase, round, self.peers.neighbours))
            if phase == 0:
                self.clock.sleep(0.0)

    def _evaluates(self, round: int) -> None:
        star, peers, server = self.stage.scenario.star, self.peers, self.stage.scenario.clients - 1
        answered, phase = star.receivers[round - 1], star.opening if round == 1 else 0
        if self.node == server:
            lacking = [j for j in peers.neighbours if peers.lacks_answer(j, answered=j in answered)]
            peers.show(self._vectors(phase, round, lacking))
        elif peers.lacks_answer(server, answered=self.node in answered):
            peers.shown(server)

    def _star(self, round: int) -> None:
        star, peers = self.stage.scenario.star, self.peers
        senders, receivers = star.participants[round - 1], star.receivers[round - 1]
        opening = star.opening if round == 1 else 0
        if self.node == self.stage.scenario.clients - 1:
            for phase in range(opening):
                peers.send(self._vectors(phase, round, peers.neighbours))
                peers.receive()
            peers.receive(sorted(senders))
            peers.send(self._vectors(opening, round, sorted(receivers)))
            return
        for phase in range(opening):
            peers.receive()
            peers.send(self._vectors(phase, round, peers.neighbours))
        takes_part = self.node in senders and not peers.left_out()
        if takes_part:
            self.clock.sleep(0.0)
            peers.send(self._vectors(opening, round, peers.neighbours))
        if self.node in receivers:
            peers.receive(bounded=takes_part)
