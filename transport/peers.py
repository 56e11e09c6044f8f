"""A client's neighbours as its algorithm sees them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from .channel import Tensors
from .clock import EVALUATION, Clock, Use
from .endpoint import Traffic

Vectors = Mapping[int, np.ndarray]  # {neighbour: vector}
Tap = Callable[[int, Sequence[int], np.ndarray], None]  # (message of the round, who gets it, as they will decode it)


class Liar(Protocol):
    """Puts other vectors in place of those that a client would send, of the same lengths."""

    waits_for: frozenset[int]  # whose message of an exchange it hears before it sends its own

    def forge(self, vectors: Vectors) -> Vectors: ...
    def hear(self, vectors: Vectors) -> None: ...
    def state(self) -> dict[str, np.ndarray]: ...
    def load(self, state: Mapping[str, np.ndarray]) -> None: ...


class Exchanged(NamedTuple):
    round: int
    sent: dict[int, Traffic]  # with each neighbour that something was sent to
    used: Sequence[Use]  # where a scenario decides that


class Peers:
    """Sends to and receives from one client's neighbours. Within a round the k-th message from i to j has phase k. The
    clock says which messages are sent, and which are used; a message whose round or phase lies behind, or whose vector
    is not the one that the channel announces, is dropped and counted."""

    neighbours: Sequence[int]  # with whom messages may be exchanged
    left_out: Callable[[], bool]  # whether the run's scenario has this client leave out the round
    tap: Tap | None = None  # is told of every vector that leaves, but for evaluation

    def __init__(self, clock: Clock, liar: Liar | None = None):
        self.clock, self._liar = clock, liar
        self.neighbours, self._neighbours = clock.neighbours, frozenset(clock.neighbours)
        self.left_out, self.lacks_answer = clock.left_out, clock.lacks_answer
        self.memory_bytes = clock.memory_bytes
        self._channels = clock.channels
        self._early: dict[int, np.ndarray | None] = {}  # what a liar has heard before it sent; None: there was nothing
        self._stopwatch = clock.endpoint.stopwatch

    @property
    def round(self) -> int:
        """The round, from 1."""
        return self.clock.round

    def exchange(
        self, vectors: Vectors, senders: Collection[int] | None = None, *, quiet: Collection[int] = ()
    ) -> dict[int, np.ndarray]:
        """Sends each of these neighbours its vector, then waits for one from each of them, or of the ``senders``:
        ``client.predecessors`` on a directed graph. Returns {neighbour: its vector}, read-only arrays, without those
        that the run's scenario leaves out. ``quiet`` are those that get none, and of whom none is expected, which they
        know; where a scenario may have them know something else they are told, and may be heard all the same. A vector
        has to have the length that ``messages`` announces. Raises NeighbourTimeout."""
        senders = vectors if senders is None else senders
        self._require_neighbours(vectors, senders)
        with self._stopwatch.during("exchange"):
            self._send(vectors)
            heard = {*senders, *self.clock.tell_quiet(quiet, vectors)}
            all_of_them = len(heard) == len(self.neighbours)
            return self._receive(self.neighbours if all_of_them else [j for j in self.neighbours if j in heard])

    def _require_neighbours(self, vectors: Vectors, senders: Collection[int]) -> None:
        """Raises ValueError."""
        if type(vectors) is not dict and not isinstance(vectors, Mapping):  # the quicker question first
            raise ValueError(f"exchange takes {{neighbour: vector}}, not {type(vectors).__name__}")
        if not (self._neighbours.issuperset(vectors) and self._neighbours.issuperset(senders)):
            stranger = next(node for node in (*vectors, *senders) if node not in self._neighbours)
            raise ValueError(f"{stranger!r} is no neighbour of this client: {', '.join(map(str, self.neighbours))}")

    def send(self, vectors: Vectors) -> None:
        """Sends each of these neighbours its vector, and waits for nothing."""
        with self._stopwatch.during("exchange"):
            self._send(vectors)

    def _send(self, vectors: Vectors, *, shown: bool = False) -> None:
        """What is ``shown`` is encoded as the round's last message, and sent as one more."""
        clock, round = self.clock, self.clock.round
        if not shown:
            vectors = self._forged(vectors)
        copies_to = clock.clear_to_show if shown else clock.clear_to_send
        shared: dict[tuple[int, int, int], tuple[Tensors, list[int]]] = {}  # one vector for many is copied once
        for node, vector in vectors.items():
            phase = len(self._channels[node].sent_in(round)) if shown else clock.sent[node]
            tensors = self._channels.encode(node, round, phase - shown, vector)
            clock.sent[node] += not shown
            for copy in range(copies_to(node, phase, tensors) if clock.holds_back else 1):
                shared.setdefault((id(tensors[0]), phase, copy), (tensors, []))[1].append(node)
        if self.tap and not shown:
            for (_, phase, copy), (tensors, nodes) in shared.items():
                if not copy:
                    self.tap(phase, nodes, self._channels.sent(nodes[0], round, phase, tensors))
        messages = [(nodes, phase, tensors) for (_, phase, _), (tensors, nodes) in shared.items()]
        clock.endpoint.send_all(messages, round, EVALUATION if shown else "")

    def _forged(self, vectors: Vectors) -> Vectors:
        if self._liar is None:
            return vectors
        if first := [j for j in vectors if j in self._liar.waits_for and j not in self._early]:
            self._early |= {**dict.fromkeys(first), **self._heard(first)}
        return self._liar.forge(vectors)

    def skip_to(self, exchange: int) -> None:
        """The next message each way is that of this exchange of the round, from 0, without an opening, or a later one;
        what was not sent before, and did not come, is left out."""
        clock, is_first = self.clock, self.round == 1
        for node in self.neighbours:
            channel = self._channels[node]
            clock.sent[node] = max(clock.sent[node], exchange + len(channel.opens) * is_first)
            clock.taken[node] = max(clock.taken[node], exchange + len(channel.opened) * is_first)

    def receive(self, senders: Sequence[int] | None = None, *, bounded: float = 1) -> dict[int, np.ndarray]:
        """Waits for {neighbour: its next vector of this round}, (d,) read-only, of ``senders``, by default of all. It
        waits for ``bounded`` times the deadline of the run's scenario at most; 0: however long. Raises
        NeighbourTimeout."""
        with self._stopwatch.during("exchange"):
            return self._receive(self.neighbours if senders is None else senders, bounded=bounded)

    def _receive(self, nodes: Sequence[int], *, bounded: float = 1) -> dict[int, np.ndarray]:
        if self._liar is None:
            return self.clock.receive(nodes, bounded=bounded)
        early = {j: self._early.pop(j) for j in nodes if j in self._early}
        vectors = early | self._heard([j for j in nodes if j not in early], bounded=bounded)
        return {j: vector for j in nodes if (vector := vectors.get(j)) is not None}

    def _heard(self, nodes: Sequence[int], *, bounded: float = 1) -> dict[int, np.ndarray]:
        vectors = self.clock.receive(nodes, bounded=bounded)
        if self._liar:
            self._liar.hear(vectors)
        return vectors

    def state(self) -> dict[str, np.ndarray]:
        """Returns what a later process needs to go on."""
        return self.clock.state() | (self._liar.state() if self._liar else {})

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self.clock.load(state)
        if self._liar:
            self._liar.load(state)

    def as_heard(self, vectors: Vectors) -> Vectors:
        """Returns the vectors that are sent next, as neighbours will decode them: others where a codec is set, or where
        this client attacks. For what both ends must compute alike. Not for codecs that leave out entries."""
        round, sent, told = self.round, self.clock.sent, self._forged(vectors)
        return {node: self._channels.as_heard(node, round, sent[node], vector) for node, vector in told.items()}

    def show(self, vectors: Vectors) -> None:
        """Sends clients the answers of this round that they lack, for evaluation only: this is no traffic of it."""
        with self._stopwatch.during("evaluation"):
            self._send(vectors, shown=True)

    def shown(self, node: int) -> np.ndarray | None:
        """The server's answer of this round, once it has been shown; None: it will not be. Raises NeighbourTimeout."""
        with self._stopwatch.during("evaluation"):
            return self.clock.take_shown(node, len(self._channels[node].received_in(self.round)))

    def next_round(self) -> Exchanged:
        """Closes the current round, opens the next; returns what was exchanged in the one closed."""
        sent = self.clock.endpoint.sent.pop("", {})
        return Exchanged(self.round, dict(sorted(sent.items())), self.clock.next_round())

    def rejected(self) -> dict[str, int]:
        """{reason: messages dropped since the last call}"""
        rejected = dict(self.clock.endpoint.rejected)
        self.clock.endpoint.rejected.clear()
        return rejected
