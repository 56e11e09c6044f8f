"""What the columns of a run's tables may hold, checked before a reader relies on it."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator

from .records import LARGEST_NODE, TABLES, columns
from .schema import RunFolderError

_NODES = ("node", "src", "dst", "neighbour", "waited_for")
_NUMBERS = {"round": 2**53, "used_round": 2**53, "phase": 2**31, "pid": 2**31 - 1}
_LONGEST_TIME = 1e12  # seconds
_OPTIONAL = (int | None, float | None)


def require_values(records: sqlite3.Connection, path: object, tables: Collection[str]) -> None:
    """Raises RunFolderError, naming table and column, where a value is none that a run writes.

    SQLite puts any value into any column; a reader that computes with text, or draws client 10^12, fails late.
    """
    for table in tables:
        there = {name for _, name, *_ in records.execute(f"PRAGMA table_info({table})")}  # older runs have fewer
        rules = {column: rule for column, rule in _rules(table) if column in there}
        if not rules:
            continue
        if records.execute(f"SELECT 1 FROM {table} WHERE NOT ({' AND '.join(rules.values())}) LIMIT 1").fetchone():
            for column, rule in rules.items():
                found = records.execute(f"SELECT {column} FROM {table} WHERE NOT ({rule}) LIMIT 1").fetchone()
                if found:
                    raise RunFolderError(f"{path}: {table}.{column} = {found[0]!r:.80}: no run writes such a value")


def _rules(table: str) -> Iterator[tuple[str, str]]:
    """(column, what holds of its values, as SQL that is never NULL)"""
    for column, type_ in columns(TABLES[table]).items():
        if type_ is str:
            rule = f"typeof({column}) = 'text'"
        elif type_ in (int, int | None):
            rule = f"typeof({column}) = 'integer'"
            if column in _NODES:
                rule += f" AND {column} BETWEEN {-LARGEST_NODE} AND {LARGEST_NODE - 1}"
            elif column in _NUMBERS:
                rule += f" AND {column} BETWEEN 0 AND {_NUMBERS[column]}"
        elif column.endswith("_s"):
            rule = f"{column} BETWEEN {-_LONGEST_TIME} AND {_LONGEST_TIME}"
        else:
            rule = f"{column} <= 9e999"  # every number, infinities too, and neither text nor blob
        nullable = type_ in _OPTIONAL or (type_ is float and not column.endswith("_s"))  # SQLite stores NaN as NULL
        yield column, f"({column} IS NULL OR {rule})" if nullable else f"({column} IS NOT NULL AND {rule})"
