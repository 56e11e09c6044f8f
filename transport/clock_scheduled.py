"""What the planned clock and the wall clock have in common: some messages are lost, late or left out, and some clients
come and go."""

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from .channel import Channels
from .clock import CONFIRMATION, OUT_OF_TURN, Clock, Use
from .constants import CONSTANTS
from .endpoint import Endpoint, Message, NeighbourTimeout
from .envelope import Rejected
from .schedule import Schedule
from .waiting import parts_of
from .window import Flow, limit, tell_every

LAST_WORDS_S = CONSTANTS.last_words_s
NO_VECTOR = np.empty(0)
"""In place of the vector of a message that has none: its sender is quiet in this exchange."""


@dataclass(frozen=True)
class Rules:
    """What is done about messages that are late or missing. Those after ``checkpoint_every`` are the wall clock's."""

    silence: str = "skip"  # what takes the place of a vector that does not come: "stale", the last one, else none
    bounded: bool = True  # whether messages are confirmed, and so many at most are under way
    checkpoint_every: int = 0  # rounds
    staleness: float = 0.0  # rounds that a message may be behind
    deadline_s: float = math.inf
    is_server: bool = False
    listens_in: int = 0  # the first round of a server's client that comes back or late, in which it only listens; or 0


class ScheduledClock(Clock):
    asks = True

    def __init__(self, endpoint: Endpoint, channels: Channels, timeout: float, schedule: Schedule, rules: Rules):
        super().__init__(endpoint, channels, timeout)
        self.schedule = schedule
        self._rules = rules
        self._presence = endpoint.presence
        self._place = {node: place for place, node in enumerate(schedule.neighbours.tolist())}
        size, self._flows = channels.dtype.itemsize, {}
        for node in self.neighbours:
            most = limit(channels[node].sent_in(1), size, int(schedule.backlog[self._place[node]]))
            self._flows[node] = Flow(most, tell_every(channels[node].received_in(1), size))
        self._used: list[Use] = []

    def next_round(self) -> Sequence[Use]:
        super().next_round()
        used, self._used = self._used, []
        return used

    # -- sending -------------------------------------------------------------------------------------------------------

    def tell_quiet(self, quiet: Collection[int]) -> Collection[int]:
        """The plan has a message of everyone in every exchange: one without a vector takes the place of what is not
        said. Such messages are counted as confirmations are."""
        for node in quiet:
            phase = self.sent[node]
            self.sent[node] += 1
            for _ in range(self.clear_to_send(node, phase, ())):
                self.outgoing.send([node], self.round, phase, beside=CONFIRMATION)
        return quiet

    def _copies(self, node: int, phase: int) -> int:
        return int(self.schedule.copies[self.round - 1, phase, self._place[node]])

    def _make_room(self, node: int, copies: int) -> bool:
        """Waits until so many more messages may be under way to the neighbour, and counts them; False if it is gone."""
        flow = self._flows[node]
        if self._rules.bounded:
            self._until(
                lambda: flow.has_room(copies) or self._is_gone(node),
                f"client {node} has taken nothing for {self.timeout:g} s, in round {self.round}",
            )
        flow.sent += copies
        return not self._is_gone(node)

    def _is_gone(self, node: int) -> bool:
        """Whether nothing that is sent to it now is taken."""
        return node in self._presence.died

    def _until(self, reached: Callable[[], bool], complaint: str) -> None:
        """Takes in messages until ``reached``. Raises NeighbourTimeout."""
        if reached():
            return
        for until in parts_of(self.timeout):
            while time.monotonic() < until:
                self._listen(until)
                if reached():
                    return
        raise NeighbourTimeout(complaint)

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _listen(self, until: float) -> bool:
        """Takes in the next message, if one comes before that moment (time.monotonic() seconds); whether one has."""
        message = self.endpoint.receive_or_hear(min(until, self._let_arrive()))
        if message is not None:
            self._store(message)
        return message is not None

    def idle(self) -> None:
        self._listen(time.monotonic() + 1)

    def _let_arrive(self) -> float:
        """Lets what has come in arrive, where that takes time; returns when the next message will."""
        return math.inf

    def _store(self, message: Message) -> None:
        node, round, phase, tensors, _ = message
        if round == 0 and not tensors:
            self._note_greeting_or_confirmation(message)
            return
        is_shown = self.channels.is_shown(node, round, phase)
        try:
            if not 1 <= round <= len(self.schedule.start) or phase >= self.schedule.comes.shape[1] + is_shown:
                raise Rejected(OUT_OF_TURN)
            is_quiet = not tensors and self.channels[node].may_be_quiet and not is_shown
            vector = NO_VECTOR if is_quiet else self.channels.decode(node, round, phase, tensors)
        except Rejected as rejected:
            self.endpoint.reject(rejected)
        else:
            (self._take_in_shown if is_shown else self._take_in)(node, round, phase, vector)

    def _note_greeting_or_confirmation(self, message: Message) -> None:
        """Both have round 0; a confirmation's phase is the number of messages that were taken so far."""
        node, flow = message.src, self._flows[message.src]
        if message.phase:
            if message.incarnation == self._presence.linked.get(node):  # confirmations of an earlier one may come late
                flow.confirmed = max(flow.confirmed, min(flow.sent, message.phase))
        elif self.endpoint.welcome(message):
            flow.begin_again()
            self._greeted(node)

    def _greeted(self, node: int) -> None:
        """A neighbour has come late, or again."""

    def _take_in(self, node: int, round: int, phase: int, vector: np.ndarray) -> None:
        raise NotImplementedError

    def _take_in_shown(self, node: int, round: int, phase: int, vector: np.ndarray) -> None:
        raise NotImplementedError

    def _taken_out(self, node: int) -> None:
        """A message of the neighbour takes no memory any more."""
        if self._rules.bounded and (count := self._flows[node].take()) and node in self._presence.linked:
            self.outgoing.send([node], 0, count, beside=CONFIRMATION)
