"""A client's neighbours as its algorithm sees them: vectors out, vectors in, one round after the other."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..metrics.records import TrafficRecord
from .endpoint import Endpoint, Message, NeighbourTimeout, names_of
from .envelope import Rejected

Vectors = Mapping[int, np.ndarray]
"""{neighbour: vector}"""

_NOTHING = (0, 0, 0, 0)  # messages, and their bytes of payload, message, wire


@dataclass(frozen=True, slots=True)
class Link:
    """What may travel on one edge in a round: the lengths of the vectors, message by message, each way."""

    sends: tuple[int, ...]
    receives: tuple[int, ...]


class Peers:
    """Sends to and receives from one client's neighbours, and counts what it sends.

    Within a round the k-th message from i to j has phase k; a message is taken in when its round and phase lie ahead,
    by one round at most, and its vector is exactly the one that the link announces. Anything else is dropped and
    counted.
    """

    def __init__(self, endpoint: Endpoint, links: Mapping[int, Link], dtype: np.dtype, timeout: float):
        self.neighbours = tuple(sorted(links))
        self.round = 0
        self._endpoint = endpoint
        self._stopwatch = endpoint.stopwatch
        self._links = links
        self._dtype = np.dtype(dtype)
        self._timeout = timeout
        self._inbox: dict[tuple[int, int, int], np.ndarray] = {}
        self._sent = dict.fromkeys(self.neighbours, 0)
        self._taken = dict.fromkeys(self.neighbours, 0)
        self._traffic = dict.fromkeys(self.neighbours, _NOTHING)

    def exchange(self, vectors: Vectors) -> dict[int, np.ndarray]:
        """Sends each neighbour its vector, then waits for one from each.

        Raises NeighbourTimeout when one stays silent for longer than the timeout.
        """
        with self._stopwatch.during("exchange"):
            self._send(vectors)
            return self._receive()

    def send(self, vectors: Vectors) -> None:
        with self._stopwatch.during("exchange"):
            self._send(vectors)

    def receive(self) -> dict[int, np.ndarray]:
        """{neighbour: its next vector of this round}, read-only arrays. Raises NeighbourTimeout."""
        with self._stopwatch.during("exchange"):
            return self._receive()

    def _send(self, vectors: Vectors) -> None:
        shared: dict[tuple[int, int], list[int]] = {}
        for node, vector in vectors.items():
            phase = self._sent[node]
            if vector.dtype != self._dtype or vector.shape != self._links[node].sends[phase : phase + 1]:
                raise ValueError(
                    f"message {phase} of a round to client {node} was announced with the lengths "
                    f"{self._links[node].sends} ({self._dtype}), not as {vector.dtype} {vector.shape}"
                )
            shared.setdefault((id(vector), phase), []).append(node)
        for (_, phase), nodes in shared.items():  # one vector for many neighbours is copied once
            weights = self._endpoint.send(nodes, round=self.round, phase=phase, tensors=(vectors[nodes[0]],))
            for node in nodes:
                self._sent[node] += 1
                if node in weights:
                    messages, payload, message, wire = self._traffic[node]
                    more = weights[node]
                    self._traffic[node] = (
                        messages + 1,
                        payload + more.payload,
                        message + more.message,
                        wire + more.wire,
                    )

    def _receive(self) -> dict[int, np.ndarray]:
        wanted = {(node, self.round, self._taken[node]): node for node in self.neighbours}
        deadline = time.monotonic() + self._timeout
        while not all(key in self._inbox for key in wanted):
            try:
                self._store(self._endpoint.receive(deadline))
            except NeighbourTimeout:
                silent = names_of(node for key, node in wanted.items() if key not in self._inbox)
                raise NeighbourTimeout(
                    f"client {silent} sent nothing for {self._timeout:g} s in round {self.round}"
                ) from None
        for node in self.neighbours:
            self._taken[node] += 1
        return {node: self._inbox.pop(key) for key, node in wanted.items()}

    def _store(self, message: Message) -> None:
        header = message.header
        key = (header.src, header.round, header.phase)
        try:
            next_ = (self.round, self._taken[header.src])
            if not next_ <= (header.round, header.phase) or header.round > self.round + 1 or key in self._inbox:
                raise Rejected("round or phase out of turn")
            expected = self._links[header.src].receives[header.phase : header.phase + 1]
            if len(message.tensors) != 1 or message.tensors[0].shape != expected:
                raise Rejected("wrong shape")
            if message.tensors[0].dtype != self._dtype:
                raise Rejected("wrong dtype")
        except Rejected as rejected:
            self._endpoint.reject(rejected)
        else:
            self._inbox[key] = message.tensors[0]

    def next_round(self) -> list[TrafficRecord]:
        """Closes the current round, opens the next; returns what was sent in the one closed, a row a neighbour."""
        src, round = self._endpoint.node, self.round
        rows = [TrafficRecord(src, dst, round, *sent) for dst, sent in self._traffic.items() if sent is not _NOTHING]
        self.round += 1
        for node in self.neighbours:
            self._sent[node] = self._taken[node] = 0
            self._traffic[node] = _NOTHING
        return rows

    def inbox_bytes(self) -> int:
        """Memory of the vectors that came before their turn."""
        return sum(vector.nbytes for vector in self._inbox.values())

    def rejected(self) -> dict[str, int]:
        """{reason: messages dropped since the last call}"""
        rejected = dict(self._endpoint.rejected)
        self._endpoint.rejected.clear()
        return rejected
