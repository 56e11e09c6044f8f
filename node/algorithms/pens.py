"""PENS: clients try the models of some others on their own data, and talk to those that did well."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...topology.section import Count
from ..assignment import Assignment
from .asking import Asking
from .base import Client, Peers, RunFacts, SettingsError, State, Work


@dataclass(frozen=True)
class PENS(Asking):
    """PENS, performance-based neighbour selection (Onoszko et al. 2021).

    theta_i <- local work from theta_i
    first stage:  S_i of ``sample`` neighbours drawn at random,
                  M_i the ``top`` of them with the smallest f_i(theta_j), on all training samples
    then:         M_i of ``sample`` drawn from N_i, who were in M_i at least as often as neighbours were on average
    theta_i <- (n_i theta_i + sum_j n_j theta_j) / (n_i + sum_j n_j)        over M_i

    The paper takes those who were chosen more often than by chance; here a tie stays. Clients ask for models, as in the
    paper's experiments. In the paper everyone may talk to everyone: topology.kind = "complete"."""

    name: Literal["pens"] = "pens"
    sample: Count = 6
    """How many neighbours a client asks for their models in a round."""
    top: Count = 2
    """first stage: with how many of these it averages."""
    first_stage: Count = 20
    """Rounds of the first stage."""

    def check(self, run: RunFacts) -> None:
        if self.top > self.sample:
            raise SettingsError("algorithm.top", f"is {self.top}; allowed are 1 to algorithm.sample = {self.sample}")

    def work(self, own: Assignment, round: int) -> Work:
        return Work(full_passes=min(self.sample, len(own.neighbours)) if round <= self.first_stage else 0)

    def begin(self, client: Client) -> State:
        return State(chosen=np.zeros(client.clients, int))  # how often each was in M_i

    def round(self, client: Client, peers: Peers) -> None:
        client.learn()
        counts, candidates = client.state.chosen, np.array(sorted(client.neighbours), int)
        tries = peers.round <= self.first_stage
        if not tries:
            candidates = candidates[counts[candidates] * len(candidates) >= counts.sum()]
        drawn = client.generator("asked", peers.round).permutation(candidates)[: self.sample]
        theirs = self.ask(client, peers, drawn.tolist())
        if tries:
            losses = {j: client.loss_of(model) for j, model in theirs.items()}
            best = sorted(losses, key=losses.__getitem__)[: self.top]
            counts[best] += 1
            theirs = {j: theirs[j] for j in best}
        self.average(client, theirs)
