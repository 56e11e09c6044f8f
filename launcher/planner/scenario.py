"""What a plan is made from: who computes how fast, what links do to messages, what goes wrong. Times are in seconds."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, MaxLen, MinLen

from ...topology.graph import Graph, GraphSequence, last_round
from ...topology.section import Count, Fraction, Index, Needs, NotNegative, Positive, Section
from .traces import ClientTrace

Edge = tuple[int, int]  # (src, dst)


@dataclass(frozen=True)
class Stragglers(Section):
    """Clients whose local work takes longer."""

    kind: Literal["none", "fixed", "lognormal", "exponential", "pareto", "on-off", "trace"] = "none"
    """fixed: always by ``factor``; lognormal: by exp(sigma z) in each round, z normal; exponential: by 1 + Exp(mean);
    pareto: by a Pareto factor of at least 1; on-off: by ``factor`` in spells; trace: as a file says."""
    fraction: Annotated[Fraction, Needs("kind", "fixed", "lognormal", "exponential", "pareto", "on-off")] = 0.2
    """Share of the clients that straggle, drawn at random."""
    factor: Annotated[float, Ge(1), Needs("kind", "fixed", "on-off")] = 10.0
    """fixed, on-off: how many times as long local work takes."""
    sigma: Annotated[NotNegative, Needs("kind", "lognormal"), "lognormal: deviation of the factor's logarithm."] = 1.0
    mean: Annotated[NotNegative, Needs("kind", "exponential"), "exponential: mean of what is added to 1."] = 1.0
    shape: Annotated[Positive, Needs("kind", "pareto"), "pareto: the smaller, the heavier the tail."] = 2.0
    on_s: Annotated[Positive, Needs("kind", "on-off"), "on-off: mean length of a slow spell, in seconds."] = 10.0
    off_s: Annotated[Positive, Needs("kind", "on-off"), "on-off: mean time between two spells, in seconds."] = 40.0
    path: Annotated[Path | None, "trace: a CSV file with the columns client, round, factor."] = None

    def __post_init__(self) -> None:
        if (self.kind == "trace") != (self.path is not None):
            raise ValueError("kind = 'trace' and path belong together: give both, or neither")


@dataclass(frozen=True)
class UnlikeEdge(Section):
    """An edge that differs from the others."""

    between: Annotated[tuple[Index, ...], MinLen(2), MaxLen(2), "The two clients."]
    latency_s: Annotated[NotNegative | None, "Its latency, with the distribution of the others."] = None
    bandwidth: Annotated[NotNegative | None, "Bytes a second."] = None
    loss: Annotated[Fraction | None, "Probability that a message is lost."] = None


@dataclass(frozen=True)
class UnlikeClients(Section):
    """Clients whose own connection differs from the others'; of several tables that name a client the last one counts.
    A server is the client after the last."""

    clients: Annotated[tuple[Index, ...], MinLen(1), "Which."]
    uplink: Annotated[NotNegative | None, "Bytes a second that each of them can send."] = None
    downlink: Annotated[NotNegative | None, "Bytes a second that each of them can receive."] = None

    def __post_init__(self) -> None:
        if self.uplink is None and self.downlink is None:
            raise ValueError("nothing differs: give uplink or downlink; 0 is unlimited")


@dataclass(frozen=True)
class SharedLink(Section):
    """A capacity that links share: of a host, a cable, a radio channel. What is under way at the same time gets its
    max-min fair share."""

    capacity: Annotated[Positive, "Bytes a second."]
    clients: tuple[Index, ...] = ()
    """Those behind it: it carries what they exchange with all others, not with each other."""
    edges: tuple[Annotated[tuple[Index, ...], MinLen(2), MaxLen(2)], ...] = ()
    """Or these links."""
    direction: Literal["both", "in", "out"] = "both"
    """out: what ``clients`` send, or on ``edges`` the first to the second; in: the other way; both: all together."""

    def __post_init__(self) -> None:
        if bool(self.clients) == bool(self.edges):
            raise ValueError("clients and edges exclude each other: give one of them")

    @cached_property
    def _outward(self) -> frozenset[int] | frozenset[Edge]:
        return frozenset(self.clients) or frozenset((i, j) for i, j in self.edges)

    def carries(self, src: int, dst: int) -> bool:
        ends: tuple[Any, Any] = ((src, dst), (dst, src)) if self.edges else (src, dst)
        out, back = (end in self._outward for end in ends)
        if self.clients and out and back:
            return False
        return (out and self.direction != "in") or (back and self.direction != "out")


@dataclass(frozen=True)
class Links(Section):
    """What links do to messages. Messages of one link arrive in their order."""

    latency: Literal["fixed", "uniform", "lognormal"] = "fixed"
    """fixed: ``latency_s``; uniform: from ``latency_s`` to ``latency_high_s``; lognormal: with median ``latency_s``.
    Drawn for each message."""
    latency_s: Annotated[NotNegative, "Seconds from the end of sending to arrival."] = 0.0
    latency_high_s: Annotated[NotNegative, Needs("latency", "uniform"), "uniform: the upper end."] = 0.0
    latency_sigma: Annotated[NotNegative, Needs("latency", "lognormal"), "lognormal: deviation of the logarithm."] = 0.5
    bandwidth: Annotated[NotNegative, "Bytes a second on each link; 0 is unlimited."] = 0.0
    uplink: NotNegative = 0.0
    """Bytes a second that a client can send to all its neighbours together, one message after the other; 0 is
    unlimited."""
    downlink: NotNegative = 0.0
    """Bytes a second that a client can receive from all its neighbours together, one message after the other; 0 is
    unlimited."""
    sharing: Annotated[Literal["queue", "fair"], Needs("uplink or downlink or clients")] = "queue"
    """How messages share an uplink or downlink. queue: one after the other; fair: those under way at the same time get
    their max-min fair share, as TCP connections do."""
    loss: Annotated[Fraction, "Probability that a message is lost: it is not sent."] = 0.0
    edges: Annotated[tuple[UnlikeEdge, ...], "Edges that differ."] = ()
    clients: Annotated[tuple[UnlikeClients, ...], "Clients that differ."] = ()
    groups: Annotated[tuple[SharedLink, ...], "Links that share a capacity."] = ()

    def __post_init__(self) -> None:
        if self.latency == "uniform" and self.latency_high_s < self.latency_s:
            raise ValueError(f"latency_high_s = {self.latency_high_s:g} is below latency_s = {self.latency_s:g}")


@dataclass(frozen=True)
class Fault(Section):
    """One thing that goes wrong."""

    kind: Literal["crash", "leave", "join", "slow", "loss", "duplicate", "delay", "reorder", "cut", "partition"]
    """crash: the process is killed; leave: it ends in order; join: it starts late; slow: local work takes ``factor``
    times as long; loss, duplicate, delay (by ``delay_s``), reorder (delayed, others overtake it): of messages; cut: a
    link carries nothing; partition: no links between ``groups``."""
    clients: tuple[Index, ...] = ()
    """crash, leave, join, slow: who. Of messages: all links of these clients."""
    edges: tuple[Annotated[tuple[Index, ...], MinLen(2), MaxLen(2)], ...] = ()
    """Of messages: these links, both ways; without clients and edges, all."""
    groups: Annotated[tuple[tuple[Index, ...], ...], Needs("kind", "partition")] = ()
    """partition: clients that can still talk to each other; who is in none of them talks to all."""
    at_round: Annotated[Count | None, "crash, leave, join: before this round."] = None
    at_s: NotNegative | None = None
    """crash, leave, join: before the first round that begins then or later, in seconds."""
    rounds: Annotated[tuple[Count, ...], MaxLen(2), "The others: first and last round."] = ()
    seconds: Annotated[tuple[NotNegative, ...], MaxLen(2), "The others: from and until, in seconds."] = ()
    probability: Annotated[Fraction, "Of messages: the share that is hit."] = 1.0
    factor: Annotated[float, Ge(1), Needs("kind", "slow"), "slow: how many times as long."] = 10.0
    delay_s: Annotated[NotNegative, Needs("kind", "delay", "reorder"), "delay, reorder: seconds."] = 1.0
    restart_after: Count | None = None
    """crash, leave: the client comes back from its last checkpoint so many rounds later."""
    restart_after_s: Annotated[NotNegative | None, "crash, leave: the same in seconds."] = None

    @property
    def happens_once(self) -> bool:
        return self.kind in ("crash", "leave", "join")

    def __post_init__(self) -> None:
        kind, once, has_moment = self.kind, self.happens_once, (self.at_round is not None, self.at_s is not None)
        has_restart = self.restart_after is not None or self.restart_after_s is not None
        no_spans = [each for each in (self.rounds, self.seconds) if each and (len(each) != 2 or each[0] > each[1])]
        has_span = self.rounds or self.seconds
        for is_wrong, text in (
            (once and sum(has_moment) != 1, f"a {kind} needs either at_round or at_s"),
            (once and has_span, f"a {kind} happens once: give at_round or at_s, not rounds or seconds"),
            (not once and any(has_moment), f"{kind} lasts: give rounds or seconds, not at_round or at_s"),
            ((once or kind == "slow") and not self.clients, f"{kind} needs clients"),
            (kind == "partition" and len(self.groups) < 2, "a partition needs at least two groups"),
            *((True, f"{list(each)} is no span: give the first and the last") for each in no_spans),
            (has_restart and kind not in ("crash", "leave"), f"a {kind} has no restart"),
        ):
            if is_wrong:
                raise ValueError(text)

    def is_due(self, round: int, now: float) -> bool:
        """Returns whether one that happens once does so before this round, which would begin now."""
        return round >= self.at_round if self.at_round is not None else now >= (self.at_s or 0.0)

    def active(self, round: int, now: float) -> bool:
        if self.rounds and not self.rounds[0] <= round <= self.rounds[1]:
            return False
        return not self.seconds or self.seconds[0] <= now < self.seconds[1]

    @property
    def text(self) -> str:
        """Returns one that lasts in words, for the records."""
        whom = ", ".join([*map(str, self.clients), *(f"{i}-{j}" for i, j in self.edges)]) or "all links"
        if self.kind == "partition":
            whom = " | ".join(", ".join(map(str, group)) for group in self.groups)
        how = {"slow": f" x{self.factor:g}", "delay": f" {self.delay_s:g} s", "reorder": f" {self.delay_s:g} s"}
        often = f", {self.probability:.1%} of messages" if self.probability < 1 else ""
        when = "{:g} to {:g} s".format(*self.seconds) if self.seconds else "always"
        when = "rounds {} to {}".format(*self.rounds) if self.rounds else when
        return f"{self.kind}{how.get(self.kind, '')}: {whom}{often}, {when}"

    def hits(self, src: int, dst: int) -> bool:
        if self.kind == "partition":
            ours, theirs = ([number for number, group in enumerate(self.groups) if end in group] for end in (src, dst))
            return bool(ours and theirs and ours != theirs)
        if self.edges:
            return (src, dst) in self.edges or (dst, src) in self.edges
        return not self.clients or src in self.clients or dst in self.clients


@dataclass(frozen=True)
class Star:
    """The last process is a server, the neighbour of all clients, which have no other. In a round its ``participants``
    work and send their message; the server waits for those, then sends its own to the round's ``receivers``, who wait
    for it. ``opening`` counts the messages each way that come once, before those of the first round.

    Where a round has several ``exchanges``, the server first answers, in each but the last, those of the participants
    of whom it has heard in all before, and they send again; one that is not answered sends no more in the round. With
    fewer than ``least`` the server skips to the last answer."""

    participants: tuple[frozenset[int], ...]  # of rounds 1, 2, ..., as the receivers are
    receivers: tuple[frozenset[int], ...]
    opening: int = 0
    exchanges: int = 1
    least: int = 1

    def phases(self, round: int) -> range:
        """Returns those of the round's exchanges, without an opening."""
        first = self.opening if round == 1 else 0
        return range(first, first + self.exchanges)

    def overtaking(self, round: int, phase: int) -> dict[int, int]:
        """Returns {phase: round}: of which other messages, of that round or later, the first to come tells that no
        message of this phase will."""
        if round == 1 and phase < self.opening:  # an opening is waited for
            return {}
        if self.exchanges == 1:
            return {0: 2} if round == 1 and phase == self.opening > 0 else {}
        last = self.opening + self.exchanges
        return {other: round + (other < phase) for other in range(last) if other != phase}


@dataclass(frozen=True)
class Scenario:
    """Everything that a plan follows from; what is learned is no part of it.

    Without a ``star``, a client's round is an exchange with all neighbours that the round's graph joins it to, the
    local work, then the other exchanges. With ``staleness`` s a client in round k goes on once each of these has got to
    round k - s at least, or to the last one before it that joins them; 0 is synchronous, math.inf never waits.
    ``deadline_s`` bounds each wait, ``notice_s`` is from a client's death until its neighbours know of it. Local work
    of client i takes (steps[i] * step_s + message_s for each message that it sends in the round + evaluation_s if that
    is ``evaluated``) * slowdown[i] * (its straggler factor)."""

    seed: int
    rounds: int
    neighbours: tuple[tuple[int, ...], ...]  # of each client, ascending: all that it ever talks to
    message_bytes: Mapping[Edge, tuple[int, ...]]  # on the wire, of a round; an opening's first; as many for every edge
    staleness: float = 0
    silence: Literal["wait", "stale", "skip"] = "wait"
    deadline_s: float = math.inf
    notice_s: float = 0.0
    step_s: float = 0.01
    steps: Sequence[float | Sequence[float]] = ()  # or samples, which then take step_s each; or by round
    message_s: float = 0.0
    evaluation_s: float = 0.0
    evaluated: Sequence[int] = ()  # rounds
    slowdown: tuple[float, ...] = ()
    stragglers: Stragglers = Stragglers()
    trace: Mapping[tuple[int, int], float] = field(default_factory=dict)  # {(client, round): factor}; others have 1
    traces: Mapping[int, ClientTrace] = field(default_factory=dict)  # by client; others are there, and as they are
    links: Mapping[Edge, Links] = field(default_factory=dict)  # others have no latency, no loss, no limit
    uplink: float = math.inf  # bytes a second that a client can send, to all its neighbours together
    downlink: float = math.inf  # and receive
    uplinks: Mapping[int, float] = field(default_factory=dict)  # of clients that differ
    downlinks: Mapping[int, float] = field(default_factory=dict)
    groups: tuple[SharedLink, ...] = ()
    fair: bool = False  # messages share uplinks and downlinks as they do groups, instead of queueing
    emulated: bool = False  # the kernel shapes links: what a receiver adds to a message is its latency alone
    faults: tuple[Fault, ...] = ()
    silent: Mapping[int, int] = field(default_factory=dict)  # {attacker: the round from which it sends nothing}
    checkpoint_every: int = 0
    star: Star | None = None
    learns_first: bool = False  # the local work of a round comes before its exchanges, not after the first
    participants: Sequence[Collection[int]] = ()  # without a server, who does local work in each round; none: all do
    meets: bool = False  # clients meet in pairs, see meetings.py; a round is until the next meeting
    graphs: GraphSequence | None = None  # who sends to whom in each round; None: all neighbours, both ways
    tolerates: Literal["late", "missing", "nothing"] = "late"  # what the algorithm does: a refusal tells what helps

    @property
    def clients(self) -> int:
        return len(self.neighbours)

    @property
    def shares_capacity(self) -> bool:
        """Messages to different clients, or from different ones, hold each other up behind their uplinks."""
        limited = min([self.downlink, *self.downlinks.values()]) < math.inf
        limited |= self.fair and min([self.uplink, *self.uplinks.values()]) < math.inf
        return bool(self.groups) or limited or any(trace.down for trace in self.traces.values())

    def uplink_of(self, client: int) -> float:
        return self.uplinks.get(client, self.uplink)

    def downlink_of(self, client: int) -> float:
        return self.downlinks.get(client, self.downlink)

    def queues_down(self, client: int) -> bool:
        down = self.traces[client].down if client in self.traces else None
        return down is not None or (self.downlink_of(client) < math.inf and not self.fair)

    def received(self, client: int, size: int, since: float) -> float:
        """Returns when so many bytes that come to the client's downlink are through."""
        rate, down = self.downlink_of(client), self.traces.get(client, ClientTrace()).down
        return down.passed(size, since, rate) if down else since + size / rate

    @property
    def learners(self) -> int:
        """The server does no local work."""
        return self.clients - (self.star is not None)

    @cached_property
    def phases(self) -> int:
        """Messages that each neighbour gets in a round."""
        return max(map(len, self.message_bytes.values()), default=0)

    @cached_property
    def graph_of(self) -> list[Graph]:
        """By round: its graph; none where all neighbours talk in all rounds."""
        return [self.graphs.of(round) for round in range(1, self.rounds + 1)] if self.graphs else []

    def last_round(self, src: int, dst: int, round: int) -> int:
        """Returns the last round up to this one in which ``src`` sends to ``dst``; 0: there is none."""
        if not self.graph_of or round < 1:
            return max(round, 0)
        return last_round(round, lambda each: src in self.graph_of[each - 1].predecessors(dst))

    def of_kind(self, *kinds: str) -> list[Fault]:
        return [fault for fault in self.faults if fault.kind in kinds]
