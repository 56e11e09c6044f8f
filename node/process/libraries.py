"""What the clients of a run need beyond what all clients do, and take long to load: their fork server does, once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ..algorithms import ALGORITHMS
from ..assignment import Assignment
from ..model.architecture import LINEAR


def libraries_of(algorithm: str, kinds: Iterable[str]) -> tuple[str, ...]:
    """Modules, for an algorithm and kinds of models."""
    models = () if LINEAR.issuperset(kinds) else ("sheafgossip.node.model.networks",)
    return ALGORITHMS[algorithm].libraries + models


def libraries_for(assignments: Iterable[Assignment]) -> list[str]:
    kinds = defaultdict[str, set[str]](set)
    for assignment in assignments:
        kinds[assignment.algorithm["name"]].add(assignment.architecture.kind)
    return [library for algorithm, needed in kinds.items() for library in libraries_of(algorithm, needed)]
