"""Keys that are written and have no effect: nobody writes what he does not want."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, reduce
from typing import Any

from ...node.algorithms.base import Algorithm
from ...topology.errors import UserError, shown
from ...topology.section import Needs, Section
from .sections import ConfigError, RunConfig, keys_of, validate

Tree = dict[str, Any]
_default_of: Callable[..., Any] = cache(lambda kind, key: keys_of(kind)[key].get_default(call_default_factory=True))


def without_effect(config: RunConfig) -> dict[str, str]:
    """Returns {key with dots: a line that tells why} of keys that are written in a configuration. A key at its default
    does no harm in a table that is written in full, as all are in a run's own config.toml."""
    found = dict(_idle(config, "", config))
    traits, why = config.algorithm.traits, f"has no effect with algorithm.name = {config.algorithm.name!r}"
    reasons = {} if traits.mixes else {"weights": "which does not mix with such weights"}
    if traits.server != "none" and not traits.reads_topology:
        reasons = dict.fromkeys(keys_of(type(config.topology)), "whose clients talk to a server, and to nobody else")
    for name, reason in reasons.items():
        if _is_meant(config.topology, name, "topology.", config):
            key = f"topology.{name}"
            found[key] = f"{_given(key, getattr(config.topology, name))}: {why}, {reason}"
    if config.checkpoints.save_maps and not traits.has_maps:
        found["checkpoints.save_maps"] = f"checkpoints.save_maps = true: {why}, which has no maps"
    return found


def refuse(keys: Mapping[str, str], configs: Sequence[RunConfig]) -> None:
    """Raises ConfigError where one of ``keys``, {key: how it was written}, has no effect in any of the runs."""
    idle, lines = [without_effect(config) for config in configs] if keys else [], []
    for key, written in keys.items():
        # it has no effect itself, or the table that it is in
        whys = [next((run[there] for there in run if f"{key}.".startswith(f"{there}.")), "") for run in idle]
        if all(whys):
            lines.append(f"{written}{whys[0]}")
    if lines:
        raise ConfigError(*dict.fromkeys(lines))


def _idle(section: Section | Algorithm, prefix: str, config: RunConfig) -> Iterator[tuple[str, str]]:
    for name, declared in keys_of(type(section)).items():
        value, key = getattr(section, name), f"{prefix}{name}"
        if _is_meant(section, name, prefix, config) and (why := _unmet(declared.metadata, section, prefix, config)):
            yield key, f"{_given(key, value)}: has no effect {why}"
            continue
        for number, each in enumerate(value if isinstance(value, tuple) else [value]):
            if isinstance(each, Section | Algorithm):
                yield from _idle(each, f"{key}.{number}." if isinstance(value, tuple) else f"{key}.", config)


def _is_meant(section: Section | Algorithm, name: str, prefix: str, config: RunConfig) -> bool:
    """Tells whether a key is written, and says more than what is true in any case."""
    value = getattr(section, name)
    if isinstance(section, Algorithm):
        return value != keys_of(type(section))[name].default
    if f"{prefix}{name}" not in config.written or value is None or value in ("", ()):
        return False
    kind = type(section)
    in_full = all(
        f"{prefix}{key}" in config.written for key in keys_of(kind) if _default_of(kind, key) not in (None, {})
    )
    return not (in_full and value == _default_of(kind, name))


def _unmet(metadata: Sequence[Any], table: Any, prefix: str, config: RunConfig) -> str:
    """Tells why what is declared with ``metadata`` has no effect; "" where it has one."""
    for needs in (each for each in metadata if isinstance(each, Needs)):
        found = {
            key if "." in key else f"{prefix}{key}": reduce(getattr, key.split("."), config if "." in key else table)
            for key in needs.keys
        }
        if not any(map(needs.met, found.values())):
            given = " and ".join(_given(key, value) for key, value in found.items())
            wanted = " or ".join(map(shown, needs.values))
            return f"with {given}; it needs {wanted}" if needs.values else f"without {' or '.join(found)}"
    return ""


def is_a_record(tree: Tree) -> bool:
    """Tells whether a configuration is written in full, as that in a run's folder is and nobody writes it."""
    return {name for name, key in keys_of(RunConfig).items() if key.default is not None} <= tree.keys()


def tidy(tree: Tree) -> Tree:
    """Removes keys that have no effect, and empty tables. Tables that are refused stay as they are."""
    with suppress(UserError):
        idle = without_effect(validate(tree))
        return {key: value for key, value in without(tree, idle).items() if value not in ({}, [])}
    return tree


def without(tree: Tree, keys: Iterable[str]) -> Tree:
    """Removes {keys with dots}, in which a number stands for an entry of a list."""
    smaller = copy.deepcopy(tree)
    for key in keys:
        *above, last = key.split(".")
        table: Any = smaller
        for part in above:
            table = table[int(part)] if isinstance(table, list) else table[part]
        table.pop(last, None)
    return smaller


def _given(key: str, value: Any) -> str:
    own = getattr(value, "use", "")
    return f"{key}.use = {own!r}" if own else key if isinstance(value, Section) else f"{key} = {shown(value)}"
