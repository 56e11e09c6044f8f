"""The search for the smallest configuration that still fails: delta debugging (Zeller and Hildebrandt 2002, ddmin) of
faults and conditions, then fewer rounds, clients and samples, until nothing more can be left out. Few rounds or samples
may fail by themselves: where faults or conditions are needed, they stay needed."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from typing import TypeVar

from ...topology.errors import UserError
from ..config.effect import tidy, without
from .simpler import (
    Tree,
    bare,
    conditions_of,
    samples_of,
    simpler_faults,
    with_clients,
    with_faults,
    with_faults_drawn,
    with_rounds,
    with_samples,
)

_T = TypeVar("_T")
_MOST_SAMPLES = 1 << 12


class Exhausted(Exception):
    """As many runs as were allowed have been made."""


@dataclass(frozen=True)
class Verdict:
    fails: bool
    said: str = ""  # what its run came to
    seconds: float | None = None  # None: it was refused, and never ran
    sound: bool | None = None  # whether a run without faults and conditions may be so; None: if it does not fail

    @property
    def may_be_without(self) -> bool:
        return not self.fails if self.sound is None else self.sound


@dataclass(frozen=True)
class Candidate:
    tried: str  # what is simpler, in words
    tree: Tree

    @cached_property
    def key(self) -> str:
        return sha256(json.dumps(self.tree, sort_keys=True, default=str).encode()).hexdigest()[:12]


Judge = Callable[[Sequence[Candidate]], Sequence[Verdict]]


@dataclass
class Search:
    """``best`` is the smallest so far that fails, at first the one to begin with. Up to ``at_once`` candidates are
    judged ahead of the one whose turn it is; the course of the search, and how many of ``most`` runs it takes, do not
    depend on that, nor on what is ``known`` from before."""

    best: Candidate
    judge: Judge
    most: int = 200
    at_once: int = 1
    known: dict[str, Verdict] = field(default_factory=dict)
    improved: Callable[[Candidate], None] = lambda candidate: None
    taken: dict[str, tuple[Candidate, Verdict]] = field(default_factory=dict)  # in the order of the search
    kept: list[str] = field(default_factory=list)  # keys of those that were the best once

    @property
    def runs(self) -> int:
        return sum(verdict.seconds is not None for _, verdict in self.taken.values())

    def begin(self) -> Verdict:
        """Judges the one to begin with."""
        self.kept.append(self.best.key)
        return self._verdict([self.best])

    def __call__(self) -> bool:
        """Returns whether nothing more can be left out; else as many runs were made as are allowed."""
        try:
            self._write_faults_down()
            before = None
            while before != self.best.key:
                before = self.best.key
                self._fewer_faults()
                self._simpler_faults()
                self._fewer_conditions()
                self._fewer_rounds()
                self._fewer_clients()
                self._fewer_samples()
        except Exhausted:
            return False
        return True

    def first(self, options: Iterable[tuple[str, Tree]], *, as_needed: bool = False) -> int | None:
        """Returns the number of the first that still fails, which is the best from then on; ``as_needed``: one that
        does not fail without its faults and conditions."""
        candidates, queue = [Candidate(tried, tidy(tree)) for tried, tree in options], list[Candidate]()
        for each in candidates:
            queue.append(each)
            if as_needed:
                queue.append(Candidate(f"{each.tried}, without faults and conditions", tidy(bare(each.tree))))
        for number, candidate in enumerate(candidates):
            ahead = queue[number * (1 + as_needed) :]
            if candidate.key == self.best.key or not self._verdict(ahead).fails:
                continue
            if not as_needed or self._verdict(ahead[1:]).may_be_without:
                self.best = candidate
                self.kept.append(candidate.key)
                self.improved(candidate)
                return number
        return None

    def without_faults(self) -> Verdict:
        """Returns that of the best without faults and conditions."""
        return self._verdict([Candidate("without faults and conditions", tidy(bare(self.best.tree)))])

    def _is_needed(self) -> bool:
        """Returns whether it fails for its faults and conditions."""
        return self.without_faults().may_be_without

    def _verdict(self, candidates: Sequence[Candidate]) -> Verdict:
        """Returns that of the first, and perhaps has more of them judged. Raises Exhausted."""
        key = candidates[0].key
        if key not in self.taken and self.runs >= self.most:
            raise Exhausted
        if key not in self.known:
            unknown = {each.key: each for each in candidates if each.key not in (*self.known, self.best.key)}
            ahead = [candidates[0], *(each for each in unknown.values() if each.key != key)][: self.at_once]
            self.known |= {each.key: said for each, said in zip(ahead, self.judge(ahead), strict=True)}
        self.taken.setdefault(key, (candidates[0], self.known[key]))
        return self.known[key]

    def _write_faults_down(self) -> None:
        if "chaos" in self.best.tree:
            try:
                drawn = with_faults_drawn(self.best.tree)
            except UserError:  # that may be what is looked for
                return
            self.first([("drawn faults written down", drawn)])

    def _fewer_faults(self) -> None:
        def still(parts: Sequence[Sequence[Tree]]) -> int | None:
            tree = self.best.tree
            return self.first((f"{len(part)} of {len(faults)} faults", with_faults(tree, part)) for part in parts)

        faults = self.best.tree.get("faults", [])
        ddmin(faults, still)

    def _simpler_faults(self) -> None:
        place = 0
        while place < len(faults := self.best.tree.get("faults", [])):
            options = simpler_faults(faults[place], self.best.tree)
            found = self.first(
                (f"fault {place}: {tried}", with_faults(self.best.tree, [*faults[:place], fault, *faults[place + 1 :]]))
                for tried, fault in options
            )
            place += found is None

    def _fewer_conditions(self) -> None:
        def still(parts: Sequence[Sequence[str]]) -> int | None:
            options = []
            for part in parts:
                left_out = [key for key in conditions_of(self.best.tree) if key not in part]
                options.append((f"without {', '.join(left_out)}", without(self.best.tree, left_out)))
            return self.first(options)

        ddmin(conditions_of(self.best.tree), still)

    def _fewer_rounds(self) -> None:
        self._least("rounds", 1, self.best.tree["rounds"], with_rounds)

    def _fewer_clients(self) -> None:
        self._least("clients", 1, self.best.tree["clients"], with_clients)

    def _fewer_samples(self) -> None:
        there, least = samples_of(self.best.tree)
        self._powers("samples", least, there or _MOST_SAMPLES, with_samples)

    def _least(self, name: str, least: int, now: int, change: Callable[[Tree, int], Tree]) -> None:
        """A number may fail where a larger one does not, so small ones are tried first; then halves between the first
        that fails and the one before it."""
        low, high = self._powers(name, least, now, change)
        while low < high:
            middle = (low + high) // 2
            option = f"{name} {middle}", change(self.best.tree, middle)
            if self.first([option], as_needed=self._is_needed()) is None:
                low = middle + 1
            else:
                high = middle

    def _powers(self, name: str, least: int, now: int, change: Callable[[Tree, int], Tree]) -> tuple[int, int]:
        """Returns the least that may fail, as far as is known, and the one that does."""
        tried = [number for power in range(32) if (number := least << power) < now]
        options = [(f"{name} {number}", change(self.best.tree, number)) for number in tried]
        found = self.first(options, as_needed=bool(options) and self._is_needed())
        place = len(tried) if found is None else found
        return (tried[place - 1] + 1 if place else least), (now if found is None else tried[found])


def ddmin(items: Sequence[_T], first: Callable[[Sequence[Sequence[_T]]], int | None]) -> list[_T]:
    """Returns a part that fails, of which no single item can be left out. ``first`` tells which of some parts is the
    first that fails; that of all items does."""
    left, count = list(items), 2
    if not left or first([[]]) is not None:
        return []
    while len(left) > 1:
        bounds = [len(left) * number // count for number in range(count + 1)]
        spans = [range(start, end) for start, end in pairwise(bounds)]
        parts = [[left[number] for number in span] for span in spans]
        rests = [[each for number, each in enumerate(left) if number not in span] for span in spans]
        found = first([*parts, *rests])
        if found is None:
            if count >= len(left):
                break
            count = min(len(left), 2 * count)
        elif found < count:
            left, count = parts[found], 2
        else:
            left, count = rests[found - count], max(2, count - 1)
    return left
