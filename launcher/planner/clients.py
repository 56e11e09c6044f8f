"""A client while its plan is played: where it stands, what it has got from its neighbours, and its links to them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop

from ...transport.schedule import Schedule
from .draws import latencies, strikes
from .plan import Incarnation
from .scenario import Link, Scenario
from .schedules import empty_schedule
from .scripts import Step, Wait

_OF_LINKS = ("loss", "duplicate", "delay", "reorder", "cut", "partition")


@dataclass(slots=True)
class Mail:
    """What one neighbour has sent in one phase, by the round of the message."""

    under_way: list[tuple[float, int]] = field(default_factory=list)  # heap of (arrival, round)
    arrived: set[int] = field(default_factory=set)
    freshest: int = 0

    def take_in(self, now: float) -> None:
        while self.under_way and self.under_way[0][0] <= now:
            _, round = heappop(self.under_way)
            self.arrived.add(round)
            if round > self.freshest:
                self.freshest = round

    def first_from(self, round: int) -> float:
        """When a message of at least this round arrives, of those under way; -inf: has arrived; inf: none does."""
        if self.freshest >= round:
            return -math.inf
        return min((arrival for arrival, number in self.under_way if number >= round), default=math.inf)


@dataclass(slots=True, eq=False)
class PendingWait:
    """A wait that has begun."""

    step: Wait
    began: float
    needed: int  # the round that every neighbour has to get to
    awaited: list[bool]  # by neighbour: whether the wait is for it
    ready: list[float] = field(default_factory=list)  # by neighbour: when it needs no more waiting for, as far as known
    end: float = math.inf


class Client:
    def __init__(self, scenario: Scenario, number: int):
        self.number = number
        self.schedule: Schedule = empty_schedule(scenario, number)
        self.asked = self.schedule.uses > 0  # which messages it waits for
        self.neighbours: list[Client] = []
        self.channels: list[Channel] = []  # to the neighbours, in the same order
        self.mail: list[list[Mail]] = []  # by phase, then by neighbour
        self.round = 1
        self.begun = 0  # the last round that it has begun
        self.script: Iterator[Step] = iter(())  # of the present round, what is still to come
        self.wait: PendingWait | None = None
        self.here = True
        self.finished = False
        self.gone_since = math.inf
        self.back_from_round: int | None = None  # a restart that waits for its neighbours to get to this round
        self.listens_in = 0  # with a server, the first round of one that is back or late: it only gets the answer
        self.uplink_free = 0.0
        self.incarnation = Incarnation(1, 1, 0.0)
        self.incarnations = [self.incarnation]

    def forget(self, phases: int) -> None:
        """A new process has got nothing yet."""
        self.mail = [[Mail() for _ in self.neighbours] for _ in range(phases)]


class Channel:
    """One direction of an edge, with its draws. Messages arrive in the order in which they were sent, except where a
    fault of kind "reorder" says otherwise."""

    def __init__(self, scenario: Scenario, src: int, dst: Client):
        drawn = (scenario.rounds, scenario.phases), scenario.seed
        edge = src, dst.number
        link = scenario.links.get(edge, Link())
        self.to = dst
        self.place = scenario.neighbours[dst.number].index(src)  # of the sender, among the receiver's neighbours
        self._latency = latencies(link.latency, *drawn, *edge).tolist()
        self._lost = strikes(link.loss, *drawn, "loss", *edge).tolist() if link.loss else None
        self._bandwidth, self._uplink = link.bandwidth, scenario.uplink
        self._bytes, self._opening = scenario.message_bytes[edge], scenario.star.opening if scenario.star else 0
        self._free = self._last_arrival = 0.0
        self._faults = [
            (fault, strikes(fault.probability, *drawn, "fault", number, *edge).tolist())
            for number, fault in enumerate(scenario.faults)
            if fault.kind in _OF_LINKS and fault.hits(*edge)
        ]

    def carry(self, round: int, phase: int, now: float, free: float) -> tuple[float, float, int] | None:
        """When a message has left the uplink, which is ``free`` from then on, when it arrives, and how often; None
        where the link is cut."""
        row = round - 1
        faults = []
        if self._faults:
            faults = [fault for fault, draws in self._faults if draws[row][phase] and fault.active(round, now)]
        if faults and any(fault.kind in ("cut", "partition") for fault in faults):
            return None
        size = self._bytes[phase if round == 1 else self._opening + phase]
        left = free + size / self._uplink
        self._free = (left if left > self._free else self._free) + size / self._bandwidth
        arrived = self._free + self._latency[row][phase]
        copies = 0 if self._lost and self._lost[row][phase] else 1
        for fault in faults:
            match fault.kind:
                case "delay" | "reorder":
                    arrived += fault.delay_s
                case "duplicate" if copies:
                    copies = 2
                case "loss":
                    copies = 0
        if not faults or not any(fault.kind == "reorder" for fault in faults):
            arrived = self._last_arrival = arrived if arrived > self._last_arrival else self._last_arrival
        return left, arrived, copies
