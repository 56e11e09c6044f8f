"""A client while its plan is played: where it stands, what it has got from its neighbours, and its links to them."""

import math
from collections.abc import Iterator
from heapq import heappop

from .draws import latencies, losses, strikes
from .plan import Incarnation
from .scenario import Fault, Link, Scenario
from .scripts import Step, Wait

_OF_LINKS = ("loss", "duplicate", "delay", "reorder", "cut", "partition")


class Mail:
    """What one neighbour has sent in one phase, by the round of the message."""

    __slots__ = ("arrived", "freshest", "under_way")

    def __init__(self) -> None:
        self.under_way: list[tuple[float, int]] = []  # heap of (arrival, round)
        self.arrived: set[int] = set()
        self.freshest = 0

    def take_in(self, now: float) -> None:
        under_way = self.under_way
        while under_way and under_way[0][0] <= now:
            _, round = heappop(under_way)
            self.arrived.add(round)
            if round > self.freshest:
                self.freshest = round

    def first_from(self, round: int) -> float:
        """When a message of at least this round arrives, of those under way; -inf: has arrived; inf: none does."""
        if self.freshest >= round:
            return -math.inf
        first = math.inf
        for arrival, number in self.under_way:
            if number >= round and arrival < first:
                first = arrival
        return first


class PendingWait:
    """A wait that has begun."""

    __slots__ = ("awaited", "began", "end", "needed", "ready", "step")

    def __init__(self, step: Wait, began: float, needed: int, awaited: list[bool]):
        self.step = step
        self.began = began
        self.needed = needed  # the round that every neighbour has to get to
        self.awaited = awaited  # by neighbour: whether the wait is for it
        self.ready: list[float] = []  # by neighbour: when it needs no more waiting for, as far as is known
        self.end = math.inf


class Client:
    def __init__(self, number: int):
        self.number = number
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
        shape = scenario.rounds, scenario.phases
        link = scenario.links.get((src, dst.number), Link())
        self.to = dst
        self.place = scenario.neighbours[dst.number].index(src)  # of the sender, among the receiver's neighbours
        self.latency = latencies(link.latency, shape, scenario.seed, src, dst.number).tolist()
        self.lost = losses(link.loss, shape, scenario.seed, src, dst.number).tolist() if link.loss else None
        self.bandwidth = link.bandwidth
        self.bytes = scenario.message_bytes[src, dst.number]
        self.opening = scenario.star.opening if scenario.star else 0
        self.free = 0.0
        self.last_arrival = 0.0
        self.faults: list[tuple[Fault, list[list[bool]]]] = [
            (fault, strikes(fault, number, shape, scenario.seed, src, dst.number).tolist())
            for number, fault in enumerate(scenario.faults)
            if fault.kind in _OF_LINKS and fault.hits(src, dst.number)
        ]

    def size(self, round: int, phase: int) -> int:
        return self.bytes[phase if round == 1 else self.opening + phase]

    def faults_of(self, round: int, phase: int, now: float) -> list[Fault]:
        """The faults that hit a message."""
        return [fault for fault, draws in self.faults if draws[round - 1][phase] and fault.active(round, now)]

    def carry(self, round: int, phase: int, left: float, faults: list[Fault]) -> tuple[float, int]:
        """When a message that has left the uplink at ``left`` arrives, and how often."""
        begins = left if left > self.free else self.free
        self.free = begins + self.size(round, phase) / self.bandwidth
        arrived = self.free + self.latency[round - 1][phase]
        copies = 0 if self.lost and self.lost[round - 1][phase] else 1
        in_order = True
        for fault in faults:
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
