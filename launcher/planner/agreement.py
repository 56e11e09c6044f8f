"""How much of a run's plan is also the beginning of the plan of a longer run."""

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
    pairs = list(zip(plan.schedules, longer.schedules, strict=True))
    used, before = round, -1  # up to which round anything counts: messages may be newer than where they are used
    while used > before:
        before = used
        used = max([used, *(int(schedule.uses[:used].max(initial=0)) for schedule in longer.schedules)])
    return used <= min((_same_rounds(*pair) for pair in pairs), default=0) and not any(
        ((other.needed[:round] > round) & ~(one.needed[:round] > round)).any() for one, other in pairs
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
