"""A second simulation of scenarios, slow and plain: at every moment every client is asked anew whether it can go on."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush

import numpy as np

from sheafgossip.launcher.planner.draws import ComputeTimes, latencies, strikes
from sheafgossip.launcher.planner.network import AFTER, Network, Transfer
from sheafgossip.launcher.planner.plan import Incarnation
from sheafgossip.launcher.planner.scenario import Fault, Links, Scenario
from sheafgossip.launcher.planner.sent import SentMessage
from sheafgossip.launcher.planner.traces import ClientTrace, PiecewiseConstant
from sheafgossip.topology.graph import Graph
from sheafgossip.transport.schedule import chosen_round, needed_round

BY_MESSAGE = {"uses": "i4", "copies": "u1", "to_life": "u1", "needed": "i4", "comes": "u1", "into_life": "u1",
              "keep": "i4", "delays": "f8"}  # fmt: skip
Steps = Iterator[Callable[[], bool]]  # yields, before each, what tells whether it can be taken


def directed(graph: Graph) -> list[tuple[int, int]]:
    return [*graph.edges, *(() if graph.directed else ((j, i) for i, j in graph.edges))]


def value(function: PiecewiseConstant, now: float) -> tuple[float, float]:
    """What a trace says at a moment, and when it may say something else."""
    turns = range(1, int(now / function.period) + 2)
    turn = max((n for n in turns if n * function.period <= now), default=0)
    begin = turn * function.period if turn else 0.0
    ends = [begin + moment for moment in function.moments[1:]] + [(turn + 1) * function.period]
    place = sum(end <= now for end in ends)
    return function.values[place], ends[place]


class Peer:
    def __init__(self, scenario: Scenario, number: int):
        self.number, self.neighbours = number, scenario.neighbours[number]
        shape = scenario.rounds, scenario.phases, len(self.neighbours)
        self.own = {name: np.zeros(shape, dtype) for name, dtype in BY_MESSAGE.items()}
        self.own |= {name: np.full(scenario.rounds, math.nan) for name in ("start", "end", "compute")}
        self.own |= {"idle": np.zeros(scenario.rounds), "deadlines": np.zeros(scenario.rounds, "u1")}
        self.own |= {"waited_for": np.full(scenario.rounds, -1, "i4"), "neighbours": np.array(self.neighbours, "i4")}
        self.asked = np.zeros(shape, bool)
        self.ends = [fault for fault in scenario.of_kind("crash", "leave") if number in fault.clients]
        self.joins = next((fault for fault in scenario.of_kind("join") if number in fault.clients), None)
        self.trace = scenario.traces.get(number, ClientTrace())
        self.here = self.joins is None and self.available_from(0.0) == 0
        self.incarnations = [Incarnation(1, 1, 0.0)] if self.here else []
        self.known_gone = -math.inf  # when its neighbours know of its end
        self.back_from = self.joins.at_round if self.joins else None
        self.round, self.begun, self.listens_in, self.uplink_free = 1, 0, 0, 0.0
        self.mail: defaultdict[int, list[SentMessage]] = defaultdict(list)  # from each neighbour to this incarnation
        self.steps: Steps = iter(())
        self.can_go_on: Callable[[], bool] = lambda: self.here
        self.silent: list[int] = []  # whom it waits for
        self.gave: set[tuple[int, int]] = set()  # rounds and phases of which it has sent the message

    def available_from(self, now: float) -> float:
        for _ in range(50):
            there, until = value(self.trace.available, now) if now < math.inf else (False, now)
            if there:
                return now
            now = until
        return math.inf


class Naive:
    def __init__(self, scenario: Scenario):
        self.scenario, self.star = scenario, scenario.star
        self.opening = scenario.star.opening if scenario.star else 0
        self.peers = [Peer(scenario, i) for i in range(scenario.clients)]
        self.server = self.peers[-1] if scenario.star else None
        self.works = ComputeTimes(scenario)
        drawn = (scenario.rounds, scenario.phases), scenario.seed
        self.links = {edge: scenario.links.get(edge, Links()) for edge in scenario.message_bytes}
        self.latency = {edge: latencies(link, *drawn, *edge) for edge, link in self.links.items()}
        lost = {edge: strikes(link.loss, *drawn, "loss", *edge) for edge, link in self.links.items()}
        self.struck = [(Fault("loss"), lost)]
        for number, fault in enumerate(scenario.faults):
            draws = {edge: strikes(fault.probability, *drawn, "fault", number, *edge) for edge in self.links}
            self.struck.append((fault, draws))
        self.link_free, self.arrived = defaultdict(float), defaultdict(float)
        self.network = Network(scenario)  # which has an oracle of its own, in test_network.py
        self.now, self.moments = 0.0, []
        self.messages: list[SentMessage] = []
        self.events: list[tuple[float, int, str, str]] = []
        self.withheld, self.synchronous = 0, all(peer.here for peer in self.peers)
        joins = [(peer.joins.at_s, peer.number) for peer in self.peers if peer.joins and peer.joins.at_s is not None]
        self.returns = [(self.moment(at_s), number) for at_s, number in joins]
        for peer in self.peers:
            if not peer.here and not peer.joins:
                self.return_when_available(peer)
        for peer in self.peers:
            peer.steps = self.rounds_of(peer)
        self.play()
        self.tell_of_uses()

    def moment(self, when: float) -> float:
        heappush(self.moments, when)
        return when

    def play(self) -> None:
        while True:
            while self.network.due < (self.now, AFTER):
                self.network.proceed()
            able = [peer for peer in self.peers if peer.can_go_on()]
            if due := min((entry for entry in self.returns if entry[0] <= self.now), default=None):
                self.returns.remove(due)
                self.come_back(self.peers[due[1]], None)
            elif able:
                able[0].can_go_on = next(able[0].steps, lambda: False)
            elif self.network.due < (min(self.moments, default=math.inf), 0):
                self.now = self.network.proceed()
            elif self.moments:
                self.now = heappop(self.moments)
            else:
                return

    @property
    def refusal(self) -> str:
        """How the planner's begins, where somebody would wait for ever."""
        for peer in filter(lambda peer: peer.silent, self.peers[::-1] if self.star else self.peers):
            who = "the server" if peer is self.server else f"client {peer.number}"
            return f"{who} would wait for ever in round {peer.round} for a message of client {str(peer.silent)[1:-1]}; "
        return ""

    # -- what a client does --------------------------------------------------------------------------------------------

    def rounds_of(self, me: Peer) -> Steps:
        while me.round <= self.scenario.rounds:
            if fault := next((fault for fault in me.ends if fault.is_due(me.round, self.now)), None):
                me.ends.remove(fault)
                self.end(me, fault)
                return
            if me.available_from(self.now) > self.now:
                self.end(me, Fault("leave", (me.number,), at_s=self.now))
                me.incarnations[-1].saves = True
                self.return_when_available(me)
                return
            for other in map(self.peers.__getitem__, me.neighbours):
                if other.back_from is not None and me.round >= other.back_from:
                    self.come_back(other, other.back_from)
            me.own["start"][me.round - 1], me.begun = self.now, me.round
            yield from self.takes_part(me) if self.star else self.gossips(me)
            me.own["end"][me.round - 1] = me.incarnations[-1].end_s = self.now
            me.incarnations[-1].last = me.round
            me.round += 1
            if self.star:
                yield lambda: True

    def gossips(self, me: Peer) -> Steps:
        to = of = None
        if self.scenario.graphs:
            pairs = directed(self.scenario.graphs.of(me.round))
            to, of = {j for i, j in pairs if i == me.number}, {i for i, j in pairs if j == me.number}
        order = ["work"] if self.scenario.phases == 0 else [*range(self.scenario.phases)]
        if self.scenario.phases:
            order.insert(0 if self.scenario.learns_first else 1, "work")
        for step in order:
            if step == "work":
                yield from self.work(me)
                continue
            self.send(me, step, to)
            yield from self.receive(me, step, of)

    def takes_part(self, me: Peer) -> Steps:
        participants, receivers = self.star.participants[me.round - 1], self.star.receivers[me.round - 1]
        opening, server, exchanges = self.opening if me.round == 1 else 0, self.server, self.star.exchanges
        stages, overtaken_by = [*range(opening, opening + exchanges - 1)], {0: 2} if opening else {}
        last = opening + exchanges - 1
        for phase in range(opening):
            if me is server:
                self.send(me, phase)
            yield from self.receive(me, phase, own_round_only=me is not server)
            if me is not server:
                self.send(me, phase)

        def ends(phase):  # later messages of the round, and any of a later one
            if exchanges == 1:
                return overtaken_by
            return {p: me.round if p > phase else me.round + 1 for p in range(self.scenario.phases) if p != phase}

        def heard(phase, of):
            return [j for j in me.neighbours if j in of and me.own["uses"][me.round - 1, phase, me.neighbours.index(j)]]

        if me is server:
            there = participants
            for phase in [*stages, last]:
                yield from self.receive(me, phase, there, overtaken_by=ends(phase))
                there = heard(phase, there)
                if phase == last or len(there) < self.star.least:
                    break
                self.send(me, phase, there)
            self.send(me, last, receivers)
            return
        answers = [m.round for m in me.mail[server.number] if m.phase == exchanges - 1 and m.arrived_s <= self.now]
        answered, patience = max(answers, default=0) if me.round > 1 else 0, 0
        if me.number in participants and answered < me.round != me.listens_in:
            yield from self.work(me)
            patience = exchanges
            for phase in [*stages, last]:
                self.send(me, phase)
                if phase == last:
                    break
                yield from self.receive(me, phase, bounded=2, own_round_only=True, overtaken_by=ends(phase))
                if not heard(phase, [server.number]):
                    break
                patience = max(2, patience - 1)
        if me.number in receivers and answered <= me.round:
            yield from self.receive(me, last, bounded=patience, own_round_only=True, overtaken_by=ends(last))

    def work(self, me: Peer) -> Steps:
        seconds = me.own["compute"][me.round - 1] = self.works(me.number, me.round, self.now)
        done = self.moment(self.now + seconds)
        yield lambda: self.now >= done

    def send(self, me: Peer, phase: int, to=None) -> None:
        row, left = me.round - 1, max(self.now, me.uplink_free)
        me.gave.add((me.round, phase))
        for place, j in enumerate(me.neighbours):
            if to is not None and j not in to:
                continue
            other, edge = self.peers[j], (me.number, j)
            struck = [fault for fault, draws in self.struck if draws[edge][row, phase] and fault.hits(*edge)]
            struck = [fault for fault in struck if fault.active(me.round, self.now)]
            kinds = {fault.kind for fault in struck}
            if other.here:
                me.own["to_life"][row, phase, place] = len(other.incarnations)
            if not other.here or kinds & {"cut", "partition"}:
                self.synchronous, self.withheld = False, self.withheld + 1
                continue
            size = self.scenario.message_bytes[edge][phase if row == 0 else self.opening + phase]
            left = self.sent(me, size, left)
            delays = [self.latency[edge][row, phase]]
            delays += [fault.delay_s for fault in struck if fault.kind in ("delay", "reorder")]
            copies, number = 0 if "loss" in kinds else 1 + ("duplicate" in kinds), len(self.messages)
            me.own["copies"][row, phase, place] = copies
            self.messages.append(SentMessage(*edge, me.round, phase, self.now, left, math.inf, copies))
            mail = other.mail[me.number] if copies else []
            mail.append(self.messages[-1])
            if self.network.is_shared(edge):
                told = "reorder" in kinds, not copies, math.fsum(delays), partial(self.arrives, number, mail)
                self.network.give(Transfer(edge, size, *told), left)
                continue
            arrived = max(left, self.link_free[edge]) + size / (self.links[edge].bandwidth or math.inf)
            self.link_free[edge] = arrived
            for delay_s in delays:
                arrived += delay_s
            if "reorder" not in kinds:
                arrived = self.arrived[edge] = max(arrived, self.arrived[edge])
            self.arrives(number, mail, arrived)
        me.uplink_free = left

    def sent(self, me: Peer, size: float, since: float) -> float:
        """Piece by piece, by how much of it has gone at each moment at which the rate may change."""
        rate, until = value(me.trace.up, since) if me.trace.up else (0, math.inf)
        rate = rate or self.scenario.uplinks.get(me.number, self.scenario.uplink)
        whole = since + size / rate
        return whole if whole <= until else self.sent(me, size - rate * (until - since), until)

    def arrives(self, number: int, mail: list[SentMessage], arrived: float) -> None:
        expected = self.messages[number]
        message = self.messages[number] = expected._replace(arrived_s=arrived)
        mail[mail.index(expected)] = message
        if message.copies:
            me = self.peers[message.dst]
            cell = message.round - 1, message.phase, me.neighbours.index(message.src)
            me.own["delays"][cell] = self.moment(arrived) - message.sent_s

    def receive(self, me: Peer, phase: int, of=None, *, bounded=True, own_round_only=False, overtaken_by=()) -> Steps:
        began, row, staleness = self.now, me.round - 1, self.scenario.staleness
        needed, waits = needed_round(me.round, staleness), [j for j in me.neighbours if of is None or j in of]
        deadline = self.now + bounded * self.scenario.deadline_s if bounded else math.inf
        if deadline < math.inf:
            self.moment(deadline)
        done: dict[int, float] = {}
        least = dict.fromkeys(waits, needed)
        if self.scenario.graphs and needed < me.round:  # or the last round before it in which that one sends to me
            pairs = {r: directed(self.scenario.graphs.of(r)) for r in range(1, needed + 1)}
            least = {j: max((r for r in pairs if (j, me.number) in pairs[r]), default=0) for j in waits}

        def coming(j: int) -> list[float]:
            own = [m.arrived_s for m in me.mail[j] if m.phase == phase and m.round >= least[j]]
            ends = dict(overtaken_by)
            return own + [m.arrived_s for m in me.mail[j] if m.round >= ends.get(m.phase, math.inf)]

        gone = {j: self.peers[j].known_gone for j in waits if not self.peers[j].here and not coming(j)}
        met = {j: len(self.peers[j].incarnations) * self.peers[j].here for j in waits}

        def is_done(j: int, other: Peer) -> bool:
            if not least[j] or self.now >= gone.get(j, math.inf):
                return True
            if arrivals := coming(j):
                return min(arrivals) <= self.now
            if other.here and other.round > self.scenario.rounds:
                return True
            if other.here and me.round >= other.incarnations[-1].first and me.round != other.listens_in:
                meant_for = other.own["to_life"][row, phase, other.neighbours.index(me.number)]
                return not self.star and (me.round, phase) in other.gave and meant_for != len(me.incarnations)
            return len(other.incarnations) == met[j] * other.here or self.now >= other.known_gone

        def can_go_on() -> bool:
            done.update({j: self.now for j in waits if j not in done and is_done(j, self.peers[j])})
            me.silent = [j for j in waits if j not in done]
            return not me.silent or self.now >= deadline

        can_go_on()
        yield can_go_on
        if self.now > began:
            me.own["idle"][row] += self.now - began
            me.own["waited_for"][row] = (me.silent or [j for j in waits if done[j] == max(done.values())])[0]
        me.own["deadlines"][row] += bool(me.silent)
        me.silent = []
        for j in waits:
            there = {m.round for m in me.mail[j] if m.phase == phase and m.arrived_s <= self.now}
            freshest, cell = max(there, default=0), (row, phase, me.neighbours.index(j))
            used = chosen_round(me.round, freshest, me.round in there, staleness, self.scenario.silence)
            self.synchronous &= used == me.round
            me.own["uses"][cell] = used if used == me.round or not own_round_only else 0
            me.asked[cell] = True

    # -- who ends, and who comes back ----------------------------------------------------------------------------------

    def end(self, me: Peer, fault: Fault) -> None:
        me.here, me.known_gone, self.synchronous = False, self.moment(self.now + self.scenario.notice_s), False
        ended = me.incarnations[-1]
        ended.last, ended.end_s, ended.ending = me.round - 1, self.now, fault.kind
        self.events.append((self.now, me.number, fault.kind, f"before round {me.round}"))
        if fault.restart_after is not None:
            me.back_from = me.round + fault.restart_after
        elif fault.restart_after_s is not None:
            self.returns.append((self.moment(self.now + fault.restart_after_s), me.number))

    def come_back(self, me: Peer, asked: int | None) -> None:
        """From the round that is asked for, or the next, and none that a neighbour which may wait for it has begun."""
        before, every, rounds = me.incarnations, self.scenario.checkpoint_every, self.scenario.rounds
        if me.available_from(self.now) > self.now:
            me.back_from = None
            self.return_when_available(me)
            return
        others = [self.peers[j] for j in me.neighbours if self.peers[j].here]
        at_work = [other.begun + 1 for other in others if asked is None or other.round <= rounds]
        if self.scenario.traces and asked is None:  # who is back itself is met in its first round
            done = {j: self.peers[j].own["end"][: self.scenario.rounds] for j in me.neighbours}
            firsts = {other.number: other.incarnations[-1].first for other in others if other.incarnations[-1].start_s}
            waits = [j for j, first in firsts.items() if math.isnan(done[j][first - 1])]
            at_work = [firsts[o.number] if o.number in waits else o.begun + 1 for o in others]
        in_step = asked is None or self.scenario.staleness < math.inf
        first, me.back_from = max([asked or (me.round if before else 1), *(at_work if in_step else [])]), None
        if first > rounds:
            return
        written = [r for each in before for r in range(each.first, each.last + 1) if every and r % every == 0]
        written += [each.last for each in before if each.saves and each.first <= each.last]
        state = max(written, default=0 if before and before[0].first == 1 else None)
        me.here, me.round, me.mail = True, first, defaultdict(list)
        me.listens_in = first if self.star and me is not self.server and first > 1 and state != first - 1 else 0
        told = f", with the state of round {state}" if state is not None else ""
        self.events.append((self.now, me.number, "restart" if before else "join", f"from round {first}{told}"))
        before.append(Incarnation(len(before) + 1, first, self.now, first - 1, state_round=state))
        me.steps, me.can_go_on = self.rounds_of(me), lambda: True

    def return_when_available(self, me: Peer) -> None:
        if (back := me.available_from(self.now)) < math.inf:
            self.returns.append((self.moment(back), me.number))

    # -- what follows --------------------------------------------------------------------------------------------------

    def tell_of_uses(self) -> None:
        for me in self.peers:
            for (row, phase, place), used in np.ndenumerate(me.own["uses"]):
                if used:
                    me.own["keep"][used - 1, phase, place] = row + 1
            for place, j in enumerate(me.neighbours):
                other, there = self.peers[j].own, self.peers[j].neighbours.index(me.number)
                for mine, theirs in (("comes", "copies"), ("into_life", "to_life")):
                    me.own[mine][:, :, place] = other[theirs][:, :, there]
                other["needed"][:, :, there] = me.own["keep"][:, :, place]
