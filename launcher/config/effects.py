"""Keys that are written and have no effect: nobody writes what he does not want."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from ...node.algorithms import ALGORITHMS
from ...node.needs import Needs
from .section import ConfigError, Section

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
    for name, field in type(section).model_fields.items():
        value, key = getattr(section, name), f"{prefix}{name}"
        if name in section.model_fields_set and not _is_harmless(section, name):
            why = _unmet(field.metadata, section, prefix, config)
            if why:
                yield key, f"{_shown(key, value)}: has no effect {why}"
                continue
        below = value if isinstance(value, tuple) else (value,)
        for number, each in enumerate(below):
            if isinstance(each, Section):
                place = f"{key}.{number}." if isinstance(value, tuple) else f"{key}."
                yield from _of_section(each, place, config)


def _is_harmless(section: Section, name: str) -> bool:
    value = getattr(section, name)
    if value is None or value in ("", ()):  # that there is none is true in any case
        return True
    defaults = {key: field.default for key, field in type(section).model_fields.items()}
    full = {key for key, default in defaults.items() if default is not None} <= section.model_fields_set
    return full and value == defaults[name]


def _of_algorithm(config: RunConfig) -> Iterator[tuple[str, str]]:
    settings = config.algorithm
    hints = get_type_hints(type(settings), include_extras=True)
    for field in fields(settings):
        value = getattr(settings, field.name)
        why = _unmet(getattr(hints[field.name], "__metadata__", ()), settings, "algorithm.", config)
        if why and value != field.default:
            yield f"algorithm.{field.name}", f"{_shown(f'algorithm.{field.name}', value)}: has no effect {why}"


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
    """What depends on the algorithm's own answers."""
    algorithm, settings, topology = ALGORITHMS[config.algorithm.name], config.algorithm, config.topology
    why = f"has no effect with algorithm.name = {settings.name!r}"
    alone = algorithm.has_server(settings) and not algorithm.is_told_relations(settings)
    for name in type(topology).model_fields:
        if name in topology.model_fields_set and not _is_harmless(topology, name):
            key, value = f"topology.{name}", getattr(topology, name)
            if alone:
                yield key, f"{_shown(key, value)}: {why}: its clients talk to a server, and to nobody else"
            elif name == "weights" and not algorithm.mixes(settings):
                yield key, f"{_shown(key, value)}: {why}, which does not mix with such weights"
    if config.checkpoints.save_maps and not algorithm.map_rows(settings, 1, 1, 1):
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
