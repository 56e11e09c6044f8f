"""How much of a run's plan is also the beginning of the plan of a longer run."""

from collections.abc import Sequence

import numpy as np

from ...transport.schedule import Schedule
from .plan import Plan

_OF_A_ROUND = (
    "uses", "copies", "to_life", "comes", "into_life", "delays", "start", "end", "compute", "idle", "waited_for",
    "deadlines",
)  # fmt: skip


def same_comings_and_goings(plan: Plan, longer: Plan) -> bool:
    """Whether all that the shorter one tells of clients and links is in the longer one, too."""
    return set(plan.events) <= set(longer.events) and plan.conditions == longer.conditions


def can_go_on_after(round: int, plan: Plan, longer: Plan) -> bool:
    """Whether the state that a run by ``plan`` writes after the round is that of a run by ``longer``: all that has been
    used until then was the same, and every message that is used later is in it."""
    same = min(
        (_same_rounds(one, other) for one, other in zip(plan.schedules, longer.schedules, strict=True)), default=0
    )
    return _latest_used(longer.schedules, round) <= same and all(
        _keeps_enough(one, other, round) for one, other in zip(plan.schedules, longer.schedules, strict=True)
    )


def _same_rounds(one: Schedule, other: Schedule) -> int:
    """How many rounds from the first on are the same in both."""
    rounds = min(len(one.start), len(other.start))
    differ = np.zeros(rounds, bool)
    for name in _OF_A_ROUND:
        ours, theirs = (getattr(each, name)[:rounds].reshape(rounds, -1) for each in (one, other))
        both_missing = (ours != ours) & (theirs != theirs)
        differ |= ((ours != theirs) & ~both_missing).any(axis=1)
    return int(differ.argmax()) if differ.any() else rounds


def _latest_used(schedules: Sequence[Schedule], round: int) -> int:
    """The latest round of which anything has to do with the clients' first ``round`` rounds: messages may be newer than
    the round in which they are used."""
    latest, before = round, -1
    while latest > before:
        before = latest
        latest = max([latest, *(int(schedule.uses[:latest].max(initial=0)) for schedule in schedules)])
    return latest


def _keeps_enough(one: Schedule, other: Schedule, round: int) -> bool:
    return not ((other.needed[:round] > round) & ~(one.needed[:round] > round)).any()
