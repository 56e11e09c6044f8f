"""Where records are stored: ``run.sqlite``, written by one process while others may read it."""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from . import schema
from .records import TABLES, Record

_NAMES = {record_class: name for name, record_class in TABLES.items()}
_NOT_OF_ROUNDS = "'crash', 'leave', 'restart', 'join', 'death', 'drop'"
_CHECKPOINT_WAIT_MS = 500


def is_locked(error: BaseException | None) -> bool:
    """Tells whether the error only says that somebody else has locked the database for now."""
    code = getattr(error, "sqlite_errorcode", None)
    return code == sqlite3.SQLITE_BUSY if code is not None else error is not None and is_locked(error.__cause__)


class Store:
    """What is committed survives the death of the process at any moment; what is not, is gone as a whole.

    Raises RunFolderError if the file at ``path`` is something else than the database of a run.
    """

    def __init__(self, path: Path | str):
        try:
            self._connection = sqlite3.connect(path)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")  # only a power cut can undo a commit
            if self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                schema.require_version(self._connection, path)
            schema.create(self._connection)
        except sqlite3.Error as error:
            raise schema.RunFolderError(f"{path}: cannot be opened as the database of a run: {error}") from error

    @property
    def uncommitted(self) -> bool:
        return self._connection.in_transaction

    def write(self, records: Iterable[Record]) -> None:
        tables: dict[str, list[Record]] = {}
        for record in records:
            tables.setdefault(_NAMES[type(record)], []).append(record)
        self.write_rows(tables)

    def write_rows(self, tables: Mapping[str, Sequence[Sequence]]) -> None:
        """Writes rows by table, in the order of the columns.

        A client that goes back to a checkpoint repeats rounds, and the repetition is what the run is made of.
        """
        for name, rows in tables.items():
            values = ", ".join("?" * len(TABLES[name]._fields))
            self._connection.executemany(f"INSERT OR REPLACE INTO {name} VALUES ({values})", rows)

    def forget_after(self, round: int) -> None:
        """Removes what is recorded of all later rounds, and what clients told of themselves in them: it comes again.

        Comings and goings stay, and so does what others did to a client. A round's events are stored before the round;
        a timeout is told at the end of an incarnation, after its last round.
        """
        of_node = "FROM round WHERE round.node = event.node AND round.round"
        self._connection.execute(
            f"DELETE FROM event WHERE node >= 0 AND kind NOT IN ({_NOT_OF_ROUNDS})"
            f" AND (wall_s >= (SELECT min(wall_s) {of_node} > :last)"
            f" OR kind != 'timeout' AND wall_s > (SELECT coalesce(max(wall_s), -1) {of_node} <= :last))",
            {"last": round},
        )
        for name, record_class in TABLES.items():
            if "round" in record_class._fields:
                self._connection.execute(f"DELETE FROM {name} WHERE round > ?", [round])
        self._connection.execute("DELETE FROM overhead WHERE kind = 'evaluation'")  # in all is told again at the end

    def forget_ends(self, round: int) -> None:
        """Removes what clients told of themselves when they ended after ``round``: they go on, and tell it at their
        end."""
        self._connection.execute(
            "DELETE FROM event WHERE node >= 0 AND kind = 'timeout' AND wall_s >="
            " (SELECT wall_s FROM round WHERE round.node = event.node AND round.round = ?)",
            [round],
        )

    def describe(self, **facts: str) -> None:
        """Stores facts about the run as a whole, for table ``meta``: ``metric="mse"``."""
        self._connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", facts.items())

    def describe_once(self, facts: Mapping[str, str]) -> None:
        """Stores facts that stay as they were when the run began."""
        self._connection.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", facts.items())

    def commit(self) -> None:
        self._connection.commit()

    def close(self) -> None:
        """Commits, and folds the write-ahead log into the file unless a reader holds on to it."""
        self.commit()
        self._connection.execute(f"PRAGMA busy_timeout = {_CHECKPOINT_WAIT_MS}")
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        self._connection.close()
