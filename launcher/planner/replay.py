"""The plan by which a run on the wall clock happens again: what each client has used, and when its rounds ended, as was
recorded. What the scenario says beforehand (who crashes after which round, what is lost) comes from its own plan."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...metrics.reader import open_records
from ...metrics.store import RunFolderError
from ...node.assignment import name_of
from ...topology.errors import UserError
from ...transport.array_file import ArrayFile, DamagedFile, read
from ...transport.schedule import Schedule
from ...transport.use_log import BEGINS, DEADLINE, LEFT_OUT, read_log
from .plan import Incarnation, Plan
from .scenario import Star
from .sent import Messages, SentMessage
from .uses import fill_in_last_uses, show_answers


@dataclass(frozen=True)
class Recording:
    """Of n things that clients noted in their logs, and of m rounds that they completed."""

    rows: np.ndarray  # (n, 5) int32: client, and a row of transport/use_log.py
    rounds: np.ndarray  # (m, 3) int32: client, round, the neighbour that came last or -1
    times: np.ndarray  # (m, 2) float64: when the round was complete, seconds spent waiting

    @classmethod
    def of(cls, folder: Path) -> "Recording":
        """Raises RunFolderError where the run's records do not suffice."""
        query = "SELECT node, round, ifnull(waited_for, -1), wall_s, ifnull(idle_s, 0.0) FROM round WHERE node >= 0"
        used_by: defaultdict[int, set[tuple[int, ...]]] = defaultdict(set)
        with open_records(folder) as records:
            told = records.execute(f"{query} AND round > 0 ORDER BY node, round").fetchall()
            for node, *row in records.execute("SELECT node, round, phase, neighbour, ifnull(used_round, 0) FROM used"):
                used_by[node].add(tuple(row))
        if not told:
            raise RunFolderError(f"{folder}: cannot be replayed: no client has completed a round")
        rows, begun = [], {row[0] for row in told}
        for node in sorted(begun | {int(path.stem[5:]) for path in (folder / "log").glob("node-*.used")}):
            path = folder / "log" / f"{name_of(node)}.used"
            try:
                own, why = read_log(path), ""
            except OSError as error:
                why = f"cannot be read ({error.strerror}): nobody knows what it has used"
            else:
                noted = set(map(tuple, own.tolist()))
                if node in begun and BEGINS not in own[:, 1]:
                    why = "is cut off or damaged: it has no beginning"
                elif lacks := min(used_by[node] - noted, default=()):
                    why = f"is cut off or damaged: it lacks what run.sqlite has of round {lacks[0]}"
            if why:
                raise RunFolderError(f"{folder}: cannot be replayed: {path.relative_to(folder)} {why}")
            rows.append(np.column_stack([np.full(len(own), node, np.int32), own]))
        table = np.array(told, float)
        found = cls(np.concatenate(rows).astype(np.int32), table[:, :3].astype(np.int32), table[:, 3:].copy())
        for last in found.went_on_after():
            node, round, _, neighbour, used = found.rows.T
            if (undone := (found.rows[:, 2] >= 0) & (round <= last) & (used > last)).any():
                first = np.flatnonzero(undone)[0]
                why = f"it was interrupted, and went on after round {last}; client {node[first]} had used in round"
                why += (
                    f" {round[first]} what client {neighbour[first]} sent in round {used[first]}, which was done again"
                )
                raise RunFolderError(f"{folder}: cannot be replayed: {why}")
        return found

    def went_on_after(self) -> list[int]:
        """Returns the rounds after which the run went on, where it was interrupted: the same processes began again."""
        begins = self.rows[self.rows[:, 2] == BEGINS]
        _, first = np.unique(begins[:, [0, 3]], axis=0, return_index=True)
        return np.unique(np.delete(begins, first, axis=0)[:, 1] - 1).tolist()

    def save(self, path: Path) -> None:
        ArrayFile(vars(self)).save(path)

    @classmethod
    def load(cls, path: Path) -> "Recording":
        """Raises UserError."""
        try:
            recording = cls(**read(path))
            if [(each.ndim, *each.shape[1:]) for each in vars(recording).values()] != [(2, 5), (2, 3), (2, 2)]:
                raise TypeError("its arrays have other shapes")
        except (OSError, DamagedFile, TypeError) as error:
            raise UserError(f"time.replay = {str(path)!r}: is no record of a run: {error}") from None
        return recording


class _Client:
    """One client as it was recorded. ``took_part`` (K,) is the incarnation of each round, 0 where it was away."""

    def __init__(self, number: int, planned: Schedule, recording: Recording):
        self.number, self.planned = number, planned
        rounds, self.uses = len(planned.uses), np.zeros_like(planned.uses)
        rows = recording.rows[recording.rows[:, 0] == number][:, 1:]
        begins, noted = rows[rows[:, 1] == BEGINS], rows[rows[:, 1] >= 0]
        own = recording.rounds[:, 0] == number
        completed = recording.rounds[own, 1] - 1
        told = np.concatenate([rows[:, 0], completed + 1, noted[noted[:, 3] != 0][:, 3]])
        exist = noted[:, 1] < self.uses.shape[1], np.isin(noted[:, 2], planned.neighbours)
        if not all(each.all() for each in (told >= 1, told <= rounds, *exist)):
            raise UserError(f"time.replay: what is on record of client {number} is of another run, or damaged")
        self.began: dict[int, float] = {}
        for _, _, life, ms in begins.tolist():
            self.began[life] = min(ms / 1000, self.began.get(life, ms / 1000))
        places = {node: place for place, node in enumerate(planned.neighbours.tolist())}
        where = noted[:, 0] - 1, noted[:, 1], np.array([places[node] for node in noted[:, 2].tolist()], int)
        self.uses[where] = noted[:, 3]
        self.asked = np.zeros(self.uses.shape, bool)
        self.asked[where] = True
        self.left_out = np.zeros(rounds, bool)
        self.left_out[rows[rows[:, 1] == LEFT_OUT][:, 0] - 1] = True
        self.deadlines = np.bincount(rows[rows[:, 1] == DEADLINE][:, 0] - 1, minlength=rounds).astype(np.uint8)
        self.end, self.idle = np.full(rounds, np.nan), np.zeros(rounds)
        self.waited_for = np.full(rounds, -1, np.int32)
        self.end[completed], self.idle[completed] = recording.times[own].T
        self.waited_for[completed] = recording.rounds[own, 2]
        self.noted_in = int(noted[:, 0].max(initial=0))
        self.completed = int(completed.max(initial=-1)) + 1

    def settle(self, planned: Sequence[Incarnation], heard_of: int, horizon_s: float) -> None:
        """Fills in its incarnations, and what it took part in; others have used messages of its rounds up to
        ``heard_of``. Of a round that others know of it had completed all before, and of one that it has noted."""
        reached = max(self.completed, self.noted_in - 1, heard_of - 1)
        self.incarnations = [each for each in planned if each.number in self.began]
        rounds = len(self.end)
        self.took_part = np.zeros(rounds, np.uint8)
        self.start = np.full(rounds, np.nan)
        for place, each in enumerate(self.incarnations):
            is_last = place == len(self.incarnations) - 1
            last = min(each.last, max(reached, each.first - 1)) if is_last else each.last
            began = 0.0 if each.number == each.first == 1 and not each.start_s else self.began[each.number]
            each = replace(each, start_s=began, last=last)
            if last < planned[each.number - 1].last:
                each = replace(each, ending="crash", saves=False, breaks_off=heard_of == last + 1)
            upto = last + each.breaks_off
            self.took_part[each.first - 1 : upto] = each.number
            now = began
            for row in range(each.first - 1, upto):
                self.start[row] = now
                now = max(now, self.end[row]) if not np.isnan(self.end[row]) else now
                self.end[row] = horizon_s if np.isnan(self.end[row]) else self.end[row]
            each.end_s = now
            self.incarnations[place] = each
        absent = self.took_part == 0
        self.uses[absent], self.asked[absent], self.end[absent] = 0, False, np.nan
        self.idle[absent], self.deadlines[absent] = 0.0, 0

    def is_there_throughout(self) -> bool:
        return bool((self.took_part == 1).all()) and not any(each.breaks_off for each in self.incarnations)

    def begin_of(self, life: int) -> float:
        """0 for who was there when the run began: all that was sent was sent after that."""
        return next((each.start_s for each in self.incarnations if each.number == life), 0.0)

    def schedule(self) -> Schedule:
        """Without what it sends and gets."""
        planned, there = self.planned, self.took_part > 0
        parts: dict[str, Any] = {name: np.zeros_like(getattr(planned, name)) for name in _OF_OTHERS}
        compute = np.where(np.isnan(planned.compute), self.end - self.start, planned.compute)
        compute[self.left_out | ~there] = np.nan
        parts |= {name: getattr(self, name) for name in ("uses", "start", "end", "idle", "waited_for", "deadlines")}
        return replace(planned, **parts, compute=compute, shown_at=np.full(len(there), np.nan))


_OF_OTHERS = ("copies", "to_life", "again", "needed", "comes", "into_life", "keep", "shows", "backlog", "backlog_in")


def replayed(plan: Plan, recording: Recording, star: Star | None = None) -> Plan:
    """``plan`` is that of the scenario, ``star`` its server's. Raises UserError."""
    clients = [_Client(number, schedule, recording) for number, schedule in enumerate(plan.schedules)]
    heard_of = np.zeros(len(clients), int)
    for client in clients:
        np.maximum.at(heard_of, client.planned.neighbours, client.uses.max(axis=(0, 1), initial=0))
    horizon_s = float(recording.times[:, 0].max())
    for client, planned in zip(clients, plan.incarnations, strict=True):
        client.settle(planned, int(heard_of[client.number]), horizon_s)
    schedules = tuple(client.schedule() for client in clients)
    for client in clients:
        for place, j in enumerate(client.planned.neighbours.tolist()):
            _send(clients[j], schedules[j], client, schedules[client.number], place)
    fill_in_last_uses(schedules)
    if star is not None:
        incarnations = [client.incarnations for client in clients]
        show_answers(schedules, incarnations, star)
        for schedule in schedules:
            schedule.shows[max((each.last for each in incarnations[-1]), default=0) :] = 0
    return replace(
        plan,
        schedules=schedules,
        incarnations=tuple(tuple(client.incarnations) for client in clients),
        messages=_messages(schedules),
        withheld=0,
        synchronous=False,
        events=(),
        asked=tuple(client.asked for client in clients),
    )


def _send(sender: _Client, sends: Schedule, receiver: _Client, gets: Schedule, place: int) -> None:
    """Fills in what one sends the other. What the receiver used is sent to the incarnation that used it first, or as
    soon as that comes, where the sender may have begun the round before. What it did not use is only sent where both
    are there all the time."""
    there = int(np.searchsorted(sends.neighbours, receiver.number))
    planned, uses = sender.planned.copies[:, :, there], receiver.uses[:, :, place]
    was_sent = sender.planned.to_life[:, :, there] > 0
    planned = np.where(was_sent, planned, 1)
    copies, life, again = sends.copies[:, :, there], sends.to_life[:, :, there], sends.again[:, :, there]
    if sender.is_there_throughout() and receiver.is_there_throughout():
        life[:] = (was_sent | receiver.asked[:, :, place]) & ~sender.left_out[:, None]
        copies[:] = planned
    rows, phases = np.nonzero(uses)
    for row, phase in zip(rows.tolist(), phases.tolist(), strict=True):
        sent, by = int(uses[row, phase]) - 1, int(receiver.took_part[row])
        if not (life[sent, phase] or again[sent, phase]):
            if sender.start[sent] >= receiver.begin_of(by):
                copies[sent, phase], life[sent, phase] = max(1, planned[sent, phase]), by
            else:
                again[sent, phase] = by
        elif by > max(life[sent, phase], again[sent, phase]):
            again[sent, phase] = by
    copies[life == 0] = 0
    gets.comes[:, :, place], gets.into_life[:, :, place] = copies, life


def _messages(schedules: Sequence[Schedule]) -> Messages:
    sent = []
    for i, own in enumerate(schedules):
        for row, phase, place in np.argwhere(own.copies > 0).tolist():
            j, start = int(own.neighbours[place]), float(own.start[row])
            sent.append((i, j, row + 1, phase, start, start, start, int(own.copies[row, phase, place])))
    columns = zip(*sorted(sent, key=lambda message: message[4]), strict=True)
    return Messages([*map(np.array, columns)] or [np.zeros(0)] * len(SentMessage._fields))
