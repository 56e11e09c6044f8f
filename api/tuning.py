"""Values that are searched from Python, as ``sheafgossip tune`` does it."""

from collections.abc import Mapping
from typing import Any, Unpack

from .given import Bounded, Source, means_of, read, tables
from .launcher.commands.tune import Tuning, budget_of, methods_of, tune_all
from .launcher.studies.space import parse_space
from .runs import _inside_a_program
from .topology.errors import UserError

_BOUNDS = ("max_payload_mb", "max_virtual_s")


def tune(
    config: Source,
    search: Mapping[str, Any],
    changes: Mapping[str, Any] | None = None,
    *,
    trials: int = 30,
    seeds: int = 1,
    jobs: int = 1,
    **within: Unpack[Bounded],
) -> Tuning:
    """Searches values with which a method does best on validation samples. ``search`` is {key with dots: "0.1..1",
    "log:0.001..10", "int:1..10", "int:log:1..64", or a list to choose from}. Every method of [[compare]] tables gets so
    many ``trials``, each with so many seeds. What would send or last more than the bounds is not trained. Where ``out``
    holds some of the trials, the others are made. Raises as ``run`` does, and Error where no trial comes to its end."""
    source, name = read(config)
    bounds = [within.get("max_payload_mb"), within.get("max_virtual_s")]
    out, quiet, _ = means_of({key: value for key, value in within.items() if key not in _BOUNDS}, Bounded)
    for key, count in (("trials", trials), ("seeds", seeds), ("jobs", jobs)):
        if type(count) is not int or count < 1:
            raise UserError(f"{key} = {count!r}: must be a whole number of at least 1")
    for key, bound in zip(_BOUNDS, bounds, strict=True):
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int | float) or not bound >= 0):
            raise UserError(f"{key} = {bound!r}: must be a number of at least 0")
    if not isinstance(search, Mapping):
        raise UserError(f"search = {search!r:.80}: must be a dict of keys with dots")
    budget = budget_of(trials, seeds, *bounds)
    with _inside_a_program():
        methods = methods_of(source, tables(changes or {}, "changes"), parse_space(search))
        return tune_all(methods, budget, jobs, name, out, quiet=quiet)
