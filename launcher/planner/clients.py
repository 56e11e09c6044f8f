"""A client while its plan is played: what it has got from its neighbours, what it waits for, its links to them."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop

import numpy as np

from ...transport.schedule import Schedule
from .draws import latencies, strikes
from .network import Network, Transfer
from .plan import Incarnation
from .scenario import Fault, Links, Scenario
from .traces import ClientTrace

FIRST, STEP = 0, 1  # at one moment: restarts and news of crashes, then what clients do
_OF_LINKS = ("loss", "duplicate", "delay", "reorder", "cut", "partition")
_OF_MESSAGES = {
    "uses": "i4", "copies": "u1", "to_life": "u1", "needed": "i4", "comes": "u1", "into_life": "u1", "keep": "i4",
    "delays": "f8",
}  # fmt: skip


@dataclass(slots=True)
class Mail:
    """What one neighbour has sent in one phase, by the round of the message."""

    under_way: list[tuple[float, int]] = field(default_factory=list)  # heap of (arrival, round)
    arrived: set[int] = field(default_factory=set)
    freshest: int = 0
    coming: set[int] = field(
        default_factory=set
    )  # rounds of those under way of which nobody knows yet when they arrive

    def take_in(self, now: float) -> None:
        while self.under_way and self.under_way[0][0] <= now:
            _, round = heappop(self.under_way)
            self.arrived.add(round)
            if round > self.freshest:
                self.freshest = round

    def first_from(self, round: int) -> float:
        """Returns when a message of at least this round arrives, if known, else inf; -inf: one has arrived."""
        if self.freshest >= round:
            return -math.inf
        return min((arrival for arrival, number in self.under_way if number >= round), default=math.inf)


@dataclass(slots=True, eq=False)
class PendingWait:
    phase: int
    after_opening: bool  # then message 0 of round 2 or later, which overtook the one waited for, ends the wait, too
    began: float
    needed: dict[int, int]  # {place of a neighbour: the round that it has to get to}
    ready: dict[int, float] = field(default_factory=dict)  # when it needs no more waiting for, as far as known
    end: float = math.inf


class Client:
    def __init__(self, scenario: Scenario, number: int):
        self.number = number
        rounds, places = scenario.rounds, len(scenario.neighbours[number])
        self.schedule = Schedule(
            neighbours=np.array(scenario.neighbours[number], np.int32),
            **{name: np.zeros((rounds, scenario.phases, places), dtype) for name, dtype in _OF_MESSAGES.items()},
            **{name: np.full(rounds, math.nan) for name in ("start", "end", "compute", "shown_at")},
            **{name: np.zeros(places, np.int32) for name in ("backlog", "backlog_in")},
            idle=np.zeros(rounds),
            waited_for=np.full(rounds, -1, np.int32),
            deadlines=np.zeros(rounds, np.uint8),
            shows=np.zeros((rounds, places), np.uint8),
        )
        self.asked = self.schedule.uses > 0  # which messages it waits for
        self.neighbours: list[Client] = []
        self.channels: list[Channel] = []  # to the neighbours, in the same order
        self.places = {node: place for place, node in enumerate(scenario.neighbours[number])}
        self.mail: list[defaultdict[int, Mail]] = []  # by phase: {place of a neighbour: what it has sent}
        self.ends = [fault for fault in scenario.of_kind("crash", "leave") if number in fault.clients]  # still to come
        self.sent = [0] * scenario.phases  # of each phase: the last round of which it has sent the message
        self.round = 1
        self.begun = 0  # the last round that it has begun
        self.steps: Iterator[None] = iter(())  # what its present incarnation still has to do
        self.wait: PendingWait | None = None
        self.here = True
        self.back_from_round: int | None = None  # a restart that waits for its neighbours to get to this round
        self.is_answered = scenario.star is not None and number < scenario.learners  # it is a server's client
        self.trace = scenario.traces.get(number, ClientTrace())
        self.listens_in = 0  # with a server, the first round of one that is back or late: it only gets the answer
        self.uplink_free = 0.0
        self.incarnations = [Incarnation(1, 1, 0.0)]

    def is_away(self, now: float) -> bool:
        """By its trace."""
        return not self.trace.available.at(now)[0]

    def state_round(self, every: int) -> int | None:
        """Returns the last round of which its state is written; None: it came late, and there is none."""
        earlier = self.incarnations
        written = [n for each in earlier for n in range(each.first, each.last + 1) if every and n % every == 0]
        written += [each.last for each in earlier if each.saves and each.last >= each.first]
        return max(written, default=0 if earlier and earlier[0].first == 1 else None)

    def has_missed(self, phase: int, place: int) -> bool:
        """Whether a neighbour sent its message of this client's round before this client was there."""
        other, there = self.neighbours[place], self.channels[place].place
        meant_for = other.schedule.to_life[self.round - 1, phase, there]
        return other.sent[phase] >= self.round and meant_for != self.incarnations[-1].number

    @property
    def is_back(self) -> bool:
        """Whether it has come back, or late, and not completed a round since."""
        present = self.incarnations[-1]
        return present.start_s > 0 and present.last < present.first

    def forget(self, phases: int) -> None:
        self.mail = [defaultdict(Mail) for _ in range(phases)]

    def places_of(self, numbers: Iterable[int]) -> Sequence[int]:
        return sorted(map(self.places.__getitem__, numbers))


class Channel:
    """One direction of an edge, with its draws. Messages keep their order, but for faults of kind "reorder"."""

    def __init__(self, scenario: Scenario, src: int, dst: Client, network: Network | None = None):
        drawn = (scenario.rounds, scenario.phases), scenario.seed
        edge = src, dst.number
        link = scenario.links.get(edge, Links())
        self.to, self._edge = dst, edge
        self._is_shared = network is not None and network.is_shared(edge)
        self.place = scenario.neighbours[dst.number].index(src)  # of the sender, among the receiver's neighbours
        self._up = scenario.traces.get(src, ClientTrace()).up
        self._latency = latencies(link, *drawn, *edge).tolist()
        self._bandwidth, self._uplink = link.bandwidth or math.inf, scenario.uplink_of(src)
        self._bytes, self._opening = scenario.message_bytes[edge], scenario.star.opening if scenario.star else 0
        self._free = self._last_arrival = 0.0
        self._faults = [(Fault("loss"), strikes(link.loss, *drawn, "loss", *edge).tolist())] if link.loss else []
        for number, fault in enumerate(scenario.faults):
            if fault.kind in _OF_LINKS and fault.hits(*edge):
                draws = strikes(fault.probability, *drawn, "fault", number, *edge).tolist()
                self._faults.append((fault, draws))

    def carry(
        self, round: int, phase: int, now: float, free: float
    ) -> tuple[float, float, int, Transfer | None] | None:
        """Returns when a message has left the uplink, which is ``free`` from then on, when it arrives, and how often;
        last, what to give to the network, where only that knows when it arrives. None where the link is cut."""
        row = round - 1
        struck = [fault for fault, draws in self._faults if draws[row][phase] and fault.active(round, now)]
        kinds = [fault.kind for fault in struck]
        if "cut" in kinds or "partition" in kinds:
            return None
        size = self._bytes[phase if round == 1 else self._opening + phase]
        left = self._up.passed(size, free, self._uplink) if self._up else free + size / self._uplink
        copies = 0 if "loss" in kinds else 2 if "duplicate" in kinds else 1
        delays = [fault.delay_s for fault in struck if fault.kind in ("delay", "reorder")]
        if self._is_shared:
            delay_s = math.fsum([self._latency[row][phase], *delays])
            return left, math.inf, copies, Transfer(self._edge, size, "reorder" in kinds, not copies, delay_s)
        self._free = (left if left > self._free else self._free) + size / self._bandwidth
        arrived = self._free + self._latency[row][phase]
        for delay_s in delays:
            arrived += delay_s
        if "reorder" not in kinds:
            arrived = self._last_arrival = arrived if arrived > self._last_arrival else self._last_arrival
        return left, arrived, copies, None
