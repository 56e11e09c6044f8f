"""Every accepted plan comes to its end, on both clocks, and nowhere are more messages under way than was reckoned; what
was used on the wall clock is used in its replay, too.

Plans are played without processes: the real peers of every client, each in a greenlet of its own, over queues instead
of sockets and on a clock that jumps to the next moment at which something happens. Which client goes next is drawn at
random, so any speed of any of them comes up. A run that cannot go on is told at once.

Two hundred scenarios by default; `make liveness` plays 100,000. SHEAFGOSSIP_LIVENESS=7 or =0-999 chooses.
"""

import dataclasses
import os
import random
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
import pytest
from greenlet import GreenletExit, getcurrent, greenlet

from sheafgossip.launcher.planner.plan import Incarnation, Plan, PlanError
from sheafgossip.launcher.planner.replay import Recording, replayed
from sheafgossip.launcher.planner.scenario import Scenario
from sheafgossip.launcher.planner.simulation import simulate
from sheafgossip.transport import clock, clock_planned, clock_wall, connections, stopwatch
from sheafgossip.transport.channel import Channel, Channels
from sheafgossip.transport.clock_planned import PlannedClock, Rules, ScheduledClock
from sheafgossip.transport.clock_wall import WallClock
from sheafgossip.transport.codecs import codec
from sheafgossip.transport.connections import Presence
from sheafgossip.transport.endpoint import Traffic
from sheafgossip.transport.messages import Message
from sheafgossip.transport.peers import Peers
from sheafgossip.transport.schedule import deadlines_left, limit
from sheafgossip.transport.stopwatch import Stopwatch
from sheafgossip.transport.use_log import BEGINS
from sheafgossip.transport.wire import layout_of

from .scenarios import scenario_of

CHUNK = 100
FIRST, _, LAST = os.environ.get("SHEAFGOSSIP_LIVENESS", "0-199").partition("-")
CHOSEN = range(int(FIRST), int(LAST or FIRST) + 1)
TIMEOUT_S = 1e4


class _Weightless(np.ndarray):
    """Copies of it take no memory either."""

    def copy(self, order="C") -> np.ndarray:
        return self


@dataclasses.dataclass
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


class Stage:
    """Plays a plan on one of the clocks. Raises what a client raises, and an error where nobody can go on."""

    def __init__(self, scenario: Scenario, plan: Plan, wire: Wire, clock: str, seed: int):
        self.scenario, self.plan, self.wire, self.on_wall_clock = scenario, plan, wire, clock == "wall"
        self.evaluate_every = 1 + seed % 3
        self.random, self.now, self.main = random.Random(seed), 0.0, getcurrent()
        self.there: dict[int, Process] = {}
        self.used: dict[tuple[int, int, int, int], int | None] = {}
        self.noted: list[tuple[int, ...]] = []
        self.ended: list[tuple[int, int, float]] = []
        self.most_under_way: Counter[tuple[int, int]] = Counter()
        self._begun: list[Process] = []

    def monotonic(self) -> float:
        return self.now

    def play(self) -> None:
        firsts = [(node, each[0]) for node, each in enumerate(self.plan.incarnations) if each]
        here = [node for node, first in firsts if (first.number, first.first) == (1, 1)]
        self.due = [(first.start_s * (self.on_wall_clock and node not in here), node, first) for node, first in firsts]
        with ExitStack() as patched:
            for module in (stopwatch, connections, clock, clock_planned, clock_wall):
                patched.enter_context(patch.object(module, "time", self))
            self._start_those_due(here)
            try:
                while self.there or self.due:
                    self._start_those_due([])
                    self._go_on()
            finally:
                for process in self._begun:
                    process.turn.throw(GreenletExit)

    def _go_on(self) -> None:
        working = [process for process in self.there.values() if not process.done]
        ready = [p for p in self.there.values() if p.queue or p.spoken_to or p.wakes_at <= self.now]
        if ready:
            self.random.choice(ready).turn.switch()
        elif not working and not self.due:
            self.there.clear()
        else:
            assert self.on_wall_clock, f"in rounds {[p.peers.round for p in working]}"
            moments = [due for due, _, _ in self.due] + [process.wakes_at for process in working]
            self.now = max(self.now, min(moments))

    def _start_those_due(self, together: list[int]) -> None:
        """``together`` are those that meet before the run begins."""
        due = [entry for entry in self.due if entry[0] <= self.now or not self.on_wall_clock]
        self.due = [entry for entry in self.due if entry not in due]
        for _, node, incarnation in due:
            process = Process(self, node, incarnation)
            for j in self.scenario.neighbours[node]:
                if j in together or j in self.there:
                    process.presence.linked[j] = 1 if j in together else self.there[j].incarnation
                if j in self.there and node not in together:
                    self.there[j].presence.first_rounds[node] = incarnation.first
                    self.there[j].queue.append(Message(node, 0, 0, (), incarnation.number))
            self.there[node] = process
            self._begun.append(process)


class Process:
    """One incarnation of a client: its peers' endpoint, and what an algorithm makes of them, without learning."""

    opens_late = False

    def __init__(self, stage: Stage, node: int, planned: Incarnation):
        self.stage, self.node, self.planned, self.incarnation = stage, node, planned, planned.number
        self.presence, self.rejected, self.stopwatch = Presence(node), Counter(), Stopwatch("start", running=False)
        self.queue: deque[Message] = deque()
        self.sent: dict = {}
        self.wakes_at = stage.now  # when it goes on, if no message comes before
        self.spoken_to = self.done = False
        self.turn = greenlet(self.live, stage.main)

    # -- as an endpoint ------------------------------------------------------------------------------------------------

    def send(self, to, round, phase, tensors=(), beside="") -> dict[int, Traffic]:
        nodes, most = list(to), self.stage.most_under_way
        for node in nodes:
            if (other := self.stage.there.get(node)) is not None:
                other.queue.append(Message(self.node, round, phase, tuple(tensors), self.incarnation))
                flow = self.clock._flows[node]
                most[self.node, node] = max(most[self.node, node], flow.sent - flow.confirmed)
        if self.stage.random.random() < 0.05:  # perhaps others go on first
            self.wakes_at = self.stage.now
            self.stage.main.switch()
        return dict.fromkeys(nodes, Traffic())

    def send_all(self, messages, round, beside="") -> None:
        for to, phase, tensors in messages:
            self.send(to, round, phase, tensors, beside)

    def receive(self, deadline: float) -> Message | None:
        if not (self.queue or self.spoken_to) and deadline > self.stage.now:
            self.wakes_at = deadline
            self.stage.main.switch()
        self.spoken_to = False
        return self.queue.popleft() if self.queue else None

    def receive_soon(self, lacking: set, ahead, intake) -> None:
        while lacking and self.queue:
            message = self.queue.popleft()
            (src, round, phase), key = message[:3], message[:3]
            form = intake.forms.get((src, phase, round == 1))
            is_plain = form and layout_of(message.tensors) == form.layout
            if is_plain and (key in lacking or (round in ahead and key not in intake.inbox)):
                intake.take_in(key, message.tensors[0])
            else:
                intake.store(message)
            lacking.discard(key)

    def welcome(self, message: Message) -> bool:
        return self.presence.welcome(message.src, message.incarnation)

    def seek(self, node: int, incarnation: int = 1) -> bool:
        return self.presence.linked.get(node, 0) >= incarnation

    def reject(self, rejected: Exception) -> None:
        raise AssertionError(f"client {self.node} has rejected a message: {rejected}")

    # -- as a client ---------------------------------------------------------------------------------------------------

    def _clock(self) -> ScheduledClock:
        stage, scenario, wire, first = self.stage, self.stage.scenario, self.stage.wire, self.planned.first
        is_server = scenario.star is not None and self.node == scenario.learners
        lengths = wire.lengths, wire.lengths, wire.opening, wire.opening
        alike = Channel(*lengths, codec=wire.codec, is_shown=scenario.star is not None and not is_server)
        channels = Channels(self.node, dict.fromkeys(scenario.neighbours[self.node], alike), wire.dtype)
        rules = Rules(
            silence=scenario.silence if scenario.star is None or is_server else "skip",
            bounded=stage.on_wall_clock or not stage.plan.synchronous,
        )
        if not stage.on_wall_clock:
            return PlannedClock(self, channels, TIMEOUT_S, stage.plan.schedules[self.node], rules)
        anew = scenario.star is not None and first > 1 and self.planned.state_round != first - 1
        rules = dataclasses.replace(
            rules, staleness=scenario.staleness, deadline_s=scenario.deadline_s, is_server=is_server,
            listens_in=first if anew else 0, last_heard=lambda j, round: scenario.last_round(j, self.node, round),
        )  # fmt: skip
        wall = WallClock(self, channels, TIMEOUT_S, stage.plan.schedules[self.node], rules)
        wall.log = self
        self.write([(first, BEGINS, self.incarnation, 1 + int(1000 * stage.now))])
        return wall

    def write(self, rows) -> None:
        """As a log of what is used."""
        self.stage.noted += [(self.node, *row) for row in rows]

    def live(self) -> None:
        stage, planned = self.stage, self.planned
        self.clock = self._clock()  # knows whom it is linked with
        self.peers = Peers(self.clock)
        self._play()
        neighbours = [j for j in stage.scenario.neighbours[self.node] if j in stage.there]
        if planned.ending == "finish":
            self.done = True
            for j in neighbours if stage.on_wall_clock else ():
                stage.there[j].presence.finished.setdefault(self.node, stage.now)
                stage.there[j].spoken_to = True
            while True:
                self.clock.listen(stage.now + 1)
        del stage.there[self.node]
        for j in neighbours:
            stage.there[j].presence.left[self.node] = self.incarnation
            stage.there[j].spoken_to = True
        for following in stage.plan.incarnations[self.node][planned.number : planned.number + 1]:
            stage.due.append((stage.now + max(0.0, following.start_s - planned.end_s), self.node, following))

    def _play(self) -> None:
        self.clock.begin(self.planned.first)
        for round in range(self.planned.first, self.planned.last + 1):
            if self.stage.scenario.star is None:
                to = of = self.peers.neighbours
                if graphs := self.stage.scenario.graphs:
                    to, of = graphs.of(round).successors(self.node), graphs.of(round).predecessors(self.node)
                for phase in range(len(self.stage.wire.lengths)):
                    self.peers.exchange(self._vectors(phase, round, to), of)
                    if phase == 0:
                        self.clock.sleep()
            else:
                self._with_server(round)
                if round % self.stage.evaluate_every == 0:
                    self._evaluates(round)
            self.stage.ended.append((self.node, round, self.stage.now))
            for use in self.peers.next_round().used:
                self.stage.used[self.node, round, use.phase, use.neighbour] = use.used
        if self.planned.ending != "finish" and not self.stage.on_wall_clock:
            self.clock.drain(self.incarnation, 0)

    def _vectors(self, phase: int, round: int, nodes=None) -> Mapping[int, np.ndarray]:
        return dict.fromkeys(self.peers.neighbours if nodes is None else nodes, self.stage.wire.vector(phase, round))

    def _with_server(self, round: int) -> None:
        star, peers = self.stage.scenario.star, self.peers
        senders, receivers = star.participants[round - 1], star.receivers[round - 1]
        opening, last = star.opening if round == 1 else 0, star.exchanges - 1
        if self.node == self.stage.scenario.learners:
            for phase in range(opening):
                peers.send(self._vectors(phase, round))
                peers.receive()
            there = senders
            for exchange in range(star.exchanges):
                peers.skip_to(exchange)
                there = peers.receive(sorted(there))
                if exchange == last or len(there) < star.least:
                    break
                peers.send(self._vectors(opening + exchange, round, sorted(there)))
            peers.skip_to(last)
            peers.send(self._vectors(opening + last, round, sorted(receivers)))
            return
        for phase in range(opening):
            peers.receive()
            peers.send(self._vectors(phase, round))
        patience = 0
        if self.node in senders and not peers.left_out():
            self.clock.sleep()
            patience = star.exchanges
            for exchange in range(star.exchanges):
                peers.skip_to(exchange)
                peers.send(self._vectors(opening + exchange, round))
                if exchange == last or not peers.receive(bounded=2):
                    break
                patience = deadlines_left(star.exchanges, exchange + 1)
        if self.node in receivers:
            peers.skip_to(last)
            peers.receive(bounded=patience)

    def _evaluates(self, round: int) -> None:
        star, peers, server = self.stage.scenario.star, self.peers, self.stage.scenario.learners
        answered, phase = star.receivers[round - 1], star.phases(round)[-1]
        if self.node == server:
            lacking = [j for j in peers.neighbours if peers.lacks_answer(j, answered=j in answered)]
            peers.show(self._vectors(phase, round, lacking))
        elif peers.lacks_answer(server, answered=self.node in answered):
            peers.shown(server)


def case_of(number: int) -> tuple[Scenario, Wire]:
    rng = random.Random(number)
    long = rng.random() < 0.05
    size = 2000 if long else int(10 ** rng.uniform(0, 7))
    scenario = scenario_of(rng, calm=rng.random() < 0.5, server=rng.random() < 0.2, rounds=300 if long else 16)
    opening = scenario.star.opening if scenario.star else 0
    lengths = tuple(rng.randint(1, size) for _ in range(scenario.phases - opening))
    dtype, used = rng.choice(["float32", "float64"]), None
    if size <= 300 and rng.random() < 0.3:
        used = codec(rng.choice(["float16", "int8", "top-k"]), np.dtype(dtype), 0.5)
    return scenario, Wire(lengths, (rng.randint(1, size),) * opening, dtype, used)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("numbers", [CHOSEN[at : at + CHUNK] for at in range(0, len(CHOSEN), CHUNK)], ids=str)
def test_every_accepted_plan_comes_to_its_end(numbers):
    refused = 0
    for number in numbers:
        scenario, wire = case_of(number)
        try:
            play(scenario, wire, simulate(scenario), number)
        except PlanError:
            refused += 1
        except BaseException as error:
            raise AssertionError(f"scenario {number}: {error!r}\n{scenario}\n{wire}") from error
    assert refused <= len(numbers) / 5


def play(scenario: Scenario, wire: Wire, plan: Plan, seed: int) -> None:
    stage = Stage(scenario, plan, wire, "virtual", seed)
    stage.play()
    planned = {
        (node, row + 1, phase, int(schedule.neighbours[place]))
        for node, schedule in enumerate(plan.schedules)
        for row, phase, place in np.argwhere(schedule.uses).tolist()
    }
    assert {key for key in stage.used if stage.used[key]} == planned
    for (src, dst), most in stage.most_under_way.items() if not plan.synchronous else ():
        schedule = plan.schedules[src]
        backlog = int(schedule.backlog[schedule.neighbours.tolist().index(dst)])
        assert most <= limit(wire.opening + wire.lengths, np.dtype(wire.dtype).itemsize, backlog)
    recorded = Stage(scenario, plan, wire, "wall", seed)
    recorded.play()
    if recorded.ended:
        again = Stage(scenario, replayed(plan, recording_of(recorded), scenario.star), wire, "virtual", ~seed)
        again.play()
        assert again.used == recorded.used


def recording_of(stage: Stage) -> Recording:
    rounds = np.array([(node, round, -1) for node, round, _ in stage.ended], np.int32)
    times = np.array([(now, 0.0) for *_, now in stage.ended])
    return Recording(np.array(stage.noted, np.int32), rounds, times)
