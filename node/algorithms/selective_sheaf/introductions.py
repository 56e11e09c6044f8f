"""Clients that look for better neighbours: with whom one exchanges, and how that changes without a server.

Clients use the graph's edges at first. In some rounds, in which no edge is silent, each client tells each of its
neighbours two numbers: whom to meet, if anyone, and its own status: content, seeking (it has an edge that is surely
off, or fewer edges than at the start), or leaving this neighbour.

- A client introduces its neighbours to one another, those who were seeking the last time: first pairs of whom
  both are like itself, each pair once, then pairs at random; a neighbour to one other at most. Both hear of it in the
  same round, so both use the new edge from the next one on, unless they have met before.
- A client with more edges than at the start leaves half as many as it has more, drawn at random of those that
  are surely off; the other half is up to their other ends. Clients that have met and parted never meet again.

Nobody needs to know more than what its neighbours say, and both ends of an edge know the same of it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import combinations

import numpy as np

NOBODY = -1
CONTENT, SEEKING, LEAVING = range(3)


class Introductions:
    """``everyone`` are all clients that could be met, ``first`` those that are neighbours from the start."""

    def __init__(self, everyone: Iterable[int], first: Collection[int]):
        self.places = {j: place for place, j in enumerate(sorted(everyone))}
        self.degree = len(first)  # at the start
        self.neighbours = set(first)  # those that it exchanges with
        self.met = set(first)
        self.seeking = set(first)  # those of the neighbours that said so the last time
        self.introduced: set[tuple[int, int]] = set()  # pairs of clients like itself

    def messages(self, on: Collection[int], off: Collection[int], rng: np.random.Generator) -> dict[int, np.ndarray]:
        """{j: (whom to meet, the client's status)}; ``on`` and ``off`` are the neighbours whose edges surely are."""
        surplus = max(0, len(self.neighbours) - self.degree + 1) // 2
        left = set(rng.permutation(sorted(off))[:surplus].tolist())
        status = SEEKING if off or len(self.neighbours) < self.degree else CONTENT
        meet = dict.fromkeys(self.neighbours, NOBODY)
        for one, other in self._pairs(on, rng):
            meet[one], meet[other] = other, one
        return {j: np.array([meet[j], LEAVING if j in left else status]) for j in sorted(self.neighbours)}

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
        """Takes in what this client and its neighbours told each other; returns its new neighbours."""
        gone = {j for j in heard if LEAVING in (int(told[j][1]), int(heard[j][1]))}
        new = {int(message[0]) for message in heard.values()} & self.places.keys() - self.met
        self.seeking = {j for j, message in heard.items() if int(message[1]) == SEEKING}
        self.neighbours = (self.neighbours - gone) | new
        self.met |= new
        return new

    def arrays(self) -> dict[str, np.ndarray]:
        kinds = (self.neighbours, self.met, self.seeking)
        return {
            "acquaintances": np.array([[j in kind for kind in kinds] for j in self.places], np.uint8).reshape(-1, 3),
            "introduced": np.array(sorted(self.introduced), np.int64).reshape(-1, 2),
        }

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        columns = arrays["acquaintances"].astype(bool).T
        self.neighbours, self.met, self.seeking = ({j for j, p in self.places.items() if kind[p]} for kind in columns)
        self.introduced = {(int(i), int(j)) for i, j in arrays["introduced"]}
