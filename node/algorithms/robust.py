"""Robust mixing: what a client, or a server, makes of vectors v_j of which up to b may come from attackers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from ...topology.section import Count, Needs, NotNegative
from .base import Algorithm, Client, RunFacts, SettingsError, mixing_pull, weighted_mean

_STEPS, _SMOOTHING = 32, 1e-6  # of Weiszfeld's iteration


def clipped(theirs: np.ndarray, weights: np.ndarray, mine: np.ndarray, radius: float, b: int) -> np.ndarray:
    """ClippedGossip (He, Karimireddy, Jaggi 2022): returns v_i + sum_j W_ij clip(v_j - v_i, tau) of ``theirs`` (n, d),
    clip(z, tau) = min(1, tau/||z||) z. With ``radius`` 0 tau is theirs: the b farthest are left out of
    tau^2 = 1/delta sum_j W_ij ||v_j - v_i||^2, delta the sum of their weights."""
    differences = theirs - mine
    distances = np.sqrt(np.einsum("nd,nd->n", differences, differences, dtype=np.float64))
    if not radius:
        order = np.argsort(distances, kind="stable")
        near, far = order[: max(0, len(order) - b)], order[max(0, len(order) - b) :]
        delta = weights[far].sum()
        radius = np.sqrt(weights[near] @ distances[near] ** 2 / delta) if delta else np.inf
    shares = weights * np.minimum(1, radius / np.where(distances, distances, 1))
    return mine + (shares @ differences).astype(mine.dtype)


def trimmed_mean(vectors: np.ndarray, b: int) -> np.ndarray:
    """Yin et al. (2018): returns the mean of each coordinate of ``vectors`` (n, d), without its b largest and its b
    smallest; n > 2b."""
    return np.sort(vectors, axis=0)[b : len(vectors) - b].mean(axis=0)


def median(vectors: np.ndarray, b: int) -> np.ndarray:
    """Yin et al. (2018): returns the median of each coordinate of ``vectors`` (n, d)."""
    return np.median(vectors, axis=0)


def krum(vectors: np.ndarray, b: int) -> np.ndarray:
    """Blanchard et al. (2017): returns that of ``vectors`` (n, d) which minimises sum_j ||v_i - v_j||^2 over the
    n - b - 2 others that are nearest to it; n > 2b + 2."""
    squared = [np.sort(((vectors - each) ** 2).sum(axis=1)) for each in vectors.astype(np.float64)]
    return vectors[int(np.argmin([distances[1 : len(vectors) - b - 1].sum() for distances in squared]))]


def geometric_median(vectors: np.ndarray, b: int) -> np.ndarray:
    """RFA (Pillutla, Kakade, Harchaoui 2022): returns about the v that minimises sum_j ||v - v_j|| over ``vectors``
    (n, d), by Weiszfeld's iteration v <- sum_j w_j v_j / sum_j w_j, w_j = 1 / max(nu, ||v - v_j||), from their median.
    """
    found = np.median(vectors, axis=0).astype(np.float64)
    for _ in range(_STEPS):
        distances = np.sqrt(((vectors - found) ** 2).sum(axis=1))
        weights = 1 / np.maximum(distances, _SMOOTHING)
        found = weights @ vectors / weights.sum()
    return found


_RULES: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "trimmed": trimmed_mean,
    "median": median,
    "krum": krum,
    "geometric-median": geometric_median,
}


@dataclass(frozen=True)
class RobustMixing(Algorithm):
    """Of an algorithm that averages vectors with neighbours, or at a server."""

    mixing: Literal["average", "clipped", "trimmed", "median", "krum", "geometric-median"] = "average"
    """What becomes of the vectors that come together. average: their mean, by the weights of the method; clipped:
    ClippedGossip, differences to one's own are cut to a radius; the others are of the vectors and one's own, all alike
    (a server has none of its own): the mean or the median of each coordinate, the most central one, and the geometric
    median. docs/adversaries.md has the equations."""
    byzantine: Annotated[Count, Needs("mixing", "clipped", "trimmed", "krum")] = 1
    """b: of those that a client hears in a round, or of a server's uploads, so many may be attackers."""
    radius: Annotated[NotNegative, Needs("mixing", "clipped")] = 0.0
    """clipped: the radius; 0: from the distances, without the b farthest."""

    def check(self, run: RunFacts) -> None:
        super().check(run)
        if (needed := self._fewest) > 1:
            for who, heard in self._heard(run):
                if heard < needed:
                    rule = f"mixing = {self.mixing!r} needs {needed} vectors at least for it"
                    raise SettingsError("algorithm.byzantine", f"= {self.byzantine}: {rule}, and {who} hears {heard}")

    @property
    def _fewest(self) -> int:
        """How many have to be heard."""
        if self.mixing == "krum":
            return 2 * self.byzantine + 2 + (self.traits.server != "none")  # with one's own, where there is one
        return 2 * self.byzantine + 1 if self.mixing == "trimmed" else 1

    def _heard(self, run: RunFacts) -> list[tuple[str, int]]:
        if self.traits.server != "none":
            fraction = getattr(self, "fraction", 1.0)
            return [("the server", max(1, int(fraction * (run.graph.clients - 1) + 0.5)))]  # as those who take part
        graphs = run.topology().graphs
        return [(f"client {i}", len(graph.predecessors(i))) for graph in graphs for i in range(graph.clients)]

    def pull(self, client: Client, mine: np.ndarray, theirs: Mapping[int, np.ndarray]) -> np.ndarray:
        """Returns what mixing adds to one's own vector; nothing where too few are heard, as in a scenario."""
        if self.mixing == "average":
            return mixing_pull(client, mine, theirs)
        if len(theirs) < self._fewest:
            return 0 * mine
        vectors = np.stack(list(theirs.values()))
        if self.mixing == "clipped":
            weights = np.array([client.neighbours[j].weight for j in theirs])
            return clipped(vectors, weights, mine, self.radius, self.byzantine) - mine
        found = _RULES[self.mixing](np.concatenate([mine[None], vectors]), self.byzantine)
        return found.astype(mine.dtype) - mine

    def mean(self, server: Client, uploads: Mapping[int, np.ndarray], mine: np.ndarray) -> np.ndarray:
        """Returns what a server makes of its clients' vectors, ``mine`` being its own before: that where too few came.
        Clipped is centered clipping (Karimireddy, He, Jaggi 2021), around its own."""
        if self.mixing == "average":
            return weighted_mean(server, uploads)
        if len(uploads) < self._fewest:
            return mine
        vectors = np.stack(list(uploads.values()))
        if self.mixing == "clipped":
            n = np.array([server.neighbours[j].samples for j in uploads])
            return clipped(vectors, n / n.sum(), mine, self.radius, self.byzantine)
        return _RULES[self.mixing](vectors, self.byzantine)
