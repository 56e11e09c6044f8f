"""Which clients of a server are shown its answer of a round, for evaluation only: those that do the round without it.

This is measuring, and no part of what is planned: it takes no time, and nothing is lost of it. Only a client that is
so far ahead of the server that this has one of its uploads too early (silence = "stale") cannot be shown what there is
not yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...transport.schedule import Schedule
from .plan import Life


def with_evaluations(
    schedules: Sequence[Schedule], lives: Sequence[Sequence[Life]], opening: int
) -> tuple[Schedule, ...]:
    """The schedules with ``shows`` and ``shown_at``; the server's comes last. ``opening`` counts the messages that a
    client gets before its first answer."""
    *clients, server = schedules
    shows = np.zeros((len(server.end), len(clients)), np.uint8)
    for i, client in enumerate(clients):
        for life in lives[i]:
            shows[life.first - 1 : life.last, i] = life.number
        has_answer = client.uses[:, 0, 0] > 0
        has_answer[0] = client.uses[0, opening, 0] > 0
        shows[has_answer, i] = 0
        for place in np.argwhere(server.uses[:, :, i] > np.arange(1, len(shows) + 1)[:, None]):
            row = int(place[0])  # an upload of a later round, which so does not wait for the answer of this one
            shows[row : server.uses[row, place[1], i] - 1, i] = 0
    own = [shows[:, [i]] for i in range(len(clients))]
    return tuple(
        replace(schedule, shows=part, shown_at=server.end)
        for schedule, part in zip(schedules, (*own, shows), strict=True)
    )
