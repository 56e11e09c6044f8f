"""What a plan is made from: who computes how fast, what links do to messages, what goes wrong. Times are in seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Edge = tuple[int, int]
"""(src, dst)"""


@dataclass(frozen=True)
class Execution:
    """How clients keep step. With ``staleness`` s a client in round k goes on once every neighbour has got to round
    k - s at least; 0 is synchronous, math.inf never waits. ``deadline_s`` bounds each wait."""

    staleness: float = 0
    silence: Literal["wait", "stale", "skip"] = "wait"
    deadline_s: float = math.inf
    notice_s: float = 0.0
    """From a client's death until its neighbours know of it."""


@dataclass(frozen=True)
class Stragglers:
    """A factor on the compute time of some clients, drawn anew for each round where the kind is a distribution."""

    kind: Literal["none", "fixed", "lognormal", "exponential", "pareto", "on-off", "trace"] = "none"
    fraction: float = 0.2
    factor: float = 10.0
    sigma: float = 1.0
    mean: float = 1.0
    shape: float = 2.0
    on_s: float = 10.0
    off_s: float = 40.0
    trace: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """{(client, round): factor}; others have 1."""


@dataclass(frozen=True)
class Compute:
    """A round's local work of client i takes steps[i] * step_s * slowdown[i] * (its straggler factor)."""

    step_s: float = 0.01
    steps: tuple[int, ...] = ()
    slowdown: tuple[float, ...] = ()
    stragglers: Stragglers = Stragglers()


@dataclass(frozen=True)
class Latency:
    """fixed: ``seconds``; uniform: from ``seconds`` to ``high_s``; lognormal: median ``seconds``, log-deviation
    ``sigma``."""

    kind: Literal["fixed", "uniform", "lognormal"] = "fixed"
    seconds: float = 0.0
    high_s: float = 0.0
    sigma: float = 0.5


@dataclass(frozen=True)
class Link:
    """One direction of an edge. ``bandwidth`` in bytes a second."""

    latency: Latency = Latency()
    bandwidth: float = math.inf
    loss: float = 0.0


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong. A window in ``rounds`` (of the client at work, or of the sender) or in ``seconds``
    includes its start; that of rounds its end too."""

    kind: Literal["crash", "leave", "join", "slow", "loss", "duplicate", "delay", "reorder", "cut", "partition"]
    clients: tuple[int, ...] = ()
    edges: tuple[Edge, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    rounds: tuple[int, int] | None = None
    seconds: tuple[float, float] | None = None
    probability: float = 1.0
    factor: float = 10.0
    delay_s: float = 1.0
    restart_after: int | None = None
    restart_after_s: float | None = None

    def active(self, round: int, now: float) -> bool:
        if self.rounds is not None and not self.rounds[0] <= round <= self.rounds[1]:
            return False
        return self.seconds is None or self.seconds[0] <= now < self.seconds[1]

    @property
    def text(self) -> str:
        """In words, for the records."""
        if self.kind == "partition":
            whom = " | ".join(", ".join(map(str, group)) for group in self.groups)
        else:
            links = [f"{i}-{j}" for i, j in self.edges]
            whom = ", ".join([*map(str, self.clients), *links]) or "all links"
        how = {"slow": f" x{self.factor:g}", "delay": f" {self.delay_s:g} s", "reorder": f" {self.delay_s:g} s"}
        often = f", {self.probability:.1%} of messages" if self.probability < 1 else ""
        when = ", always"
        if self.rounds is not None:
            when = f", rounds {self.rounds[0]} to {self.rounds[1]}"
        elif self.seconds is not None:
            when = f", {self.seconds[0]:g} to {self.seconds[1]:g} s"
        return f"{self.kind}{how.get(self.kind, '')}: {whom}{often}{when}"

    def hits(self, src: int, dst: int) -> bool:
        """Whether it concerns messages from ``src`` to ``dst``."""
        if self.kind == "partition":
            ours, theirs = ([number for number, group in enumerate(self.groups) if end in group] for end in (src, dst))
            return bool(ours and theirs and ours != theirs)
        if self.edges:
            return (src, dst) in self.edges or (dst, src) in self.edges
        return not self.clients or src in self.clients or dst in self.clients


@dataclass(frozen=True)
class Star:
    """The last process is a server, the neighbour of all clients, which have no other.

    In a round its ``participants`` work and send their message; the server waits for those, then sends its own to the
    round's ``receivers``, who wait for it. ``opening`` counts the messages each way that come once before
    those of the first round, between the server and all clients.
    """

    participants: tuple[frozenset[int], ...]
    """Of rounds 1, 2, ..., as the receivers are."""
    receivers: tuple[frozenset[int], ...]
    opening: int = 0


@dataclass(frozen=True)
class Scenario:
    """Everything that a plan follows from; what is learned is no part of it."""

    seed: int
    rounds: int
    neighbours: tuple[tuple[int, ...], ...]
    """Of each client, ascending."""
    message_bytes: Mapping[Edge, tuple[int, ...]]
    """Wire bytes of the messages of a round, in their order; as many for every edge. Those of an opening come first."""
    execution: Execution = Execution()
    compute: Compute = Compute()
    links: Mapping[Edge, Link] = field(default_factory=dict)
    """Edges that are not here have no latency, no loss, no limit."""
    uplink: float = math.inf
    """Bytes a second that a client can send, to all its neighbours together."""
    faults: tuple[Fault, ...] = ()
    checkpoint_every: int = 0
    star: Star | None = None
    """Without one, a client's round is an exchange with all neighbours, the local work, then the other exchanges."""

    @property
    def clients(self) -> int:
        return len(self.neighbours)

    @property
    def learners(self) -> int:
        """The server does no local work."""
        return self.clients - (self.star is not None)

    @property
    def phases(self) -> int:
        """Messages that each neighbour gets in a round."""
        return max(map(len, self.message_bytes.values()), default=0)
