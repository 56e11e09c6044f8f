"""How many messages may be under way on one direction of an edge, so that memory is bounded and no run stops.

A sender has at most ``Flow.limit`` messages under way to a neighbour: sent, and not known to be out of the neighbour's
queues. The neighbour confirms, with a message that carries no vector, each time it has taken so many out of them.

A message that is needed stays until its last use. In the order of planned time at most ``backlog`` of an edge's
messages wait for that at once (``Schedule.backlog``), and with ``tell_every`` confirmations lag behind by
``tell_every`` - 1 messages at most: a limit of ``backlog + tell_every + 1`` never holds up a run that goes in this
order, where a message may be sent twice. It then holds up none at all. A client's sends and uses follow each other as
the plan says, whatever others do, and one that waits goes on taking in messages, so whatever can happen next still can
after something else has happened; and where every order of events can go on, all of them come to the same end.

On the wall clock time passes by itself, and a receiver keeps of each of a round's messages the freshest at most, and
what it has yet to use in rounds to come. So the client that is furthest behind is never held up where the limit is at
least a round's messages, and ``tell_every + 1``; others may have to wait for it.
"""

from collections.abc import Collection
from dataclasses import dataclass

from .constants import CONSTANTS
from .schedule import Schedule

_SPARE_BYTES, _MOST_SPARE = CONSTANTS.window_bytes, CONSTANTS.window_most
_QUEUE = 1000


@dataclass(slots=True)
class Flow:
    """Messages to and from one neighbour, counted since the two processes have met."""

    limit: int  # own messages that may be under way
    tell_every: int  # the neighbour's messages that are taken out before it is told
    sent: int = 0
    confirmed: int = 0
    taken: int = 0
    told: int = 0

    def has_room(self, copies: int) -> bool:
        return self.sent - self.confirmed + copies <= self.limit

    def take(self) -> int | None:
        """One of the neighbour's messages is taken out; the number to tell it, where it is time for that."""
        self.taken += 1
        if self.taken - self.told < self.tell_every:
            return None
        self.told = self.taken
        return self.told

    def begin_again(self) -> None:
        """The neighbour is another process now."""
        self.sent = self.confirmed = self.taken = self.told = 0


def limit(lengths: Collection[int], itemsize: int, backlog: int) -> int:
    """Messages that may be under way to a neighbour; lengths and item size are those of a round's messages."""
    every = tell_every(lengths, itemsize)
    return backlog + max(len(lengths) + 1 + every, 2 * every)


def tell_every(lengths: Collection[int], itemsize: int) -> int:
    """Messages that are confirmed at a time: many small ones."""
    return max(1, min(_MOST_SPARE, _SPARE_BYTES // (max(lengths, default=1) * itemsize)) // 2)


def queue_for(schedule: Schedule) -> int:
    """Messages and confirmations that a queue of ZeroMQ's must hold, so that the limits above are what bounds it."""
    most = max(int(backlog.max(initial=0)) for backlog in (schedule.backlog, schedule.backlog_in))
    return max(_QUEUE, 2 * (most + _MOST_SPARE))
