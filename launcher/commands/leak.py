"""``sheafgossip leak``: what neighbours learn from what a run's messages carried."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from ...metrics.text import UNKNOWN, new_table, news, say, short, show, size
from ..config.sections import ConfigError
from ..leak.meter import ATTACKS, BY_DEFAULT, Asked, EdgeLeak, Leak, measure

_SHOWN = 10
_COLUMNS = {  # {figure: (title, whether a larger one tells more)}
    "model": ("error of theta", False),
    "update": ("of the update", False),
    "auc": ("membership AUC", True),
    "tpr": ("TPR", True),
    "lira_auc": ("LiRA AUC", True),
    "lira_tpr": ("TPR", True),
    "inputs": ("error of an input", False),
    "matching": ("by matching", False),
    "property": ("property right", True),
}


def leak(
    folder: Path, attack: Sequence[str] | None, shadows: int, looks: int, edges: int, fpr: float, every: bool,
    as_json: bool,
) -> None:  # fmt: skip
    attacks = tuple(dict.fromkeys(attack or BY_DEFAULT))
    if unknown := [name for name in attacks if name not in ATTACKS]:
        raise ConfigError(f"--attack {unknown[0]}: allowed are {', '.join(ATTACKS)}")
    asked = Asked(attacks, shadows, looks, edges, fpr)  # type: ignore[arg-type]
    found = measure(folder, asked, news)
    news()
    if as_json:
        say(json.dumps(found.as_dict(), indent=2))
        return
    present = [name for name in _COLUMNS if any(edge.figure(name) for edge in found.edges)]
    show(_by_edge(found, present, every=every))
    show(_by_round(found, present))
    for line in _notes(found, present):
        say(line)


def _by_edge(found: Leak, present: Collection[str], *, every: bool):
    """Each edge's mean over rounds, and its worst."""
    table = new_table(title="what a receiver learns from a sender: mean over rounds (worst)", title_justify="left")
    for title in ("edge", "is sent", "payload", *(_COLUMNS[name][0] for name in present), "AUC gain a MB"):
        table.add_column(title, justify="left" if title in ("edge", "is sent") else "right")
    edges = sorted(found.edges, key=_gain, reverse=True)
    for edge in edges if every else edges[:_SHOWN]:
        sent = edge.rounds[-1]["payload_mb"]
        cells = (_spread_of(edge, name) for name in present)
        gain = f"{_gain(edge) / sent:.3g}" if sent and (edge.figure("auc") or edge.figure("lira_auc")) else UNKNOWN
        table.add_row(f"{edge.sender} to {edge.receiver}", edge.reads, size(1e6 * sent), *cells, gain)
    return table


def _gain(edge: EdgeLeak) -> float:
    """How far the best membership attack is above a guess."""
    return max([*edge.figure("auc"), *edge.figure("lira_auc")], default=0.5) - 0.5


def _spread_of(edge: EdgeLeak, name: str) -> str:
    values = edge.figure(name)
    if not values:
        return UNKNOWN
    worst = max(values) if _COLUMNS[name][1] else min(values)
    return f"{_number(sum(values) / len(values))} ({_number(worst)})"


def _number(value: float) -> str:
    return short(value, 3) if value >= 0.001 or value == 0 else f"{value:.0e}"


def _by_round(found: Leak, present: Collection[str]):
    table = new_table(title="by round: mean over edges", title_justify="left")
    for title in ("round", "payload of an edge", *(_COLUMNS[name][0] for name in present)):
        table.add_column(title, justify="right")
    rounds = sorted({row["round"] for edge in found.edges for row in edge.rounds})
    for round in rounds:
        rows = [row for edge in found.edges for row in edge.rounds if row["round"] == round]
        cells = []
        for name in ("payload_mb", *present):
            values = [row[name] for row in rows if name in row]
            mean = sum(values) / len(values) if values else None
            text = UNKNOWN if mean is None else size(1e6 * mean) if name == "payload_mb" else _number(mean)
            cells.append(text)
        table.add_row(str(int(round)), *cells)
    return table


def _notes(found: Leak, present: Collection[str]) -> list[str]:
    notes = [f"{len(found.edges)} of {found.of} edges" + (", drawn at random" if len(found.edges) < found.of else "")]
    if "auc" in present or "lira_auc" in present:
        notes.append(f"AUC: 0.5 is a guess; TPR: members found at {found.asked.false:.0%} false alarms or fewer")
    if "inputs" in present:
        own = [edge.own_inputs for edge in found.edges if edge.own_inputs is not None]
        own_best = f"; the receiver's own samples come as near as {_number(sum(own) / len(own))}" if own else ""
        notes.append(f"error of an input: of the best that was found, to the nearest sample{own_best}")
    if "property" in present:
        notes.append(f"property: the sender's {found.property}; always guessing the most frequent: {found.chance:.2f}")
    if any(edge.reads == "learned rows" for edge in found.edges):
        notes.append("learned rows: receivers know how they began, not what they have become")
    return notes
