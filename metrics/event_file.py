"""A run as an event file, which TensorBoard shows. Needs the package tensorboard."""

import sqlite3
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from .conditions import CLIENTS
from .fairness import mean, worst
from .reader import metric_of

NAME = "events.out.tfevents.sheafgossip"
"""TensorBoard opens files with "tfevents" in their name."""

_OF_A_CLIENT = {"test_metric": 2, "train_loss": 3, "disagreement": 4}
"""Tag -> place in a row of _ROUNDS."""

_ROUNDS = f"""
SELECT round, node, test_metric, train_loss, disagreement, wall_s FROM round WHERE {CLIENTS} ORDER BY round, node
"""
_PAYLOAD = "SELECT round, sum(payload_bytes) FROM traffic GROUP BY round"
_MEMORY = f"""
SELECT wall_s, node, pss FROM resource WHERE {CLIENTS} ORDER BY wall_s, resource.rowid
"""


def write_events(records: sqlite3.Connection, path: Path) -> None:
    """Writes a step a round, at the wall seconds of the records: of all clients when the last was done, of each its
    own."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    with path.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(file_version="brain.Event:2").SerializeToString())
        for round, wall_s, scalars in _scalars(records):
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
            writer.write(Event(step=round, wall_time=wall_s, summary=Summary(value=values)).SerializeToString())


def _scalars(records: sqlite3.Connection) -> Iterator[tuple[int, float, Mapping[str, float]]]:
    """Yields (round, wall seconds, {tag: value})."""
    metric = metric_of(records)
    payload = dict(records.execute(_PAYLOAD).fetchall())
    memory = _Memory(records)
    for round, of_round in groupby(records.execute(_ROUNDS), itemgetter(0)):
        rows = list(of_round)
        wall_s = max(row[-1] for row in rows)
        known = {tag: [row[at] for row in rows if row[at] is not None] for tag, at in _OF_A_CLIENT.items()}
        scalars = {f"mean/{tag}": mean(values) for tag, values in known.items() if values}
        if known["test_metric"]:
            scalars["worst_10/test_metric"] = worst(known["test_metric"], 0.1, higher_is_better=metric != "mse")
        if round in payload:
            scalars["sum/payload_bytes"] = payload[round]
        if (pss := memory.sum_by(wall_s)) is not None:
            scalars["sum/pss"] = pss
        yield round, wall_s, scalars
        for row in rows:
            own = {f"client_{row[1]:04d}/{tag}": row[at] for tag, at in _OF_A_CLIENT.items() if row[at] is not None}
            if own:
                yield round, row[-1], own


class _Memory:
    """The sum over clients of what each said last, as time goes on."""

    def __init__(self, records: sqlite3.Connection):
        self._samples = records.execute(_MEMORY).fetchall()[::-1]
        self._last: dict[int, int] = {}

    def sum_by(self, wall_s: float) -> int | None:
        """None before anyone has said anything. Moments must come in order."""
        while self._samples and self._samples[-1][0] <= wall_s:
            _, node, pss = self._samples.pop()
            self._last[node] = pss
        return sum(self._last.values()) if self._last else None
