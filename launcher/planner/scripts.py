"""What a client does in a round: scripts that the simulation plays. A pattern of communication is such a script.

A script is a generator of steps. It is begun anew in each round of the client, and goes on when its last step is over:
a Send at once, a Compute when the local work is done, a Wait when each neighbour that is waited for has got far enough,
or the deadline has passed.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from .scenario import Scenario, Star

if TYPE_CHECKING:
    from .clients import Client


class Send(NamedTuple):
    """The uplink is given the phase's message for all neighbours that are there, or for those in ``to``."""

    phase: int
    to: frozenset[int] | None = None


class Wait(NamedTuple):
    """The client waits for the phase's messages of all neighbours, or of those in ``of``, and uses them."""

    phase: int
    of: frozenset[int] | None = None
    bounded: bool = True
    """By the deadline."""
    own_round_only: bool = False
    """Whatever time.silence says, a message of another round is not used."""
    overtaken_by: int | None = None
    """A phase: its message of round 2 or later ends the wait, too."""


class Compute(NamedTuple):
    """The client does its local work."""


Step = Send | Wait | Compute
Script = Callable[["Client", float], Iterator[Step]]
"""Given the client and the time, the steps of its present round."""


def scripts_of(scenario: Scenario) -> list[Script]:
    """Each client's script."""
    if scenario.star is None:
        return [partial(gossip, scenario.phases)] * scenario.clients
    return [*[partial(participant, scenario.star)] * scenario.learners, partial(server, scenario.star)]


def gossip(phases: int, client: "Client", now: float) -> Iterator[Step]:
    """An exchange with all neighbours, the local work, then the other exchanges."""
    if not phases:
        yield Compute()
    for phase in range(phases):
        yield Send(phase)
        yield Wait(phase)
        if phase == 0:
            yield Compute()


def server(star: Star, client: "Client", now: float) -> Iterator[Step]:
    """Waits for the round's participants, then answers."""
    opening = star.opening if client.round == 1 else 0
    for phase in range(opening):
        yield Send(phase)
        yield Wait(phase)
    yield Wait(opening, star.participants[client.round - 1], overtaken_by=0 if opening else None)
    yield Send(opening, star.receivers[client.round - 1])


def participant(star: Star, client: "Client", now: float) -> Iterator[Step]:
    """A server's client works and sends where it takes part, then waits for the answer where it gets one.

    The deadline bounds the wait of a client that has just sent; one that has only to be called waits until it is. A
    client that comes back takes no part in its first round, it only gets the answer; one that has an answer of a later
    round before it begins to work leaves out the rounds up to there, as their results have been made without it; and
    one without an answer goes on with what it has.
    """
    opening = star.opening if client.round == 1 else 0
    for phase in range(opening):
        yield Wait(phase, own_round_only=True)
        yield Send(phase)
    answered = 0
    if client.round > 1:
        (answers,) = client.mail[0]
        answers.take_in(now)
        answered = answers.freshest
    chosen = client.number in star.participants[client.round - 1]
    takes_part = chosen and answered < client.round != client.listens_in
    if takes_part:
        yield Compute()
        yield Send(opening)
    if client.number in star.receivers[client.round - 1] and answered <= client.round:
        overtaken_by = 0 if opening else None  # the answer is message 0 of later rounds
        yield Wait(opening, bounded=takes_part, own_round_only=True, overtaken_by=overtaken_by)
