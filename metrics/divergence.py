"""Whether a finished run has learned nothing: its numbers are told, but not as a success."""

import sqlite3
from dataclasses import dataclass
from typing import Literal

from .conditions import CLIENTS
from .schema import CONSTANT_METRIC

_GROWN = 100.0
"""A loss that is so many times what it was at the start has diverged."""

_CLIENTS = f"{CLIENTS} AND node >= 0"


@dataclass(frozen=True, slots=True)
class Divergence:
    kind: Literal["diverged", "worse than a constant"]
    why: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.why}"


def divergence_of(records: sqlite3.Connection, metric: str) -> Divergence | None:
    """Judges a finished run. Worse than a constant: predicting the same for every sample would do better; where the
    loss has grown, too, that is divergence."""
    losses = {name: _start_and_end(records, f"{name}_loss") for name in ("training", "test")}
    for name, found in losses.items():
        if found is not None and found[1] > _GROWN * found[0] > 0:
            return Divergence("diverged", f"{name} loss {found[1]:.3g}, {found[0]:.3g} at the start")
    if lost := _without_a_number(records):
        return Divergence("diverged", f"the test loss of {lost} clients is not a number")
    worse = _worse_than_a_constant(records, metric)
    if worse is None:
        return None
    grown = any(found is not None and found[1] > found[0] for found in losses.values())
    return Divergence("diverged" if grown else "worse than a constant", worse)


def _start_and_end(records: sqlite3.Connection, loss: str) -> tuple[float, float] | None:
    """Returns means over clients of each one's first and last loss."""
    column = loss.replace("training", "train")
    ends = (
        f"SELECT node, {column} AS loss_{end}, {end}(round) FROM round WHERE {column} IS NOT NULL AND {_CLIENTS}"
        " GROUP BY node"
        for end in ("min", "max")
    )
    row = records.execute(f"SELECT avg(loss_min), avg(loss_max) FROM ({') JOIN ('.join(ends)}) USING (node)").fetchone()
    return None if None in row else row


def _without_a_number(records: sqlite3.Connection) -> int:
    """Counts clients whose test loss after the last round, in which all evaluate, is none."""
    return records.execute(
        f"SELECT count(*) FROM round WHERE round = (SELECT max(round) FROM round) AND round > 0 AND {_CLIENTS}"
        " AND test_loss IS NULL AND node IN (SELECT node FROM round WHERE test_loss IS NOT NULL)"
    ).fetchone()[0]


def _worse_than_a_constant(records: sqlite3.Connection, metric: str) -> str | None:
    """Says why; None where it is not worse, or where that is not known."""
    text = records.execute("SELECT max(value) FROM meta WHERE key = ?", [CONSTANT_METRIC]).fetchone()[0]
    ours = records.execute(f"SELECT avg(test_metric) FROM last_test_metric WHERE {_CLIENTS}").fetchone()[0]
    try:
        constant = float(text)
    except (TypeError, ValueError):
        return None
    if ours is None or not (ours < constant if metric == "accuracy" else ours > constant):
        return None
    if metric == "accuracy":
        return f"accuracy {100 * ours:.1f} %, and always the most frequent class gives {100 * constant:.1f} %"
    return f"test MSE {ours:.4g}, and always the mean of the targets gives {constant:.4g}"
