"""Plays a scenario as a discrete-event simulation: the pure function from which every plan comes.

What a client does is a generator, which yields where it has to wait for an event. Which message it uses when some are
late is the rule of ``transport/schedule.py``. Events at the same moment come in the order of client numbers.
"""

import math
from collections.abc import Callable, Generator, Iterable, Iterator
from contextvars import ContextVar
from heapq import heappop, heappush
from itertools import count
from typing import Any

from ...transport.schedule import chosen_round, needed_round
from .clients import FIRST, STEP, Channel, Client, PendingWait
from .draws import ComputeTimes
from .meetings import Meetings
from .network import Network, Transfer
from .plan import Incarnation, Plan, PlanError
from .rounds import gossip, serve, take_part
from .scenario import Fault, Scenario
from .sent import Sent
from .tables import Tables
from .uses import fill_in_last_uses, show_answers

_TOLD_EVERY = 1000  # rounds, of all clients together
_MOST_INCARNATIONS = 255  # of a client: schedules tell them in a byte
_Steps = Iterator[None]


# Is told now and then which share of the rounds is planned: 0 first, 1 in the end.
watcher: ContextVar[Callable[[float], None]] = ContextVar("watcher", default=lambda _: None)


def simulate(scenario: Scenario) -> Plan:
    """Returns the plan of a scenario. Raises PlanError when some client would wait for ever."""
    watcher.get()(0.0)
    plan = Simulation(scenario).play()
    watcher.get()(1.0)
    return plan


class Simulation:
    def __init__(self, scenario: Scenario):
        self.scenario, self.star = scenario, scenario.star
        self.network = Network(scenario) if scenario.shares_capacity else None
        self.clients = [Client(scenario, i) for i in range(scenario.clients)]
        for client, numbers in zip(self.clients, scenario.neighbours, strict=True):
            client.neighbours = [self.clients[j] for j in numbers]
        self.tables, self.sent = Tables(scenario.neighbours, scenario.rounds, scenario.phases), Sent()
        for client in self.clients if scenario.phases else []:
            client.channels = [Channel(scenario, (client, to), self.tables, self.network) for to in client.neighbours]
        for client in self.clients if scenario.phases else []:
            client.incoming = [other.channels[other.places[client.number]] for other in client.neighbours]
        self.compute_times = ComputeTimes(scenario)
        self.meetings = Meetings(self) if scenario.meets else None
        self.events: list[tuple[float, int, str, str]] = []
        self.synchronous = not scenario.meets
        self.withheld = 0
        self.now = 0.0
        self._tell, self._done, self._rounds_in_all = watcher.get(), 0, scenario.rounds * scenario.clients
        self._heap: list[tuple[float, int, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = count()

    def play(self) -> Plan:
        for client in self.clients:
            late = [fault for fault in self.scenario.of_kind("join") if client.number in fault.clients]
            if not late and not client.is_away(0.0):
                self._begin(client)
                continue
            client.here, self.synchronous = False, False
            client.incarnations.clear()
            client.back_from_round, at_s = (late[0].at_round, late[0].at_s) if late else (None, 0.0)
            if at_s is not None:
                self.at(at_s, FIRST, client, self._come_back, None)
        network = self.network
        while self._heap or (network and network.due[0] < math.inf):
            if network and (not self._heap or network.due < self._heap[0][:2]):
                self.now = network.proceed()
                continue
            self.now, _, number, _, action, arguments = heappop(self._heap)
            action(self.clients[number], *arguments)
        if waiting := [(client, client.wait) for client in self.clients if client.wait is not None]:
            first = 0 if self.star is None else -1  # a server holds up all others
            raise _endless(*waiting[first], self.scenario)
        schedules = self.tables.schedules()
        fill_in_last_uses(schedules)
        if self.star is not None:
            show_answers(schedules, [client.incarnations for client in self.clients], self.star)
        lasting = [fault for fault in self.scenario.faults if not fault.happens_once]
        return Plan(
            schedules=schedules,
            incarnations=tuple(tuple(client.incarnations) for client in self.clients),
            messages=self.sent.messages(self.tables.src, self.tables.dst, self.scenario.phases),
            withheld=self.withheld,
            synchronous=self.synchronous,
            events=tuple(sorted(self.events)),
            conditions=tuple((fault.seconds[0] if fault.seconds else None, fault.text) for fault in lasting),
            asked=tuple(self.tables.arrays["asked"][:, :, self.tables.of(i)] for i in range(len(schedules))),
            has_server=self.star is not None,
            learns_first=self.star is not None or self.scenario.learns_first,
            meets=self.scenario.meets,
        )

    def at(self, when: float, order: int, client: Client, action: Callable[..., None], *arguments: Any) -> None:
        heappush(self._heap, (when, order, client.number, next(self._count), action, arguments))

    # -- what a client does --------------------------------------------------------------------------------------------

    def _begin(self, client: Client) -> None:
        client.steps = self._rounds(client)
        self.at(self.now, STEP, client, self.go_on)

    def go_on(self, client: Client) -> None:
        next(client.steps, None)

    def _rounds(self, client: Client) -> _Steps:
        while client.round <= self.scenario.rounds:
            due = next((fault for fault in client.ends if fault.is_due(client.round, self.now)), None)
            if due or client.is_away(self.now):
                self._end(client, due)
                return
            for other in client.neighbours:
                if other.back_from_round is not None and client.round >= other.back_from_round:
                    self._come_back(other, other.back_from_round)
            self.tables.start[(client.round - 1) * len(self.clients) + client.number] = self.now
            client.begun = client.round
            if self.meetings:
                yield from self.meetings.round(client)
            elif self.star is None:
                yield from gossip(self, client)
            elif client.is_answered:
                yield from take_part(self, client, self.star)
            else:
                yield from serve(self, client, self.star)
            self.tables.end[(client.round - 1) * len(self.clients) + client.number] = self.now
            client.incarnations[-1].last, client.incarnations[-1].end_s = client.round, self.now
            client.round += 1
            self._done += 1
            if not self._done % _TOLD_EVERY:
                self._tell(self._done / self._rounds_in_all)
            if self.star is not None and client.round <= self.scenario.rounds:
                self.at(self.now, STEP, client, self.go_on)
                yield  # a client may have nothing to do for many rounds
        for channel in client.channels:
            self._look_again(client, channel)
        if self.meetings:
            self.meetings.finished()

    def work(self, client: Client) -> _Steps:
        if (taking_part := self.scenario.participants) and client.number not in taking_part[client.round - 1]:
            return
        seconds = self.compute_times(client.number, client.round, self.now)
        self.tables.compute[(client.round - 1) * len(self.clients) + client.number] = seconds
        self.at(self.now + seconds, STEP, client, self.go_on)
        yield

    def send(self, client: Client, phase: int, to: Iterable[int] | None = None) -> None:
        """Gives the uplink the phase's message for all neighbours that are there, or for those in ``to``."""
        tables, round, now, sent = self.tables, client.round, self.now, self.sent
        client.sent[phase], exchange = round, (round - 1) * tables.phases + phase
        first, before = exchange * tables.edges, len(sent.edge)
        left, emulated = max(now, client.uplink_free), self.scenario.emulated
        for channel in client.channels if to is None else map(client.channels.__getitem__, client.places_of(to)):
            other, there = channel.to, channel.place
            if other.here:
                tables.to_life[first + channel.number] = other.life
            if not other.here or (carried := channel.carry(round, phase, now, left)) is None:
                self.synchronous = False
                self.withheld += 1
                continue
            left, arrived, copies, transfer = carried
            sent.add(channel.number, left, arrived, copies)
            tables.copies[first + channel.number] = copies
            if transfer is not None:
                self._give(transfer, channel, round, phase)
            elif copies:
                tables.delays[first + channel.back] = channel.delay_s if emulated else arrived - now
                heappush(channel.mail[phase].under_way, (arrived, round))
                wait = other.wait
                if wait is not None and arrived < wait.ready[there]:
                    self._expect(other, there, round, phase, arrived)
        client.uplink_free = left
        sent.close(exchange, now, len(sent.edge) - before)

    def _expect(self, client: Client, place: int, round: int, phase: int, arrived: float) -> None:
        """A client that waits learns that a message comes before what it has waited for."""
        wait = client.wait
        assert wait
        overtakes = phase in wait.also and round >= wait.also[phase]
        if overtakes or (phase == wait.phase and round >= wait.needed[place]):
            wait.unknown -= wait.ready[place] == math.inf
            wait.ready[place] = arrived
            if not wait.unknown:
                self._plan_end(client, wait)

    def _give(self, transfer: Transfer, channel: Channel, round: int, phase: int) -> None:
        """Gives the network the message that was sent last, which then tells when it arrives."""
        number, sent_s, left, copies = len(self.sent.edge) - 1, self.now, self.sent.left_s[-1], self.sent.copies[-1]
        client, place, mail = channel.to, channel.place, channel.mail[phase]
        cell = ((round - 1) * self.tables.phases + phase) * self.tables.edges + channel.back

        def arrives(arrived: float) -> None:
            self.sent.arrived_s[number] = arrived
            if not copies:
                return
            self.tables.delays[cell] = transfer.delay_s if self.scenario.emulated else arrived - sent_s
            heappush(mail.under_way, (arrived, round))
            mail.coming.remove(round)
            is_new, wait = mail is not channel.mail[phase], client.wait  # a process that it was not sent to
            if not is_new and wait is not None and arrived < wait.ready[place]:
                self._expect(client, place, round, phase, arrived)

        mail.coming |= {round} if copies else set()
        transfer.arrives = arrives
        assert self.network
        self.network.give(transfer, left)

    def receive(
        self, client: Client, phase: int, of: Iterable[int] | None = None, *, bounded: float = 1
    ) -> Generator[None, None, list[int]]:
        """Waits for the phase's messages of all neighbours, or of those in ``of``, for ``bounded`` times the deadline
        (0: however long), uses them and returns whose. Whatever time.silence says, a server's client uses no message
        of another round."""
        tables, round, now, scenario = self.tables, client.round, self.now, self.scenario
        also = {} if self.star is None else self.star.overtaking(round, phase)
        places = range(len(client.neighbours)) if of is None else client.places_of(of)
        needed, ready = needed_round(round, scenario.staleness), [-math.inf] * len(client.neighbours)
        if needed == round or not scenario.graph_of:
            required = dict.fromkeys(places, needed)
        else:
            whom = [other.number for other in client.neighbours]
            required = {place: scenario.last_round(whom[place], client.number, needed) for place in places}
        yield from self.wait(client, PendingWait(phase, also, now, required, ready), bounded=bounded)
        now, staleness, silence = self.now, scenario.staleness, scenario.silence
        first = ((round - 1) * tables.phases + phase) * tables.edges + tables.first_of[client.number]
        heard = []
        for place in places:
            mail = client.incoming[place].mail[phase]
            mail.take_in(now)
            used = chosen_round(round, mail.freshest, round in mail.arrived, staleness, silence)
            mail.is_past(round)
            if used != round:
                self.synchronous = False
                used = 0 if client.is_answered else used
            tables.uses[first + place] = used
            tables.asked[first + place] = True
            if used:
                heard.append(client.neighbours[place].number)
        return heard

    def wait(self, client: Client, wait: PendingWait, *, bounded: float = 1) -> _Steps:
        tables, now, scenario, client.wait = self.tables, self.now, self.scenario, wait
        for place in wait.needed:
            wait.ready[place] = ready = self._ready(client, wait, place)
            wait.unknown += ready == math.inf
        if bounded and math.isfinite(scenario.deadline_s):
            self.at(now + bounded * scenario.deadline_s, STEP, client, self._end_wait, wait, True)
        self._plan_end(client, wait)
        yield
        now, last = self.now, max(wait.ready, default=self.now)
        cell = (client.round - 1) * len(self.clients) + client.number
        tables.deadlines[cell] += last > now
        if now > wait.began:
            tables.idle[cell] += now - wait.began
            place = next(place for place, ready in enumerate(wait.ready) if ready > now or ready == last)
            tables.waited_for[cell] = client.neighbours[place].number

    # -- how long a client waits ---------------------------------------------------------------------------------------

    def _ready(self, client: Client, wait: PendingWait, place: int) -> float:
        """Returns when the client needs not wait for a neighbour any more, as far as is known now."""
        mail = client.incoming[place].mail[wait.phase]
        comes = mail.first_from(wait.needed[place])
        ends = [(mail, wait.needed[place])]
        for phase, round in wait.also.items():
            ends.append((client.incoming[place].mail[phase], round))
            comes = min(comes, ends[-1][0].first_from(round))
        if comes < math.inf:
            return max(self.now, comes)
        if any(mail.coming and max(mail.coming) >= round for mail, round in ends):
            return math.inf
        other = client.neighbours[place]
        if self.meetings:  # it sends in this very moment, and may be lost
            return math.inf
        if other.here:
            sends = client.round >= other.incarnations[-1].first and client.round != other.listens_in
            sends = sends and not (self.star is None and self._has_missed(client, wait.phase, place))
            return math.inf if sends and other.round <= self.scenario.rounds else self.now
        return max([self.now, *(each.end_s + self.scenario.notice_s for each in other.incarnations[-1:])])

    def _has_missed(self, client: Client, phase: int, place: int) -> bool:
        """Whether a neighbour sent its message of the client's round before the client was there."""
        if client.neighbours[place].sent[phase] < client.round:
            return False
        exchange = (client.round - 1) * self.tables.phases + phase
        return self.tables.to_life[exchange * self.tables.edges + client.incoming[place].number] != client.life

    def _plan_end(self, client: Client, wait: PendingWait) -> None:
        """Sets down when the wait ends, once all it waits for is known."""
        if (end := math.inf if wait.unknown else max([wait.began, *wait.ready])) != wait.end:
            wait.end = end
            if end < math.inf:
                self.at(end, STEP, client, self._end_wait, wait, False)

    def _look_again(self, _: Client, channel: Channel) -> None:
        """The client at the far end of the channel hears that the one at this end has gone or finished."""
        client, wait = channel.to, channel.to.wait
        if wait is not None and wait.ready[channel.place] > self.now:
            before, wait.ready[channel.place] = wait.ready[channel.place], self._ready(client, wait, channel.place)
            wait.unknown += (wait.ready[channel.place] == math.inf) - (before == math.inf)
            self._plan_end(client, wait)

    def _end_wait(self, client: Client, wait: PendingWait, deadline: bool) -> None:
        """Unless it has ended already, or has become longer."""
        if client.wait is wait and (deadline or self.now == wait.end):
            client.wait = None
            self.go_on(client)

    # -- crashes, restarts, late joins ---------------------------------------------------------------------------------

    def _end(self, client: Client, fault: Fault | None) -> None:
        """Without a fault, it is away by its trace: it keeps its state, and is back as soon as it can."""
        present, now = client.incarnations[-1], self.now
        client.ends = [other for other in client.ends if other is not fault]
        client.here, self.synchronous = False, False
        present.last, present.end_s, present.saves = client.round - 1, now, fault is None
        present.ending = "crash" if fault and fault.kind == "crash" else "leave"
        self.events.append((now, client.number, present.ending, f"before round {client.round}"))
        for channel in client.channels:
            self.at(now + self.scenario.notice_s, FIRST, client, self._look_again, channel)
        if self.meetings:
            self.meetings.left(client)
        if fault is None:
            self.at(now, FIRST, client, self._come_back, None)
        elif fault.restart_after is not None:
            client.back_from_round = client.round + fault.restart_after
        elif fault.restart_after_s is not None:
            self.at(now + fault.restart_after_s, FIRST, client, self._come_back, None)

    def _come_back(self, client: Client, round: int | None) -> None:
        """A new process. Where clients wait for each other it takes part from a round that none of its neighbours at
        work has begun yet: in one that is under way each could wait for the other. With traces, where many may come
        back in one round, it takes part in the first round of neighbours that have just come back, too."""
        if client.is_away(self.now):
            client.back_from_round = None
            if client.trace and (back_s := client.trace.available.next_time(1.0, self.now)) < math.inf:
                self.at(back_s, FIRST, client, self._come_back, None)
            return
        others, earlier = [other for other in client.neighbours if other.here], client.incarnations
        if round is None:
            follow, at_work = bool(self.scenario.traces), [] if self.meetings else others
            begun = [o.incarnations[-1].first if follow and o.is_back else o.begun + 1 for o in at_work]
            round = max([client.round if earlier else 1, *begun])
        elif self.scenario.staleness < math.inf and not self.meetings:
            round = max([round, *(other.begun + 1 for other in others if other.round <= self.scenario.rounds)])
        client.back_from_round = None
        if round > self.scenario.rounds:
            return
        state = client.state_round(self.scenario.checkpoint_every)
        client.round, client.here = round, True
        client.listens_in = round if client.is_answered and round > 1 and state != round - 1 else 0
        client.forget(self.scenario.phases)
        detail = f"from round {round}" + (f", with the state of round {state}" if state is not None else "")
        self.events.append((self.now, client.number, "restart" if earlier else "join", detail))
        if len(earlier) == _MOST_INCARNATIONS:
            raise PlanError(f"client {client.number} would come more than {_MOST_INCARNATIONS} times; use fewer rounds")
        client.life = len(earlier) + 1
        earlier.append(Incarnation(client.life, round, self.now, last=round - 1, state_round=state))
        self._begin(client)


def _endless(client: Client, wait: PendingWait, scenario: Scenario) -> PlanError:
    silent = ", ".join(str(client.neighbours[place].number) for place, t in enumerate(wait.ready) if t == math.inf)
    who = f"client {client.number}" if client.number < scenario.learners else "the server"
    remedy = {
        "late": "set time.deadline_s, and time.silence to 'stale' or 'skip'",
        "missing": "set time.deadline_s, and time.silence to 'skip'",
        "nothing": "the algorithm needs every message, so leave out losses, cuts and departures",
    }[scenario.tolerates]
    return PlanError(f"{who} would wait for ever in round {client.round} for a message of client {silent}; {remedy}")
