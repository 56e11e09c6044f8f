"""Reading the records of a run, also while the run goes on, and whoever wrote them; what its processes are called."""

import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .records import COLLECTOR, FORK_SERVER, LARGEST_NODE, LAUNCHER, TABLES, columns
from .store import PREPARED, PRIMARY_KEYS, VIEWS, RunFolderError, create_views, require_version
from .text import label

_BESIDE = ("", "-wal", "-shm", "-journal")
_LONGEST_VALUE = 4 << 20  # bytes; no record is longer
_AT_ONCE = 100_000  # steps of SQLite's machine
# What reading may take: a summary takes some two steps for each byte, and a second is some 50 million.
_STEPS, _STEPS_A_BYTE = 50_000_000, 40
_METRICS = ("accuracy", "mse")
_ROW_NUMBERS = ("rowid", "oid", "_rowid_")
_LONGEST_TIME = 1e12  # seconds
_LARGEST = {"round": 2**53, "used_round": 2**53, "phase": 2**31, "pid": 2**31 - 1}
_RANGES = {column: f" BETWEEN 0 AND {largest}" for column, largest in _LARGEST.items()} | dict.fromkeys(
    ("node", "src", "dst", "neighbour", "waited_for"), f" BETWEEN {-LARGEST_NODE} AND {LARGEST_NODE - 1}"
)
_OTHERS = {LAUNCHER: "the launcher", COLLECTOR: "the collector", FORK_SERVER: "the fork server"}
SERVER_NAME = "the server"


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
        _require_tables(connection, path)
        require_version(connection, path)
        for table in check:
            _require_values(connection, path, table)
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


def _require_tables(records: sqlite3.Connection, path: Path) -> None:
    """Without its primary key a table may hold a row twice, and reading it may take for ever."""
    for given, kind, page in records.execute("SELECT name, type, rootpage FROM main.sqlite_schema").fetchall():
        name = str(given).lower()
        if name not in ("meta", *TABLES) or kind not in ("table", "view"):
            continue
        plain = kind == "table" and page  # a virtual table has no page, and is asked nothing
        about = records.execute(f"PRAGMA main.table_xinfo({name})").fetchall() if plain else []
        key = {column for _, column, *_, place, _ in about if place}
        odd = any(column.lower() in _ROW_NUMBERS or computed for _, column, *_, computed in about)
        if not plain or odd or key != set(filter(None, PRIMARY_KEYS.get(name, "").split(", "))):
            raise RunFolderError(f"{path}: not the database of a run: {name} is no table as a run makes it")


def _require_values(records: sqlite3.Connection, path: Path, table: str) -> None:
    """SQLite puts any value into any column; a reader that computes with text, or draws client 10^12, fails late."""
    there = {name for _, name, *_ in records.execute(f"PRAGMA table_info({table})")}  # older runs have fewer
    rules = {}  # what holds of a column's values, as SQL that is never NULL
    for column, type_ in columns(TABLES[table]).items():
        if type_ is str:
            rule = f"typeof({column}) = 'text'"
        elif type_ in (int, int | None):
            rule = f"typeof({column}) = 'integer'" + (f" AND {column}{_RANGES[column]}" if column in _RANGES else "")
        elif column.endswith("_s"):
            rule = f"{column} BETWEEN {-_LONGEST_TIME} AND {_LONGEST_TIME}"
        else:
            rule = f"{column} <= 9e999"  # every number, infinities too, and neither text nor blob
        nullable = type_ in (int | None, float | None) or (type_ is float and not column.endswith("_s"))  # NaN is NULL
        if column in there:
            rules[column] = f"({column} IS NULL OR {rule})" if nullable else f"({column} IS NOT NULL AND {rule})"
    if (
        rules
        and records.execute(f"SELECT 1 FROM {table} WHERE NOT ({' AND '.join(rules.values())}) LIMIT 1").fetchone()
    ):
        for column, rule in rules.items():
            found = records.execute(f"SELECT {column} FROM {table} WHERE NOT {rule} LIMIT 1").fetchone()
            if found:
                raise RunFolderError(f"{path}: {table}.{column} = {found[0]!r:.80}: no run writes such a value")


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


def read_owners(run_folder: Path | str) -> dict[int, str]:
    """Returns {client: whose samples it has, fit to be shown}, where the data set says so. Raises RunFolderError."""
    with open_records(run_folder) as records:
        owners = records.execute("SELECT node, owner FROM owner ORDER BY node")
        return {node: label(str(owner)) for node, owner in owners}


def client_name(node: int, owners: Mapping[int, str]) -> str:
    return f"client {node} ({owners[node]})" if node in owners else f"client {node}"


def name_of(node: int, records: sqlite3.Connection) -> str:
    """Names any process of a run."""
    if node in _OTHERS:
        return _OTHERS[node]
    if records.execute("SELECT 1 FROM node WHERE node = ? AND role = 'server'", [node]).fetchone():
        return SERVER_NAME
    owner = records.execute("SELECT owner FROM owner WHERE node = ?", [node]).fetchone()
    return client_name(node, {node: label(str(owner[0]))} if owner else {})
