"""SCAFFOLD: control variates take each client's own drift out of its local steps."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from ...topology.section import Positive
from ..assignment import Assignment
from .base import Client, Cost, Edge, State, Vector
from .secure import SecureSum
from .server import TAKES_OLD_UPLOADS, Uploads


@dataclass(frozen=True)
class SCAFFOLD(SecureSum):
    """SCAFFOLD (Karimireddy et al. 2020, option II): local steps along the client's gradient, corrected by how it
    differs from that of all.

    client i:  y_i <- y_i - alpha (grad f_i(y_i) - c_i + c)      from y_i = x, for each of K mini-batches
               c_i <- c_i - c + (x - y_i) / (K alpha)            about the client's gradient on the way
               sends y_i and c_i
    server:    x <- x + eta/|S| sum_i (y_i - x)                  over the clients S of the round
               c <- 1/N sum_i c_i                                over all N clients; 0 of those not heard yet
               sends x and c

    The server keeps all c_i, where the paper's adds up their changes: so an upload that is lost does no lasting harm.
    With ``secure`` it cannot, and does as the paper: c <- c + |S|/N mean of the changes of c_i.
    theta is x at the server and after a download, y_i in between."""

    name: Literal["scaffold"] = "scaffold"
    eta: Annotated[Positive, "How far the server goes towards the mean of the clients' models; 1: all the way."] = 1.0

    traits = replace(TAKES_OLD_UPLOADS, momentum=False)
    secure_tolerates = "nothing"

    def messages(self, edge: Edge) -> list[Vector]:
        return self.with_masks(edge, Vector(2 * edge.d_i))

    def cost(self, own: Assignment) -> Cost:
        return Cost(own.run.clients * own.architecture.size if own.role == "server" else 0)

    def begin(self, client: Client) -> State:
        zeros = np.zeros_like(client.theta)
        if client.role == "server":
            return State(answer=np.concatenate([client.theta, zeros]), of={})
        return State(c=zeros, own=zeros)

    def upload(self, client: Client) -> np.ndarray:
        x, state = client.theta.copy(), client.state
        before = state.own
        client.learn(pull=state.c - state.own)
        state.own = state.own - state.c + (x - client.theta) / (client.steps * client.alpha)
        return np.concatenate([client.theta, state.own - before if self.secure else state.own])

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        x, of = server.theta, server.state.of
        y, c = zip(*(np.split(vector, 2) for vector in uploads.values()), strict=True)
        x += self.eta * (sum(y) / len(y) - x)
        if self.secure:
            share = self.taking_part(server.clients) / server.clients
            total = np.split(server.state.answer, 2)[1] + share * c[0]
            server.state.answer = np.concatenate([x, total.astype(x.dtype)])
            return
        of |= zip(uploads, c, strict=True)
        server.state.answer = np.concatenate([x, sum(of[i] for i in sorted(of)) / server.clients])

    def reply(self, server: Client, client: int) -> np.ndarray:
        return server.state.answer

    def download(self, client: Client, vector: np.ndarray) -> None:
        client.theta[:], client.state.c = np.split(vector, 2)
