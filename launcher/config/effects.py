"""Keys that are written and have no effect: nobody writes what he does not want."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...topology.section import Needs, Section
from .section import ConfigError, keys_of

if TYPE_CHECKING:
    from .sections import RunConfig


def without_effect(config: RunConfig) -> dict[str, str]:
    """{key with dots: a line that tells why}, of the keys that are written in the configuration of a run.

    A key at its default does no harm in a table that is written in full, as all are in a run's own config.toml.
    """
    return dict([*_of_section(config, "", config), *_of_algorithm(config), *_of_the_graph(config)])


def refuse(keys: Mapping[str, str], configs: Sequence[RunConfig]) -> None:
    """Raises ConfigError where one of ``keys``, {key: how it was written}, has no effect in any of the runs."""
    idle = [without_effect(config) for config in configs]
    whys = {key: [_why(key, of_run) for of_run in idle] for key in keys}
    lines = dict.fromkeys(f"{keys[key]}{of_runs[0]}" for key, of_runs in whys.items() if all(of_runs))
    if lines:
        raise ConfigError(*lines)


def _why(key: str, idle: Mapping[str, str]) -> str:
    """Why it has no effect, or the table that it is in."""
    return next((why for there, why in idle.items() if f"{key}.".startswith(f"{there}.")), "")


def _of_section(section: Section, prefix: str, config: RunConfig) -> Iterator[tuple[str, str]]:
    for name, declared in keys_of(type(section)).items():
        value, key = getattr(section, name), f"{prefix}{name}"
        if _matters(section, name, prefix, config):
            why = _unmet(declared.metadata, section, prefix, config)
            if why:
                yield key, f"{_shown(key, value)}: has no effect {why}"
                continue
        below = value if isinstance(value, tuple) else (value,)
        for number, each in enumerate(below):
            if isinstance(each, Section):
                place = f"{key}.{number}." if isinstance(value, tuple) else f"{key}."
                yield from _of_section(each, place, config)


def _matters(section: Section, name: str, prefix: str, config: RunConfig) -> bool:
    """Whether a key is written, and more than what is true in any case."""
    value, keys = getattr(section, name), keys_of(type(section))
    if f"{prefix}{name}" not in config.written or value is None or value in ("", ()):
        return False
    in_full = all(f"{prefix}{key}" in config.written for key, each in keys.items() if each.default is not None)
    return not (in_full and value == keys[name].default)


def _of_algorithm(config: RunConfig) -> Iterator[tuple[str, str]]:
    settings = config.algorithm
    for name, declared in keys_of(type(settings)).items():
        value = getattr(settings, name)
        why = _unmet(declared.metadata, settings, "algorithm.", config)
        if why and value != declared.default:
            yield f"algorithm.{name}", f"{_shown(f'algorithm.{name}', value)}: has no effect {why}"


def _unmet(metadata: Sequence[Any], table: Any, prefix: str, config: RunConfig) -> str:
    """Why what is declared with ``metadata`` has no effect; "" where it has one."""
    for needs in (each for each in metadata if isinstance(each, Needs)):
        found = {
            key if "." in key else f"{prefix}{key}": _at(config, key) if "." in key else getattr(table, key)
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
    alone = traits.server != "none" and not traits.reads_topology
    for name in keys_of(type(topology)):
        if _matters(topology, name, "topology.", config):
            key, value = f"topology.{name}", getattr(topology, name)
            if alone:
                yield key, f"{_shown(key, value)}: {why}: its clients talk to a server, and to nobody else"
            elif name == "weights" and not traits.mixes:
                yield key, f"{_shown(key, value)}: {why}, which does not mix with such weights"
    if config.checkpoints.save_maps and not traits.has_maps:
        yield "checkpoints.save_maps", f"checkpoints.save_maps = true: {why}, which has no maps"


def _at(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = getattr(config, name)
    return config


def _shown(key: str, value: Any) -> str:
    return key if isinstance(value, Section) else f"{key} = {_plain(value)}"


def _plain(value: Any) -> str:
    """As in TOML, in a few words."""
    value = list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
    return ("false", "true")[value] if isinstance(value, bool) else f"{value!r:.200}"
