"""A run's config.toml as its readers use it, whoever wrote it."""

import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .store import RunFolderError
from .text import label

_LARGEST = 4 << 20
_DEEPEST = 16
_LONG_KEY = re.compile(r"(?<![\w\"'-])(?:[\w\"'-]+[ \t]*\.[ \t]*){16}")  # tomllib takes the square of their length
_LARGEST_NUMBER = 10**100
_NAMED = {str: "text", int: "a whole number", bool: "true or false"}
_PLAIN = {  # what readers take from it; all else at the top is a table, and what is in it depends on who wrote the run
    **{"name": str, "seed": int, "clients": int, "rounds": int},
    **{"algorithm.name": str, "algorithm.label": str, "measuring.enabled": bool, "data.dataset": str},
}


def require_plain_file(path: Path) -> None:
    """Raises OSError where it is missing or no plain file: reading a pipe may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("is not a plain file")


def read_text(path: Path) -> str:
    """Raises OSError, also where it is no UTF-8 or too large."""
    require_plain_file(path)
    with path.open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise OSError(f"is larger than {_LARGEST >> 20} MB, the most that is read")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise OSError(f"is not UTF-8 text (byte {error.start})") from None


def parse(text: str) -> dict[str, Any]:
    """Raises ValueError."""
    if _LONG_KEY.search(text):
        raise ValueError(f"a key of more than {_DEEPEST} parts")
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise ValueError("values are nested too deep") from None
    level: list[Any] = [tree]
    for _ in range(_DEEPEST + 1):
        if any(isinstance(value, int) and abs(value) > _LARGEST_NUMBER for value in level):
            raise ValueError("a number is too large")
        inner = [value for value in level if isinstance(value, dict | list)]
        level = [each for value in inner for each in (value.values() if isinstance(value, dict) else value)]
    if level:
        raise ValueError("values are nested too deep")
    return tree


def config_text(run_folder: Path | str) -> str:
    """Returns it as it stands there; empty where the folder has none. Raises RunFolderError."""
    path = Path(run_folder) / "config.toml"
    try:
        if path.is_symlink():
            raise OSError("is a symbolic link; a run's files lie in its folder")
        return read_text(path)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_config(run_folder: Path | str) -> dict[str, Any]:
    """Returns the run's full configuration; empty where the folder has none. Raises RunFolderError."""
    path = Path(run_folder) / "config.toml"
    try:
        config = parse(config_text(run_folder))
        for key, value in config.items():
            tables = value if isinstance(value, list) else [value]
            if key not in _PLAIN and not all(isinstance(table, dict) for table in tables):
                raise ValueError(f"{key} = {value!r:.80}: must be a table")
        for key, type_ in _PLAIN.items():
            section, _, name = key.rpartition(".")
            table = config.get(section, {}) if section else config
            value = table.get(name) if isinstance(table, dict) else table
            if value is not None and type(value) is not type_:
                raise ValueError(f"{key} = {value!r:.80}: must be {_NAMED[type_]}")
            if isinstance(value, int) and value < 0:
                raise ValueError(f"{key} = {value!r:.80}: must not be negative")
    except ValueError as error:
        raise RunFolderError(f"{path}: {error}") from error
    return config


def flat(tree: Mapping[str, Any], above: str = "", *, lists: bool = False) -> dict[str, Any]:
    """Returns {"a.b": 1} of {"a": {"b": 1}}; with ``lists`` tables in a list are numbered, else a list is a value."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if lists and isinstance(value, list) and any(isinstance(each, dict) for each in value):
            value = {str(number): each for number, each in enumerate(value)}
        if isinstance(value, Mapping):
            found |= flat(value, f"{above}{key}.", lists=lists)
        else:
            found[f"{above}{key}"] = value
    return found


def setting_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns {key with dots: value} of a configuration, without seed and name, and who looks on."""
    return {key: value for key, value in flat(config).items() if not re.fullmatch(r"seed|name|tracking\..*", key)}


def own_metrics(config: Mapping[str, Any]) -> dict[str, bool]:
    """Returns {name: whether higher is better} of the metrics of the user's own, in their order, of that of
    training samples, and of how often a backdoor is found open."""
    section = config.get("evaluation")
    tables = section.get("metrics") if isinstance(section, dict) else None
    named = [table for table in tables if isinstance(table, dict)] if isinstance(tables, list) else []
    found = {str(table.get("name", "")): table.get("better") != "lower" for table in named}
    if isinstance(section, dict) and section.get("train") is True:
        found |= {"train_accuracy": True, "train_mse": False}
    attack = config.get("attack")
    if (
        isinstance(attack, dict)
        and attack.get("kind") == "backdoor"
        and (attack.get("clients") or attack.get("fraction"))
    ):
        found |= {"backdoor_success": False}
    return {name: higher for name, higher in found.items() if name and name == label(name)}


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the keys that do not have the same value everywhere, or are not everywhere; settings that only one
    algorithm has go without saying: the algorithm's name tells of them."""
    found = []
    for key in dict.fromkeys(key for setting in settings for key in setting):
        first, *others = [setting[key] for setting in settings if key in setting]
        lacking = len(others) + 1 < len(settings) and not key.startswith("algorithm.")
        if lacking or any(value != first for value in others):
            found.append(key)
    return found


def short_names(keys: Sequence[str]) -> list[str]:
    """Returns each without its sections, where that tells it from the others."""
    last = [key.rpartition(".")[2] for key in keys]
    return [name if last.count(name) == 1 else key for name, key in zip(last, keys, strict=True)]
