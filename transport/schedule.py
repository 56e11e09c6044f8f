"""Which messages are used, by a client's part of a plan and by the one rule of the planner and of the wall clock, and
how many may be under way.

In an exchange of its round a client waits, at most until a deadline, for all neighbours of which something is still to
be expected: until each has got as far as ``needed_round``. Of each neighbour it then uses, by ``chosen_round``,

- where clients are synchronous (staleness 0): the message of its own round;
- else the freshest that has arrived, unless that is more than ``staleness`` rounds old;
- where there is none such, because the deadline passed, the neighbour is gone, has finished or has got farther: the
  freshest that has arrived at all (silence = "stale"), or none ("wait", "skip").

Rounds count from 1, ``freshest`` is the latest round of which a message has arrived, and 0 stands for no message.

So that memory is bounded, a sender has at most ``Flow.limit`` messages under way to a neighbour: sent, and not known to
be out of the neighbour's queues. The neighbour confirms, with a message that carries no vector, each time it has taken
so many out of them. No run stops for that:

A message that is needed stays until its last use. In the order of planned time at most ``backlog`` of an edge's
messages wait for that at once, and with ``tell_every`` confirmations lag behind by ``tell_every`` - 1 messages at most:
a limit of ``backlog + tell_every + 1`` never holds up a run that goes in this order, where a message may be sent twice.
It then holds up none at all. A client's sends and uses follow each other as the plan says, whatever others do, and one
that waits goes on taking in messages, so whatever can happen next still can after something else has happened; and
where every order of events can go on, all of them come to the same end.

On the wall clock time passes by itself, and a receiver keeps of each of a round's messages the freshest at most, and
what it has yet to use in rounds to come. So the client that is furthest behind is never held up where the limit is at
least a round's messages, and ``tell_every + 1``; others may have to wait for it."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .array_file import ArrayFile, read
from .environment import CONSTANTS

_RARE = "again", "under_way_s"  # arrays that are only in a file where they hold something


@dataclass(frozen=True)
class Schedule:
    """Which messages a client sends, gets and uses, and when. Shapes: K rounds (round k is row k - 1), P messages of a
    round (phases), g neighbours in ascending order. A client has one incarnation, or several where it crashes and comes
    back; they count from 1. Times are virtual seconds, NaN for rounds that the client does not take part in."""

    neighbours: np.ndarray  # (g,)
    uses: np.ndarray  # (K, P, g) int32: round of the neighbour's message that is used; 0: none
    copies: np.ndarray  # (K, P, g) uint8: how often the own message is sent; 0: it is lost, or nobody is there
    to_life: np.ndarray  # (K, P, g) uint8: the neighbour's incarnation that it is meant for; 0: nobody is there
    again: np.ndarray  # (K, P, g) uint8: the last incarnation that gets it as it comes, after it was sent; 0: none does
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
    under_way_s: np.ndarray  # (g,) float64: how long the kernel keeps a message of the neighbour's under way, at most

    def most_kept(self, every: int) -> np.ndarray:
        """(g,): own messages to each neighbour that checkpoints ``every`` so many rounds have stored at once, at most:
        each from its round until the last checkpoint before its last use."""
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

    def partners(self, round: int) -> list[int]:
        """Returns the neighbours that are sent to in a round."""
        return self.neighbours[(self.to_life[round - 1] > 0).any(axis=0)].tolist()

    def save(self, path: Path) -> None:
        ArrayFile({name: array for name, array in vars(self).items() if name not in _RARE or array.any()}).save(path)

    @classmethod
    def load(cls, path: Path) -> "Schedule":
        """Raises DamagedFile."""
        arrays = read(path)
        rare = {"again": np.zeros_like(arrays["copies"]), "under_way_s": np.zeros(len(arrays["neighbours"]))}
        return cls(**rare | arrays)


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


def deadlines_left(exchanges: int, answered: int) -> int:
    """For how many deadlines a server's client waits for the last answer of a round of so many exchanges, of which so
    many before were answered: the server may wait for others in each exchange to come. For an answer before the last
    it waits for two, one of them for the way."""
    return min(exchanges, max(2, exchanges - answered))


@dataclass(slots=True)
class Flow:
    """Messages to and from one neighbour, counted since the two processes have met."""

    limit: int  # own messages that may be under way
    tell_every: int  # the neighbour's messages that are taken out before it is told
    sent: int = 0
    confirmed: int = 0
    taken: int = 0
    told: int = 0


def limit(lengths: Collection[int], itemsize: int, backlog: int) -> int:
    """Messages that may be under way to a neighbour; lengths and item size are those of a round's messages."""
    every = tell_every(lengths, itemsize)
    return backlog + max(len(lengths) + 1 + every, 2 * every)


def tell_every(lengths: Collection[int], itemsize: int) -> int:
    """Messages that are confirmed at a time: many small ones."""
    fit = CONSTANTS.window_bytes // (max(lengths, default=1) * itemsize)
    return max(1, min(CONSTANTS.window_most, fit) // 2)


def queue_for(schedule: Schedule) -> int:
    """Messages and confirmations that a queue of ZeroMQ's must hold, so that the limits above are what bounds it."""
    most = max(int(backlog.max(initial=0)) for backlog in (schedule.backlog, schedule.backlog_in))
    return max(1000, 2 * (most + CONSTANTS.window_most))
