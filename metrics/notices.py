"""What a user should be told after a run, beside its figures: warnings and dropped messages, each kind once."""

from __future__ import annotations

import re
from pathlib import Path

from .divergence import divergence_of
from .names import name_of
from .reader import metric_of, open_records
from .summary import status_of

_KINDS = ("warning", "drop", "lost-records", "death", "host-lost")
_COMPARED = 200
"""Characters of a detail: the search for numbers takes the square of them."""

_OF_THE_SCENARIO = {
    "crash": ("crash", "crashes"),
    "restart": ("restart", "restarts"),
    "join": ("client that joined late", "clients that joined late"),
    "leave": ("client that left", "clients that left"),
}


def notices(run_folder: Path | str) -> list[str]:
    """One line for each thing that happened, with the first client it happened to and how many others there were, and
    one where a run has finished and learned nothing.

    Raises RunFolderError.
    """
    with open_records(run_folder, check=("event",)) as records:
        marks = ", ".join("?" * len(_KINDS))
        events = records.execute(
            f"SELECT kind, node, detail FROM event WHERE kind IN ({marks}) ORDER BY wall_s, node", _KINDS
        ).fetchall()
        diverged = divergence_of(records, metric_of(records)) if status_of(records) == "finished" else None
        names = {node: name_of(node, records) for node in {node for _, node, _ in events}}
        planned = dict(records.execute("SELECT kind, count(*) FROM event WHERE node >= 0 GROUP BY kind"))
    alike: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for kind, node, detail in events:
        alike.setdefault((kind, re.sub(r"[\d.e+-]*\d", "#", detail[:_COMPARED])), []).append((node, detail))
    lines = [f"finished, but {diverged}"] if diverged else []
    for (kind, _), told in alike.items():
        node, detail = told[0]
        others = len({other for other, _ in told} - {node})
        who = names[node] + (f" and {others} more" if others else "")
        match kind:
            case "death":
                lines.append(f"{who} died: {detail}")
            case "host-lost":
                lines.append(detail)
            case _:
                lines.append(f"{kind}: {who}: {detail}")
    counts = {name: planned[kind] for kind, name in _OF_THE_SCENARIO.items() if kind in planned}
    if counts:
        lines.append("scenario: " + ", ".join(f"{count} {names[count > 1]}" for names, count in counts.items()))
    return lines
