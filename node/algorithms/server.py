"""Algorithms with a server, both halves in one class: what a client does and what the server does.

In a round, the clients that take part upload a vector, the server makes something of what it has got, and those that
take part in the next round download what they need for it; after the last round all do. Who takes part is drawn from
the run's seed, so that both ends know. The first model needs no message either: it follows from the seed.

What is evaluated in a round is what a client would have if the run ended there: the server shows it what it would
download, which is no traffic of the round."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Le

from ...topology.randomness import generator
from ...topology.section import Positive
from .base import Algorithm, Client, Peers, State, Traits

Uploads = Mapping[int, np.ndarray]
"""{client: the vector it has sent}"""

NEEDS_NEW_UPLOADS = Traits(same_size=True, tolerates="missing", more_tolerant="time.silence = 'skip'", server="answers")
"""Of an algorithm with a server that may aggregate fewer uploads in a round, but none twice."""

TAKES_OLD_UPLOADS = replace(NEEDS_NEW_UPLOADS, tolerates="late", more_tolerant="")
"""Of one that may aggregate an upload again in a later round, for one that is missing (time.silence = "stale")."""


@dataclass(frozen=True)
class ServerAlgorithm(Algorithm):
    """A subclass writes ``aggregate``, and where they are not as here ``upload``, ``reply`` and ``download``.

    theta at the server is the common model w."""

    fraction: Annotated[Positive, Le(1)] = 1.0
    """Share of the clients that take part in a round, at least one, drawn anew for each; the others pause."""

    theta_is: ClassVar[Literal["common", "own", "own beside common"]] = "common"
    """theta at a client: the common model w; a model of its own, where there is none in common; or its own with w
    beside it, as ``client.state.w``."""
    answers: ClassVar[Literal["next", "same"]] = "next"
    """Who downloads at the end of a round: who takes part in the next one, or who has in this one."""

    exchanges: ClassVar[int] = 1
    """Vectors that ``messages`` lists each way, without those of an opening: the last the server sends is its answer.
    """

    traits = NEEDS_NEW_UPLOADS

    def begin(self, client: Client) -> State:
        has_both = self.theta_is == "own beside common" and client.role == "client"
        return State(w=client.theta.copy()) if has_both else State()

    def common_model(self, client: Client) -> np.ndarray | None:
        if self.theta_is == "own":
            return None
        return client.state.w if self.theta_is == "own beside common" and client.role == "client" else client.theta

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
        """Returns what a client downloads; one and the same array for all of them is copied once."""
        return server.theta

    def hand_in(self, client: Client, peers: Peers) -> int:
        """At a client: sends its upload; returns for how many deadlines of a scenario it then waits for the answer."""
        peers.send(dict.fromkeys(client.neighbours, self.upload(client)))
        return 1

    def gather(self, server: Client, peers: Peers, now: Sequence[int]) -> Uploads:
        """At the server: takes the uploads of those that take part; in a scenario, some may be missing."""
        return peers.receive(now)

    def least_heard(self, run: Any) -> int:
        """Returns of how many clients the server has to hear in the exchanges before a round's last, to go on."""
        return 1

    def open(self, client: Client, peers: Peers) -> None:
        """Does what happens once, before the first round: for the vectors that ``messages`` marks as opening."""

    def round(self, client: Client, peers: Peers) -> None:
        if peers.round == 1:
            self.open(client, peers)
        now, next_ = self.participants(client, peers.round), self.receivers(client, peers.round)
        if client.role == "server":
            if uploads := self.gather(client, peers, now):
                self.aggregate(client, uploads)
            peers.skip_to(self.exchanges - 1)
            peers.send({j: self.reply(client, j) for j in next_})
            return
        (server,) = client.neighbours
        deadlines = self.hand_in(client, peers) if client.node in now and not peers.left_out() else 0
        peers.skip_to(self.exchanges - 1)
        if client.node in next_:
            received = peers.receive(bounded=deadlines)
            if server in received:
                self.download(client, received[server])

    @contextmanager
    def as_at_the_end(self, client: Client, peers: Peers) -> Iterator[bool]:
        answered = self.receivers(client, peers.round)
        download = range(client.clients) if self.answers == "next" else answered  # at the end
        if client.role == "server":
            peers.show({j: self.reply(client, j) for j in download if peers.lacks_answer(j, answered=j in answered)})
            yield False
            return
        (server,) = client.neighbours
        lacks = client.node in download and peers.lacks_answer(server, answered=client.node in answered)
        vector = peers.shown(server) if lacks else None
        if vector is None:
            yield not lacks
            return
        theta, state = client.theta.copy(), {name: array.copy() for name, array in client.state.arrays().items()}
        try:
            self.download(client, vector)
            yield True
        finally:
            client.theta[:] = theta
            client.state.load(state)

    def participants(self, run: Any, round: int) -> list[int]:
        """Returns who takes part in a round; behind the last one, all clients: everyone gets what came out."""
        if self.fraction == 1 or round > run.rounds:
            return list(range(run.clients))
        drawn = generator(run.seed, "participants", round).permutation(run.clients)
        return sorted(drawn[: self.taking_part(run.clients)].tolist())

    def taking_part(self, clients: int) -> int:
        """Returns how many of so many clients take part in a round."""
        return max(1, int(self.fraction * clients + 0.5))

    def receivers(self, run: Any, round: int) -> list[int]:
        """Returns who downloads at the end of a round."""
        return self.participants(run, round + (self.answers == "next"))
