"""What a plan comes to, in figures and as stretches of time. Pure, like the planner."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from ...transport.schedule import Schedule
from .plan import Incarnation, Plan

AGES = ("same round", "1 older", "2 to 4 older", "5 or more older", "newer", "none: goes without")
"""How old the message is that a client uses, in rounds, against its own round."""


@dataclass(frozen=True, slots=True)
class Stretches:
    """What a client does when: arrays (n, 2) of start and end in virtual seconds, ascending."""

    computing: np.ndarray
    waiting: np.ndarray
    away: np.ndarray
    ends: tuple[tuple[float, str], ...]
    """(moment, "crash" or "leave")"""
    returns: tuple[float, ...]
    """Moments at which it joins late or comes back."""
    until_s: float
    """When it has finished, or its last process has ended."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """A client that others wait for: a wait counts for the one that came last."""

    client: int
    seconds: float
    rounds: int


@dataclass(frozen=True)
class Timeline:
    """Seconds are virtual. A server is no client; who it waits for is what counts in ``awaited``."""

    clients: int
    rounds: int
    end_s: float
    finishing: dict[int, float]
    """{client: when it ends}, of those that complete the last round."""
    leaving: int
    """Clients that do not: they go for good, or never come."""
    computing_s: tuple[float, ...]
    """By client, as the next two."""
    waiting_s: tuple[float, ...]
    away_s: tuple[float, ...]
    """Before it joins, and from each crash or leave until it comes back, or until the run's end."""
    sent: int
    """Messages that are given to a link; each counts once, sent twice or not."""
    lost: int
    """How many of these are lost on the way."""
    unused: int
    """How many of these are not lost, and yet never used: a fresher one came before, or nobody was there to use it."""
    doubled: int
    """How many of these are sent twice."""
    withheld: int
    """Not sent at all: the link is cut, or the neighbour away."""
    ages: dict[str, int]
    """AGES: how often."""
    deadlines: int
    """Waits that the deadline ends."""
    awaited: tuple[Awaited, ...]
    """The longest first."""
    awaited_s: float
    """Seconds of all waits that these are of."""
    events: tuple[tuple[float, int, str, str], ...]
    """(second, client, kind, detail)"""
    conditions: tuple[tuple[float | None, str], ...]

    @property
    def waiting_share(self) -> float:
        """Returns the part of the time that clients are there; 0 where there is no time at all."""
        there = sum(self.computing_s) + sum(self.waiting_s)
        return sum(self.waiting_s) / there if there else 0.0

    @property
    def median_end_s(self) -> float:
        return median(self.finishing.values())

    def last_to_finish(self, count: int) -> list[tuple[int, float]]:
        """(client, second)"""
        return sorted(self.finishing.items(), key=lambda item: -item[1])[:count]

    def longest_at_work(self, count: int) -> list[tuple[int, float]]:
        """(client, seconds of local work)"""
        return sorted(enumerate(self.computing_s), key=lambda item: -item[1])[:count]


def timeline_of(plan: Plan) -> Timeline:
    schedules = plan.schedules
    clients = len(schedules) - plan.has_server
    rounds = len(schedules[0].start)
    finishing = {
        client: incarnations[-1].end_s
        for client, incarnations in enumerate(plan.incarnations[:clients])
        if incarnations and incarnations[-1].ending == "finish"
    }
    waits = schedules[clients:] or schedules
    copies = np.array([message.copies for message in plan.messages])
    completed = [~np.isnan(schedule.end) for schedule in schedules]
    return Timeline(
        clients=clients,
        rounds=rounds,
        end_s=plan.end_s,
        finishing=finishing,
        leaving=clients - len(finishing),
        computing_s=tuple(float(np.nansum(schedule.compute)) for schedule in schedules[:clients]),
        waiting_s=tuple(float(schedule.idle.sum()) for schedule in schedules[:clients]),
        away_s=tuple(
            sum(end - start for start, end in _away(incarnations, plan.end_s))
            for incarnations in plan.incarnations[:clients]
        ),
        sent=len(copies),
        lost=int((copies == 0).sum()),
        unused=sum(int(((schedule.copies > 0) & (schedule.needed == 0)).sum()) for schedule in schedules),
        doubled=int((copies > 1).sum()),
        withheld=plan.withheld,
        ages=_ages(plan, completed),
        deadlines=sum(int(schedule.deadlines.sum()) for schedule in schedules),
        awaited=_awaited(waits, len(schedules)),
        awaited_s=float(sum(schedule.idle.sum() for schedule in waits)),
        events=plan.events,
        conditions=plan.conditions,
    )


def stretches_of(plan: Plan) -> list[Stretches]:
    """Returns what each client does when."""
    work_ends = _work_ends(plan)
    clients = len(plan.schedules) - plan.has_server
    return [_stretches(plan, client, work_ends.get(client, {})) for client in range(clients)]


def shares(stretches: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Seconds of the stretches that fall between each two of the edges, which ascend."""
    if not len(stretches):
        return np.zeros(len(edges) - 1)
    start, end = stretches.T
    so_far = np.concatenate([[0.0], np.cumsum(end - start)])
    index = np.searchsorted(start, edges, side="right")
    before = so_far[index] - np.where(index > 0, np.maximum(0, end[np.maximum(index - 1, 0)] - edges), 0)
    return np.diff(before)


def _ages(plan: Plan, completed: Sequence[np.ndarray]) -> dict[str, int]:
    counts = np.zeros(len(AGES), int)
    for client, (schedule, done) in enumerate(zip(plan.schedules, completed, strict=True)):
        used = schedule.uses[done]
        older = (np.flatnonzero(done) + 1)[:, None, None] - used
        if plan.asked is not None:
            asked = plan.asked[client][done]
            used, older = used[asked], older[asked]
        kind = np.select([used == 0, older < 0, older == 0, older == 1, older <= 4], [5, 4, 0, 1, 2], default=3)
        counts += np.bincount(kind.ravel(), minlength=len(AGES))
    return dict(zip(AGES, counts.tolist(), strict=True))


def _awaited(schedules: Sequence[Schedule], processes: int) -> tuple[Awaited, ...]:
    """Whom these wait for."""
    seconds, rounds = np.zeros(processes), np.zeros(processes, int)
    for schedule in schedules:
        waited = schedule.waited_for >= 0
        np.add.at(seconds, schedule.waited_for[waited], schedule.idle[waited])
        np.add.at(rounds, schedule.waited_for[waited], 1)
    order = sorted(range(processes), key=lambda client: (-seconds[client], client))
    return tuple(Awaited(i, float(seconds[i]), int(rounds[i])) for i in order if rounds[i])


def _away(incarnations: Sequence[Incarnation], end_s: float) -> list[tuple[float, float]]:
    """From when until when a client is not there, as long as the run goes on."""
    gaps, gone_since = [], 0.0
    for each in incarnations:
        gaps.append((gone_since, each.start_s))
        gone_since = each.end_s if each.ending != "finish" else end_s
    gaps.append((gone_since, end_s))
    return [(start, end) for start, end in gaps if end > start]


def _work_ends(plan: Plan) -> dict[int, dict[int, float]]:
    """{client: {round: when its local work ends}} where an exchange follows the work: its messages tell."""
    ends: dict[int, dict[int, float]] = {}
    after = 0 if plan.has_server else 1  # with a server, the work comes first
    for message in plan.messages:
        if message.phase >= after:  # the last counts
            ends.setdefault(message.src, {})[message.round] = message.sent_s
    return ends


def _stretches(plan: Plan, client: int, work_ends: dict[int, float]) -> Stretches:
    schedule, incarnations = plan.schedules[client], plan.incarnations[client]
    there = ~np.isnan(schedule.end)
    start, end, seconds = schedule.start[there], schedule.end[there], np.nan_to_num(schedule.compute[there])
    done = np.array([work_ends.get(int(row) + 1, np.inf) for row in np.flatnonzero(there)])
    done = np.minimum(done, end) if len(done) else end
    begun = np.maximum(start, done - seconds)
    pauses = np.stack([np.stack([start, begun], axis=1), np.stack([done, end], axis=1)], axis=1).reshape(-1, 2)
    return Stretches(
        computing=np.stack([begun, done], axis=1),
        waiting=pauses[pauses[:, 1] - pauses[:, 0] > 1e-9 * max(1.0, plan.end_s)],  # rather than round-off
        away=np.array(_away(incarnations, plan.end_s)).reshape(-1, 2),
        ends=tuple((each.end_s, each.ending) for each in incarnations if each.ending != "finish"),
        returns=tuple(each.start_s for each in incarnations if each.number > 1 or each.start_s > 0 or each.first > 1),
        until_s=max((each.end_s for each in incarnations), default=0.0),
    )
