"""Opening the records of a run to read them, also while the run goes on, and whoever wrote them."""

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from .records import TABLES
from .schema import PREPARED, VIEWS, RunFolderError, create_views, require_tables, require_values, require_version

_BESIDE = ("", "-wal", "-shm", "-journal")
_LONGEST_VALUE = 4 << 20  # bytes; no record is longer
_AT_ONCE = 100_000  # steps of SQLite's machine
# What reading may take: a summary takes some two steps for each byte, and a second is some 50 million.
_STEPS, _STEPS_A_BYTE = 50_000_000, 40
_METRICS = ("accuracy", "mse")


@contextmanager
def open_records(
    run_folder: Path | str, *, check: Collection[str] = (), bounded: bool = True
) -> Iterator[sqlite3.Connection]:
    """All reads inside see the run at one moment; nothing is ever written. Raises RunFolderError.

    Views are those of this program, whatever the file says. The values of the tables in ``check`` are of the types and
    in the ranges that a run writes. ``bounded``: reading ends with an error where it takes far longer than the file's
    size explains.
    """
    path = Path(run_folder) / "run.sqlite"
    if not path.is_file():
        raise RunFolderError(f"{run_folder}: not the folder of a run: it has no run.sqlite")
    size = 0
    for file in (path.with_name(path.name + end) for end in _BESIDE):
        if file.is_symlink() or (file.exists() and not file.is_file()):
            raise RunFolderError(f"{file}: is no plain file; a run's files lie in its folder")
        size += file.stat().st_size if file.exists() else 0
    connection = None
    steps = iter(range((_STEPS + _STEPS_A_BYTE * size) // _AT_ONCE))
    try:
        # Where nobody writes any more there is no log; SQLite would still put one there, and fail where it may not.
        mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True, isolation_level=None)
        for defence in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
            connection.execute(f"PRAGMA {defence}")  # as https://www.sqlite.org/security.html advises
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        if bounded:
            connection.set_progress_handler(lambda: next(steps, None) is None, _AT_ONCE)  # True ends the reading
        create_views(connection)
        connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
        require_tables(connection, path)
        require_version(connection, path)
        require_values(connection, path, check)
        yield connection
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where its own message holds bytes of the file
        interrupted = str(error) == "interrupted"
        if interrupted and next(steps, None) is not None:  # SQLite swallows what a signal raises in the handler above
            raise KeyboardInterrupt from None
        said = "reading it takes without end" if interrupted else error
        raise RunFolderError(f"{path}: cannot be read as the database of a run: {said}") from error
    finally:
        if connection is not None:
            connection.close()


def runs_in(folder: Path) -> list[Path]:
    """Returns the run folder itself, or those below a folder of several runs, as they stand in the configuration."""
    below = sorted((path.parent for path in folder.glob("*/run.sqlite")), key=_prepared)
    return below if below and not (folder / "run.sqlite").exists() else [folder]


def _prepared(run: Path) -> tuple[str, int]:
    """Tells when: as the run itself tells, or, of one that does not, its configuration's date."""
    try:
        with open_records(run) as records:
            told = records.execute("SELECT max(value) FROM meta WHERE key = ?", [PREPARED]).fetchone()[0]
    except RunFolderError:  # told when it is read
        told = None
    config = run / "config.toml"
    return str(told or ""), config.stat().st_mtime_ns if config.exists() else 0


def metric_of(records: sqlite3.Connection) -> str:
    """Returns the name of the run's test metric. Raises RunFolderError."""
    metric = records.execute("SELECT max(value) FROM meta WHERE key = 'metric'").fetchone()[0]
    if metric is not None and metric not in _METRICS:
        raise RunFolderError(f"run.sqlite: metric = {metric!r:.80}; allowed: {', '.join(_METRICS)}")
    return metric or _METRICS[0]


def relations(records: sqlite3.Connection) -> list[str]:
    """Returns the names of the tables and views of a run that this one has; whatever else is in the file is not
    ours. Older runs lack tables and columns that views add up."""
    found = {name for (name,) in records.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'")}
    names = sorted(found & {"meta", *TABLES})
    for view in sorted(VIEWS):
        try:
            records.execute(f"SELECT * FROM {view} LIMIT 0")
            names.append(view)
        except sqlite3.OperationalError:
            continue
    return names
