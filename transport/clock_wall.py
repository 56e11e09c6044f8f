"""Wall clock: the delays, losses and deadlines of a scenario, really slept and really waited for."""

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np

from .channel import Channels, Tensors
from .clock import CONFIRMATION, EVALUATION, Use, Waited, silence_of
from .clock_planned import Awake, Rules, ScheduledClock
from .endpoint import Endpoint
from .environment import CONSTANTS
from .messages import Key
from .schedule import Schedule, can_be_used, chosen_round, needed_round
from .use_log import DEADLINE, LEFT_OUT, UseLog

_LAST_WORDS_S = CONSTANTS.last_words_wall_s
DEADLINES = "deadlines"  # in a checkpoint: how many waits of this incarnation a deadline has ended


class Arrivals:
    """A neighbour's messages of one phase: those whose delay lasts, and those that are there and may still be used."""

    def __init__(self) -> None:
        self.coming: list[tuple[float, int, np.ndarray]] = []  # (time.monotonic() of arrival, round, vector), in order
        self.there: dict[int, np.ndarray] = {}  # {round: vector}

    @property
    def freshest(self) -> int:
        return max(self.there, default=0)

    def proceed(self, now: float, round: int, staleness: float) -> int:
        """Lets arrive what is due; returns how many were removed: they came twice, or cannot be used any more."""
        before = len(self.coming) + len(self.there)
        while self.coming and self.coming[0][0] <= now:
            _, number, vector = self.coming.pop(0)
            self.there.setdefault(number, vector)
        freshest = self.freshest
        self.there = {r: v for r, v in self.there.items() if can_be_used(r, round, freshest, staleness)}
        return before - len(self.coming) - len(self.there)

    def all(self) -> dict[int, np.ndarray]:
        return {round: vector for _, round, vector in self.coming} | self.there


class WallClock(ScheduledClock):
    """A message counts as arrived when its link's delay has passed since it came in; what is lost is not sent. What a
    client waits for, at most until the deadline, and what it uses then are the rule of schedule.py. Both are noted in
    the ``log``."""

    log: UseLog | None = None

    def __init__(self, endpoint: Endpoint, channels: Channels, timeout: float, schedule: Schedule, rules: Rules):
        super().__init__(endpoint, channels, timeout, schedule, rules)
        self._arrivals: defaultdict[tuple[int, int], Arrivals] = defaultdict(Arrivals)  # by neighbour and phase
        self._due: list[tuple[float, tuple[int, int]]] = []  # a heap: when a message arrives, and of whom
        self._sorted_out_in = 0  # the last round for which those that cannot be used any more were looked for
        life = schedule.to_life
        # who comes late itself, and begins with round 1, may be there before others that come at the same time
        self._comes_later = ((life > 1) | (life[:1] == 0)).any(axis=(0, 1)) | (schedule.start[0] > 0)
        self._sent_last: dict[tuple[int, int], tuple[int, Tensors]] = {}  # (neighbour, phase): round, what was sent
        self._shown_last: dict[int, tuple[int, int, Tensors]] = {}  # client: round, phase, what was shown
        self._shown: dict[int, np.ndarray] = {}  # round: the server's answer, shown for evaluation
        self._unsent_in: dict[int, int] = {}  # neighbour: the last round in which the plan kept a message from it
        self._answered_in = -1  # the last round in which the server's answer was used
        self._idle_s = 0.0
        self._longest_for: int | None = None
        self._slept_in = 0

    def clear_to_send(self, node: int, phase: int, tensors: Tensors) -> int:
        if self._comes_later[self._place[node]]:
            self._sent_last[node, phase] = self.round, tuple(tensor.copy() for tensor in tensors)
        if self._is_gone(node):
            return 0
        planned = self._planned(self.schedule.to_life, node, phase) > 0  # else the plan had it away now
        copies = self._planned(self.schedule.copies, node, phase) if planned else 1
        if not copies:
            self._unsent_in[node] = self.round
        return copies if self._make_room(node, copies) else 0

    def _is_gone(self, node: int) -> bool:
        return node not in self._presence.linked or node in self._presence.left

    def _greeted(self, node: int) -> None:
        """What was sent last goes to a neighbour that has just come, too: both could wait for each other for ever."""
        last = [(round, phase) for (other, phase), (round, _) in self._sent_last.items() if other == node]
        for round, phase in sorted(last):
            tensors = self._sent_last[node, phase][1]
            self.endpoint.send([node], round, phase, tensors, "" if tensors else CONFIRMATION)
            self._flows[node].sent += 1
        if node in self._shown_last:
            self.endpoint.send([node], *self._shown_last[node], EVALUATION)

    def _take_in(self, key: Key, vector: np.ndarray, *, is_shown: bool) -> None:
        node, round, phase = key
        if not is_shown:
            coming = self._arrivals[node, phase].coming
            before = coming[-1][0] if coming else 0.0  # a message does not overtake those before it
            delay = float(self.schedule.delays[round - 1, phase, self._place[node]])
            due = max(before, time.monotonic() + delay)
            coming.append((due, round, vector))
            heappush(self._due, (due, (node, phase)))
        elif round >= self.round:  # a client far behind stores two: the next one that it needs, and the latest
            self._shown[round] = vector
            for between in sorted(self._shown)[1:-1]:
                del self._shown[between]

    def _let_arrive(self) -> float:
        now, due = time.monotonic(), self._due
        changed = set(self._arrivals) if self._sorted_out_in != self.round else set()
        self._sorted_out_in = self.round
        while due and due[0][0] <= now:
            changed.add(heappop(due)[1])
        for node, phase in sorted(changed):
            for _ in range(self._arrivals[node, phase].proceed(now, self.round, self._rules.staleness)):
                self._taken_out(node)
        return min(now + _LAST_WORDS_S, due[0][0] if due else math.inf)

    def left_out(self) -> bool:
        """The first round of a client that comes back, or late; and rounds that the server has closed already."""
        self._let_arrive()
        latest = max((arrivals.freshest for arrivals in self._arrivals.values()), default=0)
        is_left_out = self.round == self._rules.listens_in or latest >= self.round > 1
        if is_left_out and self.log:
            self.log.write([(self.round, LEFT_OUT, 0, 0)])
        return is_left_out

    def receive(self, nodes: Sequence[int], *, bounded: float = 1) -> dict[int, np.ndarray]:
        began = time.monotonic()
        deadline = began + (bounded * self._rules.deadline_s if bounded else math.inf)
        phases = {node: self.taken[node] for node in nodes}
        waiting_for: int | None = None

        def waiting() -> Iterator[int]:
            return (node for node, phase in phases.items() if not self._has_enough(node, phase))

        others = waiting()  # looks at each when its turn has come

        def is_over() -> bool:
            nonlocal waiting_for
            self._let_arrive()
            if waiting_for is None or self._has_enough(waiting_for, phases[waiting_for]):
                waiting_for = next(others, None)
                if waiting_for is None:  # one that had enough may lack what is now on its way
                    waiting_for = next(waiting(), None)
            if waiting_for is None or time.monotonic() >= deadline:
                return True
            self._longest_for = waiting_for
            return False

        self._until(is_over, lambda: silence_of(waiting(), self), lambda: deadline)
        is_late = waiting_for is not None
        self.deadlines_passed += is_late
        self._idle_s += time.monotonic() - began
        vectors = {node: self._choose(node, phase) for node, phase in phases.items()}
        if self.log and phases:
            rows = [(self.round, phase, node, used or 0) for phase, node, used in self._used[-len(phases) :]]
            self.log.write([*rows, *([(self.round, DEADLINE, 0, 0)] if is_late else [])])
        return {node: vector for node, vector in vectors.items() if vector is not None}

    def _has_enough(self, node: int, phase: int) -> bool:
        arrivals = self._arrivals[node, phase]
        needed = needed_round(self.round, self._rules.staleness)
        needed = needed if needed == self.round else self._rules.last_heard(node, needed)
        if arrivals.freshest >= needed:
            return True
        opened = len(self.channels[node].opened)
        if self.round == 1 and phase >= opened > 0 and self._arrivals[node, phase - opened].freshest > 1:
            return True  # what comes after an opening is message 0 of later rounds
        first = self._presence.first_rounds.get(node, 1)
        early = self.round < first or (self._rules.is_server and self.round == first > 1)
        # Messages come in the order of rounds: one of a later round tells that none of this one will. Its sender may
        # have come late itself, and wait in its first round for this client's
        phases = range(self.schedule.uses.shape[1])
        beyond = any(max(self._arrivals[node, other].all(), default=0) > needed for other in phases)
        if len(self.channels[node].sends) > 1 and (self._rules.is_server or self.channels[node].is_shown):
            later = phases[phase + 1 :]  # of several exchanges of a round with a server
            beyond |= any(max(self._arrivals[node, other].all(), default=0) >= needed for other in later)
        return (early or beyond or self._is_silent(node)) and not arrivals.coming

    def _is_silent(self, node: int) -> bool:
        """Whether nothing more is to be expected of it: what it sent last may be long under way."""
        last_words_s = _LAST_WORDS_S + 2 * float(self.schedule.under_way_s[self._place[node]])
        return self._is_gone(node) or time.monotonic() - self._presence.finished.get(node, math.inf) > last_words_s

    def _choose(self, node: int, phase: int) -> np.ndarray | None:
        self.taken[node] += 1
        arrivals, rules = self._arrivals[node, phase], self._rules
        there = arrivals.there
        used = chosen_round(self.round, arrivals.freshest, self.round in there, rules.staleness, rules.silence)
        vector = there[used] if used and there[used].size else None  # without numbers: it had nothing to say
        if vector is not None and phase == len(self.channels[node].received_in(self.round)) - 1:
            self._answered_in = self.round
        self._used.append(Use(phase, node, None if vector is None else used))
        return vector

    def lacks_answer(self, node: int, *, answered: bool) -> bool:
        if self._rules.is_server:
            return not answered or self._unsent_in.get(node) == self.round or self._is_gone(node)
        return self._answered_in != self.round

    def clear_to_show(self, node: int, phase: int, tensors: Tensors) -> int:
        if self._comes_later[self._place[node]]:
            self._shown_last[node] = self.round, phase, tuple(tensor.copy() for tensor in tensors)
        return not self._is_gone(node)

    def take_shown(self, node: int, phase: int) -> np.ndarray | None:
        """The answer of this round, or the first one after it, be it shown or come too late to be used."""
        channel, known = self.channels[node], dict[int, np.ndarray]()

        def is_over() -> bool:
            known.update(self._shown)
            for place in {len(channel.received_in(round)) - 1 for round in (1, 2)}:  # the answer is a round's last
                come = self._arrivals[node, place].all()
                known.update({r: come[r] for r in come if place == len(channel.received_in(r)) - 1})
            return max(known, default=0) >= self.round or self._is_silent(node)

        self._until(is_over, lambda: silence_of([node], self))
        first = min((round for round in known if round >= self.round), default=None)
        if first is None:
            return None
        self._shown = {round: vector for round, vector in self._shown.items() if round > self.round}
        return known[first]

    def sleep(self) -> None:
        """Once a round. All that the client has done since it last slept, evaluation and messages too, is part of the
        time that the plan has for a round's local work."""
        planned = float(self.schedule.compute[self.round - 1])
        if math.isnan(planned) or self._slept_in == self.round:
            return
        end = self._awake.since + self._awake.blocked_s + planned
        while time.monotonic() < end:
            self.listen(end)
        self._slept_in = self.round
        self._awake = Awake()

    def _until(self, *told: Any) -> None:
        began = time.monotonic()
        super()._until(*told)
        self._awake.blocked_s += time.monotonic() - began

    def waited(self) -> Waited:
        waited = Waited(self._idle_s, self._longest_for)
        self._idle_s, self._longest_for = 0.0, None
        return waited

    def state(self) -> dict[str, np.ndarray]:
        return super().state() | {DEADLINES: np.array([self.deadlines_passed])}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        super().load(state)
        if DEADLINES in state:
            self.deadlines_passed = int(state[DEADLINES][0])

    def memory_bytes(self) -> int:
        held = (self._shown, *(arrivals.all() for arrivals in self._arrivals.values()))
        return super().memory_bytes() + sum(vector.nbytes for vectors in held for vector in vectors.values())
