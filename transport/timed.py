"""Wall clock: the delays, losses and deadlines of a scenario, really slept and really waited for."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .codecs import Tensors
from .constants import CONSTANTS
from .endpoint import Message
from .patience import parts_of
from .peers import Waited
from .scheduled import ScheduledPeers

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
        endpoint = self._endpoint
        silent = node in endpoint.gone or node in endpoint.left or node not in endpoint.lives
        first = endpoint.first_rounds.get(node, 1)
        silent |= self.round < first or (self._is_server and self.round == first > 1)
        silent |= time.monotonic() - endpoint.finished.get(node, math.inf) > _GRACE_S
        return silent and not self._coming[node, phase]

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
        return super().inbox_bytes() + coming + sum(v.nbytes for there in self._there.values() for v in there.values())
