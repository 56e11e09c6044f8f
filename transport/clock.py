"""Which messages a client sends, counted, and uses in a round, and what it waits for: without a clock, the round's own.

Where a run has a scenario, clock_planned.py and clock_wall.py say otherwise.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

import numpy as np

from .channel import Channels
from .codecs import Tensors
from .constants import CONSTANTS
from .control import Waiting, WaitOver
from .endpoint import Endpoint, Message, NeighbourTimeout, names_of
from .envelope import Rejected
from .waiting import parts_of

Key = tuple[int, int, int]
"""Sender, round and phase of a message."""

OUT_OF_TURN = "round or phase out of turn"


CONFIRMATION: Literal["confirmation"] = "confirmation"
"""Messages that carry no vector but tell what was taken, or that the sender is quiet."""
EVALUATION: Literal["evaluation"] = "evaluation"
"""Messages for evaluation only."""

SHOWN = "shown_bytes"
"""In a checkpoint: messages for evaluation to each neighbour, and their wire bytes."""


class Traffic(NamedTuple):
    """Messages to one neighbour in a round, and their bytes: the vectors alone, all frames, all with ZMTP framing."""

    messages: int
    payload_bytes: int
    message_bytes: int
    wire_bytes: int


class Outgoing:
    def __init__(self, endpoint: Endpoint):
        self._endpoint = endpoint
        self._sent: defaultdict[str, dict[int, tuple[int, int, int, int]]] = defaultdict(dict)  # by kind and neighbour

    def send(self, nodes: Iterable[int], round: int, phase: int, tensors: Tensors = (), beside: str = "") -> None:
        """``beside`` is the kind of a message that is no traffic of the round."""
        sent = self._sent[beside]
        for node, more in self._endpoint.send(nodes, round=round, phase=phase, tensors=tensors).items():
            messages, payload, message, wire = sent.get(node, (0, 0, 0, 0))
            sent[node] = messages + 1, payload + more.payload, message + more.message, wire + more.wire

    def close_round(self) -> dict[int, Traffic]:
        traffic = self._sent.pop("", {})
        return {node: Traffic(*traffic[node]) for node in sorted(traffic)}

    def beside(self, kind: str) -> dict[int, tuple[int, int]]:
        """{neighbour: messages of this kind sent to it beside the traffic, and their wire bytes}"""
        return {node: (messages, wire) for node, (messages, _, _, wire) in sorted(self._sent[kind].items())}

    def state(self, neighbours: Sequence[int]) -> dict[str, np.ndarray]:
        shown = self.beside(EVALUATION)
        return {SHOWN: np.array([shown.get(node, (0, 0)) for node in neighbours])} if shown else {}

    def load(self, state: Mapping[str, np.ndarray], neighbours: Sequence[int]) -> None:
        for node, (messages, wire) in zip(neighbours, state[SHOWN].tolist() if SHOWN in state else (), strict=False):
            if messages:
                self._sent[EVALUATION][node] = messages, 0, 0, wire


class Use(NamedTuple):
    """Which message of a neighbour was used as message ``phase`` of a round: that of round ``used``; None: none."""

    phase: int
    neighbour: int
    used: int | None


class Waited(NamedTuple):
    """A round's seconds spent waiting, the neighbour that came last, and when the round ended in virtual seconds."""

    idle_s: float | None = None
    longest_for: int | None = None
    virtual_s: float | None = None


class Clock:
    """That of a run without a scenario: every message is sent, and each exchange uses those of its own round.

    A message is taken in when its round and phase lie ahead, by ``ahead`` rounds at most: a neighbour that is waited
    for in every round is never more than one round ahead. ``round`` is the present one; ``sent`` and ``taken`` count
    each neighbour's messages in it so far.
    """

    asks = False
    """Whether it is to be asked before each message is sent."""

    def __init__(self, endpoint: Endpoint, channels: Channels, timeout: float, *, ahead: int = 1):
        self.endpoint = endpoint
        self.channels = channels
        self.outgoing = Outgoing(endpoint)
        self.neighbours = channels.neighbours
        self.round, self.begun_in = 0, 1
        self.sent = dict.fromkeys(self.neighbours, 0)
        self.taken = dict.fromkeys(self.neighbours, 0)
        self.timeout = timeout
        self._ahead = ahead
        self._deadlines = 0
        self._inbox: dict[Key, np.ndarray] = {}

    def begin(self, round: int, begun_in: int | None = None) -> None:
        """The first round to come; 1, unless the client goes on from a checkpoint. ``begun_in`` is the first of this
        incarnation, where it goes on after an interruption of the run."""
        self.round, self.begun_in = round, round if begun_in is None else begun_in

    def next_round(self) -> Sequence[Use]:
        """Closes the current round, opens the next; returns the messages used, where a scenario decides that."""
        self.round += 1
        self.sent = dict.fromkeys(self.neighbours, 0)
        self.taken = dict.fromkeys(self.neighbours, 0)
        return ()

    def clear_to_send(self, node: int, phase: int, tensors: Tensors) -> int:
        """Waits until a message may leave; returns how often it is sent: 0 where it is lost or nobody is there."""
        return 1

    def tell_quiet(self, quiet: Collection[int]) -> Collection[int]:
        """Tells those that get no vector in this exchange, where they do not know; returns who may be heard."""
        return ()

    def receive(self, nodes: Sequence[int], *, bounded: bool = True) -> dict[int, np.ndarray]:
        """{neighbour: its next vector of this round}; ``bounded``: by the deadline of the run's scenario."""
        wanted = {(node, self.round, self.taken[node]): node for node in nodes}
        self._wait_for_all(wanted.keys())
        for node in nodes:
            self.taken[node] += 1
        return {node: self._inbox.pop(key) for key, node in wanted.items()}

    def left_out(self) -> bool:
        return False

    def lacks_answer(self, node: int, *, answered: bool) -> bool:
        return not answered

    def clear_to_show(self, node: int, phase: int, tensors: Tensors) -> bool:
        """Whether the client is there."""
        return True

    def take_shown(self, node: int, phase: int) -> np.ndarray | None:
        key = node, self.round, phase
        self._wait_for_all({key})
        return self._inbox.pop(key)

    def idle(self) -> None:
        """Takes in what comes while there is nothing to do, until the launcher says something, or a second at most."""
        message = self.endpoint.receive_or_hear(time.monotonic() + 1)
        if message is not None:
            self._store(message)

    def sleep(self, elapsed_s: float) -> None:
        """Called after the round's local work, which took so long: the slow ones of a scenario take longer."""

    def waited(self) -> Waited:
        """In the current round, where a scenario tells time."""
        return Waited()

    def deadlines_passed(self) -> int:
        """Waits that ended because a deadline had passed."""
        return self._deadlines

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def load(self, state: Mapping[str, np.ndarray]) -> None: ...

    def memory_bytes(self) -> int:
        return sum(vector.nbytes for vector in self._inbox.values())

    def _wait_for_all(self, wanted: Collection[Key]) -> None:
        missing = wanted - self._inbox.keys()
        if not missing:
            return
        with self._parts_of_wait(lambda: missing) as parts:
            for until in parts:
                try:
                    while missing:
                        missing.discard(self._store(self.endpoint.receive(until)))
                    return
                except NeighbourTimeout:
                    continue
            raise silence_of((node for node, _, _ in missing), self)

    def _store(self, message: Message) -> Key | None:
        """Returns under which key it is stored; None: it was dropped."""
        key = src, round, phase = message[:3]
        now = self.round
        is_over = round < now or (round == now and phase < self.taken[src])
        try:
            if is_over or round > now + self._ahead or key in self._inbox:
                raise Rejected(OUT_OF_TURN)
            self._inbox[key] = self.channels.decode(src, round, phase, message.tensors)
        except Rejected as rejected:
            self.endpoint.reject(rejected)
            return None
        return key

    @contextmanager
    def _parts_of_wait(self, missing: Callable[[], Collection[Key]]) -> Iterator[Iterator[float]]:
        """The parts of a wait of the timeout. The launcher hears of a long one, and of its good end."""
        due = CONSTANTS.tell_wait_s

        def tell(seconds: float) -> None:
            nonlocal due
            if seconds >= due:
                due = 2 * seconds
                self.endpoint.say(Waiting(sorted(missing()), self.round, [*self.sent.items()], seconds))

        yield parts_of(self.timeout, tell)
        if due > CONSTANTS.tell_wait_s:
            self.endpoint.say(WaitOver())


def silence_of(nodes: Iterable[int], clock: Clock) -> NeighbourTimeout:
    return NeighbourTimeout(f"client {names_of(nodes)} sent nothing for {clock.timeout:g} s in round {clock.round}")
