"""What clocks do with a scenario. On the virtual one each exchange uses exactly the messages that the plan names,
however long they really take."""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from .channel import Channels, Tensors
from .clock import AGAIN, CONFIRMATION, NO_VECTOR, OUT_OF_TURN, Clock, Use, Waited
from .connections import Presence
from .endpoint import Endpoint, names_of
from .environment import CONSTANTS
from .messages import Key, Message
from .schedule import Flow, Schedule, limit, tell_every
from .wire import Rejected


@dataclass(frozen=True)
class Rules:
    """What is done about messages that are late or missing. Those after ``breaks_off_in`` are the wall clock's."""

    silence: str = "skip"  # what takes the place of a vector that does not come: "stale", the last one, else none
    bounded: bool = True  # whether messages are confirmed, and so many at most are under way
    checkpoint_every: int = 0  # rounds
    breaks_off_in: int = 0  # the round in which the plan has this process killed, or 0
    staleness: float = 0.0  # rounds that a message may be behind
    last_heard: Callable[[int, int], int] = lambda node, round: round  # the last round, up to this, that it sends in
    deadline_s: float = math.inf
    is_server: bool = False
    listens_in: int = 0  # the first round of a server's client that comes back or late, in which it only listens; or 0


class BrokenOff(Exception):
    """The client has sent all that it had sent when it was killed."""


class Awake:
    """Since when a client is at work, without what it was blocked for; seconds."""

    def __init__(self) -> None:
        self.since, self.blocked_s = time.monotonic(), 0.0


class ScheduledClock(Clock):
    """Some messages are lost, late or left out, and some clients come and go."""

    def __init__(self, endpoint: Endpoint, channels: Channels, timeout: float, schedule: Schedule, rules: Rules):
        super().__init__(endpoint, channels, timeout)
        self.holds_back = True
        self.schedule = schedule
        self._rules = rules
        self._presence, self._awake = endpoint.presence, Awake()
        self._place = {node: place for place, node in enumerate(schedule.neighbours.tolist())}
        size, self._flows = channels.dtype.itemsize, {}
        for node in self.neighbours:
            most = limit(channels[node].sent_in(1), size, int(schedule.backlog[self._place[node]]))
            self._flows[node] = Flow(most, tell_every(channels[node].received_in(1), size))

    def next_round(self) -> Sequence[Use]:
        if self.round and math.isnan(self.schedule.compute[self.round - 1]):
            self._awake = Awake()
        return super().next_round()

    def begin(self, round: int, begun_in: int | None = None) -> None:
        super().begin(round, begun_in)
        self._awake = Awake()

    def tell_quiet(self, quiet: Collection[int], others: Collection[int]) -> Collection[int]:
        """The plan has a message of everyone in every exchange: one without a vector, counted as a confirmation."""
        for node in quiet:
            phase = self.sent[node]
            self.sent[node] += 1
            for _ in range(self.clear_to_send(node, phase, ())):
                self.endpoint.send([node], self.round, phase, beside=CONFIRMATION)
        return {*quiet, *(node for node in others if self.channels[node].may_be_quiet)}

    def _planned(self, array: np.ndarray, node: int, phase: int, round: int = 0) -> int:
        """What one of the schedule's arrays has of the neighbour's message of a round (0: this), or of that to it."""
        return int(array[(round or self.round) - 1, phase, self._place[node]])

    def _make_room(self, node: int, copies: int) -> bool:
        """Waits until so many more messages may be under way to the neighbour, and counts them; False if it is gone."""
        flow = self._flows[node]
        if self._rules.bounded:
            self._until(
                lambda: flow.sent - flow.confirmed + copies <= flow.limit or self._is_gone(node),
                lambda: f"client {node} has taken nothing for {self.timeout:g} s, in round {self.round}",
            )
        flow.sent += copies
        return not self._is_gone(node)

    def _is_gone(self, node: int) -> bool:
        """Whether nothing that is sent to it now is taken."""
        return node in self._presence.died

    def _store(self, message: Message) -> Key | None:
        node, round, phase, tensors, incarnation = message
        if round == 0 and not tensors:
            flow = self._flows[node]
            if phase and incarnation == self._presence.linked.get(node):  # those of an earlier one may come late
                flow.confirmed = max(flow.confirmed, min(flow.sent, phase))  # so many were taken so far
            elif not phase and self.endpoint.welcome(message):
                flow.sent = flow.confirmed = flow.taken = flow.told = 0
                self._greeted(node)
            return None
        is_shown = self.channels.is_shown(node, round, phase)
        try:
            if not 1 <= round <= len(self.schedule.start) or phase >= self.schedule.comes.shape[1] + is_shown:
                raise Rejected(OUT_OF_TURN)
            is_quiet = not tensors and self.channels[node].may_be_quiet and not is_shown
            vector = NO_VECTOR if is_quiet else self.channels.decode(node, round, phase, tensors)
        except Rejected as rejected:
            self.endpoint.reject(rejected)
            return None
        self._take_in(key := (node, round, phase), vector, is_shown=is_shown)
        return key

    def _greeted(self, node: int) -> None:
        """A neighbour has come late, or again."""

    def _take_in(self, key: Key, vector: np.ndarray, *, is_shown: bool) -> None:
        raise NotImplementedError

    def _taken_out(self, node: int) -> None:
        """A message of the neighbour takes no memory any more."""
        flow = self._flows[node]
        flow.taken += 1
        if self._rules.bounded and flow.taken - flow.told >= flow.tell_every:
            flow.told = flow.taken
            if node in self._presence.linked:
                self.endpoint.send([node], 0, flow.told, beside=CONFIRMATION)


class PlannedClock(ScheduledClock):
    def __init__(self, endpoint: Endpoint, channels: Channels, timeout: float, schedule: Schedule, rules: Rules):
        super().__init__(endpoint, channels, timeout, schedule, rules)
        self._stored: dict[tuple[int, int, int], np.ndarray] = {}  # own messages, by (neighbour, phase, round)
        self._intake = self._intake._replace(take_in=self._take_in)
        self._restored: set[Key] = set()  # those in the inbox that were not sent to this process
        self._latest: dict[tuple[int, int], tuple[int, np.ndarray]] = {}  # (neighbour, phase): round, vector last used
        self._came: Counter[tuple[int, int]] = Counter()  # messages, used or not, by neighbour and own incarnation
        self._shown_in = 0  # the last round in which this client was shown the server's answer
        self._again: dict[tuple[int, int, int], Tensors] = {}  # as _stored: for who comes, or comes back

    def clear_to_send(self, node: int, phase: int, tensors: Tensors) -> int:
        if self._rules.checkpoint_every:
            sent = self.channels.sent(node, self.round, phase, tensors) if tensors else NO_VECTOR
            self.store(node, self.round, phase, sent)
        plan = self.schedule
        cleared = self._clear(node, self._planned(plan.to_life, node, phase), self._planned(plan.copies, node, phase))
        if self._planned(plan.again, node, phase):
            self._again[key := (node, phase, self.round)] = tuple(tensor.copy() for tensor in tensors)
            self._greeted(node, key)
        return cleared

    def _clear(self, node: int, incarnation: int, copies: int) -> int:
        """Waits until so many messages may leave for that incarnation of the neighbour; 0 if it dies before."""
        if not copies:
            return 0
        self._until(
            lambda: self.endpoint.seek(node, incarnation) or self._is_gone(node),
            lambda: f"no connection to client {node}, which should be there in round {self.round}",
        )
        return copies if not self._is_gone(node) and self._make_room(node, copies) else 0

    def _greeted(self, node: int, *keys: Key) -> None:
        """What is sent again, or these messages of it, goes to the neighbour's present incarnation."""
        life = self._presence.linked.get(node, 0)
        for key in keys or [key for key in self._again if key[0] == node]:
            _, phase, round = key
            last = self._planned(self.schedule.again, node, phase, round)
            if self._planned(self.schedule.to_life, node, phase, round) < life <= last:
                self.endpoint.send([node], round, phase, self._again[key], AGAIN)
                self._flows[node].sent += 1
            if life >= last:
                del self._again[key]

    def left_out(self) -> bool:
        return bool(np.isnan(self.schedule.compute[self.round - 1]))

    def receive(self, nodes: Sequence[int], *, bounded: float = 1) -> dict[int, np.ndarray]:
        taken, uses, needed = self.taken, self.schedule.uses, self.schedule.needed[self.round - 1]
        if self.round == self._rules.breaks_off_in and not any(
            needed[n:, self._place[j]].any() for j, n in self.sent.items()
        ):
            raise BrokenOff
        keys = [(node, self._planned(uses, node, taken[node]), taken[node]) for node in nodes]
        lacking = {key for key in keys if key[1]}.difference(self._inbox)
        self.endpoint.receive_soon(lacking, range(1, len(self.schedule.start) + 1), self._intake)
        for key in keys:
            if key[1] and key not in self._inbox:
                self._wait_for([key], _last_words(self._presence, key[0]))
        for node in nodes:
            taken[node] += 1
        used = {key[0]: self._use(key) for key in keys}
        return {node: vector for node, vector in used.items() if vector is not None}

    def _use(self, key: Key) -> np.ndarray | None:
        """The vector, or what takes its place; it is thrown away unless the plan has a further use for it."""
        node, used, phase = key
        vector, is_stale = self._inbox.get(key), self._rules.silence == "stale"
        if vector is None and used and is_stale:  # it died before it could send that
            used, vector = self._latest.get((node, phase), (0, None))
        if vector is not None and not vector.size:
            vector = None
        if key in self._inbox and not self._is_needed(*key):
            del self._inbox[key]
            if key in self._restored:
                self._restored.remove(key)
            else:
                self._taken_out(node)
        if vector is not None and is_stale:
            self._latest[node, phase] = used, vector
        self._used.append(Use(phase, node, None if vector is None else used))
        return vector

    def _is_needed(self, node: int, round: int, phase: int) -> bool:
        """Whether the plan has a use to come for the neighbour's message."""
        last = self._planned(self.schedule.keep, node, phase, round)
        return last > self.round or (last == self.round and phase >= self.taken[node])

    def _take_in(self, key: Key, vector: np.ndarray, *, is_shown: bool = False) -> None:
        node, round, phase = key
        if not is_shown:
            self._came[node, self._planned(self.schedule.into_life, node, phase, round)] += 1
        is_needed = round >= self.round and self._shows(node, round) if is_shown else self._is_needed(*key)
        if is_needed and key not in self._inbox:
            self._inbox[key] = vector
        else:
            self._taken_out(node)  # a fresher one is used instead, or it has come twice

    def drain(self, incarnation: int, since: int) -> None:
        """Waits for every message that the plan sends to this incarnation from rounds after ``since``, used or not, and
        for those who come to get one of this client's."""
        comes, into = self.schedule.comes[since:], self.schedule.into_life[since:]
        expected = (comes * (into == incarnation)).sum(axis=(0, 1))
        self._until(
            lambda: (
                all(
                    self._came[j, incarnation] >= expected[place] or self._is_gone(j)
                    for j, place in self._place.items()
                )
                and all(self._is_gone(node) for node, _, _ in self._again)
            ),
            lambda: f"client {names_of(self.neighbours)} sent too few messages before this client's end",
        )

    def restore(self, node: int, round: int, phase: int, vector: np.ndarray, incarnation: int) -> None:
        """A neighbour's message from before the run was interrupted; it is not under way any more."""
        into = self._planned(self.schedule.into_life, node, phase, round)
        if into <= incarnation and self._is_needed(node, round, phase):
            self._inbox[node, round, phase] = vector
            self._restored.add((node, round, phase))

    def _shows(self, node: int, round: int) -> int:
        """The incarnation of the client, at one end of the edge, that is shown the server's answer; 0: none is."""
        return int(self.schedule.shows[round - 1, self._place[node]])

    def lacks_answer(self, node: int, *, answered: bool) -> bool:
        if not self.channels[node].is_shown:  # this is the server
            return self._shows(node, self.round) > 0
        return not self._planned(self.schedule.uses, node, len(self.channels[node].received_in(self.round)) - 1)

    def clear_to_show(self, node: int, phase: int, tensors: Tensors) -> int:
        incarnation = self._shows(node, self.round)
        return self._clear(node, incarnation, int(incarnation > 0))

    def take_shown(self, node: int, phase: int) -> np.ndarray | None:
        key = node, self.round, phase
        if self._shows(node, self.round):
            self._wait_for([key], _last_words(self._presence, node))
        if (vector := self._inbox.pop(key, None)) is not None:
            self._taken_out(node)
            self._shown_in = self.round
        return vector

    def waited(self) -> Waited:
        row, plan = self.round - 1, self.schedule
        if row < 0:
            return Waited(virtual_s=0.0)
        self.deadlines_passed = int(plan.deadlines[self.begun_in - 1 : self.round].sum())
        whom, end = int(plan.waited_for[row]), float(plan.end[row])
        if self._shown_in == self.round:  # what was evaluated is there then
            end = max(end, float(plan.shown_at[row]))
        return Waited(float(plan.idle[row]), None if whom < 0 else whom, end)

    def memory_bytes(self) -> int:
        held = [*self._stored.values(), *(tensor for tensors in self._again.values() for tensor in tensors)]
        return super().memory_bytes() + sum(array.nbytes for array in held)

    def store(self, node: int, round: int, phase: int, vector: np.ndarray) -> None:
        """Stores an own message for checkpoints to come, if the neighbour will use it after one of them."""
        every, last_use = self._rules.checkpoint_every, self._planned(self.schedule.needed, node, phase, round)
        if every and math.ceil(max(round, self.round) / every) * every < last_use:
            self._stored[node, phase, round] = vector.copy()

    def stored(self, round: int) -> dict[str, np.ndarray]:
        """{"sent.NEIGHBOUR.ROUND.PHASE": vector} of the messages of rounds up to this one that are used after it."""
        return {
            f"sent.{node}.{sent}.{phase}": vector
            for (node, phase, sent), vector in self._stored.items()
            if sent <= round < self._planned(self.schedule.needed, node, phase, sent)
        }

    def forget(self, round: int) -> None:
        """The checkpoint of this round is written: what no later one needs can go."""
        needed, following = self.schedule.needed, round + self._rules.checkpoint_every
        self._stored = {key: vector for key, vector in self._stored.items() if following < self._planned(needed, *key)}


def _last_words(presence: Presence, node: int) -> Callable[[], float]:
    """Returns what tells when nothing more comes: a neighbour that has died may have sent it just before."""
    return lambda: presence.died.get(node, math.inf) + CONSTANTS.last_words_s
