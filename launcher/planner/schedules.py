"""Each client's Schedule: empty arrays, which the simulation fills in, and what follows from them in the end."""

import math
from collections.abc import Sequence

import numpy as np

from ...transport.schedule import Schedule
from .plan import Incarnation
from .scenario import Scenario

_OF_MESSAGES = {
    "uses": "i4", "copies": "u1", "to_life": "u1", "needed": "i4", "comes": "u1", "into_life": "u1", "keep": "i4",
    "delays": "f8",
}  # fmt: skip


def empty_schedule(scenario: Scenario, client: int) -> Schedule:
    """One of a client that takes part in no round."""
    rounds, places = scenario.rounds, len(scenario.neighbours[client])
    start, end, compute, shown_at = (np.full(rounds, math.nan) for _ in range(4))
    backlog, backlog_in = (np.zeros(places, np.int32) for _ in range(2))
    return Schedule(
        neighbours=np.array(scenario.neighbours[client], np.int32),
        **{name: np.zeros((rounds, scenario.phases, places), dtype) for name, dtype in _OF_MESSAGES.items()},
        start=start,
        end=end,
        compute=compute,
        idle=np.zeros(rounds),
        waited_for=np.full(rounds, -1, np.int32),
        deadlines=np.zeros(rounds, np.uint8),
        shows=np.zeros((rounds, places), np.uint8),
        shown_at=shown_at,
        backlog=backlog,
        backlog_in=backlog_in,
    )


def complete(schedules: Sequence[Schedule]) -> None:
    """Fills in when each message is used last, and how many wait for their last use at once, at most. A message counts
    from the start of the round in which it is sent until the end of the round in which it is used last."""
    for i, own in enumerate(schedules):
        rows, phases, places = np.nonzero(own.uses)
        np.maximum.at(own.keep, (own.uses[rows, phases, places] - 1, phases, places), rows.astype(np.int32) + 1)
        for place, j in enumerate(own.neighbours.tolist()):
            sender, last_use = schedules[j], own.keep[:, :, place]
            there = int(np.searchsorted(sender.neighbours, i))
            sender.needed[:, :, there] = last_use
            sent = np.sort(sender.start[np.nonzero(last_use)[0]])
            used = np.sort(own.end[last_use[last_use > 0] - 1])
            waiting = np.searchsorted(sent, sent, side="right") - np.searchsorted(used, sent, side="left")
            own.backlog_in[place] = sender.backlog[there] = waiting.max(initial=0)


def show_answers(schedules: Sequence[Schedule], incarnations: Sequence[Sequence[Incarnation]], opening: int) -> None:
    """Fills in which clients of a server (its schedule comes last) are shown its answer of a round for evaluation, as
    they do the round without it.

    This is measuring, and no part of what is planned: it takes no time, and nothing is lost of it. Only a client that
    is so far ahead of the server that this has one of its uploads too early (silence = "stale") cannot be shown what
    there is not yet. ``opening`` counts the messages that a client gets before its first answer.
    """
    *clients, server = schedules
    for i, client in enumerate(clients):
        shows = server.shows[:, i]
        for each in incarnations[i]:
            shows[each.first - 1 : each.last] = each.number
        has_answer = client.uses[:, 0, 0] > 0
        has_answer[0] = client.uses[0, opening, 0] > 0
        shows[has_answer] = 0
        for row, phase in np.argwhere(server.uses[:, :, i] > np.arange(1, len(shows) + 1)[:, None]).tolist():
            shows[row : server.uses[row, phase, i] - 1] = 0  # a later upload does not wait for the answer of this round
        client.shows[:, 0] = shows
    for schedule in schedules:
        schedule.shown_at[:] = server.end
