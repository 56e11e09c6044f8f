"""Prototype sheaf: clients average with those whose classes look alike. Ours; docs/prototype-sheaf.md derives it.

All clients start from one theta^0. Once, before they average, both ends of an edge learn from what their classes look
like (class_likeness.py) their likeness L_ij and D, how far apart their tasks are, over the classes that both have, or,
where names of classes agree on nothing, over those that look alike. An edge is on where L_ij is at least ``threshold``.
Chance puts prototypes of one task E_ij apart, on average. Those that are surely further apart, m of client i's
neighbours, have part in the mean with smaller weights. In each round

    w_ij    = min(1, L_ij, 1/(1 + (m + 1) max(0, D - sure se)/E_ij)); 0 where the edge is off
    theta_i <- theta_i - alpha grad f_i(theta_i)                                   the local work, and then
    theta_i <- theta_i - sum_j w_ij P_ij^T N_i^-1 (P_ij theta_i - P_ji theta_j)

with d_ij rows P_ij of one orthonormal matrix P, the next ones in each round, so that d/d_ij rounds go through all. P is
random for the body; for the last layer it is the identity, and its rows take turns number by number, each of all
classes. P_ji = P_ij, but rows of the last layer are of the class that i has in place of j's; of one that it has none
like they are left out. N_i is for each row 1 + sum_j w_ij over the edges that it came on: i comes to a weighted mean of
itself and those that it hears. It uses theta_i without what local work has made of each row since that was last
averaged. Those whose classes look alike may differ in how many they have of each. A client whose n_c of N samples
differ from the m_c of M of those it averages with by more than chance, X^2 being Pearson's of K classes,

    X^2 = sum_c (sqrt(M/N) n_c - sqrt(N/M) m_c)^2 / (n_c + m_c) > K - 1 + 2 sqrt(2 (K - 1))

uses that model with log(n_c/q_c + L) added to its last biases, q_c = (n_c + m_c)/(N + M), L labels: Bayes' rule for its
own shares of them. Of last layers it uses the most probable one given its samples, with a normal prior of variance
``refit`` around this one.

What is averaged has no part in the estimate, so that a wrong edge cannot confirm itself. With ``seek`` the graph is
only where it begins: whoever knows two clients that are alike, by what both have told it, introduces them to one
another, as long as both have fewer neighbours like themselves than any at the start."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from ...topology.section import Count, Index, NotNegative, Positive
from ..assignment import Assignment
from ..learned_maps import OF_A_TRANSFORM, shared_size
from ..maps import TransformStart, Vectors, fast_lengths, rows_in_turn, shared_transform
from ..model.architecture import Architecture
from ..stored_maps import StoredMaps
from .base import Algorithm, Client, Cost, Edge, Peers, RunFacts, SettingsError, State, Traits, Vector, Work
from .class_likeness import Compared, End, compared, described, length_of
from .last_layer import refitted
from .sheaf_fmtl import norm

Rows = tuple[np.ndarray, np.ndarray]  # which ones, and their values


@dataclass(frozen=True)
class PrototypeSheaf(Algorithm):
    name: Literal["prototype-sheaf"] = "prototype-sheaf"
    gamma: Annotated[Positive, Le(1), "Size of the shared vectors: d_ij = max(1, floor(gamma d))."] = 0.2
    threshold: Annotated[float, Ge(0), Le(1)] = 0.15
    """An edge is on where its likeness, 1 - D/(S_i + S_j) less what may be chance, is at least this: about 1 of one
    task, 0 of two without anything in common. Where the same names come to less, classes are compared by their looks,
    and an edge is on where most of them are alike so: names may be exchanged."""
    sure: NotNegative = 1.0
    """Standard errors of D that are put down to chance: against the neighbour where an edge may be on, in its favour
    where its weight may be less than 1."""
    compare: Literal["inputs", "features"] = "inputs"
    """Of what clients compare each class's mean: of inputs, or of what theta^0's last layer sees of them, as where
    inputs are the numbers of words, or theta^0 is a trained model."""
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
        about = length_of(edge.model, self.compare, self.sketch)
        words = [Vector(about, exact=about), Vector(shared_size(self.gamma, edge.d_i, edge.d_j))]
        return [*words, Vector(2, exact=2)] if self.seek else words

    def check(self, run: RunFacts) -> None:
        key, first = f"algorithm.name = {self.name!r}", run.models[0]
        if run.task != "classification":
            why = "compares what classes look like, and data.task is 'regression'"
            raise SettingsError(key, f"{why}; use algorithm.name = 'selective-sheaf'")
        if not run.same_start:
            raise SettingsError("model.same_start", f"= false: {key} averages models that begin as one; set it to true")
        for model in run.models:
            if (model.features, model.outputs) != (first.features, first.outputs):
                sizes = " and ".join(f"{each.features} to {each.outputs}" for each in (first, model))
                raise SettingsError(key, f"needs last layers of one size, and there are {sizes}")

    def work(self, own: Assignment, round: int) -> Work:
        return Work(full_passes=self.compare == "features" and self.compares(round))

    def compares(self, round: int) -> bool:
        return round == 1 or (bool(self.compare_every) and (round - 1) % self.compare_every == 0)

    def begin(self, client: Client) -> State:
        """What it tells of its prototypes; whether it has ``met`` each client, what those it has met have told, how
        alike they are to it (not a number before that is known), how far ``beyond`` chance apart, and what those call
        its ``classes`` that call them otherwise; each row as it was last ``averaged``, and how many rounds ago; who
        ``asked`` for what it tells, who ``seeks`` others, and the pairs that it has introduced."""
        size, dtype, neighbours = client.theta.size, client.theta.dtype, client.neighbours
        lengths = {j: shared_size(self.gamma, size, peer.parameters) for j, peer in neighbours.items()}
        met = np.zeros(client.clients, bool)
        met[[j for j, peer in neighbours.items() if peer.weight or not self.seek]] = True
        turns = rows_in_turn(client.seed, client.node, lengths, size, 0)
        rows = {j: rows_of(turn, client.model) for j, turn in turns.items()}
        return State(
            maps=StoredMaps(transform_of(client.seed, rows, client.model, dtype)),
            prototypes=np.full(length_of(client.model, self.compare, self.sketch), np.nan, dtype),
            theirs={},
            likeness=np.full(client.clients, np.nan),
            beyond=np.zeros(client.clients),
            classes={},
            met=met,
            averaged=np.zeros(size, dtype),
            age=np.full(size, size, np.int32),
            asked=np.zeros(client.clients, bool),
            seeks=np.ones(client.clients, bool),  # until they say that they do not
            introduced=np.zeros((0, 2), np.int64),
            _degree=int(met.sum()),
            _theta0=client.theta.copy() if self.compare == "features" else None,
            _lengths=lengths,
            _rows=rows,
            _pairs={},
        )

    def round(self, client: Client, peers: Peers) -> None:
        theta, state, neighbours = client.theta, client.state, client.neighbours.keys()
        client.learn()
        self._compare(client, peers)
        peers.skip_to(1)
        alike = {j: min(1.0, float(state.likeness[j])) for j in places(state.likeness >= self.threshold)}
        m = sum(state.beyond[j] > 0 for j in alike)
        w = {j: min(L, 1 / (1 + (m + 1) * float(state.beyond[j]))) for j, L in alike.items()}

        lengths = {j: state._lengths[j] for j in w}
        turns = rows_in_turn(client.seed, client.node, lengths, theta.size, peers.round - 1)
        state._rows |= {j: rows_of(turn, client.model) for j, turn in turns.items()}
        P = state.maps.start
        P.choose(state._rows)
        x = P.of(theta)  # all rows
        heard = peers.exchange({j: x[state._rows[j]] for j in w}, quiet=neighbours - w.keys())
        theirs = {j: (state._rows[j], x_j) for j, x_j in heard.items() if j in w}
        for j in theirs.keys() & state.classes.keys():
            rows = rows_of(turns[j], client.model, state.classes[j])
            theirs[j] = rows[rows >= 0], heard[j][rows >= 0]
        self._average(client, x, theirs, w)
        state.maps.flops += (1 + bool(theirs)) * P.product_flops
        client.report.disagreements = {j: norm(x[rows] - x_j) for j, (rows, x_j) in theirs.items()}
        client.report.weights = {j: w[j] if j in theirs else 0.0 for j in places(state.met)}
        if self.seek:
            peers.skip_to(2)
            self._meet(client, peers, round(sum(alike.values())))

    def _average(self, client: Client, x: np.ndarray, theirs: Mapping[int, Rows], w: Mapping[int, float]) -> None:
        """x <- x - sum_j w_ij (x - x_j) / (1 + sum_j w_ij), of each row x over the edges that it came on."""
        state, pull, N = client.state, np.zeros(len(x)), np.ones(len(x))
        for j, (rows, x_j) in theirs.items():  # within an edge no row comes twice
            pull[rows] += w[j] * (x[rows] - x_j)
            N[rows] += w[j]
        step, came = (pull / N).astype(x.dtype), N > 1
        state.age += 1
        state.averaged[came], state.age[came] = (x - step)[came], 0
        if theirs:
            client.theta -= state.maps.start.inverse(step)

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
            state.theirs[j] = prototypes.copy()
            found = self._compared(client, state.prototypes, prototypes)
            state.likeness[j], state.beyond[j] = found.likeness, found.beyond
            state.classes.pop(j, None)
            if found.classes is not None:
                state.classes[j] = found.classes

    def _compared(self, client: Client, mine: np.ndarray, theirs: np.ndarray) -> Compared:
        return compared(mine, theirs, client.model.outputs, self.sure, self.threshold)

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
                state._pairs[one, other] = self._compared(client, state.theirs[one], state.theirs[other]).likeness
            if state._pairs[one, other] >= self.threshold:
                meet |= {one: other, other: one}
                state.introduced = np.append(state.introduced, [[one, other]], axis=0)
        return meet

    def personal_model(self, client: Client) -> np.ndarray:
        state, n, m = client.state, client.class_counts(), np.zeros(client.model.outputs)
        for j in places(state.likeness >= self.threshold):
            classes = state.classes.get(j, np.arange(len(m)))
            m[classes >= 0] += End.of(state.theirs[j], len(m)).n[classes[classes >= 0]]
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
        told = length_of(own.architecture, self.compare, self.sketch) * (1 + len(own.neighbours))
        return Cost((OF_A_TRANSFORM + 3) * d_i + 2 * rows + told)


def transform_of(seed: int, rows: Vectors, model: Architecture, dtype: np.dtype) -> TransformStart:
    """Returns P: of the body a random orthonormal transform, of the last layer its numbers."""
    body = model.size - model.last_size
    return shared_transform(seed, rows, fast_lengths(body), plain=model.last_size, dtype=dtype)


def rows_of(turn: np.ndarray, model: Architecture, classes: np.ndarray | None = None) -> np.ndarray:
    """Returns which rows of P theta have their ``turn``: those of the body, and then numbers of the last layer, each
    of all classes before the next; or where these belong that come from a client with other ``classes`` (classes,) in
    place of one's own, each -1 where it has none: -1 of classes that one has none like."""
    C, h, body = model.outputs, model.features, model.size - model.last_size
    number, c = np.divmod(turn - body, C)
    if classes is not None:
        own = np.full(C, -1)
        own[classes[classes >= 0]] = np.flatnonzero(classes >= 0)
        c = own[c]
    of_last = np.where(c < 0, -1, body + np.where(number < h, c * h + number, C * h + c))
    return np.where(turn < body, turn, of_last)


def places(those: np.ndarray) -> list[int]:
    """Returns where it is not 0."""
    return np.flatnonzero(those).tolist()


def class_mix_differs(n: np.ndarray, m: np.ndarray) -> bool:
    """Returns whether n and m samples (classes,) are of other proportions, by Pearson's X^2: more than two standard
    deviations above its mean, which is K - 1 of K classes, where they are not."""
    N, M, both = n.sum(), m.sum(), (n + m) > 0
    if min(N, M) <= 0:
        return False
    squares = np.square(math.sqrt(M / N) * n - math.sqrt(N / M) * m)[both] / (n + m)[both]
    freedom = int(both.sum()) - 1
    return math.fsum(squares.tolist()) > freedom + 2 * math.sqrt(2 * freedom)
