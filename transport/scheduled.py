"""Neighbours in a run with a scenario: some messages are lost, late or left out, and some clients come and go."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from ..metrics.records import Record, UsedRecord
from .codecs import Tensors
from .constants import CONSTANTS
from .endpoint import Endpoint, Message, NeighbourTimeout, names_of
from .envelope import Rejected
from .peers import Key, Link, Peers, Waited
from .schedule import Schedule
from .waiting import parts_of
from .window import flow

_GRACE_S = CONSTANTS.last_words_s
_NOTHING = np.empty(0)
"""In place of the vector of a message that has none: its sender is quiet in this exchange."""


class ScheduledPeers(Peers):
    """What virtual and wall clock have in common: messages follow the plan, and neighbours come and go.

    ``fallback`` is what takes the place of a vector that does not come, of a neighbour that has died unexpectedly:
    "stale", the last one used, or "skip", none.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        links: Mapping[int, Link],
        dtype: np.dtype,
        timeout: float,
        schedule: Schedule,
        *,
        fallback: str = "skip",
        bounded: bool = True,
        checkpoint_every: int = 0,
        seed: int = 0,
    ):
        super().__init__(endpoint, links, dtype, timeout, seed=seed)
        self.schedule = schedule
        self._place = {node: place for place, node in enumerate(schedule.neighbours.tolist())}
        self._fallback = fallback
        self._bounded = bounded
        self._every = checkpoint_every
        itemsize = np.dtype(dtype).itemsize
        self._flows = {
            node: flow(link.sent_in(1), link.received_in(1), itemsize, int(schedule.backlog[self._place[node]]))
            for node, link in links.items()
        }
        self._came = dict.fromkeys(self.neighbours, 0)  # messages, used or not
        self._latest: dict[tuple[int, int], tuple[int, np.ndarray]] = {}  # (neighbour, phase): round, vector last used
        self._kept: dict[tuple[int, int, int], np.ndarray] = {}  # (neighbour, round, phase): own vectors to be stored
        self._used: list[UsedRecord] = []
        self._put_in: set[Key] = set()  # those in the inbox that have not been sent to this process
        self._confirmations: dict[int, tuple[int, int]] = {}

    # -- sending -------------------------------------------------------------------------------------------------------

    def _tell_quiet(self, quiet: Collection[int]) -> Collection[int]:
        """The plan has a message of everyone in every exchange: one without a vector takes the place of what is not
        said. Such messages are counted as confirmations are."""
        for node in quiet:
            phase = self._sent[node]
            self._sent[node] += 1
            for _ in range(self._copies(node, phase, ())):
                self._confirm(node, self.round, phase)
        return quiet

    def _confirm(self, node: int, round: int, phase: int) -> None:
        for weight in self._endpoint.send([node], round=round, phase=phase, tensors=()).values():
            messages, wire_bytes = self._confirmations.get(node, (0, 0))
            self._confirmations[node] = messages + 1, wire_bytes + weight.wire

    def _copies(self, node: int, phase: int, tensors: Tensors) -> int:
        row, place = self.round - 1, self._place[node]
        if self._every:
            self.keep(node, self.round, phase, self._decoded(node, phase, tensors) if tensors else _NOTHING)
        copies = int(self.schedule.copies[row, phase, place])
        if not copies or node in self._endpoint.gone or not self._reach(node, int(self._life_of(node, phase))):
            return 0
        return copies if self._make_room(node, copies) else 0

    def _life_of(self, node: int, phase: int) -> int:
        return int(self.schedule.to_life[self.round - 1, phase, self._place[node]])

    def _reach(self, node: int, life: int) -> bool:
        """Waits until this client is linked up with that life of the neighbour; False if that dies before."""
        self._until(
            lambda: self._endpoint.lives.get(node, 0) >= life or node in self._endpoint.gone,
            f"no connection to client {node}, which should be there in round {self.round}",
        )
        return node not in self._endpoint.gone

    def _make_room(self, node: int, copies: int) -> bool:
        """Waits until so many more messages may be under way to the neighbour, and counts them; False if it is gone."""
        flow = self._flows[node]
        if self._bounded:
            self._until(
                lambda: flow.has_room(copies) or self._is_gone(node),
                f"client {node} has taken nothing for {self._timeout:g} s, in round {self.round}",
            )
        flow.sent += copies
        return not self._is_gone(node)

    def _is_gone(self, node: int) -> bool:
        """Nothing that is sent it now is taken."""
        return node in self._endpoint.gone

    def _until(self, reached: Callable[[], bool], complaint: str) -> None:
        """Takes in messages until ``reached``. Raises NeighbourTimeout."""
        if reached():
            return
        for until in parts_of(self._timeout):
            while time.monotonic() < until:
                self._listen(until)
                if reached():
                    return
        raise NeighbourTimeout(complaint)

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _listen(self, until: float) -> bool:
        """Takes in the next message, if one comes before that moment (time.monotonic() seconds); whether one has."""
        message = self._endpoint.receive_or_hear(min(until, self._ripen()))
        if message is not None:
            self._store(message)
        return message is not None

    def idle(self) -> None:
        self._listen(time.monotonic() + 1)

    def _ripen(self) -> float:
        """Lets what has come in arrive, where that takes time; returns when the next message will."""
        return math.inf

    def _store(self, message: Message) -> None:
        if message.round == 0 and not message.tensors:
            self._heed(message)
            return
        try:
            if not 1 <= message.round <= len(self.schedule.start):
                raise Rejected("round or phase out of turn")
            if self._is_shown(message):
                self._take_in_shown(message.src, message.round, message.phase, self._vector(message))
                return
            if message.phase >= self.schedule.comes.shape[1]:
                raise Rejected("round or phase out of turn")
            silent = not message.tensors and self._links[message.src].may_be_quiet
            vector = _NOTHING if silent else self._vector(message)
        except Rejected as rejected:
            self._endpoint.reject(rejected)
        else:
            self._came[message.src] += 1
            self._take_in(message.src, message.round, message.phase, vector)

    def _heed(self, message: Message) -> None:
        """Greetings, and confirmations: round 0, and as phase the number of messages that were taken so far."""
        node, flow = message.src, self._flows[message.src]
        if message.phase:
            if message.life == self._endpoint.lives.get(node):  # words of an earlier one may come late
                flow.confirmed = max(flow.confirmed, min(flow.sent, message.phase))
        elif self._endpoint.welcome(message):
            flow.begin_again()

    def _take_in(self, node: int, round: int, phase: int, vector: np.ndarray) -> None:
        raise NotImplementedError

    def _take_in_shown(self, node: int, round: int, phase: int, vector: np.ndarray) -> None:
        raise NotImplementedError

    def _taken_out(self, node: int) -> None:
        """A message of the neighbour takes no memory any more."""
        if self._bounded and (count := self._flows[node].take()) and node in self._endpoint.lives:
            self._confirm(node, 0, count)

    def confirmations(self) -> dict[int, tuple[int, int]]:
        return self._confirmations

    def _note_use(self, node: int, phase: int, round: int, vector: np.ndarray | None) -> None:
        if vector is not None and self._fallback == "stale":
            self._latest[node, phase] = round, vector
        self._used.append(UsedRecord(self._endpoint.node, self.round, phase, node, round or None))

    def next_round(self) -> list[Record]:
        rows = super().next_round()
        rows += self._used
        self._used = []
        return rows

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def keep(self, node: int, round: int, phase: int, vector: np.ndarray) -> None:
        """Keeps a message that its receiver will use after a checkpoint to come."""
        needed = self.schedule.needed[round - 1, phase, self._place[node]]
        if self._every and -(-max(round, self.round) // self._every) * self._every < needed:
            self._kept[node, round, phase] = vector.copy()

    def kept(self, round: int) -> dict[str, np.ndarray]:
        """{"sent.NEIGHBOUR.ROUND.PHASE": vector} of the messages of rounds up to this one that are used after it."""
        stored = {}
        for (node, number, phase), vector in self._kept.items():
            if number <= round < self.schedule.needed[number - 1, phase, self._place[node]]:
                stored[f"sent.{node}.{number}.{phase}"] = vector
        return stored

    def forget(self, round: int) -> None:
        """The checkpoint of this round is written: what no later one needs can go."""
        for node, number, phase in list(self._kept):
            if round + self._every >= self.schedule.needed[number - 1, phase, self._place[node]]:
                del self._kept[node, number, phase]

    def sent_into(self, node: int, round: int, phase: int) -> int:
        """The own life that a neighbour's message was sent to."""
        return int(self.schedule.into_life[round - 1, phase, self._place[node]])

    def put_in(self, node: int, round: int, phase: int, vector: np.ndarray) -> None:
        """A message from before the run was interrupted; it is not under way any more."""
        if self._is_needed(node, round, phase):
            self._inbox[node, round, phase] = vector
            self._put_in.add((node, round, phase))

    def _is_needed(self, node: int, round: int, phase: int) -> bool:
        """Whether the plan has a use to come for the neighbour's message."""
        last = self.schedule.keep[round - 1, phase, self._place[node]]
        return bool(last > self.round or (last == self.round and phase >= self._taken[node]))

    def inbox_bytes(self) -> int:
        return super().inbox_bytes() + sum(vector.nbytes for vector in self._kept.values())


class PlannedPeers(ScheduledPeers):
    """Virtual clock: each exchange uses exactly the messages that the plan names, however long they really take."""

    _shown_in = 0  # the last round in which this client was shown the server's answer

    def left_out(self) -> bool:
        return bool(np.isnan(self.schedule.compute[self.round - 1]))

    def lacks_answer(self, node: int, *, answered: bool) -> bool:
        row, place = self.round - 1, self._place[node]
        if not self._links[node].is_shown:  # this is the server
            return bool(self.schedule.shows[row, place])
        return not self.schedule.uses[row, len(self._links[node].received_in(self.round)) - 1, place]

    def _may_show(self, node: int, phase: int, tensors: Tensors) -> bool:
        life = int(self.schedule.shows[self.round - 1, self._place[node]])
        return life > 0 and node not in self._endpoint.gone and self._reach(node, life) and self._make_room(node, 1)

    def _take_in_shown(self, node: int, round: int, phase: int, vector: np.ndarray) -> None:
        if round >= self.round and self.schedule.shows[round - 1, self._place[node]]:
            self._inbox[node, round, phase] = vector
        else:
            self._taken_out(node)

    def _take_shown(self, node: int, phase: int) -> np.ndarray | None:
        if not self.schedule.shows[self.round - 1, self._place[node]]:
            return None
        self._wait_for(node, self.round, phase)
        vector = self._inbox.pop((node, self.round, phase), None)
        if vector is not None:
            self._taken_out(node)
            self._shown_in = self.round
        return vector

    def _receive(self, nodes: Sequence[int], bounded: bool = True) -> dict[int, np.ndarray]:
        schedule, row = self.schedule, self.round - 1
        vectors: dict[int, np.ndarray] = {}
        rounds: dict[int, int] = {}
        for node in nodes:
            phase = self._taken[node]
            rounds[node] = used = int(schedule.uses[row, phase, self._place[node]])
            if used:
                self._wait_for(node, used, phase)
        for node in nodes:
            phase = self._taken[node]
            self._taken[node] += 1
            key = (node, rounds[node], phase)
            vector = self._inbox.get(key)
            if vector is None and rounds[node] and self._fallback == "stale":  # it died before it could send that
                rounds[node], vector = self._latest.get((node, phase), (0, None))
            if vector is None or not vector.size:
                rounds[node], vector = 0, None
            else:
                vectors[node] = vector
            if key in self._inbox and not self._is_needed(*key):
                del self._inbox[key]
                if key in self._put_in:
                    self._put_in.remove(key)
                else:
                    self._taken_out(node)
            self._note_use(node, phase, rounds[node], vector)
        return vectors

    def _wait_for(self, node: int, round: int, phase: int) -> None:
        """Until the message is there; a neighbour that has died may have sent it just before."""
        key = node, round, phase
        if key in self._inbox:
            return
        with self._waiting_for(lambda: [key]) as parts:
            for until in parts:
                while key not in self._inbox and time.monotonic() < until:
                    died = self._endpoint.gone.get(node, math.inf)
                    if not self._listen(min(until, died + _GRACE_S)) and time.monotonic() >= died + _GRACE_S:
                        return
                if key in self._inbox:
                    return
            self._complain([node])

    def _take_in(self, node: int, round: int, phase: int, vector: np.ndarray) -> None:
        if self._is_needed(node, round, phase) and (node, round, phase) not in self._inbox:
            self._inbox[node, round, phase] = vector
        else:
            self._taken_out(node)  # a fresher one is used instead, or it has come twice

    def waited(self) -> Waited:
        row = self.round - 1
        if row < 0:
            return Waited(virtual_s=0.0)
        whom, end = int(self.schedule.waited_for[row]), float(self.schedule.end[row])
        if self._shown_in == self.round:  # what was evaluated is there then
            end = max(end, float(self.schedule.shown_at[row]))
        return Waited(float(self.schedule.idle[row]), None if whom < 0 else whom, end)

    def deadlines_passed(self) -> int:
        return int(self.schedule.deadlines[self.life_began - 1 : self.round - 1].sum())

    def drain(self, life: int, since: int) -> None:
        """Waits for every message that the plan sends into this life from rounds after ``since``, used or not."""
        schedule = self.schedule
        mine = (schedule.into_life == life) & (np.arange(len(schedule.start)) >= since)[:, None, None]
        expected = (schedule.comes * mine).sum(axis=(0, 1))
        self._until(
            lambda: all(
                self._came[node] >= expected[place] or node in self._endpoint.gone
                for node, place in self._place.items()
            ),
            f"client {names_of(self.neighbours)} sent too few messages before this client's end",
        )
