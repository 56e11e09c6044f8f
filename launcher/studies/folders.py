"""Which folders runs get: new ones, or those where the same command began before."""

import csv
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from ...metrics import lock
from ...metrics.config_file import read_text
from ...topology.errors import UserError
from ..config.sections import ConfigError, RunConfig
from ..run.earlier import PlannedRun
from ..run.folder import make, remove_empty


@contextmanager
def new_folder(wanted: Path | None, config_file: Path) -> Iterator[Path]:
    """Makes ``wanted``, or by the configuration's name runs/NAME, runs/NAME-2, ... for this process. It goes again if
    nothing is written to it. Raises ConfigError."""
    with raised_as(f"--out {wanted or 'runs'}: cannot be written"):
        if wanted is not None:
            require_empty(wanted)
            folder = wanted.resolve()
            made = make(folder)
        else:
            made = make(Path("runs").resolve())
            for number in count(1):  # of two processes each gets another
                folder = Path("runs").resolve() / f"{config_file.stem}{'' if number == 1 else f'-{number}'}"
                with suppress(FileExistsError):
                    folder.mkdir()
                    break
            made = [folder, *made]
    try:
        yield folder
    finally:
        remove_empty(*made)


def begun_folder(out: Path | None, configs: Sequence[RunConfig]) -> Path | None:
    """Returns ``out``, where it holds some of the runs that a configuration file describes, and no other runs."""
    if out is None or len(configs) == 1 or not out.is_dir():
        return None
    there = {path.parent for name in ("run.sqlite", "config.toml") for path in out.resolve().glob(f"*/{name}")}
    return out.resolve() if there and there <= {run.folder for run in planned_in(out.resolve(), configs)} else None


def planned_in(root: Path, configs: Sequence[RunConfig]) -> list[PlannedRun]:
    """Plans a single run in ``root`` itself, several in folders below it. Raises ConfigError."""
    names = names_of(configs) if len(configs) > 1 else [""]
    return [PlannedRun(config, root / name) for config, name in zip(configs, names, strict=True)]


def names_of(configs: Sequence[RunConfig]) -> list[str]:
    """Returns a name for files of each run. Raises ConfigError where two runs would share one."""
    names = [slug(config.label) for config in configs]
    if len(set(names)) < len(names):
        raise ConfigError("compare: every run needs a name of its own; add name = ... to each [[compare]] table")
    return names


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def require_empty(folder: Path) -> None:
    """Raises ConfigError where the folder holds anything but the lock of a process that may be about to begin there."""
    if folder.exists() and (not folder.is_dir() or any(path.name != lock.NAME for path in folder.iterdir())):
        raise ConfigError(f"--out {folder}: is not an empty folder; nothing is overwritten, choose another name")


@contextmanager
def raised_as(text: str, kind: type[UserError] = ConfigError) -> Iterator[None]:
    """Raises what the system or SQLite refuses as an error of this kind, which says the text and why."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        said = error.strerror if isinstance(error, OSError) else None
        raise kind(f"{text}: {said or error}") from error


def rows_kept(root: Path, name: str, columns: Sequence[str]) -> list[list[str]]:
    """Returns the lines of a table, its head first, that a study adds to as it goes on; it is begun where it is
    missing, and a line that was being written goes. Raises ConfigError."""
    path = root / name
    with raised_as(f"--out {root}: {name} cannot be read"):
        if not path.exists():
            require_empty(root)
        text = read_text(path) if path.exists() else ""
        text = text[: text.rfind("\n") + 1] or f"{','.join(columns)}\n"
        root.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    return list(csv.reader(text.splitlines()))
