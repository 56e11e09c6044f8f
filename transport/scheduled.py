"""Neighbours in a run with a scenario: some messages are lost, late or left out, and some clients come and go."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..metrics.records import Record, UsedRecord
from .codecs import Tensors
from .constants import CONSTANTS
from .endpoint import Endpoint, Message, NeighbourTimeout, names_of
from .envelope import Rejected
from .peers import Link, Peers, Waited
from .schedule import Schedule

_GRACE_S = CONSTANTS.last_words_s
_NOTHING = np.empty(0)
"""In place of the vector of a message that has none: its sender is quiet in this exchange."""


@dataclass(slots=True)
class _Flow:
    """Messages to and from a neighbour that have not been taken out of the queues yet.

    A sender never has more than a window of them under way: the receiver tells, with a message that carries no vector,
    each time it has taken half a window. So memory is bounded at both ends, and no queue of ZeroMQ's is ever full.
    """

    send_window: int
    receive_window: int
    sent: int = 0
    confirmed: int = 0
    taken: int = 0
    told: int = 0


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
            node: _Flow(_window(link.sent_in(1), itemsize), _window(link.received_in(1), itemsize))
            for node, link in links.items()
        }
        self._came = dict.fromkeys(self.neighbours, 0)  # messages, used or not
        self._latest: dict[tuple[int, int], tuple[int, np.ndarray]] = {}  # (neighbour, phase): round, vector last used
        self._kept: dict[tuple[int, int, int], np.ndarray] = {}  # (neighbour, round, phase): own vectors to be stored
        self._used: list[UsedRecord] = []
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
        for _ in range(copies):
            self._make_room(node)
            self._flows[node].sent += 1
        return copies

    def _life_of(self, node: int, phase: int) -> int:
        return int(self.schedule.to_life[self.round - 1, phase, self._place[node]])

    def _reach(self, node: int, life: int) -> bool:
        """Waits until this client is linked up with that life of the neighbour; False if that dies before."""
        self._until(
            lambda: self._endpoint.lives.get(node, 0) >= life or node in self._endpoint.gone,
            f"no connection to client {node}, which should be there in round {self.round}",
        )
        return node not in self._endpoint.gone

    def _make_room(self, node: int) -> None:
        flow = self._flows[node]
        if self._bounded and flow.sent - flow.confirmed >= flow.send_window:
            self._until(
                lambda: flow.sent - flow.confirmed < flow.send_window or node in self._endpoint.gone,
                f"client {node} has taken nothing for {self._timeout:g} s, in round {self.round}",
            )

    def _until(self, reached: Callable[[], bool], complaint: str) -> None:
        """Takes in messages until ``reached``. Raises NeighbourTimeout."""
        deadline = time.monotonic() + self._timeout
        while not reached():
            if time.monotonic() >= deadline:
                raise NeighbourTimeout(complaint)
            message = self._endpoint.receive_or_hear(min(deadline, time.monotonic() + _GRACE_S))
            if message is not None:
                self._store(message)

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _store(self, message: Message) -> None:
        if message.round == 0 and not message.tensors:
            self._heed(message)
            return
        try:
            if not 1 <= message.round <= len(self.schedule.start) or message.phase >= self.schedule.comes.shape[1]:
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
        node = message.src
        if message.phase:
            self._flows[node].confirmed = max(self._flows[node].confirmed, message.phase)
        elif self._endpoint.welcome(message):
            flow = self._flows[node]
            flow.sent = flow.confirmed = flow.taken = flow.told = 0

    def _take_in(self, node: int, round: int, phase: int, vector: np.ndarray) -> None:
        raise NotImplementedError

    def _taken_out(self, node: int) -> None:
        """A message of the neighbour takes no memory any more."""
        flow = self._flows[node]
        flow.taken += 1
        if self._bounded and flow.taken - flow.told >= flow.receive_window // 2 and node in self._endpoint.lives:
            flow.told = flow.taken
            self._confirm(node, 0, flow.told)

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
        """A message from before the run was interrupted."""
        if self.schedule.keep[round - 1, phase, self._place[node]] >= self.round:
            self._inbox[node, round, phase] = vector

    def inbox_bytes(self) -> int:
        return super().inbox_bytes() + sum(vector.nbytes for vector in self._kept.values())


class PlannedPeers(ScheduledPeers):
    """Virtual clock: each exchange uses exactly the messages that the plan names, however long they really take."""

    def left_out(self) -> bool:
        return bool(np.isnan(self.schedule.compute[self.round - 1]))

    def _receive(self, nodes: Sequence[int], bounded: bool = True) -> dict[int, np.ndarray]:
        schedule, row = self.schedule, self.round - 1
        vectors: dict[int, np.ndarray] = {}
        rounds: dict[int, int] = {}
        for node in nodes:
            phase = self._taken[node]
            self._taken[node] += 1
            rounds[node] = used = int(schedule.uses[row, phase, self._place[node]])
            if used:
                self._wait_for(node, used, phase)
        for node in nodes:
            phase = self._taken[node] - 1
            key = (node, rounds[node], phase)
            vector = self._inbox.get(key)
            if vector is None and rounds[node] and self._fallback == "stale":  # it died before it could send that
                rounds[node], vector = self._latest.get((node, phase), (0, None))
            if vector is None or not vector.size:
                rounds[node], vector = 0, None
            else:
                vectors[node] = vector
            if key in self._inbox and schedule.keep[key[1] - 1, phase, self._place[node]] <= self.round:
                del self._inbox[key]
                self._taken_out(node)
            self._note_use(node, phase, rounds[node], vector)
        return vectors

    def _wait_for(self, node: int, round: int, phase: int) -> None:
        """Until the message is there; a neighbour that has died may have sent it just before."""
        key, deadline = (node, round, phase), time.monotonic() + self._timeout
        while key not in self._inbox:
            if time.monotonic() >= deadline:
                self._complain([node])
            until = deadline
            if (died := self._endpoint.gone.get(node)) is not None:
                until = died + _GRACE_S
            message = self._endpoint.receive_or_hear(until)
            if message is not None:
                self._store(message)
            elif time.monotonic() >= until:
                return

    def _take_in(self, node: int, round: int, phase: int, vector: np.ndarray) -> None:
        if self.schedule.keep[round - 1, phase, self._place[node]] >= self.round and (
            (node, round, phase) not in self._inbox
        ):
            self._inbox[node, round, phase] = vector
        else:
            self._taken_out(node)  # a fresher one is used instead

    def waited(self) -> Waited:
        row = self.round - 1
        if row < 0:
            return Waited(virtual_s=0.0)
        whom = int(self.schedule.waited_for[row])
        return Waited(float(self.schedule.idle[row]), None if whom < 0 else whom, float(self.schedule.end[row]))

    def deadlines_passed(self) -> int:
        return int(self.schedule.deadlines[self.first_round - 1 : self.round - 1].sum())

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


def _window(lengths: tuple[int, ...], itemsize: int) -> int:
    """Messages that may be under way on one direction of an edge."""
    fit = CONSTANTS.window_bytes // (max(lengths, default=1) * itemsize)
    return min(CONSTANTS.window_most, max(CONSTANTS.window_fewest, 2 * len(lengths), fit))
