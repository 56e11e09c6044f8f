"""Opening the records of a run to read them, also while the run goes on."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .schema import RunFolderError, require_version


@contextmanager
def open_records(run_folder: Path | str) -> Iterator[sqlite3.Connection]:
    """All reads inside see the run at one moment. Raises RunFolderError."""
    path = Path(run_folder) / "run.sqlite"
    if not path.is_file():
        raise RunFolderError(f"{run_folder}: not the folder of a run: it has no run.sqlite")
    connection = None
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
        connection.execute("BEGIN")
        require_version(connection, path)
        yield connection
    except sqlite3.DatabaseError as error:
        raise RunFolderError(f"{path}: cannot be read as the database of a run: {error}") from error
    finally:
        if connection is not None:
            connection.close()
