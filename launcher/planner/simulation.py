"""Plays a scenario: the pure function from which every plan comes.

A round of a client is exchange 0, the local work, then the other exchanges. In an exchange it gives its uplink one
message for each neighbour, waits until each has got far enough, and uses of each the message that the rule of
``transport/freshness.py`` chooses.

With a server (``Star``) a round of a participant is the local work, a message to the server, and the wait for its
answer; one of the server is the wait for these messages, then its answers. The deadline bounds the server's wait, and
that of a client which has just sent; who has only to be called waits until it is. Two more rules: a client that comes
back takes no part in its first round, it only gets the server's answer; and one that has an answer of a later round
before it begins to work leaves out the rounds up to there, as their results have been made without it.

Messages of one link arrive in the order in which they were sent, except where a fault of kind "reorder" says otherwise.
Events at the same moment come in the order of client numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import starmap
from typing import Any

import numpy as np

from ...transport.freshness import chosen_round, needed_round
from ...transport.schedule import Schedule
from .draws import ComputeTimes, latencies, losses, strikes
from .evaluation import with_evaluations
from .plan import Life, Plan, PlanError, SentMessage
from .scenario import Fault, Link, Scenario, Star

Step = Callable[[Any, float], bool]
"""Given a client and the time; True: it lasts, and goes on by itself."""


def simulate(scenario: Scenario) -> Plan:
    """The plan of a scenario. Raises PlanError when some client would wait for ever."""
    return _Simulation(scenario).play()


class _Mail:
    """What one neighbour has sent of one phase, by the round of the message."""

    __slots__ = ("arrived", "coming", "freshest")

    def __init__(self) -> None:
        self.coming: list[tuple[float, int]] = []  # heap of (arrival, round)
        self.arrived: set[int] = set()
        self.freshest = 0

    def take_in(self, now: float) -> None:
        coming = self.coming
        while coming and coming[0][0] <= now:
            _, round = heappop(coming)
            self.arrived.add(round)
            if round > self.freshest:
                self.freshest = round

    def first_from(self, round: int) -> float:
        """When a message of at least this round arrives, of those under way; -inf: has arrived; inf: none does."""
        if self.freshest >= round:
            return -math.inf
        first = math.inf
        for arrival, number in self.coming:
            if number >= round and arrival < first:
                first = arrival
        return first


class _Client:
    def __init__(self, number: int, phases: int):
        self.number = number
        self.neighbours: list[_Client] = []
        self.links: list[_Link] = []  # to the neighbours, in the same order
        self.round = 1
        self.begun = 0  # the last round that it has begun
        self.phase = 0
        self.steps: list[Step] = []  # of the present round, those to come
        self.here = True
        self.finished = False
        self.gone_since = math.inf
        self.back_from_round: int | None = None  # a restart that waits for its neighbours to get to this round
        self.waiting = False
        self.wait_began = 0.0
        self.token = 0  # of the event that would end the present wait; older ones are void
        self.planned_end = math.inf
        self.needed = 0  # the round that every neighbour has to get to before the present wait ends
        self.awaited: list[bool] = []  # of each neighbour: whether the present wait is for it
        self.ready: list[float] = []  # of each neighbour: when it needs no more waiting for
        self.phases = phases
        self.uplink_free = 0.0
        self.life = Life(1, 1, 0.0)
        self.lives = [self.life]
        self.mail: list[list[_Mail]] = []  # of each phase, then of each neighbour

    def meet(self, neighbours: list[_Client], links: list[_Link]) -> None:
        self.neighbours, self.links = neighbours, links
        self.forget()

    def forget(self) -> None:
        """A new process has got nothing yet."""
        self.mail = [[_Mail() for _ in self.neighbours] for _ in range(self.phases)]


class _Link:
    """One direction of an edge, with its draws."""

    def __init__(self, scenario: Scenario, src: int, dst: _Client):
        shape = scenario.rounds, scenario.phases
        given = scenario.links.get((src, dst.number), Link())
        self.to = dst
        self.place = scenario.neighbours[dst.number].index(src)  # of the sender, among the receiver's neighbours
        self.latency = latencies(given.latency, *shape, scenario.seed, src, dst.number).tolist()
        self.lost = losses(given.loss, *shape, scenario.seed, src, dst.number).tolist() if given.loss else None
        self.bandwidth = given.bandwidth
        self.bytes = scenario.message_bytes[src, dst.number]
        self.opening = scenario.star.opening if scenario.star else 0
        self.free = 0.0
        self.last_arrival = 0.0
        self.faults: list[tuple[Fault, list[list[bool]]]] = [
            (fault, strikes(fault, number, *shape, scenario.seed, src, dst.number).tolist())
            for number, fault in enumerate(scenario.faults)
            if fault.kind in _OF_LINKS and fault.hits(src, dst.number)
        ]

    def size(self, round: int, phase: int) -> int:
        return self.bytes[phase if round == 1 else self.opening + phase]

    def struck(self, round: int, phase: int, now: float) -> list[Fault]:
        """The faults that hit a message."""
        return [fault for fault, draws in self.faults if draws[round - 1][phase] and fault.active(round, now)]

    def carry(self, round: int, phase: int, left: float, struck: list[Fault]) -> tuple[float, int]:
        """Of a message that has left the uplink: when it arrives, and how often."""
        begins = left if left > self.free else self.free
        self.free = begins + self.size(round, phase) / self.bandwidth
        arrived = self.free + self.latency[round - 1][phase]
        copies = 0 if self.lost and self.lost[round - 1][phase] else 1
        in_order = True
        for fault in struck:
            match fault.kind:
                case "delay":
                    arrived += fault.delay_s
                case "reorder":
                    arrived += fault.delay_s
                    in_order = False
                case "duplicate" if copies:
                    copies = 2
                case "loss":
                    copies = 0
        if in_order:
            if arrived < self.last_arrival:
                arrived = self.last_arrival
            self.last_arrival = arrived
        return arrived, copies


_OF_LINKS = ("loss", "duplicate", "delay", "reorder", "cut", "partition")
_CUTTING = ("cut", "partition")
_FIRST, _STEP = 0, 1  # at one moment: comebacks and notices, then what clients do


class _Simulation:
    def __init__(self, scenario: Scenario):
        self.scenario = scenario
        self.star = scenario.star
        self.staleness = scenario.execution.staleness
        self.phases = phases = scenario.phases
        self.clients = [_Client(i, phases) for i in range(scenario.clients)]
        for client, numbers in zip(self.clients, scenario.neighbours, strict=True):
            others = [self.clients[j] for j in numbers]
            client.meet(others, [_Link(scenario, client.number, other) for other in others] if phases else [])
        self.compute_times = ComputeTimes(scenario)
        self.sent: list[tuple[int, int, int, int, float, float, float, int]] = []  # fields of SentMessage
        self.events: list[tuple[float, int, str, str]] = []
        self.ends = [fault for fault in scenario.faults if fault.kind in ("crash", "leave")]
        self.fired: set[tuple[int, int]] = set()  # (number of the fault, client)
        self._heap: list[tuple[float, int, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._arrays = [_Arrays(scenario, i) for i in range(scenario.clients)]
        self._as_agreed = True
        self._withheld = 0

    # -- the clock -----------------------------------------------------------------------------------------------------

    def play(self) -> Plan:
        for client in self.clients:
            joins = [fault for fault in self.scenario.faults if fault.kind == "join" and client.number in fault.clients]
            if joins:
                self._come_later(client, joins[0])
            else:
                self._at(0.0, _STEP, client, self._start_round)
        while self._heap:
            now, _, number, _, action, arguments = heappop(self._heap)
            action(self.clients[number], now, *arguments)
        self._refuse_endless()
        schedules, lives = _schedules(self._arrays), tuple(tuple(client.lives) for client in self.clients)
        return Plan(
            schedules=schedules if self.star is None else with_evaluations(schedules, lives, self.star.opening),
            lives=lives,
            messages=tuple(starmap(SentMessage, self.sent)),
            events=tuple(sorted(self.events)),
            conditions=tuple(
                (fault.seconds[0] if fault.seconds else None, fault.text)
                for fault in self.scenario.faults
                if fault.kind not in ("crash", "leave", "join")
            ),
            synchronous=self._as_agreed,
            withheld=self._withheld,
            asked=None if self.star is None else tuple(arrays.full(arrays.asked, bool) for arrays in self._arrays),
        )

    def _at(self, when: float, order: int, client: _Client, action: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heappush(self._heap, (when, order, client.number, self._count, action, arguments))

    def _refuse_endless(self) -> None:
        for client in self.clients if self.star is None else self.clients[::-1]:  # the server holds up all others
            if client.here and client.waiting:
                pairs = zip(client.neighbours, client.ready, strict=True)
                silent = [other.number for other, ready in pairs if ready == math.inf]
                who = "the server" if self._is_server(client) else f"client {client.number}"
                raise PlanError(
                    f"{who} would wait for ever in round {client.round} for a message of client "
                    f"{', '.join(map(str, silent))}; set time.deadline_s, and time.silence to 'stale' or 'skip'"
                )

    # -- a round -------------------------------------------------------------------------------------------------------

    def _start_round(self, client: _Client, now: float) -> None:
        if not client.here or self._dies(client, now):
            return
        for other in client.neighbours:
            if other.back_from_round is not None and client.round >= other.back_from_round:
                self._come_back(other, now, other.back_from_round)
        self._arrays[client.number].start[client.round - 1] = now
        client.begun = client.round
        client.steps = list(self._steps(client) if self.star is None else self._steps_of_star(client, now, self.star))
        self._go_on(client, now)

    def _go_on(self, client: _Client, now: float) -> None:
        """Takes the round's next steps, up to one that lasts."""
        while client.steps:
            if client.steps.pop(0)(client, now):
                return
        self._end_round(client, now)

    def _steps(self, client: _Client) -> Iterator[Step]:
        if not self.phases:
            yield self._compute
        for phase in range(self.phases):
            yield partial(self._send, phase, None)
            yield partial(self._wait, phase, None, True)
            if phase == 0:
                yield self._compute

    def _steps_of_star(self, client: _Client, now: float, star: Star) -> Iterator[Step]:
        senders, receivers = star.participants[client.round - 1], star.receivers[client.round - 1]
        opening = star.opening if client.round == 1 else 0
        if self._is_server(client):
            for phase in range(opening):
                yield partial(self._send, phase, None)
                yield partial(self._wait, phase, None, True)
            yield partial(self._wait, opening, senders, True)
            yield partial(self._send, opening, receivers)
            return
        for phase in range(opening):
            yield partial(self._wait, phase, None, True)
            yield partial(self._send, phase, None)
        (mail,) = client.mail[0]
        mail.take_in(now)
        latest = mail.freshest if client.round > 1 else 0
        takes_part = client.number in senders and latest < client.round and not self._listens(client, client.round)
        if takes_part:
            yield self._compute
            yield partial(self._send, opening, None)
        if client.number in receivers and latest <= client.round:
            yield partial(self._wait, opening, None, takes_part)

    def _is_server(self, client: _Client) -> bool:
        return self.star is not None and client.number == len(self.clients) - 1

    def _listens(self, client: _Client, round: int) -> bool:
        """With a server: whether it is the first round of a client that comes back, or late."""
        life = client.life
        return round == life.first > 1 and life.state_round != life.first - 1

    def _wait(self, phase: int, whom: frozenset[int] | None, bounded: bool, client: _Client, now: float) -> bool:
        """For messages of all neighbours, or of some; ``bounded`` by the deadline."""
        client.waiting, client.wait_began, client.phase = True, now, phase
        client.token += 1
        client.planned_end = math.inf
        client.needed = needed_round(client.round, self.staleness)
        client.awaited = [whom is None or other.number in whom for other in client.neighbours]
        client.ready = [
            self._ready(client, place, now) if awaited else -math.inf for place, awaited in enumerate(client.awaited)
        ]
        if bounded and math.isfinite(self.scenario.execution.deadline_s):
            when = now + self.scenario.execution.deadline_s
            self._at(when, _STEP, client, self._proceed, client.token, True)
        self._plan_end(client, max(max(client.ready, default=now), now))
        return True

    def _ready(self, client: _Client, place: int, now: float) -> float:
        """When client needs not wait for a neighbour any more, as far as is known now."""
        came = client.mail[client.phase][place].first_from(client.needed)
        if self._is_first_answer(client):
            came = min(came, client.mail[0][place].first_from(2))
        if came < math.inf:
            return max(now, came)
        other = client.neighbours[place]
        if other.here:
            comes = client.round >= other.life.first and not other.finished
            if self._is_server(client):
                comes &= not self._listens(other, client.round)
            return math.inf if comes else now
        return max(now, other.gone_since + self.scenario.execution.notice_s)

    def _is_first_answer(self, client: _Client) -> bool:
        """Whether it waits for what comes after an opening, of which the same is message 0 of later rounds."""
        return self.star is not None and client.round == 1 and client.phase == self.star.opening > 0

    def _plan_end(self, client: _Client, end: float) -> None:
        """Sets down when the wait ends, once all it waits for is known."""
        if end != client.planned_end:
            client.planned_end = end
            if end < math.inf:
                self._at(end, _STEP, client, self._proceed, client.token, False)

    def _look_again(self, link: _Link, now: float) -> None:
        """The one at the far end of the link hears that the one at this end has gone or finished."""
        client = link.to
        if client.here and client.waiting and client.ready[link.place] > now:
            client.ready[link.place] = self._ready(client, link.place, now)
            self._plan_end(client, max(client.ready))

    def _proceed(self, client: _Client, now: float, token: int, deadline: bool) -> None:
        if not (client.waiting and token == client.token and (deadline or now == client.planned_end)):
            return
        client.waiting = False
        arrays, row, phase = self._arrays[client.number], client.round - 1, client.phase
        last = max(client.ready, default=now)
        if last > now:
            arrays.deadlines[row] += 1
        if now > client.wait_began:
            arrays.idle[row] += now - client.wait_began
            place = next(place for place, ready in enumerate(client.ready) if ready > now or ready == last)
            arrays.waited_for[row] = client.neighbours[place].number
        index = arrays.index(client.round, phase)
        for mail, awaited in zip(client.mail[phase], client.awaited, strict=True):
            mail.take_in(now)
            if awaited:
                arrays.asked[index] = True
                arrays.uses[index] = used = self._chosen(mail, client.round)
                if self.star is not None and used != client.round and not self._is_server(client):
                    arrays.uses[index] = used = 0  # who has no answer goes on with what it has
                if used != client.round:
                    self._as_agreed = False
            index += 1
        self._go_on(client, now)

    def _chosen(self, mail: _Mail, round: int) -> int:
        """The round of the message that is used; 0: none."""
        silence = self.scenario.execution.silence
        return chosen_round(round, mail.freshest, round in mail.arrived, self.staleness, silence)

    def _compute(self, client: _Client, now: float) -> bool:
        seconds = self.compute_times(client.number, client.round, now)
        self._arrays[client.number].compute[client.round - 1] = seconds
        self._at(now + seconds, _STEP, client, self._go_on)
        return True

    def _end_round(self, client: _Client, now: float) -> None:
        self._arrays[client.number].end[client.round - 1] = now
        client.life.last, client.life.end_s = client.round, now
        client.round += 1
        if client.round <= self.scenario.rounds:
            if self.star is None:
                self._start_round(client, now)
            else:  # a client may have nothing to do for many rounds
                self._at(now, _STEP, client, self._start_round)
            return
        client.finished = True
        for link in client.links:
            self._look_again(link, now)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _send(self, phase: int, whom: frozenset[int] | None, client: _Client, now: float) -> bool:
        """To all neighbours that are there, or to some."""
        arrays, number, round = self._arrays[client.number], client.number, client.round
        index, uplink = arrays.index(round, phase) - 1, self.scenario.uplink
        left = max(now, client.uplink_free)
        for link in client.links:
            index += 1
            other = link.to
            if whom is not None and other.number not in whom:
                continue
            if not other.here:
                self._as_agreed = False
                self._withheld += 1
                continue
            arrays.to_life[index] = other.life.number
            struck = link.struck(round, phase, now) if link.faults else []
            if struck and any(fault.kind in _CUTTING for fault in struck):
                self._as_agreed = False
                self._withheld += 1
                continue
            left += link.size(round, phase) / uplink
            arrived, copies = link.carry(round, phase, left, struck)
            self.sent.append((number, other.number, round, phase, now, left, arrived, copies))
            if not copies:
                continue
            arrays.copies[index] = copies
            arrays.delays_out[index] = arrived - now
            heappush(other.mail[phase][link.place].coming, (arrived, round))
            if not other.waiting or arrived >= other.ready[link.place]:
                continue
            later = round > 1 and phase == 0 and self._is_first_answer(other)
            if later or (other.phase == phase and round >= other.needed):
                other.ready[link.place] = arrived
                self._plan_end(other, max(other.ready))
        client.uplink_free = left
        return False

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
        for link in client.links:
            self._at(now + self.scenario.execution.notice_s, _FIRST, client, self._notice, link)
        if fault.restart_after is not None:
            client.back_from_round = client.round + fault.restart_after
        elif fault.restart_after_s is not None:
            self._at(now + fault.restart_after_s, _FIRST, client, self._come_back, None)

    def _notice(self, client: _Client, now: float, link: _Link) -> None:
        self._look_again(link, now)

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
        """A new process. Where clients wait for each other it takes part from a round that none of its neighbours at
        work has begun yet: in one that is under way each could wait for the other."""
        others = [other for other in client.neighbours if other.here]
        if round is None:
            round = max([client.round if client.lives else 1, *(other.begun + 1 for other in others)])
        elif self.staleness < math.inf:
            round = max([round, *(other.begun + 1 for other in others if not other.finished)])
        client.back_from_round = None
        if round > self.scenario.rounds:
            return
        before = list(client.lives)
        state = self._last_state(before) if before else None
        client.life = Life(len(before) + 1, round, now, last=round - 1, state_round=state)
        client.lives.append(client.life)
        client.round, client.here, client.gone_since = round, True, math.inf
        client.forget()
        detail = f"from round {round}" + (f", with the state of round {state}" if state is not None else "")
        self.events.append((now, client.number, "restart" if before else "join", detail))
        self._at(now, _STEP, client, self._start_round)

    def _last_state(self, lives: list[Life]) -> int | None:
        """The last round of which a client's state has been written; None where it came late and has written none."""
        every = self.scenario.checkpoint_every
        due = (round for life in reversed(lives) for round in range(life.last, life.first - 1, -1))
        at_start = 0 if lives[0].first == lives[0].number == 1 else None
        return next((round for round in due if every and round % every == 0), at_start)


class _Arrays:
    """The arrays of a Schedule while they are filled in: lists, flat."""

    def __init__(self, scenario: Scenario, client: int):
        self.client = client
        self.neighbours = np.array(scenario.neighbours[client], np.int32)
        rounds = scenario.rounds
        self.shape = rounds, scenario.phases, len(self.neighbours)
        messages = math.prod(self.shape)
        self.uses, self.copies, self.to_life = ([0] * messages for _ in range(3))
        self.asked = [False] * messages
        self.delays_out = [0.0] * messages
        self.start, self.end, self.compute = ([math.nan] * rounds for _ in range(3))
        self.idle = [0.0] * rounds
        self.waited_for = [-1] * rounds
        self.deadlines = [0] * rounds

    def index(self, round: int, phase: int) -> int:
        """Where the messages of a round and phase begin."""
        _, phases, neighbours = self.shape
        return ((round - 1) * phases + phase) * neighbours

    def full(self, values: list[Any], dtype: type) -> np.ndarray:
        return np.array(values, dtype).reshape(self.shape)


def _schedules(everyone: list[_Arrays]) -> tuple[Schedule, ...]:
    uses = [arrays.full(arrays.uses, np.int32) for arrays in everyone]
    keep = [_last_uses(array) for array in uses]
    copies = [arrays.full(arrays.copies, np.uint8) for arrays in everyone]
    to_life = [arrays.full(arrays.to_life, np.uint8) for arrays in everyone]
    delays_out = [arrays.full(arrays.delays_out, float) for arrays in everyone]
    backlogs = _backlogs(everyone, keep)

    def schedule(arrays: _Arrays) -> Schedule:
        i, others = arrays.client, arrays.neighbours.tolist()
        places = [int(np.searchsorted(everyone[j].neighbours, i)) for j in others]

        def mirrored(columns: list[np.ndarray]) -> np.ndarray:
            """What the neighbours' arrays say of this client, a column each."""
            mirror = np.empty_like(columns[i])
            for place, (j, there) in enumerate(zip(others, places, strict=True)):
                mirror[..., place] = columns[j][..., there]
            return mirror

        return Schedule(
            neighbours=arrays.neighbours,
            uses=uses[i],
            copies=copies[i],
            to_life=to_life[i],
            needed=mirrored(keep),
            comes=mirrored(copies),
            into_life=mirrored(to_life),
            keep=keep[i],
            delays=mirrored(delays_out),
            start=np.array(arrays.start),
            end=np.array(arrays.end),
            compute=np.array(arrays.compute),
            idle=np.array(arrays.idle),
            waited_for=np.array(arrays.waited_for, np.int32),
            deadlines=np.array(arrays.deadlines, np.uint8),
            shows=np.zeros((len(arrays.start), len(others)), np.uint8),
            shown_at=np.full(len(arrays.start), math.nan),
            backlog=mirrored(backlogs),
            backlog_in=backlogs[i],
        )

    return tuple(map(schedule, everyone))


def _backlogs(everyone: list[_Arrays], keep: list[np.ndarray]) -> list[np.ndarray]:
    """Of each client, (g,): how many messages of a neighbour wait for their last use at once, at most. A message counts
    from the start of the round in which it is sent until the end of the round in which it is used last."""
    starts, ends = ([np.array(getattr(arrays, name)) for arrays in everyone] for name in ("start", "end"))
    backlogs = []
    for own, arrays in enumerate(everyone):
        most = np.zeros(len(arrays.neighbours), np.int32)
        for place, neighbour in enumerate(arrays.neighbours.tolist()):
            last_use = keep[own][:, :, place]
            rounds = np.nonzero(last_use)[0]
            sent = np.sort(starts[neighbour][rounds])
            used = np.sort(ends[own][last_use[last_use > 0] - 1])
            waiting = np.searchsorted(sent, sent, side="right") - np.searchsorted(used, sent, side="left")
            most[place] = waiting.max(initial=0)
        backlogs.append(most)
    return backlogs


def _last_uses(uses: np.ndarray) -> np.ndarray:
    """(K, P, g): the last own round in which a neighbour's message of its round k is used."""
    last = np.zeros_like(uses)
    rounds, phases, places = np.nonzero(uses)
    np.maximum.at(last, (uses[rounds, phases, places] - 1, phases, places), rounds.astype(np.int32) + 1)
    return last
