"""What the clients of a run need beyond what all clients do, and take long to load: their fork server does, once."""

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
    asked = {(algorithm_of(assignment), assignment.architecture.kind) for assignment in assignments}
    return sorted({library for algorithm, kind in asked for library in libraries_of(algorithm, [kind])})
