"""A plan: everything that will happen in a run, in virtual seconds."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ...topology.errors import UserError
from ...transport.schedule import Schedule


class PlanError(UserError):
    """A scenario that never ends; the message is one line for the user."""


@dataclass(slots=True)
class Incarnation:
    """One process of a client: the rounds it takes part in, and how it ends. Times are virtual seconds."""

    number: int
    first: int
    start_s: float
    last: int = 0
    """The last round that it completes; less than ``first`` if none."""
    end_s: float = float("nan")
    ending: Literal["finish", "crash", "leave"] = "finish"
    state_round: int | None = None
    """The round whose state it begins from; None: from the start of the model."""


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message on its way: when it was given to the sender's uplink, when it had left it, when it arrived."""

    src: int
    dst: int
    round: int
    phase: int
    sent_s: float
    left_s: float
    arrived_s: float
    copies: int
    """0: lost on the way."""


@dataclass(frozen=True)
class Plan:
    schedules: tuple[Schedule, ...]
    """One a client."""
    incarnations: tuple[tuple[Incarnation, ...], ...]
    messages: tuple[SentMessage, ...]
    """In the order in which they are sent; cut ones are not among them."""
    events: tuple[tuple[float, int, str, str], ...] = field(default=())
    """(virtual seconds, client, kind, detail)"""
    conditions: tuple[tuple[float | None, str], ...] = field(default=())
    """What the scenario does to clients and links for a while: (virtual seconds of its start if known, text)."""
    synchronous: bool = True
    """Every client uses each neighbour's message of its own round, every time: no message is late or missing."""

    withheld: int = 0
    """Messages that are not sent: the link is cut, or the neighbour away."""
    asked: tuple[np.ndarray, ...] | None = None
    """By client, (K, P, g) bool: which messages it waits for; None: all, in the rounds that it completes."""

    @property
    def has_server(self) -> bool:
        """The last process is one."""
        return self.asked is not None

    @property
    def has_late(self) -> bool:
        """Some client uses a message of another round than its own."""
        return any(
            ((schedule.uses > 0) & (schedule.uses != np.arange(1, len(schedule.uses) + 1)[:, None, None])).any()
            for schedule in self.schedules
        )

    @property
    def end_s(self) -> float:
        return max((each.end_s for incarnations in self.incarnations for each in incarnations), default=0.0)
