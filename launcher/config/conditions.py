"""The sections of the configuration under which a run takes place: speeds and links."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import MaxLen, MinLen

from ...topology.section import Fraction, Index, Needs, NotNegative, Positive, Section


@dataclass(frozen=True)
class ComputeSection(Section):
    """How long local work takes."""

    step_s: Positive | None = None
    """Seconds of a local step (work = "full": of a pass over the training samples). Without it, a step is timed once on
    this machine and written into the run's config.toml."""
    slowdown: tuple[Positive, ...] = ()
    """Factor on the time of each client, in their order; a shorter list is repeated."""


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
