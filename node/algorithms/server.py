"""Algorithms with a server, both halves in one class: what a client does and what the server does. Those below have a
model w in common; S are the clients of a round.

In a round, the clients that take part upload a vector, the server makes something of what it has got, and those that
take part in the next round download what they need for it; after the last round all do. Who takes part is drawn from
the run's seed, so that both ends know. The first model needs no message either: it follows from the seed.

What is evaluated in a round is what a client would have if the run ended there: the server shows it what it would
download, which is no traffic of the round."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Le

from ...topology.randomness import generator
from ...topology.section import Count, Needs, NotNegative, Positive
from ..assignment import Assignment
from .base import Algorithm, Client, Peers, State, Traits, Work
from .robust import RobustMixing

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

    def open(self, client: Client, peers: Peers) -> None:
        """Does what happens once, before the first round: for the vectors that ``messages`` marks as opening."""

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
        count = max(1, int(self.fraction * run.clients + 0.5))
        return sorted(generator(run.seed, "participants", round).permutation(run.clients)[:count].tolist())

    def receivers(self, run: Any, round: int) -> list[int]:
        """Returns who downloads at the end of a round."""
        return self.participants(run, round + (self.answers == "next"))


@dataclass(frozen=True)
class FedAvg(RobustMixing, ServerAlgorithm):
    """FedAvg (McMahan et al. 2017): clients train the common model, the server takes the mean of what they made of it.

    client k:  w_k <- local work from w                  (ClientUpdate: epochs or steps of mini-batch SGD)
    server:    w   <- sum_k n_k/n w_k                    over S, n_k their training samples"""

    name: Literal["fedavg"] = "fedavg"

    traits = TAKES_OLD_UPLOADS

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        server.theta[:] = self.mean(server, uploads, server.theta)


@dataclass(frozen=True)
class Ditto(ServerAlgorithm):
    """Ditto (Li et al. 2021): a model of one's own beside the common one, held near to it.

    client k:  w_k <- local work from w                  (for the common model, as in FedAvg), sends w_k - w
               v_k <- v_k - alpha (grad f_k(v_k) + lam (v_k - w))         for each mini-batch of the local work
    server:    w   <- w + 1/|S| sum_k (w_k - w)

    theta is v_k at a client, w at the server."""

    name: Literal["ditto"] = "ditto"
    lam: Annotated[NotNegative, "Weight lambda of lam/2 ||v_k - w||^2, which holds a client's model near w."] = 0.1

    theta_is = "own beside common"
    traits = replace(NEEDS_NEW_UPLOADS, momentum=False)

    def work(self, own: Assignment, round: int) -> Work:
        return Work(gradients=2)

    def upload(self, client: Client) -> np.ndarray:
        theta, w, alpha, lam = client.theta, client.state.w, client.alpha, self.lam
        v = theta.copy()
        theta[:] = w
        client.learn()
        delta = theta - w
        theta[:] = v
        for batch in client.batches():
            theta -= alpha * (client.gradient_on(batch) + lam * (theta - w))
        return delta

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        server.theta += sum(uploads.values()) / len(uploads)


@dataclass(frozen=True)
class PFedMe(ServerAlgorithm):
    """pFedMe (Dinh et al. 2020): clients' own models are the proximal points of a common one, by Moreau envelopes.

    client i:  w_i = w, then for each mini-batch of the local work
                   theta_i <- theta_i - alpha (grad f_i(theta_i) + lam (theta_i - w_i))       K times on that batch
                   w_i     <- w_i - eta lam (w_i - theta_i)
    server:    w <- (1 - beta) w + beta/|S| sum_i w_i

    The K steps find about the minimiser of f_i(theta) + lam/2 ||theta - w_i||^2. In the paper all clients learn in each
    round and those of S upload; here the others pause, which leaves w the same."""

    name: Literal["pfedme"] = "pfedme"
    lam: Annotated[Positive, "Weight lambda of lam/2 ||theta_i - w_i||^2."] = 15.0
    eta: Annotated[Positive, "Learning rate of w_i; eta lam is the share of the way to theta_i that it goes."] = 0.005
    beta: Annotated[Positive, "What the server makes of the mean: 1 takes it as it is, more goes beyond it."] = 1.0
    inner_steps: Annotated[Count, "K: gradient steps for a proximal point."] = 5

    theta_is = "own beside common"
    traits = replace(TAKES_OLD_UPLOADS, momentum=False)

    def work(self, own: Assignment, round: int) -> Work:
        return Work(gradients=self.inner_steps, on_one_batch=self.inner_steps)

    def upload(self, client: Client) -> np.ndarray:
        theta, alpha, lam, eta = client.theta, client.alpha, self.lam, self.eta
        w = client.state.w.copy()
        theta[:] = w
        for batch in client.batches():
            for _ in range(self.inner_steps):
                theta -= alpha * (client.gradient_on(batch) + lam * (theta - w))
            w -= eta * lam * (w - theta)
        return w

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        beta = self.beta
        server.theta[:] = (1 - beta) * server.theta + beta * sum(uploads.values()) / len(uploads)


@dataclass(frozen=True)
class PerFedAvg(ServerAlgorithm):
    """Per-FedAvg (Fallah et al. 2020): a common model from which one gradient step makes a good one of one's own.

    client i:  w_i = w, then for each step of the local work, D, D', D'' mini-batches of their own:
                   v   = grad f_i(w_i - alpha grad f_i(w_i; D); D')
                   w_i <- w_i - beta v                                    first-order
                   w_i <- w_i - beta (v - alpha H v)                      hessian-free,
                          H v = (grad f_i(w_i + delta v; D'') - grad f_i(w_i - delta v; D'')) / (2 delta)
    server:    w <- 1/|S| sum_i w_i

    The paper's beta is training.alpha. A client's own model is w - alpha grad f_i(w), on all of its training samples.
    """

    name: Literal["per-fedavg"] = "per-fedavg"
    alpha: Annotated[Positive, "Learning rate of the one step from w to a client's own model."] = 0.01
    variant: Literal["first-order", "hessian-free"] = "first-order"
    """What becomes of the second derivatives: left out, or taken from a difference of gradients."""
    delta: Annotated[Positive, Needs("variant", "hessian-free")] = 0.001
    """hessian-free: how far apart these are, as a multiple of v."""

    traits = replace(TAKES_OLD_UPLOADS, momentum=False)

    def work(self, own: Assignment, round: int) -> Work:
        return Work(gradients=4, on_one_batch=2) if self.variant == "hessian-free" else Work(gradients=2)

    def upload(self, client: Client) -> np.ndarray:
        w, alpha, beta, delta = client.theta, self.alpha, client.alpha, self.delta
        hessian_free = self.variant == "hessian-free"
        for batch, other, *third in client.batches(3 if hessian_free else 2):
            here = w.copy()
            w -= alpha * client.gradient_on(batch)
            v = client.gradient_on(other).copy()
            step = v
            if hessian_free:
                w[:] = here + delta * v
                ahead = client.gradient_on(*third).copy()
                w[:] = here - delta * v
                step = v - alpha * (ahead - client.gradient_on(*third)) / (2 * delta)
            w[:] = here - beta * step
        return w

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        server.theta[:] = sum(uploads.values()) / len(uploads)

    def personal_model(self, client: Client) -> np.ndarray:
        return client.theta - self.alpha * client.gradient_on()
