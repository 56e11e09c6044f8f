"""The tables and views of ``run.sqlite``, and what they may hold; the tables follow the record classes."""

import re
import sqlite3
from collections.abc import Collection
from typing import Any

from ..topology.errors import UserError
from .records import COLUMN_TYPES, LARGEST_NODE, TABLES, columns

VERSION = "1"  # in table ``meta`` under "schema"; raised whenever a reader of the old layout would be misled
# Other keys of ``meta``:
CONFIG = "config"  # config.toml itself, so that a later change of the file is seen key by key
CONFIG_DIGEST = "config_sha256"  # of config.toml; runs that have it hold a lock while they go on
PREPARED = "prepared"  # when the run was prepared
CONSTANT_METRIC = "constant_metric"  # the mean test metric of clients that predict the same for every sample
EXTENDED_AFTER = "extended_after"  # rounds, separated by commas, that were the run's last ones until it got more

_PRIMARY_KEYS = {  # the round comes first: clients move on together, so new rows land side by side
    "node": "node",
    "round": "round, node",
    "traffic": "round, src, dst",
    "edge": "round, node, neighbour",
    "used": "round, node, phase, neighbour",
}
_INDICES = """
CREATE INDEX IF NOT EXISTS resource_of_node ON resource(node);
CREATE INDEX IF NOT EXISTS work_of_node ON work(node, part);
CREATE INDEX IF NOT EXISTS event_of_kind ON event(kind, node);
"""
CLIENTS = "node NOT IN (SELECT node FROM node WHERE role <> 'client')"
"""Rows of clients, as SQL; also where a run has no table of who is what."""


def _of_traffic(form: str) -> str:
    return ", ".join(form.format(column) for column in ("messages", "payload_bytes", "message_bytes", "wire_bytes"))


_VIEWS = f"""
CREATE VIEW IF NOT EXISTS round_total AS
SELECT round, clients, mean_test_metric, min_test_metric, max_test_metric, {_of_traffic("{}")}
FROM (SELECT round, count(*) AS clients, avg(test_metric) AS mean_test_metric,
             min(test_metric) AS min_test_metric, max(test_metric) AS max_test_metric
      FROM round WHERE {CLIENTS} GROUP BY round)
LEFT JOIN (SELECT round, {_of_traffic("sum({0}) AS {0}")} FROM traffic GROUP BY round) USING (round);

-- All bytes up to and including a round; evaluated counts the clients behind the mean.
CREATE VIEW IF NOT EXISTS round_cumulative AS
SELECT round, evaluated, mean_test_metric, wall_s, {_of_traffic("coalesce(sum({0}) OVER so_far, 0) AS {0}")}
FROM round_total
JOIN (SELECT round, count(test_metric) AS evaluated, max(wall_s) AS wall_s
      FROM round WHERE {CLIENTS} GROUP BY round) USING (round)
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
            FROM round WHERE test_metric IS NOT NULL AND virtual_s IS NOT NULL AND {CLIENTS})
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
VIEWS = tuple(re.findall(r"CREATE VIEW IF NOT EXISTS (\w+)", _VIEWS))
_ROW_NUMBERS = ("rowid", "oid", "_rowid_")
_LARGEST = {"round": 2**53, "used_round": 2**53, "phase": 2**31, "pid": 2**31 - 1}
_BOUNDS = {column: f" AND {column} BETWEEN 0 AND {largest}" for column, largest in _LARGEST.items()}
for _column in ("node", "src", "dst", "neighbour", "waited_for"):
    _BOUNDS[_column] = f" AND {_column} BETWEEN {-LARGEST_NODE} AND {LARGEST_NODE - 1}"
_LONGEST_TIME = 1e12  # seconds


class RunFolderError(UserError):
    """A folder that holds no run of this version; the message is one line for the user."""


class ExportError(UserError):
    """Why nothing was exported; one line for the user."""


def create(connection: sqlite3.Connection) -> None:
    """Creates what is missing and leaves the rest."""
    tables = []
    for name, record_class in TABLES.items():
        parts = [f"{column} {COLUMN_TYPES[type_].sql}" for column, type_ in columns(record_class).items()]
        keyed = name in _PRIMARY_KEYS
        parts += [f"PRIMARY KEY ({_PRIMARY_KEYS[name]})"] if keyed else []
        tables.append(f"CREATE TABLE IF NOT EXISTS {name}({', '.join(parts)}){' WITHOUT ROWID' if keyed else ''};\n")
    connection.executescript(f"""
        BEGIN;
        CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
        INSERT OR IGNORE INTO meta VALUES ('schema', '{VERSION}');
        {"".join(tables)} {_INDICES} {_VIEWS}
        COMMIT;
    """)


def create_views(connection: sqlite3.Connection) -> None:
    """Ours, for this connection alone; they hide what the file has under the same names."""
    connection.executescript(_VIEWS.replace("CREATE VIEW IF NOT EXISTS", "CREATE TEMP VIEW"))


def require_tables(connection: sqlite3.Connection, path: object) -> None:
    """Raises RunFolderError where the database at ``path`` has something else under the name of one of our tables.

    Without its primary key a table may hold a row twice, and reading it may take for ever.
    """
    keys = {"meta": "key"} | {name: _PRIMARY_KEYS.get(name, "") for name in TABLES}
    for given, kind, page in connection.execute("SELECT name, type, rootpage FROM main.sqlite_schema").fetchall():
        name = str(given).lower()
        if name not in keys or kind not in ("table", "view"):
            continue
        plain = kind == "table" and page  # a virtual table has no page, and is asked nothing
        about = connection.execute(f"PRAGMA main.table_xinfo({name})").fetchall() if plain else []
        key = {column for _, column, _, _, _, place, _ in about if place}
        odd = any(column.lower() in _ROW_NUMBERS or computed for _, column, *_, computed in about)
        if not plain or odd or key != set(filter(None, keys[name].split(", "))):
            raise RunFolderError(f"{path}: not the database of a run: {name} is no table as a run makes it")


def require_version(connection: sqlite3.Connection, path: object) -> None:
    """Raises RunFolderError if the database at ``path`` was not written with this schema."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'meta'").fetchone():
        raise RunFolderError(f"{path}: not the database of a run: it has no table 'meta'")
    version = connection.execute("SELECT max(value) FROM meta WHERE key = 'schema'").fetchone()[0]
    if version != VERSION:
        raise RunFolderError(f"{path}: schema version {version}, but this program reads version {VERSION}")


def require_values(records: sqlite3.Connection, path: object, tables: Collection[str]) -> None:
    """Raises RunFolderError, naming table and column, where a value is none that a run writes.

    SQLite puts any value into any column; a reader that computes with text, or draws client 10^12, fails late.
    """
    for table in tables:
        there = {name for _, name, *_ in records.execute(f"PRAGMA table_info({table})")}  # older runs have fewer
        rules = {name: _rule(name, type_) for name, type_ in columns(TABLES[table]).items() if name in there}
        every = " AND ".join(rules.values())
        if every and records.execute(f"SELECT 1 FROM {table} WHERE NOT ({every}) LIMIT 1").fetchone():
            for column, rule in rules.items():
                found = records.execute(f"SELECT {column} FROM {table} WHERE NOT {rule} LIMIT 1").fetchone()
                if found:
                    raise RunFolderError(f"{path}: {table}.{column} = {found[0]!r:.80}: no run writes such a value")


def _rule(column: str, type_: Any) -> str:
    """Returns what holds of the column's values, as SQL that is never NULL."""
    if type_ is str:
        rule = f"typeof({column}) = 'text'"
    elif type_ in (int, int | None):
        rule = f"typeof({column}) = 'integer'" + _BOUNDS.get(column, "")
    elif column.endswith("_s"):
        rule = f"{column} BETWEEN {-_LONGEST_TIME} AND {_LONGEST_TIME}"
    else:
        rule = f"{column} <= 9e999"  # every number, infinities too, and neither text nor blob
    nullable = type_ in (int | None, float | None) or (type_ is float and not column.endswith("_s"))  # NaN is NULL
    return f"({column} IS NULL OR {rule})" if nullable else f"({column} IS NOT NULL AND {rule})"
