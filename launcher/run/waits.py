"""Who waits for whom: what clients say of their long waits, told once for each cause.

A client waits until it has a message of everyone that it exchanges with. Where clients wait in a circle, each for what
the next has not sent, none of them ever will. Who waits for one at work may only have to be patient.
"""

from collections import defaultdict
from collections.abc import Callable, Set
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple, Self

from ...transport.constants import CONSTANTS
from ...transport.control import Waiting

_SETTLED_S = CONSTANTS.tell_wait_s / 5
"""Nothing is concluded before all has been as it is for so long: word of the end of a wait may be under way."""

_NAMED = 6


class News(NamedTuple):
    node: int  # who waits
    text: str
    hopeless: bool  # nothing can come of it any more


@dataclass(frozen=True)
class Wait:
    """The wait of a client in this ``round`` that has sent so many messages in it to each neighbour.

    ``wanted`` is {neighbour: round and phase of the message that is waited for}.
    """

    wanted: dict[int, tuple[int, int]]
    round: int
    sent: dict[int, int]

    @classmethod
    def of(cls, told: Waiting) -> Self:
        return cls({i: (k, phase) for i, k, phase in told.wanted}, told.round, dict(told.sent))

    def has_not_sent(self, node: int, round: int, phase: int) -> bool:
        """False, too, where that is not known: it may be under way."""
        return self.round < round or (self.round == round and self.sent.get(node, 0) <= phase)


class Waits:
    """``name`` is how a client is called."""

    def __init__(self, name: Callable[[int], str]):
        self._name = name
        self._waits: dict[int, Wait] = {}
        self._seconds: dict[int, float] = {}
        self._changed = self._told_s = 0.0
        self.hopeless: News | None = None

    def note(self, node: int, wait: Wait, seconds: float, now: float) -> None:
        if self._waits.get(node) != wait:
            self._changed = now
        self._waits[node], self._seconds[node] = wait, seconds

    def over(self, node: int) -> None:
        self._waits.pop(node, None)
        self._seconds.pop(node, None)

    def news(self, done: Set[int], now: float) -> News | None:
        """What there is to tell now, if anything; ``done`` are those that have completed all their rounds."""
        if not self._waits or self.hopeless or now < self._changed + _SETTLED_S:
            return None
        self.hopeless = self._circle() or self._for_one_of(done)
        seconds = max(self._seconds.values())
        if self.hopeless or seconds < 2 * self._told_s:  # who learns slowly does so in every round
            return self.hopeless
        news = self._at_work(seconds)
        self._told_s = seconds if news else self._told_s
        return news

    def _circle(self) -> News | None:
        """Of those that wait themselves, and have not sent what the one before waits for."""
        waits, owing = self._waits, {}
        for node in sorted(waits):
            wanted = waits[node].wanted.items()
            owing[node] = sorted(i for i, message in wanted if i in waits and waits[i].has_not_sent(node, *message))
        try:
            TopologicalSorter(owing).prepare()
        except CycleError as error:
            circle = error.args[1][::-1]
            pairs = [f"{self._name(i)} for {self._name(j)}" for i, j in pairwise(circle)]
            more = f" and {len(pairs) - _NAMED} more" if len(pairs) > _NAMED else ""
            text = "waits in a circle where nobody sends what the other waits for, in round"
            text = f"{text} {self._waits[circle[0]].round}: {', '.join(pairs[:_NAMED])}{more}"
            return News(circle[0], text, hopeless=True)
        return None

    def _for_one_of(self, done: Set[int]) -> News | None:
        for node, wait in sorted(self._waits.items(), key=lambda item: item[0]):
            for whom in wait.wanted.keys() & done:
                text = f"waits for {self._name(whom)} in round {wait.round}, which has completed all its rounds"
                return News(node, text, hopeless=True)
        return None

    def _at_work(self, seconds: float) -> News | None:
        """Tells for whom most wait, among those who wait for nobody."""
        waiting = defaultdict[int, list[int]](list)
        for node in sorted(self._waits):
            for whom in self._waits[node].wanted.keys() - self._waits.keys():
                waiting[whom].append(node)
        if not waiting:
            return None
        whom, nodes = max(waiting.items(), key=lambda item: len(item[1]))
        others = f", and so do {len(nodes) - 1} more" if len(nodes) > 1 else ""
        round, _ = self._waits[nodes[0]].wanted[whom]
        text = f"waits for {self._name(whom)} in round {round}, for {seconds:.0f} s so far{others}"
        return News(nodes[0], text, hopeless=False)
