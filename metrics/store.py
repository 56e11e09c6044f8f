"""The tables and views of ``run.sqlite``, and writing it: one process does, while others may read."""

import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..topology.errors import UserError
from .records import COLUMNS, TABLES, Record

VERSION = "1"  # in table ``meta`` under "schema"; raised whenever a reader of the old layout would be misled
# Other keys of ``meta``:
CONFIG = "config"  # config.toml itself, so that a later change of the file is seen key by key
CONFIG_DIGEST = "config_sha256"  # of config.toml; runs that have it hold a lock while they go on
CODE = "code"  # {file of the user's code: digest of its text}
FILES = "files"  # {key of the configuration: digest of the file that it names}
MODELS = "models"  # what each process's model is, in JSON
PREPARED = "prepared"  # when the run was prepared
CONSTANT_METRIC = "constant_metric"  # the mean test metric of clients that predict the same for every sample
EXTENDED_AFTER = "extended_after"  # rounds, separated by commas, that were the run's last ones until it got more
OWNERS = "owners"  # the name of each client's owner, as a list in JSON; views read it, too
ATTACKERS = "attackers"  # the clients that attack, as a list in JSON; views read it, too

PRIMARY_KEYS = {  # the round comes first: clients move on together, so new rows land side by side
    "meta": "key",
    "node": "node",
    "round": "round, node",
    "traffic": "round, src, dst",
    "edge": "round, node, neighbour",
    "used": "round, node, phase, neighbour",
    "metric": "round, node, name",
    "confusion": "round, node, label, predicted",
    "privacy": "node",
}
_TYPES: dict[Any, str] = {int: "INTEGER NOT NULL", int | None: "INTEGER", str: "TEXT NOT NULL"}  # others are REAL
CLIENTS = "node NOT IN (SELECT node FROM node WHERE role <> 'client')"  # SQL; holds also where the table is empty

HONEST = f"{CLIENTS} AND node NOT IN (SELECT node FROM attacker)"  # whose models are looked at

ALL_EVALUATED = (
    "evaluated >= (SELECT clients FROM round_total WHERE round = 0)"  # of virtual_progress: of the beginning
)


def _of_traffic(form: str) -> str:
    return ", ".join(form.format(column) for column in ("messages", "payload_bytes", "message_bytes", "wire_bytes"))


CREATE_VIEWS = f"""
CREATE VIEW IF NOT EXISTS attacker AS
SELECT value AS node FROM json_each((SELECT value FROM meta WHERE key = '{ATTACKERS}')) WHERE type = 'integer';

CREATE VIEW IF NOT EXISTS round_total AS
SELECT round, clients, mean_test_metric, min_test_metric, max_test_metric, {_of_traffic("{}")}
FROM (SELECT round, count(*) AS clients, avg(test_metric) AS mean_test_metric,
             min(test_metric) AS min_test_metric, max(test_metric) AS max_test_metric
      FROM round WHERE {HONEST} GROUP BY round)
LEFT JOIN (SELECT round, {_of_traffic("sum({0}) AS {0}")} FROM traffic GROUP BY round) USING (round);

-- All bytes up to and including a round; evaluated counts the clients behind the mean.
CREATE VIEW IF NOT EXISTS round_cumulative AS
SELECT round, evaluated, mean_test_metric, wall_s, {_of_traffic("coalesce(sum({0}) OVER so_far, 0) AS {0}")}
FROM round_total
JOIN (SELECT round, count(test_metric) AS evaluated, max(wall_s) AS wall_s
      FROM round WHERE {HONEST} GROUP BY round) USING (round)
WINDOW so_far AS (ORDER BY round);

CREATE VIEW IF NOT EXISTS edge_total AS
SELECT src, dst, {_of_traffic("sum({0}) AS {0}")} FROM traffic GROUP BY src, dst;

-- A process that is started again counts its CPU seconds from 0: add up what each of them last said.
CREATE VIEW IF NOT EXISTS cpu_total AS
SELECT node, sum(cpu_s) AS cpu_s
FROM (SELECT node, cpu_s, lead(cpu_s) OVER (PARTITION BY node ORDER BY rowid) AS next_cpu_s FROM resource)
WHERE next_cpu_s IS NULL OR next_cpu_s < cpu_s GROUP BY node;

CREATE VIEW IF NOT EXISTS work_total AS
SELECT node, part, sum(cpu_s) AS cpu_s, sum(elapsed_s) AS elapsed_s, sum(flops) AS flops
FROM (SELECT *, lead(cpu_s + elapsed_s) OVER (PARTITION BY node, part ORDER BY rowid) AS next FROM work)
WHERE next IS NULL OR next < cpu_s + elapsed_s GROUP BY node, part;

-- With a single max() SQLite takes the bare columns from the row that holds the maximum.
CREATE VIEW IF NOT EXISTS last_test_metric AS
SELECT node, max(round) AS round, test_metric FROM round WHERE test_metric IS NOT NULL GROUP BY node;

CREATE VIEW IF NOT EXISTS last_metric AS
SELECT node, name, max(round) AS round, value FROM metric WHERE value IS NOT NULL GROUP BY node, name;

CREATE VIEW IF NOT EXISTS owner AS
SELECT key AS node, value AS owner
FROM json_each((SELECT value FROM meta WHERE key = 'owners')) WHERE value <> '';

CREATE VIEW IF NOT EXISTS client_total AS
WITH sent AS (SELECT src AS node, {_of_traffic("sum({0}) AS {0}_sent")} FROM traffic GROUP BY src),
     received AS (SELECT dst AS node, {_of_traffic("sum({0}) AS {0}_received")} FROM traffic GROUP BY dst),
     memory AS (SELECT node, max(peak_rss) AS peak_rss FROM resource GROUP BY node),
     time AS (SELECT node, sum(idle_s) AS idle_s, max(virtual_s) AS virtual_s FROM round GROUP BY node)
SELECT node.node, payload_bytes_sent, message_bytes_sent, wire_bytes_sent,
       payload_bytes_received, message_bytes_received, wire_bytes_received,
       last_test_metric.round AS test_round, test_metric, peak_rss, cpu_s, idle_s, virtual_s, owner
FROM node LEFT JOIN sent USING (node) LEFT JOIN received USING (node) LEFT JOIN last_test_metric USING (node)
     LEFT JOIN memory USING (node) LEFT JOIN cpu_total USING (node) LEFT JOIN time USING (node)
     LEFT JOIN owner USING (node)
WHERE role = 'client';

-- The mean over clients of each one's latest evaluation: every evaluation changes the sum by what is new in it.
CREATE VIEW IF NOT EXISTS virtual_progress AS
SELECT virtual_s, evaluated, total / evaluated AS mean_test_metric
FROM (SELECT virtual_s, sum(sum(before IS NULL)) OVER so_far AS evaluated,
             sum(sum(test_metric - coalesce(before, 0))) OVER so_far AS total
      FROM (SELECT virtual_s, test_metric, lag(test_metric) OVER (PARTITION BY node ORDER BY virtual_s, round) AS before
            FROM round WHERE test_metric IS NOT NULL AND virtual_s IS NOT NULL AND {HONEST})
      GROUP BY virtual_s WINDOW so_far AS (ORDER BY virtual_s));

CREATE VIEW IF NOT EXISTS waited_total AS
SELECT node, waited_for, sum(idle_s) AS idle_s, count(*) AS rounds
FROM round WHERE waited_for IS NOT NULL GROUP BY node, waited_for;

CREATE VIEW IF NOT EXISTS used_total AS
SELECT node, neighbour, count(*) AS exchanges, coalesce(sum(used_round = round), 0) AS same_round,
       coalesce(sum(used_round < round), 0) AS older, coalesce(sum(used_round > round), 0) AS newer,
       sum(used_round IS NULL) AS missing, max(round - used_round) AS oldest
FROM used GROUP BY node, neighbour;
"""
VIEWS = tuple(re.findall(r"CREATE VIEW IF NOT EXISTS (\w+)", CREATE_VIEWS))
_INDICES = """
CREATE INDEX IF NOT EXISTS resource_of_node ON resource(node);
CREATE INDEX IF NOT EXISTS work_of_node ON work(node, part);
CREATE INDEX IF NOT EXISTS event_of_kind ON event(kind, node);
"""
_NAMES = {record_class: name for name, record_class in TABLES.items()}
_NOT_OF_ROUNDS = "'crash', 'leave', 'restart', 'join', 'death', 'drop'"


class RunFolderError(UserError):
    """A folder holds no run of this version; the message is one line for the user."""


def is_locked(error: BaseException | None) -> bool:
    """Tells whether the error only says that somebody else has locked the database for now."""
    code = getattr(error, "sqlite_errorcode", None)
    return code == sqlite3.SQLITE_BUSY if code is not None else error is not None and is_locked(error.__cause__)


def require_version(connection: sqlite3.Connection, path: object) -> None:
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'meta'").fetchone():
        raise RunFolderError(f"{path}: not the database of a run: it has no table 'meta'")
    version = connection.execute("SELECT max(value) FROM meta WHERE key = 'schema'").fetchone()[0]
    if version != VERSION:
        raise RunFolderError(f"{path}: schema version {version}, but this program reads version {VERSION}")


class Store:
    """What is committed survives the death of the process at any moment; what is not, is gone as a whole. Creates what
    is missing and leaves the rest. Raises RunFolderError if the file is something else than the database of a run."""

    def __init__(self, path: Path | str):
        tables = []
        for name, types in COLUMNS.items():
            parts = [f"{column} {_TYPES.get(type_, 'REAL')}" for column, type_ in types.items()]
            key = PRIMARY_KEYS.get(name)
            parts += [f"PRIMARY KEY ({key})"] if key else []
            tables.append(f"CREATE TABLE IF NOT EXISTS {name}({', '.join(parts)}){' WITHOUT ROWID' if key else ''};\n")
        try:
            self._connection = sqlite3.connect(path)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")  # only a power cut can undo a commit
            if self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                require_version(self._connection, path)
            self._connection.executescript(f"""
                BEGIN;
                CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
                INSERT OR IGNORE INTO meta VALUES ('schema', '{VERSION}');
                {"".join(tables)} {_INDICES} {CREATE_VIEWS}
                COMMIT;
            """)
            for name, types in COLUMNS.items():  # an older run has fewer of them
                there = self._connection.execute(f"PRAGMA table_info({name})").fetchall()
                for column in list(types)[len(there) :]:
                    self._connection.execute(
                        f"ALTER TABLE {name} ADD COLUMN {column} {_TYPES.get(types[column], 'REAL')}"
                    )
        except sqlite3.Error as error:
            raise RunFolderError(f"{path}: cannot be opened as the database of a run: {error}") from error

    @property
    def uncommitted(self) -> bool:
        return self._connection.in_transaction

    def write(self, records: Iterable[Record]) -> None:
        for record in records:
            self.write_rows({_NAMES[type(record)]: [record]})

    def write_rows(self, tables: Mapping[str, Sequence[Sequence]]) -> None:
        """A client that goes back to a checkpoint repeats rounds, and the repetition is what the run is made of."""
        for name, rows in tables.items():
            values = ", ".join("?" * len(COLUMNS[name]))
            self._connection.executemany(f"INSERT OR REPLACE INTO {name} VALUES ({values})", rows)

    def forget_after(self, round: int) -> None:
        """Removes what is recorded of all later rounds, and what clients told of themselves in them: it comes again.
        Comings and goings stay, and so does what others did to a client. A round's events are stored before the round;
        a timeout is told at the end of an incarnation, after its last round."""
        of_node = "FROM round WHERE round.node = event.node AND round.round"
        told = f"node >= 0 AND kind NOT IN ({_NOT_OF_ROUNDS})"
        later = f"wall_s >= (SELECT min(wall_s) {of_node} > :last)"
        not_stored = f"kind != 'timeout' AND wall_s > (SELECT coalesce(max(wall_s), -1) {of_node} <= :last)"
        self._connection.execute(f"DELETE FROM event WHERE {told} AND ({later} OR {not_stored})", {"last": round})
        for name, types in COLUMNS.items():
            if "round" in types:
                self._connection.execute(f"DELETE FROM {name} WHERE round > ?", [round])
        self._connection.execute("DELETE FROM overhead WHERE kind = 'evaluation'")  # in all is told again at the end

    def forget_ends(self, round: int) -> None:
        """Removes what clients told of themselves when they ended after ``round``: they tell it again at their end."""
        end = "SELECT wall_s FROM round WHERE round.node = event.node AND round.round = ?"
        self._connection.execute(f"DELETE FROM event WHERE kind = 'timeout' AND wall_s >= ({end})", [round])

    def describe(self, facts: Mapping[str, str], *, once: bool = False) -> None:
        """Stores facts about the run as a whole, for table ``meta``; those that it has ``once`` stay as they are."""
        what = "IGNORE" if once else "REPLACE"
        self._connection.executemany(f"INSERT OR {what} INTO meta VALUES (?, ?)", facts.items())

    def commit(self) -> None:
        self._connection.commit()

    def close(self) -> None:
        """Commits, and folds the write-ahead log into the file unless a reader holds on to it."""
        self.commit()
        self._connection.execute("PRAGMA busy_timeout = 500")  # ms
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        self._connection.close()
