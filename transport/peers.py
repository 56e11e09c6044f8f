"""A client's neighbours as its algorithm sees them: vectors out, vectors in, one round after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from ..metrics.records import Record, TrafficRecord
from ..topology.randomness import generator
from .codecs import Codec, Format, Tensors
from .constants import CONSTANTS
from .control import Waiting, WaitOver
from .endpoint import Endpoint, Message, NeighbourTimeout, SentBytes, names_of
from .envelope import Rejected
from .waiting import parts_of

Vectors = Mapping[int, np.ndarray]
"""{neighbour: vector}"""

Key = tuple[int, int, int]
"""Sender, round and phase of a message."""

SHOWN = "shown_bytes"
"""In a checkpoint: messages for evaluation to each neighbour, and their wire bytes."""

_NOTHING = (0, 0, 0, 0)  # messages, and their bytes of payload, message, wire


@dataclass(frozen=True, slots=True)
class Link:
    """What may travel on one edge in a round: the lengths of the vectors, message by message, each way. In the first
    round ``opens`` and ``opened`` come before them."""

    sends: tuple[int, ...]
    receives: tuple[int, ...]
    opens: tuple[int, ...] = ()
    opened: tuple[int, ...] = ()
    may_be_quiet: bool = False
    """Whether an exchange may pass without a vector."""
    codec: Codec | None = None
    """Of the vectors of a round, both ways; None: they travel as they are, as those that come before always do."""
    exact: tuple[int, ...] = ()
    """Message by message, numbers at the end that the codec leaves as they are; by default none."""
    is_shown: bool = False
    """Whether one message more may come in a round, like the last one: a server's answer to be evaluated only."""

    def sent_in(self, round: int) -> tuple[int, ...]:
        return self.opens + self.sends if round == 1 else self.sends

    def received_in(self, round: int) -> tuple[int, ...]:
        return self.opened + self.receives if round == 1 else self.receives

    def sent_as(self, round: int, dtype: np.dtype) -> tuple[Format, ...]:
        return self._formats(self.opens if round == 1 else (), self.sends, dtype)

    def received_as(self, round: int, dtype: np.dtype) -> tuple[Format, ...]:
        return self._formats(self.opened if round == 1 else (), self.receives, dtype)

    def _formats(self, before: tuple[int, ...], lengths: tuple[int, ...], dtype: np.dtype) -> tuple[Format, ...]:
        exact = lengths if self.codec is None else self.exact or (0,) * len(lengths)
        sizes = zip(before + lengths, before + exact, strict=True)
        return tuple(Format(self.codec, dtype, length, last) for length, last in sizes)


@dataclass(frozen=True, slots=True)
class Waited:
    """A round's seconds spent waiting, the neighbour that came last, and when the round ended in virtual seconds."""

    idle_s: float | None = None
    longest_for: int | None = None
    virtual_s: float | None = None


class Peers:
    """Sends to and receives from one client's neighbours, and counts what it sends.

    Within a round the k-th message from i to j has phase k; a message is taken in when its round and phase lie ahead,
    by ``ahead`` rounds at most, and its vector is exactly the one that the link announces. Anything else is dropped and
    counted. A neighbour that is waited for in every round is never more than one round ahead.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        links: Mapping[int, Link],
        dtype: np.dtype,
        timeout: float,
        *,
        ahead: int = 1,
        seed: int = 0,
    ):
        """``seed`` is the run's, for codecs that draw."""
        self.neighbours = tuple(sorted(links))
        self.round = 0
        self.life_began = 1
        self._endpoint = endpoint
        self._stopwatch = endpoint.stopwatch
        self._links = links
        self._dtype = np.dtype(dtype)
        self._timeout = timeout
        self._ahead = ahead
        self._seed = seed
        self._owed: dict[tuple[int, int], np.ndarray] = {}  # (neighbour, message of a round): what was left out of it
        self._inbox: dict[Key, np.ndarray] = {}
        self._sent = dict.fromkeys(self.neighbours, 0)
        self._taken = dict.fromkeys(self.neighbours, 0)
        self._traffic = dict.fromkeys(self.neighbours, _NOTHING)
        self._shown = dict.fromkeys(self.neighbours, (0, 0))  # messages for evaluation, and their wire bytes

    def begin(self, round: int, life_began: int | None = None) -> None:
        """The first round to come; 1, unless the client goes on from a checkpoint. ``life_began`` is the first of this
        life, where it goes on after an interruption of the run."""
        self.round, self.life_began = round, round if life_began is None else life_began

    def exchange(
        self, vectors: Vectors, senders: Collection[int] | None = None, *, quiet: Collection[int] = ()
    ) -> dict[int, np.ndarray]:
        """Sends each of these neighbours its vector, then waits for one from each of them, or of the ``senders``.

        A neighbour that the run's scenario leaves out in this exchange is missing from the result. ``quiet`` are those
        that get none, and of whom none is expected, which they know; where a scenario may have them know something else
        they are told, and may be heard all the same. Raises NeighbourTimeout when one stays silent for longer than the
        timeout.
        """
        with self._stopwatch.during("exchange"):
            self._send(vectors)
            heard = {*(vectors if senders is None else senders), *self._tell_quiet(quiet)}
            return self._receive([node for node in self.neighbours if node in heard])

    def _tell_quiet(self, quiet: Collection[int]) -> Collection[int]:
        """Returns those that may be heard."""
        return ()

    def send(self, vectors: Vectors) -> None:
        with self._stopwatch.during("exchange"):
            self._send(vectors)

    def receive(self, senders: Sequence[int] | None = None, *, bounded: bool = True) -> dict[int, np.ndarray]:
        """{neighbour: its next vector of this round} of ``senders``, by default of all neighbours; read-only arrays.

        ``bounded``: by the deadline of the run's scenario. Raises NeighbourTimeout.
        """
        with self._stopwatch.during("exchange"):
            return self._receive(self.neighbours if senders is None else senders, bounded)

    def left_out(self) -> bool:
        """Whether the run's scenario keeps this client from working for its server in this round."""
        return False

    def lacks_answer(self, node: int, *, answered: bool) -> bool:
        """Whether the server's answer of this round is to be shown for evaluation: the client does not get it.

        ``node`` is the other end of the edge; ``answered`` tells whether the server sends its answer in this round.
        """
        return not answered

    def show(self, vectors: Vectors) -> None:
        """Sends clients the answers of this round that they lack, for evaluation only: this is no traffic of it."""
        with self._stopwatch.during("evaluation"):
            shared: dict[tuple[int, int], tuple[Tensors, list[int]]] = {}
            for node, vector in vectors.items():
                last = len(self._links[node].sent_in(self.round)) - 1  # encoded as the answer would be
                tensors = self._tensors(node, last, vector)
                if self._may_show(node, last + 1, tensors):
                    shared.setdefault((id(tensors[0]), last + 1), (tensors, []))[1].append(node)
            for (_, phase), (tensors, nodes) in shared.items():
                self._send_to_show(nodes, self.round, phase, tensors)

    def _may_show(self, node: int, phase: int, tensors: Tensors) -> bool:
        """Whether the client is there."""
        return True

    def _send_to_show(self, nodes: Sequence[int], round: int, phase: int, tensors: Tensors) -> None:
        for node, weight in self._endpoint.send(nodes, round=round, phase=phase, tensors=tensors).items():
            messages, wire_bytes = self._shown[node]
            self._shown[node] = messages + 1, wire_bytes + weight.wire

    def shown(self, node: int) -> np.ndarray | None:
        """The server's answer of this round, read-only, once it has been shown; None: it will not be.

        Raises NeighbourTimeout.
        """
        with self._stopwatch.during("evaluation"):
            return self._take_shown(node, len(self._links[node].received_in(self.round)))

    def _take_shown(self, node: int, phase: int) -> np.ndarray | None:
        key = node, self.round, phase
        self._take_in_all({key: node})
        return self._inbox.pop(key)

    def _is_shown(self, message: Message) -> bool:
        link = self._links[message.src]
        return link.is_shown and message.phase == len(link.received_in(message.round))

    def _send(self, vectors: Vectors) -> None:
        shared: dict[tuple[int, int, int], tuple[Tensors, list[int]]] = {}
        for node, vector in vectors.items():
            phase = self._sent[node]
            tensors = self._tensors(node, phase, vector)
            self._sent[node] += 1
            for copy in range(self._copies(node, phase, tensors)):
                shared.setdefault((id(tensors[0]), phase, copy), (tensors, []))[1].append(node)
        for (_, phase, _copy), (tensors, nodes) in shared.items():  # one vector for many neighbours is copied once
            self._count(self._endpoint.send(nodes, round=self.round, phase=phase, tensors=tensors))

    def _tensors(self, node: int, phase: int, vector: np.ndarray) -> Tensors:
        """What travels of a vector. Raises ValueError where it is not as announced, and CannotEncode."""
        link = self._links[node]
        announced = link.sent_in(self.round)
        if vector.dtype != self._dtype or vector.shape != announced[phase : phase + 1]:
            raise ValueError(
                f"message {phase} of a round to client {node} was announced with the lengths "
                f"{announced} ({self._dtype}), not as {vector.dtype} {vector.shape}"
            )
        return (vector,) if link.codec is None else self._encode(node, phase, vector)

    def _encode(self, node: int, phase: int, vector: np.ndarray) -> Tensors:
        """With what earlier vectors have left out; what this one leaves out is noted in turn."""
        link = self._links[node]
        format = link.sent_as(self.round, self._dtype)[phase]
        if not format.owes:
            return format.encode(vector, lambda: self._draws(node, phase))
        key = node, phase - len(link.opens) * (self.round == 1)
        vector = vector + self._owed.get(key, 0)
        tensors = format.encode(vector, lambda: self._draws(node, phase))
        self._owed[key] = vector - format.decode(tensors)
        return tensors

    def _draws(self, node: int, phase: int) -> np.random.Generator:
        return generator(self._seed, "rounding", self._endpoint.node, node, self.round, phase)

    def as_heard(self, vectors: Vectors) -> Vectors:
        """The vectors that are sent next, as these neighbours will get them: for what both ends must find alike.

        Not for codecs that leave out entries.
        """
        return {
            node: vector
            if self._links[node].codec is None
            else self._decoded(node, self._sent[node], self._encode(node, self._sent[node], vector))
            for node, vector in vectors.items()
        }

    def _decoded(self, node: int, phase: int, tensors: Tensors) -> np.ndarray:
        """What the neighbour makes of a message of this round."""
        link = self._links[node]
        return tensors[0] if link.codec is None else link.sent_as(self.round, self._dtype)[phase].decode(tensors)

    def _count(self, weights: Mapping[int, SentBytes]) -> None:
        for node, more in weights.items():
            messages, payload, message, wire = self._traffic[node]
            self._traffic[node] = messages + 1, payload + more.payload, message + more.message, wire + more.wire

    def _copies(self, node: int, phase: int, tensors: Tensors) -> int:
        """How often a message is sent."""
        return 1

    def _receive(self, nodes: Sequence[int], bounded: bool = True) -> dict[int, np.ndarray]:
        wanted = {(node, self.round, self._taken[node]): node for node in nodes}
        self._take_in_all(wanted)
        for node in nodes:
            self._taken[node] += 1
        return {node: self._inbox.pop(key) for key, node in wanted.items()}

    def _take_in_all(self, wanted: Mapping[Key, int]) -> None:
        missing = wanted.keys() - self._inbox.keys()
        if not missing:
            return
        with self._waiting_for(lambda: missing) as parts:
            for until in parts:
                try:
                    while missing:
                        missing.discard(self._store(self._endpoint.receive(until)))
                    return
                except NeighbourTimeout:
                    continue
            self._complain(wanted[key] for key in missing)

    @contextmanager
    def _waiting_for(self, missing: Callable[[], Collection[Key]]) -> Iterator[Iterator[float]]:
        """The parts of a wait of ``timeout``. The launcher hears of a long one, and of its good end."""
        due = CONSTANTS.tell_wait_s

        def tell(seconds: float) -> None:
            nonlocal due
            if seconds >= due:
                due = 2 * seconds
                self._endpoint.say(Waiting(sorted(missing()), self.round, [*self._sent.items()], seconds))

        yield parts_of(self._timeout, tell)
        if due > CONSTANTS.tell_wait_s:
            self._endpoint.say(WaitOver())

    def _complain(self, silent: Iterable[int]) -> NoReturn:
        raise NeighbourTimeout(
            f"client {names_of(silent)} sent nothing for {self._timeout:g} s in round {self.round}"
        ) from None

    def _store(self, message: Message) -> Key | None:
        """Returns where it is kept from now on; None: it was dropped."""
        key = src, round, phase = message[:3]
        now = self.round
        try:
            if (
                round < now
                or (round == now and phase < self._taken[src])
                or round > now + self._ahead
                or key in self._inbox
            ):
                raise Rejected("round or phase out of turn")
            self._inbox[key] = self._vector(message)
        except Rejected as rejected:
            self._endpoint.reject(rejected)
            return None
        return key

    def _vector(self, message: Message) -> np.ndarray:
        """Raises Rejected unless it is one that the link announces."""
        link = self._links[message.src]
        phase = message.phase - self._is_shown(message)
        if link.codec is not None:
            formats = link.received_as(message.round, self._dtype)[phase : phase + 1]
            if not formats:
                raise Rejected("wrong shape")
            return formats[0].decode(message.tensors)
        tensors = message.tensors
        expected = link.received_in(message.round)[phase : phase + 1]
        if len(tensors) != 1 or tensors[0].shape != expected:
            raise Rejected("wrong shape")
        if tensors[0].dtype != self._dtype:
            raise Rejected("wrong dtype")
        return tensors[0]

    def idle(self) -> None:
        """Takes in what comes while there is nothing to do, until the launcher says something, or a second at most."""
        message = self._endpoint.receive_or_hear(time.monotonic() + 1)
        if message is not None:
            self._store(message)

    def next_round(self) -> list[Record]:
        """Closes the current round, opens the next; returns what was sent in the one closed, a row a neighbour."""
        src, round = self._endpoint.node, self.round
        rows: list[Record] = [
            TrafficRecord(src, dst, round, *sent) for dst, sent in self._traffic.items() if sent is not _NOTHING
        ]
        self.round += 1
        for node in self.neighbours:
            self._sent[node] = self._taken[node] = 0
            self._traffic[node] = _NOTHING
        return rows

    def waited(self) -> Waited:
        """In the current round, where a scenario tells time."""
        return Waited()

    def sleep(self, elapsed_s: float) -> None:
        """Called after the round's local work, which took so long: the slow ones of a scenario take longer."""

    def kept(self, round: int) -> dict[str, np.ndarray]:
        """{name: vector} of the messages that neighbours have yet to use after ``round``, for its checkpoint."""
        return {}

    def state(self) -> dict[str, np.ndarray]:
        """{"owed.NEIGHBOUR.MESSAGE": what codecs have left out so far}, and what was shown for evaluation: what a later
        process needs to go on."""
        state = {f"owed.{node}.{place}": vector for (node, place), vector in self._owed.items()}
        return state | ({SHOWN: np.array([*self._shown.values()])} if any(map(any, self._shown.values())) else {})

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Goes on from what ``state`` gave."""
        for name, vector in state.items():
            if name.startswith("owed."):
                _, node, place = name.split(".")
                self._owed[int(node), int(place)] = vector
        if SHOWN in state:
            tallies = map(tuple, state[SHOWN].tolist())
            self._shown = dict(zip(self.neighbours, tallies, strict=True))

    def forget(self, round: int) -> None:
        """The checkpoint of ``round`` is written."""

    def deadlines_passed(self) -> int:
        """Waits that ended because a deadline had passed."""
        return 0

    def confirmations(self) -> dict[int, tuple[int, int]]:
        """{neighbour: messages sent it that carry no vector but tell what was taken, and their wire bytes}"""
        return {}

    def evaluations(self) -> dict[int, tuple[int, int]]:
        """{client: messages sent it for evaluation only, and their wire bytes}"""
        return {node: tally for node, tally in self._shown.items() if any(tally)}

    def inbox_bytes(self) -> int:
        """Memory of the vectors that came before their turn, and of what codecs have left out."""
        return sum(vector.nbytes for kept in (self._inbox, self._owed) for vector in kept.values())

    def rejected(self) -> dict[str, int]:
        """{reason: messages dropped since the last call}"""
        rejected = dict(self._endpoint.rejected)
        self._endpoint.rejected.clear()
        return rejected
