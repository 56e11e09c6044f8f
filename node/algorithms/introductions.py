"""Clients that look for better neighbours: whom one talks to, and how that changes without a server.

Clients talk over the graph's edges at first. In every meeting, a round in which all edges speak, each client tells each
of its neighbours two numbers: whom to meet, if anyone, and how it is itself: content, seeking (it has an edge that is
surely off, or fewer edges than at the start), or taking leave of this neighbour.

- A client introduces its neighbours to one another, those who were seeking in the last meeting: first pairs of whom
  both are like itself, each pair once, then pairs at random; a neighbour to one other at most. Both hear of it in the
  same meeting, so both talk from the next round on, unless they have met before.
- A client with more edges than at the start takes leave of half as many as it has more, drawn at random of those that
  are surely off; the other half is left to their other ends. Who has met and parted never meets again.

Nobody needs to know more than what its neighbours say, and both ends of an edge know the same of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import combinations

import numpy as np

NOBODY = -1
CONTENT, SEEKING, LEAVING = range(3)


class Introductions:
    """``everyone`` are all clients that could be met, ``first`` those that are neighbours from the start."""

    def __init__(self, everyone: Iterable[int], first: Collection[int]):
        self.places = {j: place for place, j in enumerate(sorted(everyone))}
        self.degree = len(first)
        """Edges at the start."""
        self.neighbours = set(first)
        """Those that it talks to."""
        self.met = set(first)
        self.seeking = set(first)
        """Those of the neighbours that said so in the last meeting."""
        self.introduced: set[tuple[int, int]] = set()
        """Pairs of clients like itself that it has introduced."""

    def words(self, on: Collection[int], off: Collection[int], rng: np.random.Generator) -> dict[int, np.ndarray]:
        """{j: (whom to meet, how the client is)}; ``on`` and ``off`` are the neighbours whose edges surely are."""
        surplus = max(0, len(self.neighbours) - self.degree + 1) // 2
        left = set(rng.permutation(sorted(off))[:surplus].tolist())
        state = SEEKING if off or len(self.neighbours) < self.degree else CONTENT
        meet = dict.fromkeys(self.neighbours, NOBODY)
        for one, other in self._pairs(on, rng):
            meet[one], meet[other] = other, one
        return {j: np.array([meet[j], LEAVING if j in left else state]) for j in sorted(self.neighbours)}

    def _pairs(self, on: Collection[int], rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        """No client twice."""
        free = rng.permutation(sorted(self.seeking & self.neighbours)).tolist()
        for one, other in combinations([j for j in free if j in on], 2):
            pair = min(one, other), max(one, other)
            if one in free and other in free and pair not in self.introduced:
                self.introduced.add(pair)
                free.remove(one)
                free.remove(other)
                yield pair
        yield from zip(free[::2], free[1::2], strict=False)

    def hear(self, told: Mapping[int, np.ndarray], heard: Mapping[int, np.ndarray]) -> set[int]:
        """Takes in what was said in a meeting, by this client and to it; returns its new neighbours."""
        gone = {j for j in heard if LEAVING in (int(told[j][1]), int(heard[j][1]))}
        new = {int(word[0]) for word in heard.values()} & self.places.keys() - self.met
        self.seeking = {j for j, word in heard.items() if int(word[1]) == SEEKING}
        self.neighbours = (self.neighbours - gone) | new
        self.met |= new
        return new

    def state(self) -> dict[str, np.ndarray]:
        kinds = (self.neighbours, self.met, self.seeking)
        return {
            "acquaintances": np.array([[j in kind for kind in kinds] for j in self.places], np.uint8).reshape(-1, 3),
            "introduced": np.array(sorted(self.introduced), np.int64).reshape(-1, 2),
        }

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        columns = state["acquaintances"].astype(bool).T
        self.neighbours, self.met, self.seeking = ({j for j, p in self.places.items() if kind[p]} for kind in columns)
        self.introduced = {(int(i), int(j)) for i, j in state["introduced"]}
