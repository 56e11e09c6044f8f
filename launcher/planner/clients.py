"""A client while its plan is played: what it has got from its neighbours, what it waits for, its links to them."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop

from .draws import latencies, strikes
from .network import Network, Transfer
from .plan import Incarnation
from .scenario import Fault, Links, Scenario
from .tables import Tables

FIRST, STEP = 0, 1  # at one moment: restarts and news of crashes, then what clients do
_NONE: list[float] = []
_OF_LINKS = ("loss", "duplicate", "delay", "reorder", "cut", "partition")


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

    def is_past(self, round: int) -> None:
        """Forgets what can only be used in this round, or before it."""
        if self.freshest <= round:
            self.arrived.clear()
        else:
            self.arrived.discard(round)

    def first_from(self, round: int) -> float:
        """Returns when a message of at least this round arrives, if known, else inf; -inf: one has arrived."""
        if self.freshest >= round:
            return -math.inf
        first = math.inf
        for arrival, number in self.under_way:
            if number >= round and arrival < first:
                first = arrival
        return first


@dataclass(slots=True, eq=False)
class PendingWait:
    phase: int
    also: Mapping[int, int]  # {phase: round}: what overtook the one waited for, of that round or later, ends it, too
    began: float
    needed: dict[int, int]  # {place of a neighbour: the round that it has to get to}
    ready: list[float]  # when each neighbour needs no more waiting for, as far as known; -inf: it is not waited for
    unknown: int = 0  # of how many that is not known
    end: float = math.inf


class Client:
    def __init__(self, scenario: Scenario, number: int):
        self.number = number
        self.neighbours: list[Client] = []
        self.channels: list[Channel] = []  # to the neighbours, in the same order
        self.incoming: list[Channel] = []  # from them
        self.places = {node: place for place, node in enumerate(scenario.neighbours[number])}
        self.ends = [fault for fault in scenario.of_kind("crash", "leave") if number in fault.clients]  # still to come
        self.sent = [0] * scenario.phases  # of each phase: the last round of which it has sent the message
        self.round = 1
        self.begun = 0  # the last round that it has begun
        self.steps: Iterator[None] = iter(())  # what its present incarnation still has to do
        self.wait: PendingWait | None = None
        self.here = True
        self.life = 1  # the number of its last incarnation
        self.back_from_round: int | None = None  # a restart that waits for its neighbours to get to this round
        self.is_answered = scenario.star is not None and number < scenario.learners  # it is a server's client
        self.trace = scenario.traces.get(number)
        self.listens_in = 0  # with a server, the first round of one that is back or late: it only gets the answer
        self.uplink_free = 0.0
        self.incarnations = [Incarnation(1, 1, 0.0)]

    def is_away(self, now: float) -> bool:
        """By its trace."""
        return self.trace is not None and not self.trace.available.at(now)[0]

    def state_round(self, every: int) -> int | None:
        """Returns the last round of which its state is written; None: it came late, and there is none."""
        earlier = self.incarnations
        written = [n for each in earlier for n in range(each.first, each.last + 1) if every and n % every == 0]
        written += [each.last for each in earlier if each.saves and each.last >= each.first]
        return max(written, default=0 if earlier and earlier[0].first == 1 else None)

    @property
    def is_back(self) -> bool:
        """Whether it has come back, or late, and not completed a round since."""
        present = self.incarnations[-1]
        return present.start_s > 0 and present.last < present.first

    def forget(self, phases: int) -> None:
        for channel in self.incoming:
            channel.mail = [Mail() for _ in range(phases)]

    def places_of(self, numbers: Iterable[int]) -> Sequence[int]:
        return sorted(map(self.places.__getitem__, numbers))


class Channel:
    """One direction of an edge, with its draws. Messages keep their order, but for faults of kind "reorder"."""

    __slots__ = (
        "_bytes", "_edge", "_emulated", "_faults", "_free", "_is_shared", "_last_arrival", "_link_s", "_opening",
        "_tables", "_up", "_uplink", "_uplink_s", "back", "delay_s", "mail", "number", "place", "to",
    )  # fmt: skip

    def __init__(self, scenario: Scenario, ends: tuple["Client", "Client"], tables: Tables, network: Network | None):
        src, dst = ends
        self.place = dst.places[src.number]  # of the sender, among the receiver's neighbours
        self.back = tables.first_of[dst.number] + self.place
        self.number, self.to, self.mail = tables.back[self.back], dst, [Mail() for _ in range(scenario.phases)]
        drawn, edge = ((scenario.rounds, scenario.phases), scenario.seed), (src.number, dst.number)
        link, self._edge, self._tables = scenario.links.get(edge, Links()), edge, tables
        self._is_shared, self._emulated = network is not None and network.is_shared(edge), scenario.emulated
        self.delay_s = 0.0  # of the message carried last: latency, and what faults add; where that is asked for
        tables.arrays["latency"][:, :, self.number] = latencies(link, *drawn, *edge)
        self._bytes, self._opening = scenario.message_bytes[edge], scenario.star.opening if scenario.star else 0
        self._up = src.trace.up if src.trace else None
        self._uplink = math.inf if scenario.fair else scenario.uplink_of(src.number)
        self._uplink_s = _seconds(self._bytes, self._uplink)
        self._link_s = _seconds(self._bytes, link.bandwidth or math.inf)
        self._free = self._last_arrival = 0.0
        faults = [(Fault("loss"), strikes(link.loss, *drawn, "loss", *edge))] if link.loss else []
        for number, fault in enumerate(scenario.faults):
            if fault.kind in _OF_LINKS and fault.hits(*edge):
                faults.append((fault, strikes(fault.probability, *drawn, "fault", number, *edge)))
        if src.number in scenario.silent:
            mute = Fault("loss", rounds=(scenario.silent[src.number], scenario.rounds))
            faults.append((mute, strikes(1.0, *drawn, "silence", *edge)))
        self._faults = [(fault, draws.reshape(-1).data) for fault, draws in faults]

    def carry(
        self, round: int, phase: int, now: float, free: float
    ) -> tuple[float, float, int, Transfer | None] | None:
        """Returns when a message has left the uplink, which is ``free`` from then on, when it arrives, and how often;
        last, what to give to the network, where only that knows when it arrives. None where the link is cut."""
        tables = self._tables
        exchange = (round - 1) * tables.phases + phase
        latency_s = tables.latency[exchange * tables.edges + self.number]
        size_of = phase if round == 1 else self._opening + phase
        copies, delays, keeps_order = 1, _NONE, True
        if self._faults:
            struck = [fault for fault, draws in self._faults if draws[exchange] and fault.active(round, now)]
            kinds = [fault.kind for fault in struck]
            if "cut" in kinds or "partition" in kinds:
                return None
            copies = 0 if "loss" in kinds else 2 if "duplicate" in kinds else 1
            delays = [fault.delay_s for fault in struck if fault.kind in ("delay", "reorder")]
            keeps_order = "reorder" not in kinds
        left = free + self._uplink_s[size_of]
        if self._up:
            left = self._up.passed(self._bytes[size_of], free, self._uplink)
        if self._is_shared or self._emulated:
            self.delay_s = math.fsum([latency_s, *delays])
        if self._is_shared:
            transfer = Transfer(self._edge, self._bytes[size_of], not keeps_order, not copies, self.delay_s)
            return left, math.inf, copies, transfer
        self._free = (left if left > self._free else self._free) + self._link_s[size_of]
        arrived = self._free + latency_s
        for delay_s in delays:
            arrived += delay_s
        if keeps_order:
            arrived = self._last_arrival = arrived if arrived > self._last_arrival else self._last_arrival
        return left, arrived, copies, None


@lru_cache(maxsize=1024)
def _seconds(sizes: tuple[int, ...], rate: float) -> tuple[float, ...]:
    """Returns one tuple for all links that are alike."""
    return tuple(size / rate for size in sizes)
