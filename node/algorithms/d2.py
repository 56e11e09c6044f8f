"""D² (Tang et al. 2018): D-PSGD that subtracts each client's own bias, so that different losses do no harm.

    theta_i^{k+1} = sum_j W_ij (2 theta_j^k - theta_j^{k-1} - alpha grad f_j(theta_j^k) + alpha grad f_j(theta_j^{k-1}))
    theta_i^1     = sum_j W_ij (theta_j^0 - alpha grad f_j(theta_j^0))

W is the run's mixing matrix, or (W + I)/2. With psi = theta - alpha grad f(theta), the model after the local work, what
travels is theta^k + psi^k - psi^{k-1}: one vector a round, and one to remember. With more local work than one step, its
whole change takes the gradient step's place. Full gradients lead to the minimiser of the sum of all losses.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from .base import Algorithm, Client, Edge, Peers, State, Traits, Vector, mixing_pull


@dataclass(frozen=True)
class D2(Algorithm):
    name: Literal["d2"] = "d2"
    lazy: Annotated[
        bool,
        "true: mix with (W + I)/2, which suits every graph; false: with W itself, which is faster but converges only "
        "where all eigenvalues of W are above -1/3 (on a ring of an even number of clients one is exactly that).",
    ] = True

    # 2 theta^k - theta^{k-1} repeats for ever whatever one round did to the mean: it tolerates nothing
    traits = Traits(same_size=True, tolerates="nothing")

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(edge.d_i)]

    def begin(self, client: Client) -> State:
        if not self.lazy:
            client.report.cause_of_divergence += ", or set algorithm.lazy = true"
        return State(psi=client.theta.copy())  # psi^{-1} = theta^0 makes the first round the one of the second line

    def round(self, client: Client, peers: Peers) -> None:
        theta, state = client.theta, client.state
        before = theta.copy()
        client.learn()
        psi = theta.copy()
        mine = before + psi - state.psi
        state.psi = psi
        theirs = peers.exchange(dict.fromkeys(client.neighbours, mine))
        pull = mixing_pull(client, mine, theirs)
        theta[:] = mine + (pull / 2 if self.lazy else pull)
