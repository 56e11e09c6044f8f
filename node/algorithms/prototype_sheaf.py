"""Prototype sheaf: clients average with those whose classes look alike. Ours; docs/prototype-sheaf.md derives it.

All clients start from one theta^0. a_ic (h,) is the mean of what the last layer of theta^0 sees of client i's n_ic
samples of class c, its prototype. Once, before they average, both ends of an edge learn from their prototypes how
far apart their tasks are, over the classes that both have:

    w_c  = n_ic n_jc / (n_ic + n_jc),  scaled to sum_c w_c = 1
    D_c  = ||a_ic - a_jc||^2 - V (1/n_ic + 1/n_jc),    D = sum_c w_c D_c
    se^2 = C/(C - 1) sum_c w_c^2 (D_c - D)^2  of C classes; |D| of a single one
    S_i  = sum_c w_c (||a_ic - mean_k a_ik||^2 - V e_ic),  e_ic = (1 - 2/K)/n_ic + sum_k 1/n_ik / K^2 of i's K classes

V is the variance of samples around the prototype of their class, pooled over both ends. What V takes away is what
chance adds: D is an unbiased estimate of how far the classes' true means lie apart at the two ends, with the standard
error se, and S_i of how far classes lie apart at one. Another mix of labels changes neither. An edge is on where its
likeness L_ij is at least ``threshold``. Chance puts prototypes of one task E_ij apart, on average. Those that are
surely further apart, m of client i's neighbours, have part in the mean with smaller weights. In each round

    L_ij    = 1 - (D + sure se)/(S_i + S_j)
    E_ij    = V sum_c w_c (1/n_ic + 1/n_jc)
    w_ij    = min(1, L_ij, 1/(1 + (m + 1) max(0, D - sure se)/E_ij)); 0 where the edge is off
    theta_i <- theta_i - alpha grad f_i(theta_i)                                   the local work, and then
    theta_i <- theta_i - sum_j w_ij P_ij^T N_i^-1 P_ij (theta_i - theta_j)

with d_ij rows P_ij = P_ji of one orthonormal matrix, the next ones in each round, so that d/d_ij rounds go through all.
N_i is for each row 1 + sum_j w_ij over the edges that it came on: i comes to a weighted mean of itself and those that
it hears. It uses theta_i without what local work has made of each row since that was last averaged. Those whose classes
look alike may differ in how many they have of each. A client whose n_c of N samples differ from the m_c of M of those
it averages with by more than chance, X^2 being Pearson's of K classes,

    X^2 = sum_c (sqrt(M/N) n_c - sqrt(N/M) m_c)^2 / (n_c + m_c) > K - 1 + 2 sqrt(2 (K - 1))

uses that model with log(n_c/q_c + L) added to its last biases, q_c = (n_c + m_c)/(N + M), L labels: Bayes' rule for its
own shares of them. Of last layers it uses the most probable one given its samples, with a normal prior of variance
``refit`` around this one.

Of a prototype travel the products with ``sketch`` random vectors of entries +-1, whose squared distances are right on
average. What is averaged has no part in the estimate, so that a wrong edge cannot confirm itself.

With ``seek`` the graph is only where it begins: whoever knows two clients that are alike, by what both have told it,
introduces them to one another, as long as both have fewer neighbours like themselves than any at the start."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from ...topology.randomness import generator
from ...topology.section import Count, Index, NotNegative, Positive
from ..assignment import Assignment
from ..learned_maps import OF_A_TRANSFORM, shared_size
from ..maps import Vectors, fast_lengths, rows_in_turn, shared_transform
from ..model.architecture import Architecture
from ..stored_maps import StoredMaps
from .base import Algorithm, Client, Cost, Edge, Peers, RunFacts, SettingsError, State, Traits, Vector, Work
from .last_layer import refitted
from .sheaf_fmtl import norm

_LEAST_SPREAD = 0.1  # of a spread, what the noise of few samples leaves of it at least


@dataclass(frozen=True)
class PrototypeSheaf(Algorithm):
    name: Literal["prototype-sheaf"] = "prototype-sheaf"
    gamma: Annotated[Positive, Le(1), "Size of the shared vectors: d_ij = max(1, floor(gamma d))."] = 0.2
    threshold: Annotated[float, Ge(0), Le(1)] = 0.1
    """An edge is on where its likeness, 1 - D/(S_i + S_j) less what may be chance, is at least this: about 1 of one
    task, 0 of two without anything in common, below 0 of opposed ones."""
    sure: NotNegative = 1.0
    """Standard errors of D that are put down to chance: against the neighbour where an edge may be on, in its favour
    where its weight may be less than 1."""
    sketch: Annotated[Count, "How many numbers travel of each class's prototype, at most all of its h."] = 64
    compare_every: Annotated[Index, "Neighbours compare anew every so many rounds, as tasks may change; 0: once."] = 0
    refit: NotNegative = 1.0
    """Where a client's mix of classes differs from that of those it averages with by more than chance, it uses a last
    layer of its own: the most probable one, with a prior of this variance around the averaged one, whose classes are
    weighed by its own numbers of them. 0: that one itself."""
    seek: Annotated[Index, "In so many rounds, from a comparison on, clients introduce those that are alike."] = 0

    @property
    def traits(self) -> Traits:
        return Traits(
            same_size=True,
            tolerates="missing",  # the rows of another round do not compare
            silent_edges=True,
            new_edges=bool(self.seek),
            learns_first=True,
            mixes=False,
            reads_samples=True,
            has_maps=True,
            libraries=("scipy.fft",),
        )

    def messages(self, edge: Edge) -> list[Vector]:
        about = length_of(edge.model, self.sketch)
        words = [Vector(about, exact=about), Vector(shared_size(self.gamma, edge.d_i, edge.d_j))]
        return [*words, Vector(2, exact=2)] if self.seek else words

    def check(self, run: RunFacts) -> None:
        key, first = f"algorithm.name = {self.name!r}", run.models[0]
        if run.task != "classification":
            why = "compares what classes look like, and data.task is 'regression'"
            raise SettingsError(key, f"{why}; use algorithm.name = 'selective-sheaf'")
        if not run.same_start:
            raise SettingsError("model.same_start", f"= false: {key} compares what one theta^0 sees; set it to true")
        for model in run.models:
            if (model.features, model.outputs) != (first.features, first.outputs):
                sizes = " and ".join(f"{each.features} to {each.outputs}" for each in (first, model))
                raise SettingsError(key, f"needs last layers of one size, and there are {sizes}")

    def work(self, own: Assignment, round: int) -> Work:
        return Work(full_passes=self.compares(round))

    def compares(self, round: int) -> bool:
        return round == 1 or (bool(self.compare_every) and (round - 1) % self.compare_every == 0)

    def begin(self, client: Client) -> State:
        """What it tells of its prototypes; whether it has ``met`` each client, what those it has met have told, how
        alike they are to it (not a number before that is known), and how far ``beyond`` chance apart; each row as it
        was last ``averaged``, and how many rounds ago; who ``asked`` for what it tells, who ``seeks`` others, and the
        pairs that it has introduced."""
        size, dtype, neighbours = client.theta.size, client.theta.dtype, client.neighbours
        rows = {j: shared_size(self.gamma, size, peer.parameters) for j, peer in neighbours.items()}
        met = np.zeros(client.clients, bool)
        met[[j for j, peer in neighbours.items() if peer.weight or not self.seek]] = True
        chosen = rows_in_turn(client.seed, client.node, rows, size, 0)
        return State(
            maps=StoredMaps(shared_transform(client.seed, chosen, fast_lengths(size), dtype=dtype)),
            prototypes=np.full(length_of(client.model, self.sketch), np.nan, dtype),
            theirs={},
            likeness=np.full(client.clients, np.nan),
            beyond=np.zeros(client.clients),
            met=met,
            averaged=np.zeros(size, dtype),
            age=np.full(size, size, np.int32),
            asked=np.zeros(client.clients, bool),
            seeks=np.ones(client.clients, bool),  # until they say that they do not
            introduced=np.zeros((0, 2), np.int64),
            _degree=int(met.sum()),
            _theta0=client.theta.copy(),
            _rows=rows,
            _chosen=chosen,
            _pairs={},
            _crossed={},
        )

    def round(self, client: Client, peers: Peers) -> None:
        theta, state, neighbours = client.theta, client.state, client.neighbours.keys()
        client.learn()
        self._compare(client, peers)
        peers.skip_to(1)
        alike = {j: min(1.0, float(state.likeness[j])) for j in places(state.likeness >= self.threshold)}
        m = sum(state.beyond[j] > 0 for j in alike)
        w = {j: min(L, 1 / (1 + (m + 1) * float(state.beyond[j]))) for j, L in alike.items()}

        rows = {j: state._rows[j] for j in w}
        state._chosen |= rows_in_turn(client.seed, client.node, rows, theta.size, peers.round - 1)
        state.maps.start.choose(state._chosen)
        mine = state.maps.project(theta)
        theirs = peers.exchange({j: mine[j] for j in w}, quiet=neighbours - w.keys())
        r = {j: mine[j] - theirs[j] for j in w if j in theirs}  # P_ij (theta_i - theta_j)
        self._average(client, mine, r, w)
        client.report.disagreements = {j: norm(vector) for j, vector in r.items()}
        client.report.weights = {j: w[j] if j in r else 0.0 for j in places(state.met)}
        if self.seek:
            peers.skip_to(2)
            self._meet(client, peers, round(sum(alike.values())))

    def _average(self, client: Client, mine: Vectors, r: Vectors, w: Mapping[int, float]) -> None:
        """x <- x - sum_j w_ij (x - x_j) / (1 + sum_j w_ij), of each row x over the edges that it came on."""
        theta, state = client.theta, client.state
        pull, N = np.zeros(theta.size), np.ones(theta.size)
        for j, vector in r.items():  # within an edge no row comes twice
            pull[state._chosen[j]] += w[j] * vector
            N[state._chosen[j]] += w[j]
        if r:
            theta -= state.maps.pull_back({j: w[j] * vector / N[state._chosen[j]] for j, vector in r.items()})
        state.age += 1
        for rows, before in ((state._chosen[j], mine[j]) for j in r):
            state.averaged[rows], state.age[rows] = before - pull[rows] / N[rows], 0

    def _compare(self, client: Client, peers: Peers) -> None:
        """Tells those whose prototypes it has not heard, and those that ask, which is all in the first round. Where a
        message was lost the one that misses it goes on telling its own, and so asks."""
        state, neighbours = client.state, client.neighbours.keys()
        if self.compares(peers.round) or np.isnan(state.prototypes[-1]):
            state.prototypes = described(client, state._theta0, self.sketch)
            state.likeness[:] = np.nan
        told = places(state.met & (np.isnan(state.likeness) | state.asked))
        heard = peers.exchange(dict.fromkeys(told, state.prototypes), quiet=neighbours - set(told))
        state.asked[:] = False
        state._pairs = {pair: found for pair, found in state._pairs.items() if heard.keys().isdisjoint(pair)}
        for j, prototypes in heard.items():
            state.asked[j], state.met[j] = j not in told, True
            state.likeness[j], state.beyond[j] = compared(state.prototypes, prototypes, client.model.outputs, self.sure)
            state.theirs[j] = prototypes.copy()

    def _meet(self, client: Client, peers: Peers, alike: int) -> None:
        """Tells all that it has met whom to meet, -1 for nobody, and whether it seeks others itself."""
        state, neighbours = client.state, client.neighbours.keys()
        since = (peers.round - 1) % self.compare_every if self.compare_every else peers.round - 1
        known = places(state.met) if since < self.seek else []
        seeking = [j for j in known if state.seeks[j] and j in state.theirs]
        meet = self._introductions(client, seeking) if known else {}
        words = {j: np.array([meet.get(j, -1), alike < state._degree], client.theta.dtype) for j in known}
        for j, (whom, seeks) in peers.exchange(words, quiet=neighbours - words.keys()).items():
            state.seeks[j] = seeks > 0
            if whom in neighbours:
                state.met[int(whom)] = True

    def _introductions(self, client: Client, seeking: Iterable[int]) -> dict[int, int]:
        """Returns {j: whom it is to meet}, pairs that are alike, each once, and one a client at most."""
        state, meet = client.state, dict[int, int]()
        done = {tuple(pair) for pair in state.introduced.tolist()}
        for one, other in combinations(seeking, 2):
            if {one, other} & meet.keys() or (one, other) in done:
                continue
            if (one, other) not in state._pairs:
                told = state.theirs[one], state.theirs[other]
                state._pairs[one, other] = compared(*told, client.model.outputs, self.sure)[0]
            if state._pairs[one, other] >= self.threshold:
                meet |= {one: other, other: one}
                state.introduced = np.append(state.introduced, [[one, other]], axis=0)
        return meet

    def personal_model(self, client: Client) -> np.ndarray:
        theirs, n, m = client.state.theirs, client.class_counts(), np.zeros(client.model.outputs)
        for j in places(client.state.likeness >= self.threshold):
            m += End.of(theirs[j], len(m)).n
        model = self._as_averaged(client)
        if not class_mix_differs(n, m):
            return model
        q = (n + m) / (n + m).sum()
        model = model.copy()
        model[-len(n) :] += np.log(np.divide(n, q, out=np.zeros(len(n)), where=q > 0) + len(n))  # its last biases
        return refitted(client, model, self.refit)

    def _as_averaged(self, client: Client) -> np.ndarray:
        """Returns theta without what local work has made of its rows since they were last averaged, of those that were
        within the rounds in which each comes once."""
        state, d, transform = client.state, client.theta.size, client.state.maps.start
        recent = state.age < math.ceil(d / shared_size(self.gamma, d, d))
        if not recent.any():
            return client.theta
        return transform.inverse(np.where(recent, state.averaged, transform.of(client.theta)))

    def cost(self, own: Assignment) -> Cost:
        d_i = own.architecture.size
        rows = sum(shared_size(self.gamma, d_i, peer.parameters) for peer in own.neighbours)
        told = length_of(own.architecture, self.sketch) * (1 + len(own.neighbours))
        return Cost((OF_A_TRANSFORM + 3) * d_i + 2 * rows + told)


def places(those: np.ndarray) -> list[int]:
    """Returns where it is not 0."""
    return np.flatnonzero(those).tolist()


def length_of(model: Architecture, sketch: int) -> int:
    """Returns how many numbers a client tells of its prototypes."""
    return model.outputs * (min(sketch, model.features) + 2) + 1


def described(client: Client, theta: np.ndarray, sketch: int) -> np.ndarray:
    """Returns what a client tells of its prototypes in a model theta: their sketches (classes, numbers), for each class
    ||a_ic - mean_k a_ik||^2 and n_ic, and the sum of squared distances of its samples from their classes' prototypes;
    0 for classes that it has no samples of."""
    means, scatter = client.class_moments(theta)
    n = client.class_counts()
    spread = np.where(n > 0, np.square(means - means[n > 0].mean(axis=0)).sum(axis=1), 0.0)
    sketches = np.zeros((len(n), min(sketch, means.shape[1])))
    for c in places(n):
        sketches[c] = means[c] if sketch >= means.shape[1] else sketched(means[c], client.seed, c, sketch)
    return np.concatenate([sketches.ravel(), spread, n, [scatter]]).astype(client.theta.dtype)


def class_mix_differs(n: np.ndarray, m: np.ndarray) -> bool:
    """Returns whether n and m samples (classes,) are of other proportions, by Pearson's X^2: more than two standard
    deviations above its mean, which is K - 1 of K classes, where they are not."""
    N, M, both = n.sum(), m.sum(), (n + m) > 0
    if min(N, M) <= 0:
        return False
    squares = np.square(math.sqrt(M / N) * n - math.sqrt(N / M) * m)[both] / (n + m)[both]
    freedom = int(both.sum()) - 1
    return math.fsum(squares.tolist()) > freedom + 2 * math.sqrt(2 * freedom)


def sketched(v: np.ndarray, seed: int, label: int, numbers: int) -> np.ndarray:
    """Returns R v (numbers,) for a matrix R of entries +-1/sqrt(numbers), the same for all clients: E ||R v||^2
    is ||v||^2, its variance at most 2/numbers ||v||^4."""
    drawn = generator(seed, "signs of prototypes", label).integers(0, 2, (numbers, len(v)), np.int8)
    return np.array([(2.0 * row - 1) @ v for row in drawn]) / math.sqrt(numbers)


@dataclass(frozen=True)
class End:
    """What one end of an edge has told, in double precision."""

    sketches: np.ndarray  # (classes, numbers)
    apart: np.ndarray  # (classes,), ||a_ic - mean_k a_ik||^2
    n: np.ndarray  # (classes,)
    scatter: float  # sum over its samples of ||x - a_ic||^2

    @classmethod
    def of(cls, told: np.ndarray, classes: int) -> "End":
        sketches, apart, n, scatter = np.split(told.astype(np.float64), [-2 * classes - 1, -classes - 1, -1])
        return cls(sketches.reshape(classes, -1), apart, n, float(scatter[0]))


def compared(mine: np.ndarray, theirs: np.ndarray, classes: int, sure: float) -> tuple[float, float]:
    """Returns L_ij = 1 - (D + sure se)/(S_i + S_j) and max(0, D - sure se)/E_ij from what both ends tell; minus
    infinity and 0 where they have no class in common or no end has two, or a number is none. The spread of one that has
    a single class is taken to be that of the other. Exchanging them gives the same numbers to the last bit, on any
    machine, as fsum rounds once."""
    i, j = ends = End.of(mine, classes), End.of(theirs, classes)
    both = (i.n > 0) & (j.n > 0)
    if not both.any() or not np.isfinite(np.append(mine, theirs)).all():
        return -math.inf, 0.0
    w = i.n[both] * j.n[both] / (i.n[both] + j.n[both])
    w /= math.fsum(w.tolist())
    freedom = sum(float(np.maximum(end.n - 1, 0).sum()) for end in ends)
    V = (i.scatter + j.scatter) / max(1.0, freedom)
    D, se = distance(i, j, both, w, V)
    spreads = [S for end in ends if (S := spread(end, both, w, V)) > 0]
    if not spreads:
        return -math.inf, 0.0
    by_chance = V * math.fsum((w * (1 / i.n[both] + 1 / j.n[both])).tolist())
    beyond = max(0.0, (D - sure * se) / by_chance) if by_chance > 0 else 0.0
    return 1 - (D + sure * se) * len(spreads) / (2 * math.fsum(spreads)), beyond


def distance(i: End, j: End, both: np.ndarray, w: np.ndarray, V: float) -> tuple[float, float]:
    """Returns D and se, over ``both``'s classes with the weights w."""
    squares = np.square(i.sketches - j.sketches)[both]
    D_c = np.array([math.fsum(each) for each in squares.tolist()]) - V * (1 / i.n[both] + 1 / j.n[both])
    D, C = math.fsum((w * D_c).tolist()), len(w)
    if C == 1:
        return D, abs(D)
    return D, math.sqrt(C / (C - 1) * math.fsum(np.square(w * (D_c - D)).tolist()))


def spread(end: End, both: np.ndarray, w: np.ndarray, V: float) -> float:
    """Returns S_i; 0 of an end with a single class."""
    K = int((end.n > 0).sum())
    seen = math.fsum((w * end.apart[both]).tolist())
    by_chance = (1 - 2 / K) / end.n[both] + math.fsum((1 / end.n[end.n > 0]).tolist()) / K**2
    return max(seen - V * math.fsum((w * by_chance).tolist()), _LEAST_SPREAD * seen)
