"""Algorithms with a server: both halves of one stand in one file, what a client does and what the server does.

In a round, the clients that take part upload a vector, the server makes something of what it has got, and those that
take part in the next round download what they need for it; after the last round all do. Who takes part is drawn from
the run's seed, so that both ends know. The first model needs no message either: it follows from the seed.

What is evaluated in a round is what a client would have if the run ended there: the server shows it what it would
download. That is measuring: no traffic of the round, not subject to a scenario, and nothing is learnt from it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Le

from ...topology.randomness import generator
from ...topology.section import Positive
from .base import Algorithm, Client, Edge, Peers, State, Traits, Vector

Uploads = Mapping[int, np.ndarray]
"""{client: the vector it has sent}"""

NEEDS_NEW_UPLOADS = Traits(
    same_size=True, tolerates="missing", more_tolerant="time.silence = 'skip'", partners="some", server="answers"
)
"""Of an algorithm with a server that may aggregate fewer uploads in a round, but none twice."""

TAKES_OLD_UPLOADS = replace(NEEDS_NEW_UPLOADS, tolerates="late", more_tolerant="")
"""Of one that may aggregate an upload again in a later round, for one that is missing (time.silence = "stale")."""


@dataclass(frozen=True)
class ServerAlgorithm(Algorithm):
    """A subclass writes ``aggregate``, and where they are not as here ``upload``, ``reply`` and ``download``.

    theta at the server is the common model w.
    """

    fraction: Annotated[Positive, Le(1)] = 1.0
    """Share of the clients that take part in a round, at least one, drawn anew for each; the others pause."""

    theta_is: ClassVar[Literal["common", "own", "own beside common"]] = "common"
    """theta at a client: the common model w; a model of its own, where there is none in common; or its own with w
    beside it, as ``client.state.w``."""
    answers: ClassVar[Literal["next", "same"]] = "next"
    """Who downloads at the end of a round: who takes part in the next one, or who has in this one."""

    @property
    def traits(self) -> Traits:
        return NEEDS_NEW_UPLOADS

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(edge.d_i)]  # a whole model, up and down

    def begin(self, client: Client) -> State:
        has_both = self.theta_is == "own beside common" and client.role == "client"
        return State(w=client.theta.copy()) if has_both else State()

    def common_model(self, client: Client) -> np.ndarray | None:
        if self.theta_is == "own":
            return None
        return client.theta if self.theta_is == "common" or client.role == "server" else client.state.w

    def upload(self, client: Client) -> np.ndarray:
        """At a client: learns, and returns what the server gets of it: by default its whole model."""
        client.learn()
        return client.theta

    def download(self, client: Client, vector: np.ndarray) -> None:
        """At a client: takes in what the server has sent."""
        if self.theta_is == "own beside common":
            client.state.w = vector
        else:
            client.theta[:] = vector

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        """Changes the server's theta, or whatever else it keeps, by what the round's clients have sent."""
        raise NotImplementedError

    def reply(self, server: Client, client: int) -> np.ndarray:
        """What a client downloads; one and the same array for all of them is copied once."""
        return server.theta

    def open(self, client: Client, peers: Peers) -> None:
        """What happens once, before the first round: for the vectors that ``messages`` marks as opening."""

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
        answered = self.receivers(client, peers.round)
        download = range(client.clients) if self.answers == "next" else answered  # at the end
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
        theta, state = client.theta.copy(), {name: array.copy() for name, array in client.state.arrays().items()}
        try:
            self.download(client, vector)
            yield True
        finally:
            client.theta[:] = theta
            client.state.load(state)

    def participants(self, run: Any, round: int) -> list[int]:
        """Of a round; behind the last one, all clients: everyone gets what came out. ``run`` is whatever tells seed,
        clients and rounds: a client, or a configuration."""
        if self.fraction == 1 or round > run.rounds:
            return list(range(run.clients))
        count = max(1, int(self.fraction * run.clients + 0.5))
        return sorted(generator(run.seed, "participants", round).permutation(run.clients)[:count].tolist())

    def receivers(self, run: Any, round: int) -> list[int]:
        """Who downloads at the end of a round."""
        return self.participants(run, round + (self.answers == "next"))

    @property
    def last_round_differs(self) -> bool:
        """Whether in a run's last round others download than in the same round of a longer run."""
        return self.answers == "next" and self.fraction < 1


def weighted_mean(server: Client, models: Uploads) -> np.ndarray:
    """sum_k n_k/n w_k over the clients that have sent w_k: n_k their numbers of training samples, n the sum."""
    n = {j: server.neighbours[j].samples for j in models}
    start = np.zeros(len(next(iter(models.values()))))  # in double precision, whatever theta is in
    return sum((n[k] / sum(n.values()) * w_k for k, w_k in models.items()), start)
