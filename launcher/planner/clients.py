"""A client while its plan is played: what it does in a round, what it has got from its neighbours, its links to them.

A pattern of communication is a script: a generator of steps, begun anew in each round of a client. It goes on when its
last step is over: a Send at once, a Compute when the local work is done, a Wait when each neighbour that is waited for
has got far enough, or the deadline has passed.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop
from typing import NamedTuple

import numpy as np

from ...transport.schedule import Schedule
from .draws import latencies, strikes
from .plan import Incarnation
from .scenario import Fault, Links, Scenario, Star

_OF_LINKS = ("loss", "duplicate", "delay", "reorder", "cut", "partition")
_OF_MESSAGES = {
    "uses": "i4", "copies": "u1", "to_life": "u1", "needed": "i4", "comes": "u1", "into_life": "u1", "keep": "i4",
    "delays": "f8",
}  # fmt: skip


class Send(NamedTuple):
    """The uplink is given the phase's message for all neighbours that are there, or for those in ``to``."""

    phase: int
    to: frozenset[int] | None = None


class Wait(NamedTuple):
    """The client waits for the phase's messages of all neighbours, or of those in ``of``, and uses them."""

    phase: int
    of: frozenset[int] | None = None
    bounded: bool = True  # by the deadline
    own_round_only: bool = False  # whatever time.silence says, a message of another round is not used
    overtaken_by: int | None = None  # a phase: its message of round 2 or later ends the wait, too


class Compute(NamedTuple):
    """The client does its local work."""


Step = Send | Wait | Compute


def gossip(phases: int) -> Iterator[Step]:
    """An exchange with all neighbours, the local work, then the other exchanges."""
    if not phases:
        yield Compute()
    for phase in range(phases):
        yield Send(phase)
        yield Wait(phase)
        if phase == 0:
            yield Compute()


def server(star: Star, round: int) -> Iterator[Step]:
    """Waits for the round's participants, then answers."""
    opening = star.opening if round == 1 else 0
    for phase in range(opening):
        yield Send(phase)
        yield Wait(phase)
    yield Wait(opening, star.participants[round - 1], overtaken_by=0 if opening else None)
    yield Send(opening, star.receivers[round - 1])


def participant(star: Star, client: "Client", now: float) -> Iterator[Step]:
    """A server's client works and sends where it takes part, then waits for the answer where it gets one.

    The deadline bounds the wait of a client that has just sent; one that has only to be called waits until it is. A
    client that comes back takes no part in its first round, it only gets the answer; one that has an answer of a later
    round before it begins to work leaves out the rounds up to there, as their results have been made without it; and
    one without an answer goes on with what it has.
    """
    round, answered = client.round, 0
    opening = star.opening if round == 1 else 0
    for phase in range(opening):
        yield Wait(phase, own_round_only=True)
        yield Send(phase)
    if round > 1:
        (answers,) = client.mail[0]
        answers.take_in(now)
        answered = answers.freshest
    takes_part = client.number in star.participants[round - 1] and answered < round != client.listens_in
    if takes_part:
        yield Compute()
        yield Send(opening)
    if client.number in star.receivers[round - 1] and answered <= round:
        overtaken_by = 0 if opening else None  # the answer is message 0 of later rounds
        yield Wait(opening, bounded=takes_part, own_round_only=True, overtaken_by=overtaken_by)


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
        """Returns when a message of at least this round arrives; -inf: has arrived; inf: none is under way."""
        if self.freshest >= round:
            return -math.inf
        return min((arrival for arrival, number in self.under_way if number >= round), default=math.inf)


@dataclass(slots=True, eq=False)
class PendingWait:
    step: Wait
    began: float
    needed: int  # the round that every neighbour has to get to
    ready: list[float] = field(default_factory=list)  # by neighbour: when it needs no more waiting for, as far as known
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
        self.mail: list[list[Mail]] = []  # by phase, then by neighbour
        self.ends = [fault for fault in scenario.of_kind("crash", "leave") if number in fault.clients]  # still to come
        self.round = 1
        self.begun = 0  # the last round that it has begun
        self.script: Iterator[Step] = iter(())  # of the present round, what is still to come
        self.wait: PendingWait | None = None
        self.here = True
        self.gone_since = math.inf
        self.back_from_round: int | None = None  # a restart that waits for its neighbours to get to this round
        self.listens_in = 0  # with a server, the first round of one that is back or late: it only gets the answer
        self.uplink_free = 0.0
        self.incarnations = [Incarnation(1, 1, 0.0)]

    def forget(self, phases: int) -> None:
        self.mail = [[Mail() for _ in self.neighbours] for _ in range(phases)]


class Channel:
    """One direction of an edge, with its draws. Messages keep their order, but for faults of kind "reorder"."""

    def __init__(self, scenario: Scenario, src: int, dst: Client):
        drawn = (scenario.rounds, scenario.phases), scenario.seed
        edge = src, dst.number
        link = scenario.links.get(edge, Links())
        self.to = dst
        self.place = scenario.neighbours[dst.number].index(src)  # of the sender, among the receiver's neighbours
        self._latency = latencies(link, *drawn, *edge).tolist()
        self._bandwidth, self._uplink = link.bandwidth or math.inf, scenario.uplink
        self._bytes, self._opening = scenario.message_bytes[edge], scenario.star.opening if scenario.star else 0
        self._free = self._last_arrival = 0.0
        self._faults = [(Fault("loss"), strikes(link.loss, *drawn, "loss", *edge).tolist())] if link.loss else []
        for number, fault in enumerate(scenario.faults):
            if fault.kind in _OF_LINKS and fault.hits(*edge):
                draws = strikes(fault.probability, *drawn, "fault", number, *edge).tolist()
                self._faults.append((fault, draws))

    def carry(self, round: int, phase: int, now: float, free: float) -> tuple[float, float, int] | None:
        """Returns when a message has left the uplink, which is ``free`` from then on, when it arrives, and how often;
        None where the link is cut."""
        row = round - 1
        struck = [fault for fault, draws in self._faults if draws[row][phase] and fault.active(round, now)]
        kinds = [fault.kind for fault in struck]
        if "cut" in kinds or "partition" in kinds:
            return None
        size = self._bytes[phase if round == 1 else self._opening + phase]
        left = free + size / self._uplink
        self._free = (left if left > self._free else self._free) + size / self._bandwidth
        arrived = self._free + self._latency[row][phase]
        for fault in struck:
            if fault.kind in ("delay", "reorder"):
                arrived += fault.delay_s
        if "reorder" not in kinds:
            arrived = self._last_arrival = arrived if arrived > self._last_arrival else self._last_arrival
        return left, arrived, 0 if "loss" in kinds else 2 if "duplicate" in kinds else 1
