"""Selective sheaf: neighbours whose tasks are alike find each other in the sketches that they exchange.

Ours, not the paper's; docs/selective-sheaf.md derives it. Of its update Delta_i = theta_i - theta^0 since the common
start, client i sends neighbour j P_ij^k Delta_i and n_i = ||Delta_i||^2. P_ij^k = P_ji^k are d_ij orthonormal rows that
both ends draw, anew in each round. From these both estimate cos(Delta_i, Delta_j), averaged over rounds (``Estimate``).
An edge pulls where the tasks at its ends are alike:

    theta_i <- theta_i - alpha (grad f_i(theta_i) + lam sum_j w_ij P_ij^T r_ij),    r_ij = P_ij (theta_i - theta_j),

in every local step. w_ij = 1 once the average is surely at least the threshold c_ij, 0 once it is surely below, and
unchanged in between: "surely" is by a number of standard errors. An edge that is surely off is silent in most rounds.

Both ends work out the same numbers (of P_ij Delta_i as a codec rounds it; n_i travels as it is), so they agree without
a word on when to pull and when to speak. Messages may be lost, though. The sign of n_i tells how the sender has
decided, and w_ij = 1 takes both: whoever hears each other in a round uses the same weight in it. n_i = 0 tells that a
client starts again (``restart``): both ends forget what they had estimated.

With ``guard`` a client believes no more of what it is told than chance explains. E ||P Delta||^2 = m/d n of m rows ties
a norm to its sketch: both ends check that of both messages, of this round and on average, whether the cosine of this
round alone is one that alike clients may have, and that no sketch is a copy. An edge that fails does not pull in the
round, and the round counts as a cosine of -1. For oneself, and the other end need not know, the pull of an edge is cut
to the length that it has at the threshold between updates of one's own length,

    r_ij <- min(1, sqrt(2 (1 - c_ij)) ||P_ij Delta_i|| / ||r_ij||) r_ij."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le, Lt

from ...topology.section import Count, NotNegative, Positive
from ..assignment import Assignment
from ..learned_maps import OF_A_TRANSFORM, shared_size
from ..maps import shared_rows, shared_transform
from ..model.architecture import Architecture
from ..stored_maps import StoredMaps
from .base import Algorithm, Client, Cost, Edge, Peers, RunFacts, SettingsError, State, Traits, Vector
from .sheaf_fmtl import descend, norm


@dataclass(frozen=True)
class SelectiveSheaf(Algorithm):
    name: Literal["selective-sheaf"] = "selective-sheaf"
    gamma: Annotated[Positive, Le(1), "Size of the shared vectors: d_ij = max(1, floor(gamma d))."] = 0.1
    lam: Annotated[NotNegative, "Weight lambda of the agreement of neighbours that are alike."] = 1.0
    threshold: Annotated[float, Ge(-1), Le(1)] = 0.55
    """c: two clients with much data are alike where the cosine between their updates is at least this."""
    noise_samples: NotNegative = 12.0
    """kappa: of so many training samples, half of an update is noise. Clients with m_i and m_j samples are alike from a
    cosine of c sqrt(rho_i rho_j), rho = m / (m + kappa); 0: from c."""
    smoothing: Annotated[NotNegative, Lt(1)] = 0.9
    """How much a round's estimate of the cosine counts against that of the next one."""
    listen: Annotated[Count, "Rounds in which an edge is only listened to, before anything is decided."] = 10
    sure: Annotated[NotNegative, "Standard errors between the estimate and c that it takes to decide anew."] = 2.0
    weights: Literal["hard", "soft"] = "hard"
    """w_ij of an edge that is on: 1, or the square of the estimated cosine."""
    blocks: Literal["whole", "head"] = "whole"
    """whole: one weight an edge; head: one for the head (``model.head``), and one for the body before it."""
    probe_every: Annotated[
        Count, "An edge that is surely off speaks in every so many rounds only; 1: in all of them."
    ] = 10
    restart: bool = False
    """A client whose training loss is higher than it was at theta^0 starts again from there: its task has changed."""
    seek: bool = False
    """Clients introduce their neighbours to one another every probe_every rounds, and edges that are surely off make
    room: the graph is only where it begins."""

    guard: bool = False
    """A client that attacks is found out where what it says does not fit: its norm to its sketch, a round's cosine to
    alike clients, its sketch to be its own; and no pull is longer than those of alike clients are."""

    @property
    def traits(self) -> Traits:
        return Traits(
            same_size=True,
            tolerates="missing",  # the rows of another round do not compare
            silent_edges=self.probe_every > 1 or self.seek,
            new_edges=self.seek,
            mixes=False,
            reads_samples=self.restart,
            has_maps=True,
            libraries=("scipy.fft",),
        )

    def messages(self, edge: Edge) -> list[Vector]:
        blocks = len(block_sizes(self.blocks, edge.model))
        sketch = Vector(shared_size(self.gamma, edge.d_i, edge.d_j) + blocks, exact=blocks)
        return [sketch, Vector(2, exact=2)] if self.seek else [sketch]

    def check(self, run: RunFacts) -> None:
        if not run.same_start:
            raise SettingsError(
                "model.same_start",
                "= false: algorithm.name = 'selective-sheaf' compares updates since a common start; set it to true",
            )
        if self.blocks == "head" and any(
            model.parameters_of("body") + model.parameters_of("head") != model.parameters() for model in run.models
        ):
            raise SettingsError("algorithm.blocks", "= 'head' needs a head whose parameters come last; see model.head")
        if not all(size for model in run.models for size in block_sizes(self.blocks, model)):
            raise SettingsError(
                "algorithm.blocks", "= 'head' needs a model with layers before its last one; or set it to 'whole'"
            )

    def begin(self, client: Client) -> State:
        return SelectiveState(self, client)

    def round(self, client: Client, peers: Peers) -> None:
        theta, state, edges = client.theta, client.state, client.state.edges
        rows = {j: d_ij for j, d_ij in state.maps.stacking.rows.items() if j in state.introductions.neighbours}
        state.chosen |= shared_rows(client.seed, client.node, rows, theta.size, peers.round - 1)
        state.maps.start.choose(state.chosen)

        delta = theta - state.theta0
        sketches = state.maps.project(delta)  # P_ij Delta_i
        ends = np.cumsum(state.blocks)
        n = np.array([part @ part for part in np.split(delta, ends[:-1])], delta.dtype)  # n_i of each block
        silent = {j for j in rows if peers.round % self.probe_every and edges[j].is_surely_off}
        messages = {j: np.append(sketches[j], np.where(edges[j].on, n, -n)) for j in rows if j not in silent}
        said = {j: np.split(message, [-len(n)]) for j, message in peers.as_heard(messages).items()}
        sketches |= {j: sketch for j, (sketch, _) in said.items()}
        norms = dict.fromkeys(rows, n) | {j: np.abs(n_said) for j, (_, n_said) in said.items()}
        theirs = peers.exchange(messages, quiet=client.neighbours.keys() - messages.keys())
        state.introductions.welcome(theirs)

        r, weights = {}, {}
        for j, message in ((j, theirs[j]) for j in rows if j in theirs):
            sketch, n_j = np.split(message, [-len(n)])
            block = np.searchsorted(ends, state.chosen[j], side="right")  # of theta, that a row belongs to
            r[j] = sketches[j] - sketch  # P_ij (theta_i - theta_j)
            weights[j] = edges[j].weights(~np.signbit(n_j))[block].astype(theta.dtype)
            edges[j].see(block, sketches[j], sketch, norms[j], np.abs(n_j))
            if self.guard:
                weights[j] *= edges[j].believed[block]
                r[j] = cut(r[j], math.sqrt(2 * (1 - edges[j].threshold)) * norm(sketches[j]))

        descend(client, self.lam, r, weights)
        report = client.report
        report.weights = {j: norm(weights[j]) / math.sqrt(rows[j]) if j in r else 0.0 for j in rows}
        report.cosines = {j: cosine for j in rows if (cosine := edges[j].cosine) is not None}

        if self.restart:
            self._restart_where_lost(client)
        if self.seek:
            self._meet(client, peers)

    def _restart_where_lost(self, client: Client) -> None:
        assert client.train_loss is not None
        state = client.state
        if math.isnan(state.loss_at_theta0):
            state.loss_at_theta0 = client.train_loss
        elif client.train_loss > state.loss_at_theta0:
            client.theta[:] = state.theta0
            state.loss_at_theta0 = math.nan
            for edge in state.edges.values():
                edge.on[:] = False

    def _meet(self, client: Client, peers: Peers) -> None:
        introductions, edges = client.state.introductions, client.state.edges
        if peers.round <= self.listen or peers.round % self.probe_every:
            peers.exchange({}, quiet=client.neighbours)
            return
        on = {j for j in introductions.neighbours if edges[j].on.any()}
        off = {j for j in introductions.neighbours if edges[j].is_surely_off}
        messages = introductions.messages(on, off, client.generator("introductions", peers.round))
        told = {j: message.astype(client.theta.dtype) for j, message in messages.items()}
        heard = peers.exchange(told, quiet=client.neighbours.keys() - told.keys())
        for j in introductions.hear(told, {j: heard[j] for j in told if j in heard}):
            edges[j].listen[:] = min(3, self.listen)  # fewer: both have been learning for a while

    def cost(self, own: Assignment) -> Cost:
        d_i = own.architecture.size
        rows = sum(shared_size(self.gamma, d_i, peer.parameters) for peer in own.neighbours)
        return Cost(OF_A_TRANSFORM * d_i + 2 * rows)


def block_sizes(blocks: Literal["whole", "head"], architecture: Architecture) -> tuple[int, ...]:
    """Returns how many numbers of theta each block has that has a weight of its own."""
    return (architecture.size,) if blocks == "whole" else (architecture.size_of("body"), architecture.size_of("head"))


class SelectiveState(State):
    """theta^0 and the rows follow from the run's seed: they are not saved."""

    maps: StoredMaps

    def __init__(self, algorithm: SelectiveSheaf, client: Client):
        neighbours, size = client.neighbours, client.theta.size
        self.theta0 = client.theta.copy()
        self.blocks, self.guarded = block_sizes(algorithm.blocks, client.model), algorithm.guard
        rows = {j: shared_size(algorithm.gamma, size, peer.parameters) for j, peer in neighbours.items()}
        self.chosen = shared_rows(client.seed, client.node, rows, size, 0)
        dtype, m_i = client.theta.dtype, client.train_samples
        self.maps = StoredMaps(shared_transform(client.seed, self.chosen, self.blocks, dtype=dtype))
        self.edges = {j: Estimate(algorithm, self.blocks, m_i, peer.samples) for j, peer in neighbours.items()}
        first = [j for j, peer in neighbours.items() if peer.weight or not algorithm.seek]
        self.introductions = Introductions(neighbours, first)
        self.loss_at_theta0 = math.nan
        self._crossed = dict[str, str]()

    def arrays(self) -> dict[str, np.ndarray]:
        numbers, them = [edge.numbers for edge in self.edges.values()], self.introductions
        known = [[j in kind for kind in (them.neighbours, them.met, them.seeking)] for j in them.everyone]
        return {
            "edges": np.array(numbers).reshape(-1, len(self.blocks), 8 if self.guarded else 6),
            "loss_at_theta0": np.array([self.loss_at_theta0]),
            "acquaintances": np.array(known, np.uint8).reshape(-1, 3),
            "introduced": np.array(sorted(them.introduced), np.int64).reshape(-1, 2),
        }

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        for edge, numbers in zip(self.edges.values(), arrays["edges"], strict=True):
            edge.numbers[:] = numbers
        self.loss_at_theta0, them = float(arrays["loss_at_theta0"][0]), self.introductions
        of = [{them.everyone[place] for place in np.flatnonzero(kind)} for kind in arrays["acquaintances"].T]
        them.neighbours, them.met, them.seeking = of
        them.introduced = {(i, j) for i, j in arrays["introduced"].tolist()}

    def nbytes(self) -> int:
        numbers = [self.theta0, *self.arrays().values()]
        return self.maps.state_bytes() + sum(array.nbytes for array in numbers)


def sampled_cosine(mine: np.ndarray, theirs: np.ndarray, n_mine: float, n_theirs: float, size: int) -> float:
    """Returns x = 1 - d/(2m) ||P u - P v||^2 for u = a / ||a|| and v = b / ||b|| of d = ``size`` numbers, from P a and
    P b (m,), ||a||^2 and ||b||^2. P holds m of the d rows of an orthogonal matrix, drawn at random: E x = cos(u, v).

    Exchanging a and b gives the same number to the last bit, on any machine: differences change their sign exactly, and
    fsum rounds once, whatever the order."""
    r = mine.astype(np.float64) / math.sqrt(n_mine) - theirs.astype(np.float64) / math.sqrt(n_theirs)
    return 1 - size / (2 * len(r)) * math.fsum((r * r).tolist())


def relative_variance(rows: int, size: int) -> float:
    """Returns Var x / (1 - cos)^2, where the matrix spreads u - v evenly over its d rows, as random signs before a
    cosine transform do: as for a mean of m squares of normal variables, less what drawing without replacement saves."""
    return 2 / rows * (1 - rows / size)


def length_error(sketch: np.ndarray, n: float, size: int) -> float:
    """Returns sqrt(d/m) ||P a|| / ||a|| - 1 from P a (m,) and ||a||^2. Where these fit it is about normal around 0, of
    a quarter of the relative variance; the same to the last bit for everybody."""
    wide = sketch.astype(np.float64)
    return math.sqrt(size / len(wide) * math.fsum((wide * wide).tolist()) / n) - 1


def cut(r: np.ndarray, longest: float) -> np.ndarray:
    """Returns min(1, longest / ||r||) r."""
    return r if (length := norm(r)) <= longest else r * r.dtype.type(longest / length)


_BY_CHANCE, _ROUNDED = 5.0, 0.05  # a guard minds more standard errors than these, and more than codecs round


class Estimate:
    """What one end of an edge knows of it, and decides by it: for each block of theta with a weight of its own the mean
    sum_t w_t x_t / sum_t w_t with w_t = smoothing^(seen since t), of variance sum_t w_t^2 Var x_t / (sum_t w_t)^2."""

    def __init__(self, algorithm: SelectiveSheaf, sizes: Sequence[int], m_i: int, m_j: int):
        self.algorithm, self.sizes = algorithm, sizes  # of the blocks; m_i and m_j are the ends' training samples
        # Of an update of m samples, a share rho = m / (m + kappa) of its squared length is signal, the rest noise: the
        # cosine of two updates is sqrt(rho_i rho_j) times that of their signals, to the last bit at both ends
        kappa = algorithm.noise_samples
        self.threshold = algorithm.threshold * math.sqrt(m_i * m_j / ((m_i + kappa) * (m_j + kappa)))
        # All that it knows, a row a block: sum_t w_t x_t, sum_t w_t, sum_t w_t^2 Var x_t / (1 - cos)^2, how many x are
        # seen, whether this end would have the edge on, and how many x it takes at least to decide
        self.numbers = np.zeros((len(sizes), 8 if algorithm.guard else 6))
        self.total, self.weight, self.variance, self.seen, self.on, self.listen, *_ = self.numbers.T
        self.believed = np.ones(len(sizes), bool)  # what was said in this round; not kept
        self.listen[:] = algorithm.listen

    def see(self, block: np.ndarray, mine: np.ndarray, theirs: np.ndarray, n_i: np.ndarray, n_j: np.ndarray) -> None:
        """Takes in the sketches of a round, of which ``block`` tells the rows' blocks, and decides for the next one."""
        smoothing = self.algorithm.smoothing
        for b, (size, numbers) in enumerate(zip(self.sizes, self.numbers, strict=True)):
            chosen = block == b
            if n_i[b] == 0 or n_j[b] == 0:  # somebody begins, or begins again
                numbers[:5], numbers[6:], self.listen[:] = 0, 0, self.algorithm.listen
            elif chosen.any():
                x = sampled_cosine(mine[chosen], theirs[chosen], n_i[b], n_j[b], size)
                variance = relative_variance(int(chosen.sum()), size)
                numbers[:3] *= smoothing, smoothing, smoothing**2
                numbers[:4] += x, 1, variance, 1
                if self.algorithm.guard:
                    ends = (mine[chosen], n_i[b]), (theirs[chosen], n_j[b])
                    errors = np.array([length_error(*end, size) for end in ends])
                    numbers[6:] = smoothing * numbers[6:] + errors
                    is_copy = n_i[b] == n_j[b] and np.array_equal(mine[chosen], theirs[chosen])
                    self.believed[b] = not is_copy and self._is_likely(numbers, x, variance, errors)
                    numbers[0] -= 0 if self.believed[b] else x + 1
        surely_on, surely_off = self.decided()
        self.on[:] = surely_on | (self.on > 0) & ~surely_off

    def _is_likely(self, numbers: np.ndarray, x: float, variance: float, errors: np.ndarray) -> bool:
        """Returns whether lengths fit norms, now and on average, and alike clients may have a cosine of x."""
        now, mean = math.sqrt(variance) / 2, math.sqrt(numbers[2]) / 2 / numbers[1]
        return (
            float(np.abs(errors).max()) <= _BY_CHANCE * now + _ROUNDED
            and float(np.abs(numbers[6:]).max()) / numbers[1] <= _BY_CHANCE * mean + _ROUNDED
            and x >= self.threshold - _BY_CHANCE * (1 - self.threshold) * math.sqrt(variance)
        )

    def mean_and_error(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the mean cosine of each block, 0 before anything was seen, and its standard error."""
        weight = np.where(self.weight, self.weight, 1)
        mean = self.total / weight
        return mean, (1 - mean) * np.sqrt(self.variance) / weight

    def decided(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns which blocks are surely on, and which are surely off."""
        mean, error = self.mean_and_error()
        enough, margin = self.seen >= self.listen, self.algorithm.sure * error
        return enough & (mean - margin >= self.threshold), enough & (mean + margin < self.threshold)

    @property
    def is_surely_off(self) -> bool:  # in all blocks
        return bool(self.decided()[1].all())

    def weights(self, others: np.ndarray) -> np.ndarray:
        """Returns w_ij; the other end's opinion is that of its message."""
        on = self.on * others
        if self.algorithm.weights == "hard":
            return on
        return on * [max(0.0, mean) ** 2 for mean in self.mean_and_error()[0].tolist()]

    @property
    def cosine(self) -> float | None:
        """Returns the mean over blocks, by their size; None before there is any."""
        means, seen = self.mean_and_error()[0], self.seen > 0
        return float(np.average(means[seen], weights=np.array(self.sizes)[seen])) if seen.any() else None


NOBODY = -1
CONTENT, SEEKING, LEAVING = range(3)


class Introductions:
    """With whom a client exchanges that looks for better neighbours (``seek``): with those of the graph at first.

    In some rounds, in which no edge is silent, each tells each neighbour two numbers: whom to meet, if anyone, and its
    own status: content, seeking (it has an edge that is surely off, or fewer than at the start), or leaving this one.

    - A client introduces its neighbours to one another, those who were seeking the last time: first pairs of whom both
      are like itself, each pair once, then pairs at random; a neighbour to one other at most. Both hear of it in the
      same round, so both use the new edge from the next one on, unless they have met before; one to whom the word is
      lost, as a scenario may have it, does so once the other speaks to it.
    - A client with more edges than at the start leaves half as many as it has more, drawn at random of those that are
      surely off; the other half is up to their other ends. Clients that have met and parted never meet again."""

    def __init__(self, everyone: Iterable[int], first: Collection[int]):
        """``everyone`` are all clients that could be met, ``first`` those that are neighbours from the start."""
        self.everyone = sorted(everyone)
        self.degree = len(first)  # at the start
        # those that it exchanges with, that it has met, and the neighbours who said the last time that they seek
        self.neighbours, self.met, self.seeking = set(first), set(first), set(first)
        self.introduced: set[tuple[int, int]] = set()  # pairs of clients like itself

    def welcome(self, speaking: Iterable[int]) -> None:
        """Takes those who speak as neighbours, where they have been introduced and the word to this client was lost."""
        new = set(speaking) - self.met
        self.neighbours |= new
        self.met |= new

    def messages(self, on: Collection[int], off: Collection[int], rng: np.random.Generator) -> dict[int, np.ndarray]:
        """Returns {j: (whom to meet, the client's status)}; the edges to ``on`` and ``off`` surely are."""
        surplus = max(0, len(self.neighbours) - self.degree + 1) // 2
        left = set(rng.permutation(sorted(off))[:surplus].tolist())
        status = SEEKING if off or len(self.neighbours) < self.degree else CONTENT
        free, meet = rng.permutation(sorted(self.seeking & self.neighbours)).tolist(), dict[int, int]()
        for one, other in combinations([j for j in free if j in on], 2):
            pair = min(one, other), max(one, other)
            if meet.keys().isdisjoint(pair) and pair not in self.introduced:
                self.introduced.add(pair)
                meet |= {one: other, other: one}
        free = [j for j in free if j not in meet]
        for one, other in zip(free[::2], free[1::2], strict=False):
            meet |= {one: other, other: one}
        return {j: np.array([meet.get(j, NOBODY), LEAVING if j in left else status]) for j in sorted(self.neighbours)}

    def hear(self, told: Mapping[int, np.ndarray], heard: Mapping[int, np.ndarray]) -> set[int]:
        """Takes in what this client and its neighbours told each other; returns its new neighbours."""
        gone = {j for messages in (told, heard) for j, message in messages.items() if int(message[1]) == LEAVING}
        new = {int(message[0]) for message in heard.values()} & set(self.everyone) - self.met
        self.seeking = {j for j, message in heard.items() if int(message[1]) == SEEKING}
        self.neighbours = (self.neighbours - gone) | new
        self.met |= new
        return new
