"""Reads configuration files, their bases and overrides, and the runs that they describe."""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...metrics.config_file import flat, parse as parse_toml, read_text
from ...node.algorithms import INPUT_FILES
from ...topology.errors import shown
from .effect import is_a_record, refuse
from .sections import ConfigError, RunConfig, validate

_GIVEN = "the configuration"
_PATH_KEYS = [("topology", "path"), ("data", "root"), ("stragglers", "path"), ("trace", "path"), ("time", "replay")]
_PATH_KEYS += [("data", "features_from"), ("tracking", "folder"), ("algorithm.edges", "path")]
_PATH_KEYS += [("algorithm", key) for key in INPUT_FILES]


Overrides = Sequence[str] | Mapping[str, Any]
"""Changes of a configuration: "key=value" texts, or {key with dots: value}."""


def load(
    source: Path | Mapping[str, Any], overrides: Overrides = (), setting: Mapping[str, Any] | None = None
) -> list[RunConfig]:
    """Returns the runs that a file, or its tables, describe: one, or one for each of the [[compare]] tables.
    ``overrides`` win over the file, a [[compare]] table wins over them, and ``setting``, {key with dots: value}, over
    all. Relative paths start at the file's folder, those in tables, overrides and setting at the current one. Raises
    ConfigError."""
    tree = read(source) if isinstance(source, Path) else _whole(_tables(source), _GIVEN, Path.cwd())
    tree.pop("reproduction", None)  # what `sheafgossip reproduce` says of the runs
    variants, wanted, setting = tree.pop("compare", None) or [], _overrides(overrides), setting or {}
    if "compare" in wanted:
        raise ConfigError("--set compare: [[compare]] tables are written in the file")
    both, mark = _merge(tree, wanted), object()
    for key in sorted(flat(wanted, lists=True).keys() - setting.keys()) if variants else ():
        marked = _merge(both, _tree({key: mark}, "--set"))
        if not any(mark in flat(_merge(marked, variant)).values() for variant in variants):
            why = "every [[compare]] table of the file sets it, or another algorithm, and wins"
            raise ConfigError(f"--set {key}: {why}; change it there, or take a file without [[compare]] tables")
    configs = _runs(both, variants, setting)
    try:
        as_written = _runs(tree, variants, {}) if wanted or setting else configs
    except ConfigError:  # only with what the command line adds is the file whole
        as_written = configs
    # what a file says itself, and not the one that it starts from, has an effect
    own = parse_toml(read_text(source)) if isinstance(source, Path) else _tables(source)
    for variant, config in zip(own.pop("compare", []), as_written, strict=False):
        refuse(dict.fromkeys(flat(variant, lists=True), ""), [config])
    if not is_a_record(own):
        refuse(dict.fromkeys(flat(own, lists=True), ""), as_written)
    if not setting:  # else the sweep sees to all points of its grids
        refuse_without_effect(overrides, configs)
    return configs


def load_one(source: Path | Mapping[str, Any], overrides: Overrides = ()) -> RunConfig:
    """Returns the one run that a file, or its tables, describe. Raises ConfigError."""
    config, *others = load(source, overrides)
    if others:
        name = source if isinstance(source, Path) else _GIVEN
        raise ConfigError(f"{name}: its [[compare]] tables describe {1 + len(others)} runs; one is needed here")
    return config


def tables_of(source: Path, overrides: Overrides = ()) -> dict[str, Any]:
    """Returns the tables of the one run that a file describes, with all that it starts from. Raises ConfigError."""
    load_one(source, overrides)
    return all_tables_of(source, overrides)[0]


def all_tables_of(source: Path | Mapping[str, Any], overrides: Overrides = ()) -> list[dict[str, Any]]:
    """Returns those of each run that ``load`` returns. Raises ConfigError."""
    configs = load(source, overrides)
    tree = read(source) if isinstance(source, Path) else _whole(_tables(source), _GIVEN, Path.cwd())
    tree.pop("reproduction", None)
    variants = tree.pop("compare", None) or [{}]
    trees = [_merge(_merge(tree, _overrides(overrides)), variant) for variant in variants]
    numbers = [{"clients": config.clients, "rounds": config.rounds} for config in configs]
    return [each | number for each, number in zip(trees, numbers, strict=True)]


def _runs(tree: dict[str, Any], variants: Sequence[dict[str, Any]], setting: Mapping[str, Any]) -> list[RunConfig]:
    configs, last, told = [], _tree(setting, "--grid"), [f"{key} = {value}" for key, value in setting.items()]
    for number, variant in enumerate(variants or [{}], 1):
        where = ", ".join([*told, *([f"[[compare]] table {number}"] if variants else [])])
        try:
            table = _merge(_merge(tree, variant), last)
            if table.get("clients") == "all":
                from ..data.shards import count_clients

                config = validate(table | {"clients": 1})
                table["clients"] = count_clients(config.data, config.seed)
            configs.append(validate(table))
        except ConfigError as error:
            raise ConfigError(*(f"{line} ({where})" if where else line for line in error.args)) from None
    return configs


def refuse_without_effect(overrides: Overrides, configs: Sequence[RunConfig], option: str = "--set") -> None:
    """Raises ConfigError where an override of the command line has no effect in any of the runs."""
    if isinstance(overrides, Mapping):
        told = dict.fromkeys(flat(_overrides(overrides), lists=True), "")
    else:
        told = {key: f"{option} {text}: " for text in overrides for key in flat(_overrides([text]), lists=True)}
    refuse(told, configs)


def read(path: Path, above: Sequence[Path] = ()) -> dict[str, Any]:
    """Returns a file's tables on top of those of its ``base``, paths made absolute. Raises ConfigError. ``above`` are
    the files that this one is the base of."""
    included = f" (the base of {above[0]})" if above else ""
    try:
        tree = parse_toml(read_text(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}{included}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}{included}") from None
    return _whole(tree, path, path.parent, (path, *above))


def _whole(tree: dict[str, Any], name: object, folder: Path, above: Sequence[Path] = ()) -> dict[str, Any]:
    variants = tree.get("compare", [])
    if not isinstance(variants, list) or not all(isinstance(variant, dict) for variant in variants):
        raise ConfigError(f"{name}: compare must be written as [[compare]] tables")
    for part in (tree, *variants):
        _absolute_paths(part, folder)
    base, whole, taken = tree.pop("base", None), dict[str, Any](), {file.resolve() for file in above}
    for each in base if base and isinstance(base, list) else [] if base is None else [base]:
        if not isinstance(each, str) or not each or _resolved(folder, each, f"{name}: base") in taken:
            why = "must be the name of another configuration file, or a list of such"
            raise ConfigError(f"{name}: base = {shown(each)}: {why}")
        whole = _merge(whole, read(folder / each, above))
    return _merge(whole, tree)


def with_paths_from(folder: Path, tree: dict[str, Any]) -> dict[str, Any]:
    """Returns tables with absolute paths as a file in the folder would have them."""
    return _with_paths(copy.deepcopy(tree), lambda path, key: os.path.relpath(path, folder))


def _absolute_paths(tree: dict[str, Any], start: Path) -> dict[str, Any]:
    return _with_paths(tree, lambda path, key: str(_resolved(start, path, key)))


def _with_paths(tree: dict[str, Any], change: Callable[[str, str], str]) -> dict[str, Any]:
    for section, key in _PATH_KEYS:
        values: Any = tree
        for name in section.split("."):
            values = values.get(name) if isinstance(values, dict) else None
        if isinstance(values, dict) and isinstance(values.get(key), str) and values[key]:
            values[key] = change(values[key], f"{section}.{key}")
    _with_uses(tree, change)
    return tree


def _with_uses(table: dict[str, Any], change: Callable[[str, str], str]) -> None:
    for key, value in table.items():
        if key == "use" and isinstance(value, str) and ".py:" in value:  # else it is a module of a package
            table[key] = change(value, key)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                _with_uses(each, change)


def _resolved(start: Path, name: str, key: str) -> Path:
    try:
        return (start / Path(name).expanduser()).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # nobody of that name, links in a circle, a zero byte
        raise ConfigError(f"{key} = {name!r}: is no path ({error})") from None


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Tables merge key by key; a table that names another algorithm replaces the whole one."""
    merged = base | over
    for key in base.keys() & over.keys():
        if isinstance(base[key], dict) and isinstance(over[key], dict):
            same = all(over[key].get(name, base[key].get(name)) == base[key].get(name) for name in ("name", "use"))
            if key != "algorithm" or same:
                merged[key] = _merge(base[key], over[key])
    return merged


def _overrides(given: Overrides) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return _tables(given)
    values = {}
    for text in given:
        if any("\ud800" <= letter <= "\udfff" for letter in text):  # bytes of a shell that are no letters
            raise ConfigError(f"--set {text}: is not UTF-8 text")
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {text}: write it as key=value, for example --set training.alpha=0.05")
        values[key.strip()] = parse(value)
    return _tree(values, "--set")


def parse(value: str) -> Any:
    """Reads a value as in TOML; bare words need no quotes."""
    try:
        return parse_toml(f"value = {value}")["value"]
    except ValueError:
        return value.strip()


def _tables(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns tables of Python's, whose keys may have dots; they are not changed."""
    return _tree(copy.deepcopy(dict(given)), _GIVEN)


def _tree(values: Mapping[str, Any], option: str) -> dict[str, Any]:
    """Returns {"a": {"b": 1}} of {"a.b": 1}, from an option of the command line or from Python."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, last = key.split(".")
        if not all((*sections, last)):
            raise ConfigError(f"{option} {key}: a part of the key is missing, as in training.alpha")
        table = tree
        for section in sections:
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{option} {key}: {section} is a value, not a section")
        there = table.get(last)
        if isinstance(there, dict) and isinstance(value, dict) and there.keys().isdisjoint(value):
            value = there | value
        elif last in table:
            raise ConfigError(f"{option} {key}: is given twice")
        table[last] = value
    return _absolute_paths(tree, Path.cwd())
