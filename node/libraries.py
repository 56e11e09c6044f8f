"""What the clients of a run need beyond what all clients do, and take long to load: their fork server does, once."""

from __future__ import annotations

from collections.abc import Iterable

from .algorithms import ALGORITHMS
from .architecture import LINEAR


def libraries_of(algorithm: str, kinds: Iterable[str]) -> tuple[str, ...]:
    """Modules, for an algorithm and kinds of models."""
    models = () if LINEAR.issuperset(kinds) else (f"{__package__}.models",)
    return ALGORITHMS[algorithm].libraries + models
