"""What a caller gives, as the launcher takes it."""

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypedDict

from .launcher.config.sections import RunConfig
from .launcher.processes.engine import EngineName
from .launcher.studies.runner import Means
from .metrics.config_file import flat
from .metrics.reader import RunReader
from .node.algorithms import ALGORITHMS
from .node.algorithms.base import Algorithm
from .topology.errors import UserError
from .topology.section import Section
from .written import use_of

Source = str | os.PathLike[str] | Mapping[str, Any] | RunConfig
"""A configuration: the path of a TOML file, its tables as a dict (keys may have dots), or a Config."""
Folder = str | os.PathLike[str]


class With(TypedDict, total=False):
    """How a run is made, as the options of these names of ``sheafgossip run`` tell it."""

    quiet: bool
    engine: EngineName
    address: str | None
    force: bool


class How(With, total=False):
    out: Folder | None


class Where(TypedDict, total=False):
    out: Folder | None
    quiet: bool


class Bounded(Where, total=False):
    max_payload_mb: float | None
    max_virtual_s: float | None


def read(config: Source) -> tuple[Path | Mapping[str, Any], Path]:
    """Returns what ``load`` takes, and the file by whose name a run's folder is called."""
    if isinstance(config, RunConfig):
        return tomllib.loads(config.to_toml()), Path(config.name or "run")
    if isinstance(config, Mapping):
        config = tables(config, "configuration")
        name = config.get("name") or "run"
        return config, Path(name if isinstance(name, str) else "run")
    if isinstance(config, str | os.PathLike):
        return Path(config), Path(config)
    raise UserError(f"a configuration is the path of a file, a dict, or a sheafgossip.Config; this is {config!r:.80}")


def path_of(folder: Any) -> Path:
    """Returns that of a folder, or of a run. Raises Error."""
    if isinstance(folder, RunReader):
        return folder.folder
    if not isinstance(folder, str | os.PathLike):
        raise UserError(f"{folder!r:.80}: is neither the path of a folder nor a run")
    return Path(folder)


def tables(given: Any, what: str) -> dict[str, Any]:
    """Returns a dict whose keys are text. Raises Error."""
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise UserError(f'{what}: must be a dict of keys, such as {{"training.alpha": 0.1}}; this is {given!r:.80}')
    return dict(given)


def means_of(how: Mapping[str, Any], allowed: type) -> tuple[Path | None, bool, Means]:
    """Returns the folder that is wanted, whether to be quiet, and the rest. Raises TypeError."""
    if unknown := how.keys() - allowed.__annotations__.keys():
        raise TypeError(f"{min(unknown)!r} is no argument; allowed are {', '.join(allowed.__annotations__)}")
    means = Means(**{key: value for key, value in how.items() if key not in ("out", "quiet")})
    out = how.get("out")
    return None if out is None else path_of(out), bool(how.get("quiet")), means


def table_of(algorithm: Algorithm) -> dict[str, Any]:
    """Returns the table [algorithm] that means this very one. Raises Error where clients could not load its class."""
    if not isinstance(algorithm, Algorithm):
        name = getattr(algorithm, "__name__", "HalfWay")
        raise UserError(
            f"algorithm = {algorithm!r:.80}: give an object, such as {name}(), of a class that is a subclass of "
            'sheafgossip.Algorithm; built-in ones are chosen by their names: {"algorithm.name": "d-psgd"}'
        )
    given = {field.name: _plain(getattr(algorithm, field.name)) for field in fields(algorithm)}
    if ALGORITHMS.get(str(algorithm.name)) is type(algorithm):
        return {key: value for key, value in given.items() if key != "use"}
    named = {key: value for key, value in given.items() if key not in ("name", "use")}
    return named | ({"name": algorithm.name} if algorithm.name else {}) | {"use": use_of(type(algorithm))}


def _plain(value: Any) -> Any:
    """Returns a table as a dict of what is set in it."""
    if not isinstance(value, Section):
        return value
    return {name: each for name, each in vars(value).items() if each not in (None, {})}


def with_own(
    changes: dict[str, Any], algorithm: Algorithm | None, model: Callable[..., Any] | None, data: Any
) -> dict[str, Any]:
    """Returns changes with those that mean what is the user's own. Raises Error."""
    keys = flat(changes)
    if algorithm is not None:
        if twice := [key for key in keys if key.partition(".")[0] == "algorithm"]:
            raise UserError(f"{twice[0]}: the algorithm is given as an object; set it there")
        changes = changes | {"algorithm": table_of(algorithm)}
    for key, own, does in (("model", model, "makes it"), ("data", data, "returns it")):
        if own is None:
            continue
        if f"{key}.use" in keys:
            raise UserError(f"{key}.use: {key} is given as a function, too")
        if not hasattr(own, "__qualname__") or not callable(own):
            raise UserError(
                f"{key} = {own!r:.80}: give a function that {does}, of a file or a notebook; "
                f'"{key}.use" in a configuration names one'
            )
        changes = changes | {f"{key}.use": use_of(own)}
    return changes
