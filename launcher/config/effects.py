"""Keys that are written and have no effect: nobody writes what he does not want."""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from ...node.algorithms.base import Algorithm
from ...topology.section import Needs, Section
from .explanation import ConfigError, keys_of
from .sections import RunConfig


def without_effect(config: RunConfig) -> dict[str, str]:
    """{key with dots: a line that tells why}, of the keys that are written in the configuration of a run.

    A key at its default does no harm in a table that is written in full, as all are in a run's own config.toml.
    """
    return dict([*_of_section(config, "", config), *_of_the_graph(config)])


def refuse(keys: Mapping[str, str], configs: Sequence[RunConfig]) -> None:
    """Raises ConfigError where one of ``keys``, {key: how it was written}, has no effect in any of the runs."""
    idle, lines = [without_effect(config) for config in configs], []
    for key, written in keys.items():
        # it has no effect itself, or the table that it is in
        whys = [next((run[there] for there in run if f"{key}.".startswith(f"{there}.")), "") for run in idle]
        if all(whys):
            lines.append(f"{written}{whys[0]}")
    if lines:
        raise ConfigError(*dict.fromkeys(lines))


def _of_section(section: Section | Algorithm, prefix: str, config: RunConfig) -> Iterator[tuple[str, str]]:
    for name, declared in keys_of(type(section)).items():
        value, key = getattr(section, name), f"{prefix}{name}"
        why = _unmet(declared.metadata, section, prefix, config) if _matters(section, name, prefix, config) else ""
        if why:
            yield key, f"{_shown(key, value)}: has no effect {why}"
            continue
        for number, each in enumerate(value if isinstance(value, tuple) else [value]):
            if isinstance(each, Section | Algorithm):
                yield from _of_section(each, f"{key}.{number}." if isinstance(value, tuple) else f"{key}.", config)


def _matters(section: Section | Algorithm, name: str, prefix: str, config: RunConfig) -> bool:
    """Whether a key is written, and more than what is true in any case."""
    value, keys = getattr(section, name), keys_of(type(section))
    if isinstance(section, Algorithm):
        return value != keys[name].default
    if f"{prefix}{name}" not in config.written or value is None or value in ("", ()):
        return False
    in_full = all(f"{prefix}{key}" in config.written for key, each in keys.items() if each.default is not None)
    return not (in_full and value == keys[name].default)


def _unmet(metadata: Sequence[Any], table: Any, prefix: str, config: RunConfig) -> str:
    """Why what is declared with ``metadata`` has no effect; "" where it has one."""
    for needs in (each for each in metadata if isinstance(each, Needs)):
        found = {
            key if "." in key else f"{prefix}{key}": reduce(getattr, key.split("."), config if "." in key else table)
            for key in needs.keys
        }
        if any(needs.met(value) for value in found.values()):
            continue
        if not needs.values:
            return f"without {' or '.join(found)}"
        given = " and ".join(_shown(key, value) for key, value in found.items())
        return f"with {given}; it needs {' or '.join(map(_plain, needs.values))}"
    return ""


def _of_the_graph(config: RunConfig) -> Iterator[tuple[str, str]]:
    """What depends on the algorithm's traits."""
    traits, topology = config.algorithm.traits, config.topology
    why = f"has no effect with algorithm.name = {config.algorithm.name!r}"
    for name in keys_of(type(topology)):
        if _matters(topology, name, "topology.", config):
            key, value = f"topology.{name}", getattr(topology, name)
            if traits.server != "none" and not traits.reads_topology:
                yield key, f"{_shown(key, value)}: {why}: its clients talk to a server, and to nobody else"
            elif name == "weights" and not traits.mixes:
                yield key, f"{_shown(key, value)}: {why}, which does not mix with such weights"
    if config.checkpoints.save_maps and not traits.has_maps:
        yield "checkpoints.save_maps", f"checkpoints.save_maps = true: {why}, which has no maps"


def _shown(key: str, value: Any) -> str:
    return key if isinstance(value, Section) else f"{key} = {_plain(value)}"


def _plain(value: Any) -> str:
    """As in TOML, in a few words."""
    value = list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
    return ("false", "true")[value] if isinstance(value, bool) else f"{value!r:.200}"
