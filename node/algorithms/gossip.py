"""Algorithms whose clients average with their neighbours, and one whose clients learn alone. W is the run's mixing
matrix; where the graph changes, that of the round. With more local work than one step, its whole change takes the place
of a gradient step."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...topology.graph import GraphSequence, matchings
from .base import Algorithm, Client, Edge, Peers, Setup, State, Traits, Vector, mixing_pull
from .robust import RobustMixing


@dataclass(frozen=True)
class Local(Algorithm):
    """Local training: every client learns alone."""

    name: Literal["local"] = "local"

    traits = Traits(changing_graphs=True, directed_graphs="all", mixes=False, codec_may_drop="entries")  # of nothing

    def messages(self, edge: Edge) -> list[Vector]:
        return []

    def round(self, client: Client, peers: Peers) -> None:
        client.learn()


@dataclass(frozen=True)
class DPSGD(RobustMixing):
    """D-PSGD (Lian et al. 2017): average the neighbours' models, then step along one's own gradient.

    theta_i <- sum_j W_ij theta_j - alpha grad f_i(theta_i)                                   W doubly stochastic"""

    name: Literal["d-psgd"] = "d-psgd"

    traits = Traits(same_size=True, changing_graphs=True, directed_graphs="regular")

    def round(self, client: Client, peers: Peers) -> None:
        theta = client.theta
        theirs = peers.exchange(dict.fromkeys(client.successors, theta), client.predecessors)
        pull = self.pull(client, theta, theirs)
        client.learn()
        theta += pull


@dataclass(frozen=True)
class D2(Algorithm):
    """D² (Tang et al. 2018): D-PSGD that subtracts each client's own bias, so that different losses do no harm.

    theta_i^1     = sum_j W_ij (theta_j^0 - alpha grad f_j(theta_j^0))
    theta_i^{k+1} = sum_j W_ij (2 theta_j^k - theta_j^{k-1} - alpha grad f_j(theta_j^k) + alpha grad f_j(theta_j^{k-1}))

    W may also be (W + I)/2. With psi = theta - alpha grad f(theta), the model after the local work, what travels is
    theta^k + psi^k - psi^{k-1}. Full gradients lead to the minimiser of the sum of all losses."""

    name: Literal["d2"] = "d2"
    lazy: bool = True
    """true: mix with (W + I)/2, which suits every graph; false: with W itself, which is faster but converges only where
    all eigenvalues of W are above -1/3 (on a ring of an even number of clients one is exactly that)."""

    # 2 theta^k - theta^{k-1} repeats for ever whatever one round did to the mean: it tolerates nothing
    traits = Traits(same_size=True, tolerates="nothing", learns_first=True)

    def begin(self, client: Client) -> State:
        if not self.lazy:
            client.report.cause_of_divergence += ", or set algorithm.lazy = true"
        return State(psi=client.theta.copy())  # psi^{-1} = theta^0 makes the second equation that of the first round

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


@dataclass(frozen=True)
class GradientTracking(Algorithm):
    """Gradient tracking (DIGing, Nedić, Olshevsky, Shi 2017): each client follows its estimate of the mean gradient of
    all.

    theta_i^{k+1} = sum_j W_ij theta_j^k - alpha y_i^k
    y_i^k         = sum_j W_ij y_j^{k-1} + grad f_i(theta_i^k) - grad f_i(theta_i^{k-1}),    y_i^0 = grad f_i(theta_i^0)

    The trackers y_i always add up to the gradients of all clients, so full gradients lead to the minimiser of the sum
    of all losses. The gradient is what the local work amounts to, (theta before - theta after) / alpha: with
    mini-batches that is stochastic gradient tracking (Pu and Nedić 2021), with several steps their sum."""

    name: Literal["gradient-tracking"] = "gradient-tracking"

    # what one end of an edge gives and the other does not take is missing from sum_i y_i for good
    traits = Traits(same_size=True, tolerates="nothing", changing_graphs=True, directed_graphs="regular")

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(2 * edge.d_i)]

    def begin(self, client: Client) -> State:
        # y^{-1} = grad f(theta^{-1}) = 0 make y^0 = grad f(theta^0)
        return State(tracker=np.zeros_like(client.theta), gradient=np.zeros_like(client.theta))

    def round(self, client: Client, peers: Peers) -> None:
        theta, alpha, state = client.theta, client.alpha, client.state
        mine = np.concatenate([theta, state.tracker])
        theirs = peers.exchange(dict.fromkeys(client.successors, mine), client.predecessors)
        mixed_theta, mixed_y = np.split(mine + mixing_pull(client, mine, theirs), 2)

        gradient = client.gradient()
        state.tracker = mixed_y + gradient - state.gradient
        state.gradient = gradient
        theta[:] = mixed_theta - alpha * state.tracker


@dataclass(frozen=True)
class PushSum(Algorithm):
    """Stochastic gradient push (Assran et al. 2019): push-sum averages with weights that the sender alone chooses.

    x_i <- x_i - alpha grad f_i(z_i)
    x_i <- sum_j P_ij x_j,    w_i <- sum_j P_ij w_j,    z_i = x_i / w_i,    w_i^0 = 1

    P_ij = 1 / (1 + outdeg_j): client j gives itself and each client it sends to the same share. The columns of P sum to
    1 and its rows need not, so that no client has to know another's degree, and arcs may go one way; dividing by w
    takes out the bias of the rows. theta is z; w travels as the last number of a message."""

    name: Literal["push-sum"] = "push-sum"

    # sum_i x_i and sum_i w_i lose the share that is not used, or gain one that is used twice: it tolerates nothing
    traits = Traits(
        same_size=True,
        tolerates="nothing",
        changing_graphs=True,
        directed_graphs="all",
        learns_first=True,
        mixes=False,
    )

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(edge.d_i + 1)]

    def begin(self, client: Client) -> State:
        return State(push_sum_weight=np.ones(1, client.theta.dtype))

    def round(self, client: Client, peers: Peers) -> None:
        z, w, alpha = client.theta, client.state.push_sum_weight, client.alpha
        z[:], client.state.push_sum_weight = pushed(client, peers, w * z - alpha * client.gradient(), w)


def pushed(client: Client, peers: Peers, x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns z = x / w and w, after x <- sum_j P_ij x_j and w <- sum_j P_ij w_j."""
    share = np.concatenate([x, w]) / (1 + len(client.successors))
    theirs = peers.exchange(dict.fromkeys(client.successors, share), client.predecessors)
    x, w = np.split(sum(theirs.values(), start=share), [-1])
    return x / w, w


@dataclass(frozen=True)
class Pairwise(Algorithm):
    """Pairwise gossip (Boyd et al. 2006): in each round a client averages with one neighbour at most.

    theta_i <- (theta_i + theta_j) / 2 - alpha grad f_i(theta_i)    for the pairs {i, j} of the round's matching
    theta_i <- theta_i - alpha grad f_i(theta_i)                    for the others

    The graph's edges are dealt to matchings before the run, in each of which a client has one partner or none, as in
    MATCHA (Wang et al. 2019); a round has one of them."""

    name: Literal["pairwise"] = "pairwise"
    order: Literal["random", "cyclic"] = "random"
    """random: each round draws one of the matchings; cyclic: they follow each other, so that a client meets every
    neighbour in as many rounds as there are matchings."""

    traits = Traits(same_size=True, mixes=False)

    def pattern(self, run: Setup) -> GraphSequence:
        (graph,) = run.topology().graphs
        return GraphSequence(matchings(graph) or (graph,), seed=run.seed if self.order == "random" else None)

    def round(self, client: Client, peers: Peers) -> None:
        theta = client.theta
        theirs = peers.exchange(dict.fromkeys(client.neighbours, theta))
        pull = sum(((theirs[j] - theta) / 2 for j in theirs), start=0 * theta)
        client.learn()
        theta += pull
