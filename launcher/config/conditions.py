"""The sections of the configuration under which a run takes place: speeds, links, and what goes wrong."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, MaxLen, MinLen

from ...topology.section import Count, Fraction, Index, Needs, NotNegative, Positive, Section


@dataclass(frozen=True)
class ComputeSection(Section):
    """How long local work takes."""

    step_s: Positive | None = None
    """Seconds of a local step (work = "full": of a pass over the training samples). Without it, a step is timed once on
    this machine and written into the run's config.toml."""
    slowdown: tuple[Positive, ...] = ()
    """Factor on the time of each client, in their order; a shorter list is repeated."""


@dataclass(frozen=True)
class StragglerSection(Section):
    """Clients whose local work takes longer."""

    kind: Literal["none", "fixed", "lognormal", "exponential", "pareto", "on-off", "trace"] = "none"
    """fixed: always by ``factor``; lognormal: by exp(sigma z) in each round, z normal; exponential: by 1 + Exp(mean);
    pareto: by a Pareto factor of at least 1; on-off: by ``factor`` in spells; trace: as a file says."""
    fraction: Annotated[Fraction, Needs("kind", "fixed", "lognormal", "exponential", "pareto", "on-off")] = 0.2
    """Share of the clients that straggle, drawn at random."""
    factor: Annotated[float, Ge(1), Needs("kind", "fixed", "on-off")] = 10.0
    """fixed, on-off: how many times as long local work takes."""
    sigma: Annotated[NotNegative, Needs("kind", "lognormal")] = 1.0
    """lognormal: deviation of the factor's logarithm."""
    mean: Annotated[NotNegative, Needs("kind", "exponential")] = 1.0
    """exponential: mean of what is added to 1."""
    shape: Annotated[Positive, Needs("kind", "pareto")] = 2.0
    """pareto: the smaller, the heavier the tail."""
    on_s: Annotated[Positive, Needs("kind", "on-off")] = 10.0
    """on-off: mean length of a slow spell, in seconds."""
    off_s: Annotated[Positive, Needs("kind", "on-off")] = 40.0
    """on-off: mean time between two spells, in seconds."""
    path: Path | None = None
    """trace: a CSV file with the columns client, round, factor."""

    def __post_init__(self) -> None:
        if (self.kind == "trace") != (self.path is not None):
            raise ValueError("kind = 'trace' and path belong together: give both, or neither")


@dataclass(frozen=True)
class EdgeTable(Section):
    """An edge that differs from the others."""

    between: Annotated[tuple[Index, ...], MinLen(2), MaxLen(2)]
    """The two clients."""
    latency_s: NotNegative | None = None
    """Its latency, with the distribution of the others."""
    bandwidth: NotNegative | None = None
    """Bytes a second."""
    loss: Fraction | None = None
    """Probability that a message is lost."""


@dataclass(frozen=True)
class LinksSection(Section):
    """What links do to messages. Messages of one link arrive in their order."""

    latency: Literal["fixed", "uniform", "lognormal"] = "fixed"
    """fixed: ``latency_s``; uniform: from ``latency_s`` to ``latency_high_s``; lognormal: with median ``latency_s``.
    Drawn for each message."""
    latency_s: NotNegative = 0.0
    """Seconds from the end of sending to arrival."""
    latency_high_s: Annotated[NotNegative, Needs("latency", "uniform")] = 0.0
    """uniform: the upper end."""
    latency_sigma: Annotated[NotNegative, Needs("latency", "lognormal")] = 0.5
    """lognormal: deviation of the logarithm."""
    bandwidth: NotNegative = 0.0
    """Bytes a second on each link; 0 is unlimited."""
    uplink: NotNegative = 0.0
    """Bytes a second that a client can send to all its neighbours together, one message after the other; 0 is
    unlimited."""
    loss: Fraction = 0.0
    """Probability that a message is lost: it is not sent."""
    edges: tuple[EdgeTable, ...] = ()
    """Edges that differ."""

    def __post_init__(self) -> None:
        if self.latency == "uniform" and self.latency_high_s < self.latency_s:
            raise ValueError(f"latency_high_s = {self.latency_high_s:g} is below latency_s = {self.latency_s:g}")


@dataclass(frozen=True)
class FaultTable(Section):
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
    at_round: Count | None = None
    """crash, leave, join: before this round."""
    at_s: NotNegative | None = None
    """crash, leave, join: before the first round that begins then or later, in seconds."""
    rounds: Annotated[tuple[Count, ...], MaxLen(2)] = ()
    """The others: first and last round."""
    seconds: Annotated[tuple[NotNegative, ...], MaxLen(2)] = ()
    """The others: from and until, in seconds."""
    probability: Fraction = 1.0
    """Of messages: the share that is hit."""
    factor: Annotated[float, Ge(1), Needs("kind", "slow")] = 10.0
    """slow: how many times as long."""
    delay_s: Annotated[NotNegative, Needs("kind", "delay", "reorder")] = 1.0
    """delay, reorder: seconds."""
    restart_after: Count | None = None
    """crash, leave: the client comes back from its last checkpoint so many rounds later."""
    restart_after_s: NotNegative | None = None
    """crash, leave: the same in seconds."""

    def __post_init__(self) -> None:
        if self.kind in ("crash", "leave", "join"):
            if (self.at_round is None) == (self.at_s is None):
                raise ValueError(f"a {self.kind} needs either at_round or at_s")
            if self.rounds or self.seconds:
                raise ValueError(f"a {self.kind} happens once: give at_round or at_s, not rounds or seconds")
        elif self.at_round is not None or self.at_s is not None:
            raise ValueError(f"{self.kind} lasts: give rounds or seconds, not at_round or at_s")
        if self.kind in ("crash", "leave", "join", "slow") and not self.clients:
            raise ValueError(f"{self.kind} needs clients")
        if self.kind == "partition" and len(self.groups) < 2:
            raise ValueError("a partition needs at least two groups")
        for window in (self.rounds, self.seconds):
            if window and (len(window) != 2 or window[0] > window[1]):
                raise ValueError(f"{list(window)} is no span: give the first and the last")
        if (self.restart_after is not None or self.restart_after_s is not None) and self.kind not in ("crash", "leave"):
            raise ValueError(f"a {self.kind} has no restart")


@dataclass(frozen=True)
class ChaosSection(Section):
    """Faults drawn at random, beside those that are written down. The rates are shares of clients or of edges."""

    crash: Fraction = 0.0
    """Clients that crash, at a random round."""
    restart: Annotated[Fraction, Needs("crash")] = 0.5
    """Of those, the share that comes back after a tenth of the rounds."""
    leave: Fraction = 0.0
    """Clients that leave for good."""
    join: Fraction = 0.0
    """Clients that join late."""
    slow: Fraction = 0.0
    """Clients that are slow for a while."""
    cut: Fraction = 0.0
    """Edges that are cut for a while."""
    partition: Fraction = 0.0
    """Probability that the clients are split into two halves for a while."""
    loss: Fraction = 0.0
    """Share of all messages that is lost."""
    duplicate: Fraction = 0.0
    """Share of all messages that is sent twice."""
    delay: Fraction = 0.0
    """Share of all messages that is delayed by a second."""
    reorder: Fraction = 0.0
    """Share of all messages that others overtake."""
    seed: Index | None = None
    """Of these draws; the run's seed by default."""
