"""D² (Tang et al. 2018): D-PSGD that subtracts each client's own bias, so that different losses do no harm.

    theta_i^{k+1} = sum_j W_ij (2 theta_j^k - theta_j^{k-1} - alpha grad f_j(theta_j^k) + alpha grad f_j(theta_j^{k-1}))
    theta_i^1     = sum_j W_ij (theta_j^0 - alpha grad f_j(theta_j^0))

W is the run's mixing matrix, or (W + I)/2. With psi = theta - alpha grad f(theta), the model after the local work, what
travels is theta^k + psi^k - psi^{k-1}: one vector a round, and one to remember. With more local work than one step, its
whole change takes the gradient step's place. Full gradients lead to the minimiser of the sum of all losses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from ...transport.peers import Peers
from ..client import Client
from .base import Algorithm, mixing_pull, same_size


@dataclass(frozen=True)
class D2Settings:
    name: Literal["d2"] = "d2"
    lazy: Annotated[
        bool,
        "true: mix with (W + I)/2, which suits every graph; false: with W itself, which is faster but converges only "
        "where all eigenvalues of W are above -1/3 (on a ring of an even number of clients one is exactly that).",
    ] = True


class D2(Algorithm):
    Settings = D2Settings

    def __init__(self, settings: D2Settings, client: Client):
        super().__init__(settings, client)
        self.psi = client.theta.copy()  # psi^{-1} = theta^0 makes the first round the one of the second line
        if not settings.lazy:
            self.report.cause_of_divergence += ", or set algorithm.lazy = true"

    @classmethod
    def vectors(cls, settings: D2Settings, d_i: int, d_j: int, common: int = 0) -> tuple[int, ...]:
        return (d_i,)

    @classmethod
    def check(cls, settings: D2Settings, sizes: Sequence[int], edges: Sequence[tuple[int, int]]) -> None:
        same_size("algorithm.name = 'd2'", sizes, edges)

    @classmethod
    def bears(cls, settings: D2Settings) -> Literal["nothing"]:
        return "nothing"  # 2 theta^k - theta^{k-1} repeats for ever whatever one round did to the mean

    def round(self, client: Client, peers: Peers) -> None:
        theta = client.theta
        before = theta.copy()
        client.learn()
        psi = theta.copy()
        mine = before + psi - self.psi
        self.psi = psi
        theirs = peers.exchange(dict.fromkeys(client.neighbours, mine))
        pull = mixing_pull(client, mine, theirs)
        theta[:] = mine + (pull / 2 if self.settings.lazy else pull)

    def state_bytes(self) -> int:
        return self.psi.nbytes

    def state(self) -> dict[str, np.ndarray]:
        return {"psi": self.psi}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self.psi = state["psi"]
