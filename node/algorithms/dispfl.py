"""DisPFL: everyone learns a sparse model of its own, and averages what others have of the same parameters."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Le

from ...topology.randomness import generator
from ...topology.section import Fraction, Positive
from ...transport.codecs import kept
from ..assignment import Assignment
from ..model.architecture import Architecture
from .base import Algorithm, Client, Edge, Peers, State, Traits, Vector, Work

_BITS = 1 << np.arange(23, -1, -1)  # of a mask that a number carries: a float32 has 24


@dataclass(frozen=True)
class DisPFL(Algorithm):
    """DisPFL (Dai et al. 2022). m_i (d,) of zeros and ones is client i's mask, N_i whom it hears in round k, of K.

    m_i     <- in each layer: without the share p_k of its entries where |theta_i| is smallest, with as many of all
               others where |grad f_i(theta_i)| is largest;       p_k = drop/2 (1 + cos(pi (k - 2) / K)), from k = 2 on
    theta_i <- m_i (theta_i + sum_{j in N_i} theta_j) / (m_i' + sum_{j in N_i} m_j)            entry by entry, 0/0 = 0
    theta_i <- theta_i - alpha m_i grad f_i(theta_i)                                         for each mini-batch

    m_i' is the mask before; theta_j and m_j are those of the round's beginning. All begin with one mask, drawn at
    random. Biases are always in it."""

    name: Literal["dispfl"] = "dispfl"
    density: Annotated[Positive, Le(1), "Share of each layer's weights that a mask has."] = 0.5
    drop: Annotated[Fraction, "Share of them that is exchanged for others at first, less and less of it later."] = 0.5

    traits = Traits(same_size=True, changing_graphs=True, directed_graphs="all", mixes=False, momentum=False)

    def messages(self, edge: Edge) -> list[Vector]:
        bits = -(-edge.d_i // len(_BITS))
        return [Vector(sum(count for _, count in self._layers(edge.model)) + bits, exact=bits)]

    def _layers(self, model: Architecture) -> list[tuple[int, int]]:
        """Returns (numbers, how many of them a mask has) of each block of theta."""
        blocks = model.parameters()
        return [(each.size, kept(self.density, each.size) if len(each.shape) > 1 else each.size) for each in blocks]

    def begin(self, client: Client) -> State:
        rng, parts = generator(client.seed, "mask"), []
        for size, count in self._layers(client.model):
            parts.append(rng.permutation(size) < count)
        mask = np.concatenate(parts)
        client.theta *= mask
        return State(mask=mask)

    def work(self, own: Assignment, round: int) -> Work:
        return Work(full_gradients=round > 1)

    def round(self, client: Client, peers: Peers) -> None:
        theta, mask = client.theta, client.state.mask
        message = np.append(theta[mask], packed(mask).astype(theta.dtype))
        sums, counts = theta.copy(), mask.astype(int)
        for theirs in peers.exchange(dict.fromkeys(client.successors, message), client.predecessors).values():
            m_j = unpacked(theirs[mask.sum() :], len(mask))
            sums[m_j] += theirs[: mask.sum()]
            counts += m_j
        if peers.round > 1:
            mask = client.state.mask = self._searched(client, peers.round)
        theta[:] = mask * sums / counts.clip(min=1)
        for batch in client.batches():
            theta -= client.alpha * mask * client.gradient_on(batch)

    def _searched(self, client: Client, round: int) -> np.ndarray:
        """Returns the next mask."""
        p = self.drop / 2 * (1 + math.cos(math.pi * (round - 2) / client.rounds))
        sizes, slopes = np.abs(client.theta), np.abs(client.gradient_on())
        mask, start = client.state.mask.copy(), 0
        for size, count in self._layers(client.model):
            layer = slice(start, start := start + size)
            on, leave = np.flatnonzero(mask[layer]), math.ceil(p * count) if count < size else 0
            mask[layer][on[np.argsort(sizes[layer][on], kind="stable")[:leave]]] = False
            off = np.flatnonzero(~mask[layer])
            mask[layer][off[np.argsort(-slopes[layer][off], kind="stable")[:leave]]] = True
        return mask


def packed(mask: np.ndarray) -> np.ndarray:
    """Returns whole numbers below 2^24 of which each tells so many entries of the mask."""
    return np.append(mask, np.zeros(-len(mask) % len(_BITS), bool)).reshape(-1, len(_BITS)) @ _BITS


def unpacked(numbers: np.ndarray, size: int) -> np.ndarray:
    return (numbers.astype(int)[:, None] & _BITS).astype(bool).ravel()[:size]
