"""Reading the records of a run, also while the run goes on, and whoever wrote them: as SQL, and as pandas frames."""

import json
import re
import sqlite3
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config_file import differing, flat, read_config, require_plain_file
from .records import COLLECTOR, COLUMNS, FORK_SERVER, LARGEST_NODE, LAUNCHER, TABLES
from .store import CREATE_VIEWS, PREPARED, PRIMARY_KEYS, VIEWS, RunFolderError, require_version
from .text import TEST_METRICS, label

if TYPE_CHECKING:
    import numpy as np
    from pandas import DataFrame

_LONGEST_VALUE = 4 << 20  # bytes; no record is longer
_AT_ONCE = 100_000  # steps of SQLite's machine
# What reading may take: a summary takes some two steps for each byte, and a second is some 50 million.
_STEPS, _STEPS_A_BYTE = 50_000_000, 40
_LONGEST_TIME = 1e12  # seconds
_LARGEST = {"round": 2**53, "used_round": 2**53, "phase": 2**31, "pid": 2**31 - 1}
_RANGES = {column: f" BETWEEN 0 AND {largest}" for column, largest in _LARGEST.items()} | dict.fromkeys(
    ("node", "src", "dst", "neighbour", "waited_for"), f" BETWEEN {-LARGEST_NODE} AND {LARGEST_NODE - 1}"
)
_OTHERS = {LAUNCHER: "the launcher", COLLECTOR: "the collector", FORK_SERVER: "the fork server"}
SERVER_NAME = "the server"
_PLURAL = ("node", "round", "resource", "event", "edge", "metric")
FRAMES = {f"{name}s" if name in _PLURAL else name: name for name in (*TABLES, *VIEWS)}  # a reader's name -> the file's
_DTYPES: dict[Any, str] = {int: "int64", int | None: "Int64", float: "float64", float | None: "float64"}


@contextmanager
def open_records(
    run_folder: Path | str, *, check: Collection[str] = (), bounded: bool = True
) -> Iterator[sqlite3.Connection]:
    """All reads inside see the run at one moment; nothing is ever written. Views are those of this program, whatever
    the file says. The values of the tables in ``check`` are of the types and in the ranges that a run writes. Raises
    RunFolderError; where it is ``bounded`` also if reading takes far longer than the file's size explains."""
    path = Path(run_folder) / "run.sqlite"
    if not path.is_file():
        raise RunFolderError(f"{run_folder}: not the folder of a run: it has no run.sqlite")
    sizes: dict[str, int] = {}
    for end in ("", "-wal", "-shm", "-journal"):
        with suppress(FileNotFoundError):  # SQLite removes those of a writer that has just ended
            found = (file := path.with_name(path.name + end)).lstat()
            if not stat.S_ISREG(found.st_mode):
                raise RunFolderError(f"{file}: is no plain file; a run's files lie in its folder")
            sizes[end] = found.st_size
    steps = iter(range((_STEPS + _STEPS_A_BYTE * sum(sizes.values())) // _AT_ONCE))
    # Where nobody writes any more there is no log, or an empty one where the disk was full; SQLite would still put an
    # index beside it, and fail where it may not or cannot.
    uri = path.resolve().as_uri() + ("?mode=ro" if sizes.get("-wal") else "?immutable=1")
    try:
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            for defence in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
                connection.execute(f"PRAGMA {defence}")  # as https://www.sqlite.org/security.html advises
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
            connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            if bounded:
                connection.set_progress_handler(lambda: next(steps, None) is None, _AT_ONCE)  # True ends the reading
            # our views, for this connection alone, hide what the file has under the same names
            connection.executescript(CREATE_VIEWS.replace("CREATE VIEW IF NOT EXISTS", "CREATE TEMP VIEW"))
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


def _require_tables(records: sqlite3.Connection, path: Path) -> None:
    """Raises RunFolderError. A table without its primary key may hold a row twice, and take for ever to be read."""
    for given, kind, page in records.execute("SELECT name, type, rootpage FROM main.sqlite_schema").fetchall():
        name = str(given).lower()
        if name not in ("meta", *TABLES) or kind not in ("table", "view"):
            continue
        plain = kind == "table" and page  # a virtual table has no page, and is asked nothing
        about = records.execute(f"PRAGMA main.table_xinfo({name})").fetchall() if plain else []
        key = {column for _, column, *_, place, _ in about if place}
        odd = any(column.lower() in ("rowid", "oid", "_rowid_") or computed for _, column, *_, computed in about)
        if not plain or odd or key != set(filter(None, PRIMARY_KEYS.get(name, "").split(", "))):
            raise RunFolderError(f"{path}: not the database of a run: {name} is no table as a run makes it")


def _require_values(records: sqlite3.Connection, path: Path, table: str) -> None:
    """Raises RunFolderError. SQLite puts any value into any column; who computes with text fails late."""
    there = {name for _, name, *_ in records.execute(f"PRAGMA table_info({table})")}  # older runs have fewer
    rules = {}  # what holds of a column's values, as SQL that is never NULL
    for column, type_ in COLUMNS[table].items():
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
    asked = ", ".join([*rules, *(f"NOT {rule}" for rule in rules.values())])
    query = f"SELECT {asked} FROM {table} WHERE NOT ({' AND '.join(rules.values())}) LIMIT 1"
    if rules and (row := records.execute(query).fetchone()):
        column, value = next(known for *known, bad in zip(rules, row, row[len(rules) :], strict=False) if bad)
        raise RunFolderError(f"{path}: {table}.{column} = {value!r:.80}: no run writes such a value")


def runs_in(folder: Path) -> list[Path]:
    """Returns the run folder itself, or those below a folder of several runs, as they stand in the configuration."""
    below = sorted((path.parent for path in folder.glob("*/run.sqlite")), key=_prepared)
    return below if below and not (folder / "run.sqlite").exists() else [folder]


def _prepared(run: Path) -> tuple[str, int]:
    """Tells when, as the run itself does; of one that does not, its configuration's date."""
    try:
        with open_records(run) as records:
            told = records.execute("SELECT max(value) FROM meta WHERE key = ?", [PREPARED]).fetchone()[0]
    except RunFolderError:  # told when it is read
        told = None
    config = run / "config.toml"
    return str(told or ""), config.stat().st_mtime_ns if config.exists() else 0


def metric_of(records: sqlite3.Connection) -> str:
    metric = records.execute("SELECT coalesce(max(value), 'accuracy') FROM meta WHERE key = 'metric'").fetchone()[0]
    if metric not in TEST_METRICS:
        raise RunFolderError(f"run.sqlite: metric = {metric!r:.80}; allowed: {', '.join(TEST_METRICS)}")
    return metric


def relations(records: sqlite3.Connection) -> list[str]:
    """Names the tables and views of a run that this one has: older ones lack tables, and columns that views add up."""
    found = {name for (name,) in records.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'")}
    names = sorted(found & {"meta", *TABLES})
    for view in sorted(VIEWS):
        with suppress(sqlite3.OperationalError):
            records.execute(f"SELECT * FROM {view} LIMIT 0")
            names.append(view)
    return names


def read_owners(run_folder: Path | str) -> dict[int, str]:
    """Returns {client: whose samples it has, fit to be shown}, where the data set says so. Raises RunFolderError."""
    with open_records(run_folder) as records:
        owners = records.execute("SELECT node, owner FROM owner ORDER BY node")
        return {node: label(str(owner)) for node, owner in owners}


def read_attackers(run_folder: Path | str) -> set[int]:
    """Raises RunFolderError."""
    with open_records(run_folder) as records:
        return {node for (node,) in records.execute("SELECT node FROM attacker")}


def client_name(node: int, owners: Mapping[int, str]) -> str:
    return f"client {node} ({owners[node]})" if node in owners else f"client {node}"


def name_of(node: int, records: sqlite3.Connection) -> str:
    if node in _OTHERS:
        return _OTHERS[node]
    if records.execute("SELECT 1 FROM node WHERE node = ? AND role = 'server'", [node]).fetchone():
        return SERVER_NAME
    owner = records.execute("SELECT owner FROM owner WHERE node = ?", [node]).fetchone()
    return client_name(node, {node: label(str(owner[0]))} if owner else {})


class RunReader:
    """Every table and view is an attribute, a frame: nodes, rounds, traffic, round_total, ... (FRAMES). Each access
    reads what is there at that moment, of a run that still goes on as far as it is committed. Raises RunFolderError.

    All runs that lie in a folder are read as one, in the order of their configuration: then in front of each frame
    stand ``run``, the name of the run's folder, and the keys that differ between runs; a key that is called as a column
    of the frame is config.KEY there. ``runs`` are the readers of each, ``keys`` what stands in front of its rows."""

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        self._folders = runs_in(self.folder)
        self._single = self._folders == [self.folder]
        for each in self._folders:
            with open_records(each):
                pass  # a folder that is no run is refused here and not at the first table
        self.keys: list[dict[str, Any]] = [{} if self._single else {"run": each.name} for each in self._folders]
        settings = [] if self._single else [flat(read_config(each)) for each in self._folders]
        for key in differing(settings):
            for own, setting in zip(self.keys, settings, strict=True):
                value = setting.get(key)
                own[key] = json.dumps(value, default=str) if isinstance(value, (list, dict)) else value

    @property
    def runs(self) -> "tuple[RunReader, ...]":
        """Each run of the folder."""
        return (self,) if self._single else tuple(map(RunReader, self._folders))

    def __getattr__(self, name: str) -> "DataFrame":
        if name not in FRAMES:
            raise AttributeError(f"there is no {name!r} in a run; its tables and views: {', '.join(FRAMES)}")
        return self.frame(FRAMES[name])

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *FRAMES]

    def frame(self, relation: str) -> "DataFrame":
        return self._together(lambda records: read_frame(records, relation), check={relation} & TABLES.keys())

    def sql(self, query: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> "DataFrame":
        """Returns the answer to any query; ``params`` fill its ? or :name places."""
        import pandas

        return self._together(lambda records: pandas.read_sql_query(query, records, params=params), bounded=False)

    def _together(self, read: "Callable[[sqlite3.Connection], DataFrame]", **how: Any) -> "DataFrame":
        import pandas

        frames = []
        for folder, keys in zip(self._folders, self.keys, strict=True):
            with open_records(folder, **how) as records:
                frames.append(frame := read(records))
            for place, (key, value) in enumerate(keys.items()):
                frame.insert(place, f"config.{key}" if key in frame.columns else key, [value] * len(frame))
        return pandas.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)

    def _only(self, what: str) -> Path:
        if self._single:
            return self.folder
        raise RunFolderError(f"{self.folder}: holds {len(self.keys)} runs, each with a {what} of its own: see .runs")

    @property
    def config(self) -> dict[str, Any]:
        """The whole configuration, as tables."""
        return read_config(self._only("configuration"))

    @property
    def state_rounds(self) -> list[int]:
        """The rounds with state, from 0."""
        states = (self._only("state") / "state").glob("round-*")
        return sorted(int(match[1]) for path in states if (match := re.fullmatch(r"round-(\d+)", path.name)))

    def theta(self, round: int | None = None) -> "dict[int, np.ndarray]":
        """Returns {client: its parameters (d,)} after ``round``, by default the last one with state; of a run in
        progress those that have come so far."""
        return {client: _arrays(path, ["theta"])["theta"] for client, path in self._states(round).items()}

    def state(self, round: int | None = None) -> "Mapping[int, dict[str, np.ndarray]]":
        """Returns {client: {name: array}}: all that a client keeps after ``round``, by default the last one with state.
        ``theta`` (d,) are its parameters, ``buffer.NAME`` buffers of a model of one's own, and what ``begin`` of the
        algorithm gave has its own names. A client's file is read when it is asked for."""
        return _States(self._states(round))

    def shard(self, client: int) -> "dict[str, np.ndarray]":
        """Returns a client's data: x_train, y_train, x_test, y_test, samples first."""
        return _arrays(self._only("shards") / "shards" / f"node-{client!s:0>4}.safetensors", what="data")

    def _states(self, round: int | None) -> dict[int, Path]:
        rounds = self.state_rounds
        if round is None and rounds:
            round = rounds[-1]
        states = (self._only("state") / "state" / f"round-{round!s:0>6}").glob("node-*.safetensors")
        files = sorted(path for path in states if not path.stem.endswith(".sent"))  # of clients that were away
        if not files:
            there = ", ".join(map(str, rounds)) or "none"
            raise RunFolderError(f"{self.folder}: no state of round {round}; rounds with state: {there}")
        try:
            return {int(path.stem.removeprefix("node-")): path for path in files}
        except ValueError as error:
            raise RunFolderError(f"{files[0].parent}: cannot be read as the state of a client: {error}") from None


class _States(Mapping[int, "dict[str, np.ndarray]"]):
    def __init__(self, files: Mapping[int, Path]):
        self._files = files

    def __getitem__(self, client: int) -> "dict[str, np.ndarray]":
        return _arrays(self._files[client])

    def __iter__(self) -> Iterator[int]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _arrays(path: Path, names: Sequence[str] = (), what: str = "state") -> "dict[str, np.ndarray]":
    """Returns those of these names, or all, of a client's file. Raises RunFolderError."""
    from safetensors import SafetensorError
    from safetensors.numpy import safe_open

    try:
        require_plain_file(path)
        with safe_open(path, framework="numpy") as file:  # it may hold large maps beside theta
            return {name: file.get_tensor(name) for name in names or file.keys()}
    except (OSError, SafetensorError, ValueError) as error:
        raise RunFolderError(f"{path}: cannot be read as the {what} of a client: {error}") from error


def read_frame(records: sqlite3.Connection, relation: str) -> "DataFrame":
    """Returns a table or view; numbers are numbers also where all are missing. What an older run lacks is missing."""
    frame = frame_of(records, f"SELECT * FROM {relation}")
    if relation not in TABLES:
        return frame.astype(dict.fromkeys(frame.columns[frame.isna().all()], "float64"))
    types = COLUMNS[relation]
    known = {name: _DTYPES[types[name]] for name in frame.columns if types.get(name) in _DTYPES}
    return frame.astype(known).reindex(columns=list(dict.fromkeys([*types, *frame.columns])))


def frame_of(records: sqlite3.Connection, query: str) -> "DataFrame":
    """Answers a query of this program: whatever is wrong with it is the file's fault, and sqlite3's error."""
    import pandas

    rows = records.execute(query)
    return pandas.DataFrame.from_records(rows.fetchall(), columns=[name for name, *_ in rows.description])


open_run = RunReader
