"""Which messages a client sends and uses in a round, and what it waits for: without a scenario the round's own; with
one, clock_planned.py and clock_wall.py say."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from .channel import Channels, Tensors
from .control import Waiting, WaitOver
from .endpoint import Endpoint, Intake, NeighbourTimeout, Traffic, names_of
from .environment import CONSTANTS
from .messages import Key, Message
from .stopwatch import parts_of
from .wire import Rejected

CONFIRMATION: Final = "confirmation"  # messages that carry no vector but tell what was taken, or that one is quiet
EVALUATION: Final = "evaluation"  # messages for evaluation only
AGAIN: Final = "again"  # in a replay: messages of earlier rounds, to one that has come, or come back
NO_VECTOR = np.empty(0)  # in place of the vector of a message that has none: its sender is quiet in this exchange
_SHOWN = "shown_bytes"  # in a checkpoint: messages for evaluation to each neighbour, and their wire bytes
_LOOKED_AT = 1 << 16  # messages at most, once a wait is over
OUT_OF_TURN = "round or phase out of turn"


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
    """That of a run without a scenario: every message is sent, and each exchange uses those of its own round. A message
    is taken in when its round and phase lie ahead, by ``ahead`` rounds at most: a neighbour that is waited for in every
    round is never more than one ahead. ``round`` is the present one; ``sent`` and ``taken`` count each neighbour's
    messages in it so far, ``deadlines_passed`` the waits of all rounds that a deadline has ended. ``holds_back`` tells
    whether a message may have to wait, or be left out, before it is sent."""

    deadlines_passed = 0

    def __init__(self, endpoint: Endpoint, channels: Channels, timeout: float, *, ahead: int = 1):
        self.endpoint = endpoint
        self.channels = channels
        self.neighbours = channels.neighbours
        self.round, self.begun_in = 0, 1
        self.sent = dict.fromkeys(self.neighbours, 0)
        self.taken = dict.fromkeys(self.neighbours, 0)
        self.timeout = timeout
        self.holds_back = endpoint.opens_late
        self._ahead = ahead
        self._inbox: dict[Key, np.ndarray] = {}
        self._intake = Intake(channels.plain_received, self._inbox, self._inbox.__setitem__, self._store)
        self._used: list[Use] = []

    def begin(self, round: int, begun_in: int | None = None) -> None:
        """The first round to come; 1, unless the client goes on from a checkpoint. ``begun_in`` is the first of this
        incarnation, where it goes on after an interruption of the run."""
        self.round, self.begun_in = round, round if begun_in is None else begun_in

    def next_round(self) -> Sequence[Use]:
        self.round += 1
        self.sent = dict.fromkeys(self.neighbours, 0)
        self.taken = dict.fromkeys(self.neighbours, 0)
        used, self._used = self._used, []
        return used

    def clear_to_send(self, node: int, phase: int, tensors: Tensors) -> int:
        """Waits until a message may leave; returns how often it is sent: 0 where it is lost or nobody is there."""
        endpoint = self.endpoint
        if node not in endpoint.route_to:
            self._until(
                lambda: endpoint.seek(node) or node in endpoint.route_to,
                lambda: f"no connection to client {node} within {self.timeout:g} s in round {self.round}",
            )
        return 1

    def tell_quiet(self, quiet: Collection[int], others: Collection[int]) -> Collection[int]:
        """Tells those that get no vector in this exchange, where they do not know; the ``others`` get one. Returns who
        may be heard, with a vector or without."""
        return ()

    def receive(self, nodes: Sequence[int], *, bounded: float = 1) -> dict[int, np.ndarray]:
        round, taken = self.round, self.taken
        wanted = [(node, round, taken[node]) for node in nodes]
        lacking = set(wanted).difference(self._inbox)
        self.endpoint.receive_soon(lacking, range(round + 1, round + 1 + self._ahead), self._intake)
        if lacking:
            self._wait_for(wanted)
        for node in nodes:
            taken[node] += 1
        return dict(zip(nodes, map(self._inbox.pop, wanted), strict=True))

    def left_out(self) -> bool:
        """Whether the run's scenario keeps this client from working for its server in this round."""
        return False

    def lacks_answer(self, node: int, *, answered: bool) -> bool:
        """Whether the server's answer of this round is to be shown for evaluation: the client does not get it. ``node``
        is the other end of the edge; ``answered`` tells whether the server sends its answer in this round."""
        return not answered

    def clear_to_show(self, node: int, phase: int, tensors: Tensors) -> int:
        """As ``clear_to_send``, once at most."""
        return 1

    def take_shown(self, node: int, phase: int) -> np.ndarray | None:
        key = node, self.round, phase
        self._wait_for([key])
        return self._inbox.pop(key)

    def sleep(self) -> None:
        """Called after the round's local work: the slow ones of a scenario take longer."""

    def waited(self) -> Waited:
        """In the current round, where a scenario tells time."""
        return Waited()

    def state(self) -> dict[str, np.ndarray]:
        """What a later process needs to go on: what codecs owe, and what has been counted so far."""
        shown = self.endpoint.sent[EVALUATION]
        tallies = [(sent.messages, sent.wire_bytes) for sent in (shown.get(j, Traffic()) for j in self.neighbours)]
        return self.channels.state() | ({_SHOWN: np.array(tallies)} if shown else {})

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self.channels.load(state)
        if _SHOWN in state:
            tallies = zip(self.neighbours, state[_SHOWN].tolist(), strict=True)
            self.endpoint.sent[EVALUATION] |= {j: Traffic(n, wire_bytes=wire) for j, (n, wire) in tallies if n}

    def memory_bytes(self) -> int:
        """Returns the bytes of vectors that wait for their use or a checkpoint, and of what codecs have left out."""
        return self.channels.memory_bytes() + sum(vector.nbytes for vector in self._inbox.values())

    def _wait_for(self, wanted: Sequence[Key], ends: Callable[[], float] | None = None) -> None:
        """Until the messages are there, see ``_until``. The launcher hears of a long wait, and of its good end."""
        due, inbox, lacking = CONSTANTS.tell_wait_s, self._inbox, [*wanted]

        def all_there() -> bool:
            while lacking and lacking[-1] in inbox:
                lacking.pop()
            return not lacking

        def missing() -> list[Key]:
            return [key for key in lacking if key not in inbox]

        def tell(seconds: float) -> None:
            nonlocal due
            if seconds >= due:
                due = 2 * seconds
                self.endpoint.control.send(Waiting(sorted(missing()), self.round, [*self.sent.items()], seconds))

        self._until(
            all_there,
            lambda: silence_of((node for node, _, _ in missing()), self),
            ends,
            tell,
        )
        if due > CONSTANTS.tell_wait_s:
            self.endpoint.control.send(WaitOver())

    def _until(
        self,
        reached: Callable[[], bool],
        complaint: Callable[[], str],
        ends: Callable[[], float] | None = None,
        tell: Callable[[float], None] = lambda waited: None,
    ) -> None:
        """Takes in messages until ``reached``, or until no more is there at the moment when it ``ends``, if it does
        (time.monotonic() seconds). Raises NeighbourTimeout, once what is there has been looked at: so many messages at
        most, as a neighbour may send without end."""
        if reached():
            return
        left = _LOOKED_AT
        for until in parts_of(self.timeout, tell):
            while time.monotonic() < until:
                heard = self.listen(min(until, ends()) if ends else until)
                is_over = ends is not None and time.monotonic() >= ends()
                left -= is_over and heard
                if reached() or (is_over and not (heard and left)):
                    return
        while left and self.listen(0.0):
            left -= 1
            if reached():
                return
        raise NeighbourTimeout(complaint())

    def listen(self, until: float) -> bool:
        """Takes in the next message before that moment, or the launcher's word; returns whether a message has come."""
        message = self.endpoint.receive(min(until, self._let_arrive()))
        if message is not None:
            self._store(message)
        return message is not None

    def _let_arrive(self) -> float:
        """Lets what has come in arrive, where that takes time; returns when to look again."""
        return math.inf

    def _store(self, message: Message) -> Key | None:
        """Returns the key of a message that is taken in."""
        src, round, phase, tensors, _ = message
        now, key = self.round, (src, round, phase)
        if round == phase == 0 and not tensors and self.endpoint.welcome(message):
            return None
        is_over = round < now or (round == now and phase < self.taken[src])
        try:
            if is_over or round > now + self._ahead or key in self._inbox:
                raise Rejected(OUT_OF_TURN)
            self._inbox[key] = self.channels.decode(src, round, phase, tensors)
        except Rejected as rejected:
            self.endpoint.reject(rejected)
            return None
        return key


def silence_of(nodes: Iterable[int], clock: Clock) -> str:
    return f"client {names_of(nodes)} sent nothing for {clock.timeout:g} s in round {clock.round}"
