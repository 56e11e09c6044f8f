"""Algorithms with a server: both halves of one stand in one file, what a client does and what the server does.

In a round, the clients that take part upload a vector, the server makes something of what it has got, and those that
take part in the next round download what they need for it; after the last round all do. Who takes part is drawn from
the run's seed, so that both ends know. The first model needs no message either: it follows from the seed.

Between downloads a client has an old model, or the one that it has trained itself. What is evaluated in a round is what
it would have if the run ended there: the server shows it what it would download. That is measuring: it is no traffic
of the round, is not subject to a scenario, and nothing is learnt from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Gt, Le

from ...topology.randomness import generator
from ...transport.channel import Channel
from ...transport.peers import Peers
from ..assignment import Assignment, Neighbour
from ..client import Client
from .base import Algorithm, same_size

Fraction = Annotated[
    float,
    Gt(0),
    Le(1),
    "Share of the clients that take part in a round, at least one, drawn anew for each; the others pause.",
]

Uploads = Mapping[int, np.ndarray]
"""{client: the vector it has sent}"""


class ServerAlgorithm(Algorithm):
    """A subclass writes ``upload`` and ``aggregate``, and where they are not as here ``reply`` and ``download``.

    theta is the common model w at the server, and at the clients, too, unless each has a model of its own beside it:
    then that is theta, and w is ``global_model``. Settings need a ``fraction``.
    """

    has_own_model: ClassVar[bool] = False
    has_common_model: ClassVar[bool] = True
    """Whether the clients have one at all."""
    answers: ClassVar[Literal["next", "same"]] = "next"
    """Who downloads at the end of a round: who takes part in the next one, or who has in this one."""

    bears_old_uploads: ClassVar[bool] = False
    """Whether an upload may be aggregated again in a later round, for one that is missing (time.silence = "stale")."""

    with_everyone = False

    def __init__(self, settings: Any, client: Client):
        super().__init__(settings, client)
        self._keeps_both = self.has_own_model and client.role == "client"
        self.global_model: np.ndarray = client.theta.copy() if self._keeps_both else client.theta
        if not self.has_common_model:
            self.global_model = None  # type: ignore[assignment]

    @classmethod
    def has_server(cls, settings: Any) -> bool:
        return True

    @classmethod
    def vectors(cls, settings: Any, d_i: int, d_j: int, common: int = 0) -> tuple[int, ...]:
        return (d_i,)  # whole models, up and down; what sends something else says so in ``lengths``

    @classmethod
    def link(cls, settings: Any, own: Assignment, peer: Neighbour) -> Channel:
        return replace(super().link(settings, own, peer), is_shown=own.role == "client")

    @classmethod
    def check(cls, settings: Any, sizes: Sequence[int], edges: Sequence[tuple[int, int]]) -> None:
        same_size(f"algorithm.name = {settings.name!r}", sizes, edges)

    @classmethod
    def bears(cls, settings: Any) -> Literal["late", "missing", "nothing"]:
        return "late" if cls.bears_old_uploads else "missing"

    @classmethod
    def hardier(cls, settings: Any) -> str:
        return "" if cls.bears_old_uploads else "time.silence = 'skip'"

    # -- the client's half ---------------------------------------------------------------------------------------------

    def upload(self, client: Client) -> np.ndarray:
        """Learns, and returns what the server gets of it."""
        raise NotImplementedError

    def download(self, client: Client, vector: np.ndarray) -> None:
        """Takes in what the server has sent."""
        if self._keeps_both:
            self.global_model = vector
        else:
            client.theta[:] = vector

    # -- the server's half ---------------------------------------------------------------------------------------------

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        """Changes the server's theta, or whatever else it keeps, by what the round's clients have sent."""
        raise NotImplementedError

    def reply(self, server: Client, client: int) -> np.ndarray:
        """What a client downloads; one and the same array for all of them is copied once."""
        return server.theta

    # ------------------------------------------------------------------------------------------------------------------

    def open(self, client: Client, peers: Peers) -> None:
        """What happens once, before the first round: ``opening`` announces the vectors."""

    def round(self, client: Client, peers: Peers) -> None:
        if peers.round == 1:
            self.open(client, peers)
        now, next_ = self.participants(client, peers.round), self.receivers(client, peers.round)
        if client.role == "server":
            if uploads := peers.receive(now):  # in a scenario, some may be missing
                self.aggregate(client, uploads)
            peers.send({j: self.reply(client, j) for j in next_})
            return
        (server,) = client.neighbours
        takes_part = client.node in now and not peers.left_out()
        if takes_part:
            peers.send({server: self.upload(client)})
        if client.node in next_:
            received = peers.receive(bounded=takes_part)
            if server in received:
                self.download(client, received[server])

    @contextmanager
    def as_at_the_end(self, client: Client, peers: Peers) -> Iterator[bool]:
        now, answered = self.participants(client, peers.round), self.receivers(client, peers.round)
        download = range(client.clients) if self.answers == "next" else now  # at the end
        if client.role == "server":
            lacking = [j for j in download if peers.lacks_answer(j, answered=j in answered)]
            peers.show({j: self.reply(client, j) for j in lacking})
            yield False
            return
        (server,) = client.neighbours
        if client.node not in download or not peers.lacks_answer(server, answered=client.node in answered):
            yield True
            return
        vector = peers.shown(server)
        if vector is None:
            yield False
            return
        theta, state = client.theta.copy(), {name: array.copy() for name, array in self.state().items()}
        try:
            self.download(client, vector)
            yield True
        finally:
            client.theta[:] = theta
            self.load(state)

    def state_bytes(self) -> int:
        return self.global_model.nbytes if self._keeps_both else 0

    def state(self) -> dict[str, np.ndarray]:
        return {"w": self.global_model} if self._keeps_both else {}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        if self._keeps_both:
            self.global_model = state["w"]

    def participants(self, client: Client, round: int) -> list[int]:
        return participants(client.seed, self.settings.fraction, client.clients, client.rounds, round)

    def receivers(self, client: Client, round: int) -> list[int]:
        return self.participants(client, round + (self.answers == "next"))


def participants(seed: int, fraction: float, clients: int, rounds: int, round: int) -> list[int]:
    """Of a round; behind the last one, all clients: everyone gets what came out."""
    if fraction == 1 or round > rounds:
        return list(range(clients))
    count = int(fraction * clients + 0.5)
    rng = generator(seed, "participants", round)
    return sorted(rng.permutation(clients)[: max(1, count)].tolist())


def weighted_mean(server: Client, models: Uploads) -> np.ndarray:
    """sum_k n_k/n w_k over the clients that have sent w_k: n_k their numbers of training samples, n the sum."""
    samples = [server.neighbours[j].samples for j in models]
    mean = np.zeros(len(next(iter(models.values()))))  # in double precision, whatever theta is in
    for n_k, w_k in zip(samples, models.values(), strict=True):
        mean += n_k / sum(samples) * w_k
    return mean
