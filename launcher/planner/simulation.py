"""Plays a scenario: the pure function from which every plan comes.

A round of a client is exchange 0, the local work, then the other exchanges. In an exchange it gives its uplink one
message for each neighbour, and waits until each neighbour has got far enough (``Execution``). Of each neighbour it then
uses

- where clients are synchronous (staleness 0): the message of its own round;
- else the freshest message that has arrived, unless that is more than ``staleness`` rounds old;
- where there is none such when the deadline passes, or when the neighbour is known to be gone: the freshest that has
  arrived at all (silence = "stale"), or none ("skip", "wait").

Messages of one link arrive in the order in which they were sent, except where a fault of kind "reorder" says otherwise.
Events at the same moment come in the order of client numbers.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...transport.schedule import Schedule
from .draws import ComputeTimes, latencies, losses, strikes
from .plan import Life, Plan, PlanError, SentMessage
from .scenario import Fault, Link, Scenario


def simulate(scenario: Scenario) -> Plan:
    """The plan of a scenario. Raises PlanError when some client would wait for ever."""
    return _Simulation(scenario).play()


class _Mail:
    """What one neighbour has sent of one phase, by the round of the message."""

    __slots__ = ("arrived", "coming", "freshest")

    def __init__(self) -> None:
        self.coming: list[tuple[float, int]] = []  # (arrival, round), by arrival
        self.arrived: set[int] = set()
        self.freshest = 0

    def take_in(self, now: float) -> None:
        coming, upto = self.coming, 0
        while upto < len(coming) and coming[upto][0] <= now:
            self.arrived.add(coming[upto][1])
            self.freshest = max(self.freshest, coming[upto][1])
            upto += 1
        del coming[:upto]

    def first_from(self, round: int) -> float:
        """When a message of at least this round arrives, of those under way; -inf: has arrived; inf: none does."""
        if self.freshest >= round:
            return -math.inf
        return next((arrival for arrival, number in self.coming if number >= round), math.inf)


class _Client:
    def __init__(self, number: int, neighbours: tuple[int, ...], phases: int):
        self.number = number
        self.neighbours = neighbours
        self.round = 1
        self.phase = 0
        self.here = True
        self.finished = False
        self.gone_since = math.inf
        self.back_from_round: int | None = None  # a restart that waits for its neighbours to get to this round
        self.waiting = False
        self.wait_began = 0.0
        self.token = 0  # of the event that would end the present wait; older ones are void
        self.planned_end = math.inf
        self.ready: dict[int, float] = {}  # {neighbour: when it needs no more waiting for}
        self.phases = phases
        self.uplink_free = 0.0
        self.lives = [Life(1, 1, 0.0)]
        self.forget()

    def forget(self) -> None:
        """A new process has got nothing yet."""
        self.mail = {(j, phase): _Mail() for j in self.neighbours for phase in range(self.phases)}

    @property
    def life(self) -> Life:
        return self.lives[-1]


class _Link:
    """One direction of an edge, with its draws."""

    def __init__(self, scenario: Scenario, src: int, dst: int):
        shape = scenario.rounds, scenario.phases
        given = scenario.links.get((src, dst), Link())
        self.latency = latencies(given.latency, *shape, scenario.seed, src, dst).tolist()
        self.lost = losses(given.loss, *shape, scenario.seed, src, dst).tolist() if given.loss else None
        self.bandwidth = given.bandwidth
        self.bytes = scenario.message_bytes[src, dst]
        self.free = 0.0
        self.last_arrival = 0.0
        self.faults: list[tuple[Fault, list[list[bool]]]] = [
            (fault, strikes(fault, number, *shape, scenario.seed, src, dst).tolist())
            for number, fault in enumerate(scenario.faults)
            if fault.kind in _OF_LINKS and fault.hits(src, dst)
        ]

    def struck(self, kind: str, round: int, phase: int, now: float) -> Iterator[Fault]:
        for fault, draws in self.faults:
            if fault.kind == kind and draws[round - 1][phase] and fault.active(round, now):
                yield fault


_OF_LINKS = ("loss", "duplicate", "delay", "reorder", "cut", "partition")
_FIRST, _STEP = 0, 1  # at one moment: comebacks and notices, then what clients do


class _Simulation:
    def __init__(self, scenario: Scenario):
        self.scenario = scenario
        self.staleness = scenario.execution.staleness
        phases = scenario.phases
        self.clients = [_Client(i, neighbours, phases) for i, neighbours in enumerate(scenario.neighbours)]
        self.links = {edge: _Link(scenario, *edge) for edge in scenario.message_bytes}
        self.compute_times = ComputeTimes(scenario)
        self.messages: list[SentMessage] = []
        self.events: list[tuple[float, int, str, str]] = []
        self.ends = [fault for fault in scenario.faults if fault.kind in ("crash", "leave")]
        self.fired: set[tuple[int, int]] = set()  # (number of the fault, client)
        self._heap: list[tuple[float, int, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._arrays = [_Arrays(scenario, i) for i in range(scenario.clients)]
        self._as_agreed = True

    # -- the clock -----------------------------------------------------------------------------------------------------

    def play(self) -> Plan:
        for client in self.clients:
            joins = [fault for fault in self.scenario.faults if fault.kind == "join" and client.number in fault.clients]
            if joins:
                self._come_later(client, joins[0])
            else:
                self._at(0.0, _STEP, client, self._start_round)
        while self._heap:
            now, _, number, _, action, arguments = heapq.heappop(self._heap)
            action(self.clients[number], now, *arguments)
        self._refuse_endless()
        return Plan(
            schedules=tuple(arrays.schedule(self._arrays) for arrays in self._arrays),
            lives=tuple(tuple(client.lives) for client in self.clients),
            messages=tuple(self.messages),
            events=tuple(sorted(self.events)),
            synchronous=self._as_agreed,
        )

    def _at(self, when: float, order: int, client: _Client, action: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (when, order, client.number, self._count, action, arguments))

    def _refuse_endless(self) -> None:
        for client in self.clients:
            if client.here and client.waiting:
                silent = [j for j in client.neighbours if client.ready.get(j, math.inf) == math.inf]
                raise PlanError(
                    f"client {client.number} would wait for ever in round {client.round} for a message of client "
                    f"{', '.join(map(str, silent))}; set time.deadline_s, and time.silence to 'stale' or 'skip'"
                )

    # -- a round -------------------------------------------------------------------------------------------------------

    def _start_round(self, client: _Client, now: float) -> None:
        if not client.here or self._dies(client, now):
            return
        for j in client.neighbours:
            other = self.clients[j]
            if other.back_from_round is not None and client.round >= other.back_from_round:
                self._come_back(other, now, other.back_from_round)
        arrays = self._arrays[client.number]
        arrays.start[client.round - 1] = now
        client.phase = 0
        if self.scenario.phases:
            self._exchange(client, now)
        else:
            self._compute(client, now)

    def _exchange(self, client: _Client, now: float) -> None:
        self._send(client, now)
        client.waiting, client.wait_began = True, now
        client.token += 1
        client.planned_end = math.inf
        client.ready = {j: self._ready(client, j, now) for j in client.neighbours}
        if math.isfinite(self.scenario.execution.deadline_s):
            when = now + self.scenario.execution.deadline_s
            self._at(when, _STEP, client, self._proceed, client.token, True)
        self._plan_end(client, now)

    def _ready(self, client: _Client, j: int, now: float) -> float:
        """When client needs not wait for neighbour j any more, as far as is known now."""
        far_enough = client.round - self.staleness
        if self.staleness and far_enough <= 0:
            return now
        came = client.mail[j, client.phase].first_from(max(1, math.ceil(far_enough)))
        if came < math.inf:
            return max(now, came)
        other = self.clients[j]
        if other.here:
            return math.inf if client.round >= other.life.first and not other.finished else now
        return max(now, other.gone_since + self.scenario.execution.notice_s)

    def _plan_end(self, client: _Client, now: float) -> None:
        """Sets down when the wait ends, once all it waits for is known."""
        end = max(client.ready.values(), default=now)
        if end != client.planned_end:
            client.planned_end = end
            if end < math.inf:
                self._at(end, _STEP, client, self._proceed, client.token, False)

    def _look_again(self, client: _Client, j: int, now: float) -> None:
        """Something has changed about neighbour j."""
        if client.here and client.waiting and j in client.ready:
            client.ready[j] = self._ready(client, j, now) if client.ready[j] > now else client.ready[j]
            self._plan_end(client, now)

    def _proceed(self, client: _Client, now: float, token: int, deadline: bool) -> None:
        if not (client.waiting and token == client.token and (deadline or now == client.planned_end)):
            return
        client.waiting = False
        arrays, row, phase = self._arrays[client.number], client.round - 1, client.phase
        late = [j for j in client.neighbours if client.ready[j] > now]
        arrays.deadlines[row] += bool(late)
        if now > client.wait_began:
            arrays.idle[row] += now - client.wait_began
            arrays.waited_for[row] = late[0] if late else max(client.ready, key=lambda j: (client.ready[j], -j))
        for place, j in enumerate(client.neighbours):
            mail = client.mail[j, phase]
            mail.take_in(now)
            used = self._chosen(mail, client.round)
            arrays.uses[row, phase, place] = used
            self._as_agreed &= used == client.round
        if phase == 0:
            self._compute(client, now)
        else:
            self._next_phase(client, now)

    def _chosen(self, mail: _Mail, round: int) -> int:
        """The round of the message that is used; 0: none."""
        if self.staleness == 0:
            if round in mail.arrived:
                return round
        elif mail.freshest >= round - self.staleness:
            return mail.freshest
        return mail.freshest if self.scenario.execution.silence == "stale" else 0

    def _compute(self, client: _Client, now: float) -> None:
        seconds = self.compute_times(client.number, client.round, now)
        self._arrays[client.number].compute[client.round - 1] = seconds
        self._at(now + seconds, _STEP, client, self._next_phase)

    def _next_phase(self, client: _Client, now: float) -> None:
        client.phase += 1
        if client.phase < self.scenario.phases:
            self._exchange(client, now)
            return
        self._arrays[client.number].end[client.round - 1] = now
        client.life.last, client.life.end_s = client.round, now
        client.round += 1
        if client.round <= self.scenario.rounds:
            self._start_round(client, now)
            return
        client.finished = True
        for j in client.neighbours:
            self._look_again(self.clients[j], client.number, now)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _send(self, client: _Client, now: float) -> None:
        arrays, round, phase = self._arrays[client.number], client.round, client.phase
        for place, j in enumerate(client.neighbours):
            other, link = self.clients[j], self.links[client.number, j]
            if not other.here or any(next(link.struck(kind, round, phase, now), None) for kind in ("cut", "partition")):
                self._as_agreed = False
                continue
            size = link.bytes[phase]
            left = max(now, client.uplink_free) + size / self.scenario.uplink
            client.uplink_free = left
            link.free = max(left, link.free) + size / link.bandwidth
            arrived = link.free + link.latency[round - 1][phase]
            arrived += sum(fault.delay_s for fault in link.struck("delay", round, phase, now))
            if late := [fault.delay_s for fault in link.struck("reorder", round, phase, now)]:
                arrived += sum(late)
            else:
                arrived = link.last_arrival = max(arrived, link.last_arrival)
            copies = 1
            if (link.lost and link.lost[round - 1][phase]) or any(link.struck("loss", round, phase, now)):
                copies = 0
            elif any(link.struck("duplicate", round, phase, now)):
                copies = 2
            self.messages.append(SentMessage(client.number, j, round, phase, now, left, arrived, copies))
            if not copies:
                continue
            arrays.copies[round - 1, phase, place] = copies
            arrays.to_life[round - 1, phase, place] = other.life.number
            arrays.delays_out[round - 1, phase, place] = arrived - now
            insort(other.mail[client.number, phase].coming, (arrived, round))
            if other.phase == phase:
                self._look_again(other, client.number, now)

    # -- comings and goings --------------------------------------------------------------------------------------------

    def _dies(self, client: _Client, now: float) -> bool:
        for number, fault in enumerate(self.ends):
            if client.number not in fault.clients or (number, client.number) in self.fired:
                continue
            due = client.round >= fault.rounds[0] if fault.rounds else now >= (fault.seconds or (0.0,))[0]
            if due:
                self.fired.add((number, client.number))
                self._go(client, now, fault)
                return True
        return False

    def _go(self, client: _Client, now: float, fault: Fault) -> None:
        client.here, client.waiting, client.gone_since = False, False, now
        life = client.life
        life.last, life.end_s, life.ending = client.round - 1, now, "crash" if fault.kind == "crash" else "leave"
        self._as_agreed = False
        self.events.append((now, client.number, fault.kind, f"before round {client.round}"))
        for j in client.neighbours:
            self._at(now + self.scenario.execution.notice_s, _FIRST, client, self._notice, j)
        if fault.restart_after is not None:
            client.back_from_round = client.round + fault.restart_after
        elif fault.restart_after_s is not None:
            self._at(now + fault.restart_after_s, _FIRST, client, self._come_back, None)

    def _notice(self, client: _Client, now: float, j: int) -> None:
        self._look_again(self.clients[j], client.number, now)

    def _come_later(self, client: _Client, fault: Fault) -> None:
        """Not there at the beginning."""
        client.here, client.gone_since = False, -math.inf
        client.lives.clear()
        self._as_agreed = False
        if fault.rounds is not None:
            client.back_from_round = fault.rounds[0]
        else:
            self._at((fault.seconds or (0.0,))[0], _FIRST, client, self._come_back, None)

    def _come_back(self, client: _Client, now: float, round: int | None) -> None:
        """A new process, which takes part from a round that none of its neighbours has begun yet."""
        if round is None:
            begun = [other.round for other in map(self.clients.__getitem__, client.neighbours) if other.here]
            round = max([client.round if client.lives else 1, *(number + 1 for number in begun)])
        client.back_from_round = None
        if round > self.scenario.rounds:
            return
        before = list(client.lives)
        state = self._last_state(before) if before else None
        client.lives.append(Life(len(before) + 1, round, now, last=round - 1, state_round=state))
        client.round, client.here, client.gone_since = round, True, math.inf
        client.forget()
        detail = f"from round {round}, with the state of round {state}" if before else f"from round {round}"
        self.events.append((now, client.number, "restart" if before else "join", detail))
        self._at(now, _STEP, client, self._start_round)

    def _last_state(self, lives: list[Life]) -> int:
        """The last round of which a client's state has been written."""
        every = self.scenario.checkpoint_every
        due = (round for life in reversed(lives) for round in range(life.last, life.first - 1, -1))
        return next((round for round in due if every and round % every == 0), lives[0].state_round or 0)


class _Arrays:
    """The arrays of a Schedule while they are filled in."""

    def __init__(self, scenario: Scenario, client: int):
        self.client = client
        self.neighbours = np.array(scenario.neighbours[client], np.int32)
        rounds = scenario.rounds
        shape = (rounds, scenario.phases, len(self.neighbours))
        self.uses = np.zeros(shape, np.int32)
        self.copies = np.zeros(shape, np.uint8)
        self.to_life = np.zeros(shape, np.uint8)
        self.delays_out = np.zeros(shape)
        self.start, self.end, self.compute = (np.full(rounds, np.nan) for _ in range(3))
        self.idle = np.zeros(rounds)
        self.waited_for = np.full(rounds, -1, np.int32)
        self.deadlines = np.zeros(rounds, np.uint8)

    def last_uses(self) -> np.ndarray:
        """(K, P, g): the last own round in which a neighbour's message of its round k is used."""
        last = np.zeros_like(self.uses)
        rounds, phases, places = np.nonzero(self.uses)
        np.maximum.at(last, (self.uses[rounds, phases, places] - 1, phases, places), rounds.astype(np.int32) + 1)
        return last

    def schedule(self, everyone: list[_Arrays]) -> Schedule:
        others = [everyone[j] for j in self.neighbours]
        places = [int(np.searchsorted(other.neighbours, self.client)) for other in others]

        def mirrored(arrays: list[np.ndarray]) -> np.ndarray:
            """What the neighbours' arrays say of this client, a column each."""
            columns = [array[:, :, [place]] for array, place in zip(arrays, places, strict=True)]
            return np.concatenate(columns, axis=2) if columns else np.zeros_like(self.uses)

        return Schedule(
            neighbours=self.neighbours,
            uses=self.uses,
            copies=self.copies,
            to_life=self.to_life,
            needed=mirrored([other.last_uses() for other in others]),
            comes=mirrored([other.copies for other in others]),
            into_life=mirrored([other.to_life for other in others]),
            keep=self.last_uses(),
            delays=mirrored([other.delays_out for other in others]),
            start=self.start,
            end=self.end,
            compute=self.compute,
            idle=self.idle,
            waited_for=self.waited_for,
            deadlines=self.deadlines,
        )
