"""DFedPGP: push-sum on the bodies of clients' models, over arcs that may go one way."""

from dataclasses import dataclass, replace
from typing import Literal

from ...topology.section import Count
from ..assignment import Assignment
from .base import Client, Edge, Peers, RunFacts, Vector, Work
from .gossip import PushSum, pushed
from .personal_layers import fit_in_turn
from .shared_layers import require_alike


@dataclass(frozen=True)
class DFedPGP(PushSum):
    """DFedPGP (Liu et al. 2024): clients share the body of their models by push-sum, and each has a head of its own.

    v_i <- v_i - alpha grad_v f_i(z_i, v_i)                             K_v times the local work
    u_i <- u_i - alpha grad_u f_i(z_i, v_i),      z_i = u_i / w_i       for each mini-batch of the local work
    u_i <- sum_j P_ij u_j,    w_i <- sum_j P_ij w_j,    z_i = u_i / w_i,    w_i^0 = 1

    P_ij = 1 / (1 + outdeg_j), as in ``push-sum``. theta is (z_i, v_i); w travels as the last number of a message."""

    name: Literal["dfedpgp"] = "dfedpgp"  # type: ignore[assignment]
    head_passes: Count = 1
    """K_v: how many times the head does the local work that [training] asks for, before the body does it once."""

    traits = replace(PushSum.traits, same_size=False, momentum=False)

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(edge.model.size_of("body") + 1)]

    def check(self, run: RunFacts) -> None:
        key = f"algorithm.name = {self.name!r}"
        run.require_body(key)
        require_alike(run, key, lambda model: model.parameters_of("body"))

    def work(self, own: Assignment, round: int) -> Work:
        return Work(gradients=self.head_passes + 1)

    def round(self, client: Client, peers: Peers) -> None:
        theta, body, w = client.theta, client.blocks["body"], client.state.push_sum_weight
        fit_in_turn(client, self.head_passes, slower=float(w[0]))
        theta[body], client.state.push_sum_weight = pushed(client, peers, w * theta[body], w)
