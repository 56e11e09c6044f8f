"""Wall clock: the delays, losses and deadlines of a scenario, really slept and really waited for."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..metrics.records import Record
from .codecs import Tensors
from .constants import CONSTANTS
from .endpoint import Message
from .peers import Waited
from .scheduled import ScheduledPeers
from .waiting import parts_of

_GRACE_S = CONSTANTS.last_words_wall_s

DEADLINES = "deadlines"
"""In a checkpoint: how many waits of this life a deadline has ended."""


class TimedPeers(ScheduledPeers):
    """A message counts as arrived when its link's delay has passed since it came in; what is lost is not sent.

    In an exchange a client waits until it has, of every neighbour that is there, a message of its own round less
    ``staleness`` or a later one, at most ``deadline_s`` seconds. It then uses what the planner would: see
    launcher/planner/simulation.py.
    """

    def __init__(
        self,
        *arguments: Any,
        staleness: float,
        deadline_s: float,
        is_server: bool = False,
        listens_in: int = 0,
        **options: Any,
    ):
        """A server's clients only listen in their first round, where that is not the run's; ``listens_in`` is it."""
        super().__init__(*arguments, **options)
        self._is_server = is_server
        self._listens_in = listens_in
        self._staleness = staleness
        self._deadline_s = deadline_s
        self._coming: defaultdict[tuple[int, int], list[tuple[float, int, np.ndarray]]] = defaultdict(list)
        self._there: defaultdict[tuple[int, int], dict[int, np.ndarray]] = defaultdict(dict)
        self._deadlines = 0
        life = self.schedule.to_life
        self._comes_later = ((life > 1) | (life[:1] == 0)).any(axis=(0, 1))
        self._sent_last: dict[tuple[int, int], tuple[int, Tensors]] = {}  # (neighbour, phase): round, what was sent
        self._shown_last: dict[int, tuple[int, int, Tensors]] = {}  # client: round, phase, what was shown
        self._looks: dict[int, np.ndarray] = {}  # round: the server's answer, shown for evaluation
        self._unsent: set[int] = set()  # whom the plan keeps from getting this round's message
        self._has_answer = False
        self._idle_s = 0.0
        self._longest_for: int | None = None

    # -- sending -------------------------------------------------------------------------------------------------------

    def _copies(self, node: int, phase: int, tensors: Tensors) -> int:
        row, place = self.round - 1, self._place[node]
        if self._comes_later[place]:
            self._sent_last[node, phase] = self.round, tuple(tensor.copy() for tensor in tensors)
        if self._is_gone(node):
            return 0
        planned = self.schedule.to_life[row, phase, place] > 0  # else the plan had it away at this moment
        copies = int(self.schedule.copies[row, phase, place]) if planned else 1
        if not copies:
            self._unsent.add(node)
        return copies if self._make_room(node, copies) else 0

    def _is_gone(self, node: int) -> bool:
        return super()._is_gone(node) or node in self._endpoint.left or node not in self._endpoint.lives

    def _heed(self, message: Message) -> None:
        node, lives = message.src, self._endpoint.lives
        before = lives.get(node, 0)
        super()._heed(message)
        if lives.get(node, 0) > before:
            self._catch_up(node)

    def _catch_up(self, node: int) -> None:
        """What was sent last goes to a neighbour that has just come, too: both could wait for each other for ever."""
        for (other, phase), (round, tensors) in self._sent_last.items():
            if other == node:
                self._count(self._endpoint.send([node], round=round, phase=phase, tensors=tensors))
                self._flows[node].sent += 1
        if node in self._shown_last:
            self._send_to_show([node], *self._shown_last[node])

    # -- for evaluation ------------------------------------------------------------------------------------------------

    def lacks_answer(self, node: int, *, answered: bool) -> bool:
        if self._is_server:
            return not answered or node in self._unsent or self._is_gone(node)
        return not self._has_answer

    def _may_show(self, node: int, phase: int, tensors: Tensors) -> bool:
        if self._comes_later[self._place[node]]:
            self._shown_last[node] = self.round, phase, tuple(tensor.copy() for tensor in tensors)
        return not self._is_gone(node)

    def _take_in_shown(self, node: int, round: int, phase: int, vector: np.ndarray) -> None:
        """A client far behind keeps two: the next one that it needs, and the latest."""
        if round >= self.round:
            self._looks[round] = vector
            for between in sorted(self._looks)[1:-1]:
                del self._looks[between]

    def _take_shown(self, node: int, phase: int) -> np.ndarray | None:
        """The answer of this round, or the first one after it, be it shown or come too late to be used."""
        for until in parts_of(self._timeout):
            while (now := time.monotonic()) < until:
                known = {round: vector for round, vector in self._known_answers(node) if round >= self.round}
                if known:
                    self._looks = {round: vector for round, vector in self._looks.items() if round > self.round}
                    return known[min(known)]
                if self._is_silent(node):
                    return None
                self._listen(min(until, now + _GRACE_S))
        self._complain([node])

    def _known_answers(self, node: int) -> Iterator[tuple[int, np.ndarray]]:
        yield from self._looks.items()
        opened = len(self._links[node].opened)
        for phase in {0, opened}:  # the answer is message 0 of a round, but for what comes before it in the first
            coming = [(round, vector) for _, round, vector in self._coming[node, phase]]
            for round, vector in (*coming, *self._there[node, phase].items()):
                if phase == (opened if round == 1 else 0):
                    yield round, vector

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _take_in(self, node: int, round: int, phase: int, vector: np.ndarray) -> None:
        coming = self._coming[node, phase]
        arrival = time.monotonic() + float(self.schedule.delays[round - 1, phase, self._place[node]])
        coming.append((max(arrival, coming[-1][0]) if coming else arrival, round, vector))

    def _ripen(self) -> float:
        """Moves what has arrived by now to where it can be used; returns when the next message arrives."""
        now, next_ = time.monotonic(), math.inf
        for (node, phase), coming in self._coming.items():
            there = self._there[node, phase]
            while coming and coming[0][0] <= now:
                _, round, vector = coming.pop(0)
                if round not in there:
                    there[round] = vector
                else:
                    self._taken_out(node)
            next_ = min(next_, coming[0][0] if coming else math.inf)
            freshest = max(there, default=0)
            for round in list(there):
                exact = self._staleness == 0 and round >= self.round
                if round != freshest and not exact:
                    del there[round]
                    self._taken_out(node)
        return next_

    def left_out(self) -> bool:
        """The first round of a client that comes back, or late; and rounds that the server has closed already."""
        self._ripen()
        answered = max((max(there, default=0) for there in self._there.values()), default=0)
        return self.round == self._listens_in or answered >= self.round > 1

    def _receive(self, nodes: Sequence[int], bounded: bool = True) -> dict[int, np.ndarray]:
        began = time.monotonic()
        deadline, patience = began + (self._deadline_s if bounded else math.inf), parts_of(self._timeout)
        until = next(patience)
        phases = {node: self._taken[node] for node in nodes}
        while True:
            self._ripen()
            waiting = [node for node, phase in phases.items() if not self._enough(node, phase)]
            now = time.monotonic()
            if not waiting or now >= deadline:
                self._deadlines += bool(waiting)
                break
            if now >= until and (until := next(patience, -math.inf)) < now:
                self._complain(waiting)
            self._longest_for = waiting[0]
            self._listen(min(deadline, until, now + _GRACE_S))
        self._idle_s += now - began
        return self._choose(phases)

    def _enough(self, node: int, phase: int) -> bool:
        far_enough = self.round - self._staleness
        if self._staleness and far_enough <= 0:
            return True
        if max(self._there[node, phase], default=0) >= max(1, far_enough):
            return True
        opened = len(self._links[node].opened)
        if self.round == 1 and phase >= opened > 0 and max(self._there[node, phase - opened], default=0) > 1:
            return True  # what comes after an opening is message 0 of later rounds
        first = self._endpoint.first_rounds.get(node, 1)
        early = self.round < first or (self._is_server and self.round == first > 1)
        return (early or self._is_silent(node)) and not self._coming[node, phase]

    def _is_silent(self, node: int) -> bool:
        """Nothing more is to be expected of it."""
        endpoint = self._endpoint
        away = node in endpoint.gone or node in endpoint.left or node not in endpoint.lives
        return away or time.monotonic() - endpoint.finished.get(node, math.inf) > _GRACE_S

    def _choose(self, phases: dict[int, int]) -> dict[int, np.ndarray]:
        vectors = {}
        for node, phase in phases.items():
            self._taken[node] += 1
            there = self._there[node, phase]
            round = freshest = max(there, default=0)
            if self._staleness == 0 and self.round in there:
                round = self.round
            elif (self._staleness == 0 or freshest < self.round - self._staleness) and self._fallback != "stale":
                round = 0
            if round and not there[round].size:  # it had nothing to say
                round = 0
            if round:
                vectors[node] = there[round]
                self._has_answer |= phase == len(self._links[node].received_in(self.round)) - 1
            self._note_use(node, phase, round, there.get(round))
        return vectors

    # -- time ----------------------------------------------------------------------------------------------------------

    def sleep(self, elapsed_s: float) -> None:
        planned = float(self.schedule.compute[self.round - 1])
        if math.isnan(planned):
            return
        end = time.monotonic() + planned - elapsed_s
        while time.monotonic() < end:
            self._listen(end)

    def waited(self) -> Waited:
        waited = Waited(self._idle_s, self._longest_for)
        self._idle_s, self._longest_for = 0.0, None
        return waited

    def next_round(self) -> list[Record]:
        self._unsent.clear()
        self._has_answer = False
        return super().next_round()

    def state(self) -> dict[str, np.ndarray]:
        return super().state() | {DEADLINES: np.array([self._deadlines])}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        super().load(state)
        if DEADLINES in state:
            self._deadlines = int(state[DEADLINES][0])

    def deadlines_passed(self) -> int:
        return self._deadlines

    def inbox_bytes(self) -> int:
        coming = sum(vector.nbytes for queue in self._coming.values() for _, _, vector in queue)
        kept = (*self._there.values(), self._looks)
        return super().inbox_bytes() + coming + sum(vector.nbytes for each in kept for vector in each.values())
