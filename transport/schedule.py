"""Which messages are used: by a client's part of a plan, and by the one rule of the planner and of the wall clock.

In an exchange of its round a client waits, at most until a deadline, for all neighbours of which something is still to
be expected: until each has got as far as ``needed_round``. Of each neighbour it then uses, by ``chosen_round``,

- where clients are synchronous (staleness 0): the message of its own round;
- else the freshest that has arrived, unless that is more than ``staleness`` rounds old;
- where there is none such, because the deadline passed, the neighbour is gone or has finished, or a message of a later
  round shows that it has got farther: the freshest that has arrived at all (silence = "stale"), or none ("wait",
  "skip").

Rounds count from 1, ``freshest`` is the latest round of which a message has arrived, and 0 stands for no message.
"""

import math
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from .array_file import ArrayFile, read


@dataclass(frozen=True)
class Schedule:
    """Which messages a client sends, gets and uses, and when. Shapes: K rounds (round k is row k - 1), P messages of a
    round (phases), g neighbours in ascending order. A client has one incarnation, or several where it crashes and comes
    back; they count from 1. Times are virtual seconds, NaN for rounds that the client does not take part in."""

    neighbours: np.ndarray  # (g,)
    uses: np.ndarray  # (K, P, g) int32: round of the neighbour's message that is used; 0: none
    copies: np.ndarray  # (K, P, g) uint8: how often the own message is sent; 0: it is lost, or nobody is there
    to_life: np.ndarray  # (K, P, g) uint8: the neighbour's incarnation that it is meant for; 0: nobody is there
    needed: np.ndarray  # (K, P, g) int32: the last round in which the neighbour uses it; 0: never
    comes: np.ndarray  # (K, P, g) uint8: how often the neighbour's message of its round k is sent to this client
    into_life: np.ndarray  # (K, P, g) uint8: the own incarnation that it is meant for
    keep: np.ndarray  # (K, P, g) int32: last own round in which the neighbour's message of round k is used; 0: never
    delays: np.ndarray  # (K, P, g) float64: seconds from sending to arrival of the neighbour's message of its round k
    start: np.ndarray  # (K,) float64
    end: np.ndarray  # (K,) float64
    compute: np.ndarray  # (K,) float64: seconds of the local work
    idle: np.ndarray  # (K,) float64: seconds spent waiting for messages
    waited_for: np.ndarray  # (K,) int32: the neighbour that came last, -1: none had to be waited for
    deadlines: np.ndarray  # (K,) uint8: waits of the round that the deadline ended
    shows: np.ndarray  # (K, g) uint8: a server's client's incarnation that is only shown the round's answer; 0: none is
    shown_at: np.ndarray  # (K,) float64: when the server has that answer; NaN without a server
    backlog: np.ndarray  # (g,) int32: own messages to the neighbour that wait for their last use at once, at most
    backlog_in: np.ndarray  # (g,) int32: the same of the neighbour's messages to this client

    def most_kept(self, every: int) -> np.ndarray:
        """(g,): own messages to each neighbour that are stored at once for checkpoints every so many rounds, at most.
        From the round in which it is sent until the last checkpoint before its last use."""
        rounds, _, places = self.needed.shape
        if not every:
            return np.zeros(places, int)
        first, _, place = np.nonzero(self.needed)
        last = (self.needed[self.needed > 0] - 1) // every * every - 1  # as a row
        changes = np.zeros((rounds + 1, places), int)
        stored = last >= first
        np.add.at(changes, (first[stored], place[stored]), 1)
        np.add.at(changes, (last[stored] + 1, place[stored]), -1)
        return changes.cumsum(axis=0).max(axis=0)

    def save(self, path: Path) -> None:
        ArrayFile({field.name: getattr(self, field.name) for field in fields(self)}).save(path)

    @classmethod
    def load(cls, path: Path) -> "Schedule":
        """Raises DamagedFile."""
        return cls(**read(path))


def needed_round(round: int, staleness: float) -> int:
    """The least round of a neighbour's message that ends the wait for it; 0: nothing has to be waited for."""
    least = round - staleness
    return math.ceil(least) if least > 0 else 0


def chosen_round(round: int, freshest: int, has_own: bool, staleness: float, silence: str) -> int:
    """The round of the message that is used; ``has_own``: whether that of the client's own round has arrived."""
    if staleness == 0:
        if has_own:
            return round
    elif freshest >= round - staleness:
        return freshest
    return freshest if silence == "stale" else 0


def can_be_used(message_round: int, round: int, freshest: int, staleness: float) -> bool:
    """Whether a message that has arrived may be used in this round or a later one; others need not be stored."""
    return message_round == freshest or (staleness == 0 and message_round >= round)
