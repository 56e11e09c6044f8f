"""Opening the records of a run to read them, also while the run goes on."""

from __future__ import annotations

import sqlite3
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .schema import RunFolderError, require_version


@contextmanager
def open_records(run_folder: Path | str) -> Iterator[sqlite3.Connection]:
    """All reads inside see the run at one moment; nothing is ever written. Raises RunFolderError."""
    path = Path(run_folder) / "run.sqlite"
    if not path.is_file():
        raise RunFolderError(f"{run_folder}: not the folder of a run: it has no run.sqlite")
    connection = None
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?{_mode(path)}", uri=True, isolation_level=None)
        connection.execute("BEGIN")
        require_version(connection, path)
        yield connection
    except sqlite3.DatabaseError as error:
        raise RunFolderError(f"{path}: cannot be read as the database of a run: {error}") from error
    finally:
        if connection is not None:
            connection.close()


def _mode(path: Path) -> str:
    """Where nobody writes any more there is no log; SQLite would still put one there, and fail where it may not."""
    return "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"


def read_config(run_folder: Path | str) -> dict[str, Any]:
    """The run's full configuration; empty where the folder has none. Raises RunFolderError."""
    path = Path(run_folder) / "config.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise RunFolderError(f"{path}: {error}") from error


def relations(records: sqlite3.Connection) -> list[str]:
    """Names of all tables and views."""
    found = records.execute(
        "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite%' ORDER BY type, name"
    )
    return [name for (name,) in found]
