"""Which process of a client runs when: one incarnation after the other, as the plan says."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...node.assignment import AssignedIncarnation, Assignment
from ..planner.plan import Incarnation
from ..prepare.prepared import Prepared


class Incarnations:
    """What is ``left`` of every client's incarnations after the round at which the run begins or is taken up."""

    def __init__(self, prepared: Prepared):
        self._prepared, self._resumed_at = prepared, prepared.resumed_at
        self._on_wall_clock = prepared.config.time.clock == "wall"
        self._told = Counter(event[:3] for event in prepared.told)
        self._planned = [(node, each) for node, planned in enumerate(_planned(prepared)) for each in planned]
        self.left: list[list[Incarnation]] = [[] for _ in prepared.assignments]
        for node, each in self._planned:
            if self._goes_on(node, each):
                self.left[node].append(each)

    def _goes_on(self, node: int, incarnation: Incarnation) -> bool:
        """Whether it has rounds to come, or at least messages to get."""
        plan = self._prepared.plan
        if incarnation.last + incarnation.breaks_off > self._resumed_at or plan is None or not self._resumed_at:
            return True
        if self._on_wall_clock:  # nobody waits for what comes to a client that has gone
            return False
        schedule = plan.schedules[node]
        return bool(((schedule.comes > 0) & (schedule.into_life == incarnation.number))[self._resumed_at :].any())

    def at_first(self) -> tuple[list[int], list[int]]:
        """Clients that are there when the run begins, and those that come when the others have begun."""
        firsts = [(node, left[0]) for node, left in enumerate(self.left) if left]
        here = [node for node, each in firsts if each.first <= self._resumed_at or self._begins_the_run(each)]
        return here, [node for node, _ in firsts if node not in here]

    def _begins_the_run(self, incarnation: Incarnation) -> bool:
        """It may also come late and begin with round 1, where none of its neighbours is there: then the wall clock has
        it come at its time."""
        return incarnation.number == incarnation.first == 1 and not (self._on_wall_clock and incarnation.start_s)

    def of(self, assignment: Assignment) -> Incarnation:
        return _planned(self._prepared)[assignment.node][assignment.incarnation.number - 1]

    def files(self, completed: np.ndarray) -> Iterator[Path]:
        """What it takes to go on from the round at which the run is taken up: the state of each client in it; of who is
        away, what it had sent before; and what those begin from who come later. ``completed`` is that of rounds_of."""
        resumed_at = self._resumed_at
        for assignment, rounds, left in zip(self._prepared.assignments, completed, self.left, strict=True):
            if rounds[resumed_at]:
                yield assignment.state(resumed_at)
            elif rounds[:resumed_at].any() and not self._on_wall_clock:
                yield assignment.sent(resumed_at)
            for incarnation in left:
                begins_from = incarnation.state_round
                if incarnation.first > resumed_at and begins_from is not None and begins_from <= resumed_at:
                    yield assignment.state(begins_from)

    def all_have_left(self) -> bool:
        """Whether it is on record that those whose incarnations are over have ended: before that they may not have
        written all that neighbours need of them. On the wall clock they write nothing."""
        over = Counter((node, each.ending, each.end_s) for node, each in self._planned if not self._goes_on(node, each))
        return self._on_wall_clock or over <= self._told

    def past(self) -> list[tuple[str, str, int, float]]:
        """(kind, text, client, virtual seconds) of who has come and gone by the round at which the run is taken up. It
        may not be on record: who waits for nobody is rounds ahead of a neighbour when all are killed."""
        events = []
        for node, each in self._planned if self._resumed_at else ():
            is_over = not self._goes_on(node, each)
            if (is_over or each.first <= self._resumed_at) and not self._begins_the_run(each):
                events.append((*beginning(each), node, each.start_s))
            if is_over and each.ending != "finish":
                events.append((*ending(each), node, each.end_s))
        return events

    def next(self, node: int) -> Assignment:
        """The client's next incarnation, which is no longer left."""
        incarnation, *self.left[node] = self.left[node]
        base, resumed_at, plan = self._prepared.assignments[node], self._resumed_at, self._prepared.plan
        following = self.left[node][0].first - 1 if self.left[node] else self._prepared.config.rounds
        over_ipc = base.deployment.address.startswith("ipc://")
        suffix = f".{incarnation.number}" if incarnation.number > 1 and over_ipc else ""
        first, state_round = incarnation.first, incarnation.state_round
        if resumed_at and incarnation.first <= resumed_at:
            goes_on = incarnation.last + incarnation.breaks_off > resumed_at
            first, state_round = resumed_at + 1, resumed_at if goes_on else None
        # one whose end is on record has told all that it had to tell: it only gets what is still on its way to it
        is_told_of = incarnation.last <= resumed_at and (node, incarnation.ending, incarnation.end_s) in self._told
        part = AssignedIncarnation(
            number=incarnation.number,
            first_round=first,
            last_round=incarnation.last,
            begun_in=first if is_told_of else incarnation.first,
            ending=incarnation.ending,
            absent_until=following if incarnation.ending != "finish" else 0,
            saves=incarnation.saves,
            breaks_off=incarnation.breaks_off,
            state_round=state_round,
            resumed_at=resumed_at,
            bounded=plan is not None and (base.clock == "wall" or not plan.synchronous),
        )
        deployment = replace(base.deployment, address=base.deployment.address + suffix)
        return replace(base, deployment=deployment, incarnation=part)


def beginning(incarnation: Incarnation) -> tuple[str, str]:
    """(kind, text) of the event that a client comes late, or again."""
    return "restart" if incarnation.number > 1 else "join", f"takes part from round {incarnation.first}"


def ending(incarnation: Incarnation) -> tuple[str, str]:
    """(kind, text) of the event that a client ends before the others."""
    return incarnation.ending, f"before round {incarnation.last + 1}"


def _planned(prepared: Prepared) -> Sequence[Sequence[Incarnation]]:
    whole = Incarnation(1, 1, 0.0, prepared.config.rounds)
    return prepared.plan.incarnations if prepared.plan else [[whole]] * len(prepared.assignments)


def rounds_of(prepared: Prepared) -> np.ndarray:
    """(processes, rounds + 1) bool: who completes which round; round 0 is the start of a client's first incarnation."""
    completed = np.zeros((len(prepared.assignments), prepared.config.rounds + 1), bool)
    for row, incarnations in zip(completed, _planned(prepared), strict=True):
        for incarnation in incarnations:
            row[incarnation.first : incarnation.last + 1] = True
            row[0] |= incarnation.number == incarnation.first == 1
    return completed
