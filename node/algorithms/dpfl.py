"""DPFL: each client finds the neighbours whose models together with its own do best on samples that it holds out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Gt, Lt

from ...topology.section import Count
from ..assignment import Assignment
from .asking import Asking
from .base import Client, Peers, State, Work


@dataclass(frozen=True)
class DPFL(Asking):
    """DPFL, decentralized personalized federated learning (Kharrat, Canini, Horváth 2025).

    theta_i <- local work from theta_i, without the samples that are held out
    C_i     <- greedy choice from the models of Omega_i; Omega_i are all neighbours in round ``choose_round``, before
               which clients learn alone, and whom it has chosen then in all later rounds
    theta_i <- theta(C_i),    theta(S) = (n_i theta_i + sum_{j in S} n_j theta_j) / (n_i + sum_{j in S} n_j)

    The choice: X = {}, Y = Omega_i; for each j in random order a = F(X) - F(X + j), b = F(Y) - F(Y - j), where F(S) is
    the loss of theta(S) on the held-out samples. j is added to X with probability a+ / (a+ + b+), or 1 where both are
    0, and else taken out of Y, until X has as many as the budget allows."""

    name: Literal["dpfl"] = "dpfl"
    budget: Count = 4
    """With how many neighbours a client averages at most."""
    choose_round: Count = 5
    """The round in which it asks all neighbours and decides whom to ask from then on."""
    held_out: Annotated[float, Gt(0), Lt(1)] = 0.2
    """Share of its training samples that it does not learn from, but chooses by."""

    def work(self, own: Assignment, round: int) -> Work:
        asked = len(own.neighbours) if round <= self.choose_round else min(self.budget, len(own.neighbours))
        return Work(full_passes=self.held_out * (2 + 2 * asked * (round >= self.choose_round)))

    def begin(self, client: Client) -> State:
        client.hold_out(self.held_out)
        return State(candidates=np.zeros(client.clients, bool))

    def round(self, client: Client, peers: Peers) -> None:
        client.learn()
        candidates, chooses = client.state.candidates, peers.round == self.choose_round
        whom = client.neighbours if chooses else np.flatnonzero(candidates).tolist()
        theirs = self.ask(client, peers, list(whom))
        chosen = self.greedy(client, theirs, client.generator("choice", peers.round))
        if chooses:
            candidates[chosen] = True
        self.average(client, {j: theirs[j] for j in chosen})

    def greedy(self, client: Client, theirs: Mapping[int, np.ndarray], rng: np.random.Generator) -> list[int]:
        n = {j: client.neighbours[j].samples for j in theirs} | {client.node: client.train_samples}
        weighted = {j: n[j] * model for j, model in theirs.items()} | {client.node: n[client.node] * client.theta}
        held_out = client.held_out

        def loss(total: np.ndarray, samples: int) -> float:
            return client.loss_of(total / samples, held_out)

        x, n_x = weighted[client.node], n[client.node]  # sums over X and Y, and the client itself
        y, n_y = np.sum([*weighted.values()], axis=0), sum(n.values())
        f_x, f_y, chosen = loss(x, n_x), loss(y, n_y), list[int]()
        for j in rng.permutation(sorted(theirs)).tolist():
            more, less = loss(x + weighted[j], n_x + n[j]), loss(y - weighted[j], n_y - n[j])
            a, b = max(0.0, f_x - more), max(0.0, f_y - less)
            if rng.random() < (a / (a + b) if a + b else 1.0):
                chosen.append(j)
                x, n_x, f_x = x + weighted[j], n_x + n[j], more
                if len(chosen) == self.budget:
                    break
            else:
                y, n_y, f_y = y - weighted[j], n_y - n[j], less
        return chosen
