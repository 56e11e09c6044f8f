"""What follows from which messages are used: how long each is needed, and what a server shows for evaluation."""

from collections.abc import Sequence

import numpy as np

from ...transport.schedule import Schedule
from .plan import Incarnation
from .scenario import Star


def fill_in_last_uses(schedules: Sequence[Schedule]) -> None:
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


def show_answers(schedules: Sequence[Schedule], incarnations: Sequence[Sequence[Incarnation]], star: Star) -> None:
    """Fills in which clients of a server are shown its answer of a round for evaluation, as they do the round
    without it. This is measuring: it takes no time, and nothing is lost of it. Only a client so far ahead that the
    server has one of its uploads too early (silence = "stale") cannot be shown what there is not yet."""
    server = schedules[-1]
    for i, own in enumerate(schedules[:-1]):
        shows, uses = server.shows[:, i], own.uses
        for each in incarnations[i]:
            shows[each.first - 1 : each.last] = each.number
        has_answer = uses[:, star.phases(2)[-1], 0] > 0
        has_answer[0] = uses[0, star.phases(1)[-1], 0] > 0
        shows[has_answer] = 0
        for row, phase in np.argwhere(server.uses[:, :, i] > np.arange(1, len(shows) + 1)[:, None]).tolist():
            shows[row : server.uses[row, phase, i] - 1] = 0  # a later upload does not wait for this round's answer
        sent_to = np.maximum.accumulate(server.to_life[:, :, i].max(axis=1, initial=0))
        shows[sent_to > shows] = 0  # the answer goes to a later one, which comes only when this one has ended
        own.shows[:, 0] = shows
    for own in schedules:
        own.shown_at[:] = server.end
