"""A small run folder with everything in it, and the same as others might hand it on."""

import contextlib
import functools
import io
import sqlite3
import sys
from pathlib import Path

import pytest
import typer

import made
from sheafgossip.launcher import cli
from sheafgossip.metrics import records as of
from sheafgossip.metrics.records import COLLECTOR, LAUNCHER, Record

CONFIG = 'name = "a run"\nseed = 3\nclients = 2\nrounds = 2\n[algorithm]\nname = "sheaf-fmtl"\n'


def make_run(path: Path, config: str = CONFIG) -> Path:
    """Two clients, two rounds, and a row in every table."""
    path.mkdir(parents=True)
    (path / "config.toml").write_text(config)
    records: list[Record] = [of.NodeRecord(LAUNCHER, "launcher", "", 0, 0, 0, 0, "host", 99, "")]
    for client, other in ((0, 1), (1, 0)):
        records += [made.node(client, pid=100 + client), of.ResourceRecord(client, 2.0, 300, 200, 100, 400, 1.5, 60)]
        for number in (0, 1, 2):
            end_s = number + client / 2
            records += [
                of.RoundRecord(client, number, 0.5, 0.4, 0.1 * number, 1.0, end_s, end_s, idle_s=0.1),
                of.EdgeRecord(client, other, number, 0.1, 1.0 + client + number, 0.0),
                of.TrafficRecord(client, other, number, 1, 1000, 1020, 1030),
                of.UsedRecord(client, number, 0, other, number),
                of.WorkRecord(client, end_s, "gradient", 0.1, 0.2, 1000),
            ]
        records += [of.OverheadRecord(client, other, "hello", 1, 50), of.KernelRecord(client, "a:1", "b:2", 1, 1)]
    records += [of.OverheadRecord(0, COLLECTOR, "records", 2, 500), made.START]
    records += [made.event(1, "timeout", 0.5, "2 waits", 0.5), made.event(0, "warning", 0.6, "hm")]
    return made.write(path, *records, made.event(LAUNCHER, "finish", 3.0), metric="accuracy", groups="0,1")


def loosen(database: Path) -> None:
    """Every table again, without types and without NOT NULL: any value fits anywhere."""
    with change(database) as connection:
        for (table,) in connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'meta'"
        ).fetchall():
            about = connection.execute(f"PRAGMA table_info({table})").fetchall()
            columns = ", ".join(name for _, name, *_ in about)
            key = ", ".join(name for _, name, *_, place in about if place)
            connection.executescript(
                f"ALTER TABLE {table} RENAME TO old_{table};"
                f"CREATE TABLE {table}({columns}{f', PRIMARY KEY ({key})' if key else ''});"
                f"INSERT INTO {table} SELECT * FROM old_{table}; DROP TABLE old_{table}"
            )


@contextlib.contextmanager
def change(database: Path):
    connection = sqlite3.connect(database)
    for (view,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'view'").fetchall():
        connection.execute(f"DROP VIEW {view}")  # they are not read; renaming a table would look into them
    yield connection
    connection.commit()
    connection.close()


_get_command = functools.cache(typer.main.get_command)  # as a process does, which is asked once


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def sheafgossip(*words: object, terminal: bool = False) -> tuple[int, str, str]:
    """Exit code, stdout and stderr, which may be a terminal, of a command in this process; an exception that is no exit
    comes through."""
    out, err, code = io.StringIO(), _Terminal() if terminal else io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["sheafgossip", *map(str, words)])
        patch.setattr(typer.main, "get_command", _get_command)
        try:
            cli.main()
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    return code, out.getvalue(), err.getvalue()
