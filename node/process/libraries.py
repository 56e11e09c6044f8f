"""What the clients of a run need beyond what all clients do, and take long to load: their fork server does, once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ..algorithms import algorithm_of
from ..algorithms.base import Algorithm
from ..assignment import Assignment
from ..model.architecture import LINEAR


def libraries_of(algorithm: Algorithm, kinds: Iterable[str]) -> tuple[str, ...]:
    """Modules, for an algorithm and kinds of models."""
    models = () if LINEAR.issuperset(kinds) else ("sheafgossip.node.model.networks",)
    return algorithm.traits.libraries + models


def libraries_for(assignments: Iterable[Assignment]) -> list[str]:
    kinds = defaultdict[Algorithm, set[str]](set)
    for assignment in assignments:
        kinds[algorithm_of(assignment)].add(assignment.architecture.kind)
    return [library for algorithm, needed in kinds.items() for library in libraries_of(algorithm, needed)]
