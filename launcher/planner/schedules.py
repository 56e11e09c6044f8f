"""What has been played, as each client's Schedule."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...transport.schedule import Schedule
from .plan import Incarnation
from .scenario import Scenario


class Rows:
    """A client's arrays while they are filled in: flat lists."""

    def __init__(self, scenario: Scenario, client: int):
        self.client = client
        self.neighbours = np.array(scenario.neighbours[client], np.int32)
        rounds = scenario.rounds
        self.shape = rounds, scenario.phases, len(self.neighbours)
        messages = math.prod(self.shape)
        self.uses, self.copies, self.to_life = ([0] * messages for _ in range(3))
        self.asked = [False] * messages
        self.delays_out = [0.0] * messages
        self.start, self.end, self.compute = ([math.nan] * rounds for _ in range(3))
        self.idle = [0.0] * rounds
        self.waited_for = [-1] * rounds
        self.deadlines = [0] * rounds

    def index(self, round: int, phase: int) -> int:
        """Where the messages of a round and phase begin."""
        _, phases, neighbours = self.shape
        return ((round - 1) * phases + phase) * neighbours

    def array(self, values: list[Any], dtype: type) -> np.ndarray:
        return np.array(values, dtype).reshape(self.shape)


def schedules_of(everyone: Sequence[Rows]) -> tuple[Schedule, ...]:
    uses = [rows.array(rows.uses, np.int32) for rows in everyone]
    keep = [_last_uses(array) for array in uses]
    copies = [rows.array(rows.copies, np.uint8) for rows in everyone]
    to_life = [rows.array(rows.to_life, np.uint8) for rows in everyone]
    delays_out = [rows.array(rows.delays_out, float) for rows in everyone]
    backlogs = _backlogs(everyone, keep)

    def schedule(rows: Rows) -> Schedule:
        i, others = rows.client, rows.neighbours.tolist()
        places = [int(np.searchsorted(everyone[j].neighbours, i)) for j in others]

        def mirrored(columns: list[np.ndarray]) -> np.ndarray:
            """What the neighbours' arrays say of this client, a column each."""
            mirror = np.empty_like(columns[i])
            for place, (j, there) in enumerate(zip(others, places, strict=True)):
                mirror[..., place] = columns[j][..., there]
            return mirror

        return Schedule(
            neighbours=rows.neighbours,
            uses=uses[i],
            copies=copies[i],
            to_life=to_life[i],
            needed=mirrored(keep),
            comes=mirrored(copies),
            into_life=mirrored(to_life),
            keep=keep[i],
            delays=mirrored(delays_out),
            start=np.array(rows.start),
            end=np.array(rows.end),
            compute=np.array(rows.compute),
            idle=np.array(rows.idle),
            waited_for=np.array(rows.waited_for, np.int32),
            deadlines=np.array(rows.deadlines, np.uint8),
            shows=np.zeros((len(rows.start), len(others)), np.uint8),
            shown_at=np.full(len(rows.start), math.nan),
            backlog=mirrored(backlogs),
            backlog_in=backlogs[i],
        )

    return tuple(map(schedule, everyone))


def _backlogs(everyone: Sequence[Rows], keep: list[np.ndarray]) -> list[np.ndarray]:
    """By client, (g,): how many messages of a neighbour wait for their last use at once, at most. A message counts
    from the start of the round in which it is sent until the end of the round in which it is used last."""
    starts, ends = ([np.array(getattr(rows, name)) for rows in everyone] for name in ("start", "end"))
    backlogs = []
    for own, rows in enumerate(everyone):
        most = np.zeros(len(rows.neighbours), np.int32)
        for place, neighbour in enumerate(rows.neighbours.tolist()):
            last_use = keep[own][:, :, place]
            rounds = np.nonzero(last_use)[0]
            sent = np.sort(starts[neighbour][rounds])
            used = np.sort(ends[own][last_use[last_use > 0] - 1])
            waiting = np.searchsorted(sent, sent, side="right") - np.searchsorted(used, sent, side="left")
            most[place] = waiting.max(initial=0)
        backlogs.append(most)
    return backlogs


def _last_uses(uses: np.ndarray) -> np.ndarray:
    """(K, P, g): the last own round in which a neighbour's message of its round k is used."""
    last = np.zeros_like(uses)
    rounds, phases, places = np.nonzero(uses)
    np.maximum.at(last, (uses[rounds, phases, places] - 1, phases, places), rounds.astype(np.int32) + 1)
    return last


def with_evaluations(
    schedules: Sequence[Schedule], incarnations: Sequence[Sequence[Incarnation]], opening: int
) -> tuple[Schedule, ...]:
    """The schedules with ``shows`` and ``shown_at``: which clients of a server (its schedule comes last) are shown its
    answer of a round for evaluation, as they do the round without it.

    This is measuring, and no part of what is planned: it takes no time, and nothing is lost of it. Only a client that
    is so far ahead of the server that this has one of its uploads too early (silence = "stale") cannot be shown what
    there is not yet. ``opening`` counts the messages that a client gets before its first answer.
    """
    *clients, server = schedules
    shows = np.zeros((len(server.end), len(clients)), np.uint8)
    for i, client in enumerate(clients):
        for each in incarnations[i]:
            shows[each.first - 1 : each.last, i] = each.number
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
