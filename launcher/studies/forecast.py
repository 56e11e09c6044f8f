"""What a run will cost, from what is known before anything is trained: its plan, and what its method says travels."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from ...node.algorithms import links_of
from ...node.assignment import Assignment
from ...transport.channel import Format
from ..planner.plan import Plan
from ..prepare.preparation import draw_graphs, plan_of
from ..prepare.prepared import Prepared


def payload_of(prepared: Prepared) -> int:
    """Returns the payload bytes that all clients will send. Where edges may be silent, it is the most that may
    be."""
    sizes = {own.node: _sizes(own) for own in prepared.assignments}
    plan = prepared.plan or _as_if_planned(prepared)
    total = 0
    if plan is None:
        for of_edges in sizes.values():
            for first, later in of_edges.values():
                total += sum(first) + (prepared.config.rounds - 1) * sum(later)
        return total
    columns = plan.messages.columns
    is_first = columns["round"] == 1
    names = np.stack([columns["src"], columns["dst"], columns["phase"], is_first], axis=1).astype(np.int64)
    sent, places = np.unique(names, axis=0, return_inverse=True)
    copies = Counter[int]()
    for place, count in zip(*np.unique(places.ravel(), return_counts=True), strict=True):
        copies[int(place)] = int(count)
    twice = np.bincount(places.ravel(), weights=columns["copies"].astype(np.int64) - 1, minlength=len(sent))
    for place, (src, dst, phase, first) in enumerate(sent.tolist()):
        total += sizes[src][dst][0 if first else 1][phase] * (copies[place] + round(twice[place]))
    return total


def _sizes(own: Assignment) -> Mapping[int, tuple[list[int], list[int]]]:
    """Returns {neighbour: payload bytes of each message of the first round, and of a later one}."""
    return {
        node: ([*map(_bytes_of, link.sent_as(1, own.dtype))], [*map(_bytes_of, link.sent_as(2, own.dtype))])
        for node, link in links_of(own).items()
    }


def _bytes_of(format: Format) -> int:
    return sum(dtype.itemsize * length for dtype, (length,) in format.layout)


def _as_if_planned(prepared: Prepared) -> Plan | None:
    """Returns the messages of a run without a scenario, those of one in which nothing happens; None: on all edges in
    all rounds."""
    if prepared.config.algorithm.traits.no_scenario:
        return None
    config = prepared.config.but(time={"clock": "virtual"}, compute={"step_s": 1.0})
    return plan_of(config, draw_graphs(config), prepared.assignments, prepared.data)
