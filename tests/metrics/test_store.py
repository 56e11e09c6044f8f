"""run.sqlite as other programs find it."""

import contextlib
import math
import sqlite3
from pathlib import Path

import pytest

from made import done, event, node, sent, write
from sheafgossip.metrics.reader import open_records
from sheafgossip.metrics.records import TABLES, KernelRecord, ResourceRecord
from sheafgossip.metrics.store import RunFolderError, Store
from sheafgossip.metrics.summary import summarize


def query(folder, sql: str) -> list[tuple]:
    with open_records(folder) as records:
        return records.execute(sql).fetchall()


def test_a_record_is_read_back_as_it_was_written_with_nan_as_null_and_in_the_order_of_its_fields(tmp_path):
    write(tmp_path, done(3, 7, 0.25, 7.0), done(0, 1)._replace(train_loss=math.nan, test_loss=math.inf))
    assert query(tmp_path, "SELECT * FROM round ORDER BY node") == [
        (0, 1, None, math.inf, None, 1.0, 0.0, *[None] * 7),
        (3, 7, 0.5, None, 0.25, 1.0, 7.0, *[None] * 7),
    ]
    for name, record_class in TABLES.items():
        assert [row[1] for row in query(tmp_path, f"PRAGMA table_info({name})")] == list(record_class._fields)
    assert [path.name for path in tmp_path.iterdir()] == ["run.sqlite"]  # reading it makes no file beside it


def test_a_run_can_be_taken_up_again_and_a_repetition_replaces_rows_and_adds_events(tmp_path):
    again = event(0, "warning", 1.0, "again")
    write(tmp_path, node(0, pid=100), done(0, 1, 0.1), sent(0, 1, 1, 8), again, metric="mse")
    write(tmp_path, node(0, pid=200), done(0, 1, 0.2), sent(0, 1, 1, 16), again, node(1))
    assert query(tmp_path, "SELECT test_metric FROM round") == [(0.2,)]
    assert query(tmp_path, "SELECT payload_bytes FROM traffic") == [(16,)]
    assert query(tmp_path, "SELECT pid FROM node") == [(200,), (100,)]
    assert query(tmp_path, "SELECT kind FROM event") == [("warning",)] * 2
    assert query(tmp_path, "SELECT value FROM meta WHERE key = 'metric'") == [("mse",)]


def test_views_sum_up_rounds_edges_and_clients(tmp_path):
    cpu = [(1.0, 500), (5.0, 100), (0.5, 100), (2.0, 400)]  # and the peak of its memory: it was started twice
    write(
        tmp_path,
        *(node(0), node(1), node(2, "server")),
        *(done(0, 1, 0.2), done(0, 2, 0.3), done(0, 3, wall_s=3.0), done(1, 1, 0.6), done(2, 1, wall_s=1.0)),
        *(sent(0, 1, 1, 8), sent(1, 0, 1, 4), *(sent(0, 1, number, 8) for number in (2, 3))),
        *(ResourceRecord(0, 1.0, 90, 80, 70, peak_rss, cpu_s, 60) for cpu_s, peak_rss in cpu),
    )
    columns = "clients, mean_test_metric, min_test_metric, max_test_metric, payload_bytes, message_bytes, wire_bytes"
    (found,) = query(tmp_path, f"SELECT {columns} FROM round_total WHERE round = 1")
    assert found == (2, pytest.approx(0.4), 0.2, 0.6, 12, 52, 72)
    assert query(tmp_path, "SELECT * FROM edge_total") == [(0, 1, 3, 24, 84, 114), (1, 0, 1, 4, 24, 34)]
    columns = "payload_bytes_sent, payload_bytes_received, test_round, test_metric, peak_rss, cpu_s"
    assert query(tmp_path, f"SELECT {columns} FROM client_total WHERE node = 0") == [(24, 4, 2, 0.3, 500, 7.0)]


def test_a_run_of_an_older_version_gets_the_columns_that_it_lacks(tmp_path):
    old = KernelRecord(0, "here", "there", 1, 2)
    write(tmp_path, old)
    with contextlib.closing(sqlite3.connect(tmp_path / "run.sqlite")) as records:
        records.execute("ALTER TABLE kernel DROP COLUMN busy_s")
    write(tmp_path, old._replace(busy_s=0.5))
    assert query(tmp_path, "SELECT * FROM kernel") == [(*old[:5], None), (*old[:5], 0.5)]


@pytest.mark.parametrize("opened", [Store, lambda path: summarize(path.parent)], ids=["written", "read"])
def test_a_file_that_is_no_database_of_a_run_or_of_another_version_is_refused(tmp_path, opened):
    path = tmp_path / "run.sqlite"
    path.write_text("these are not the bytes of a database " * 100)
    with pytest.raises(RunFolderError, match=r"run\.sqlite"):
        opened(path)
    path.unlink()
    Store(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    with pytest.raises(RunFolderError, match="schema version 99"):
        opened(path)


def test_what_a_writer_that_ends_removes_while_one_looks_at_it_is_not_missed(tmp_path, monkeypatch):
    write(tmp_path, node(0))
    there = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path, **how: path.name.endswith("-shm") or there(path, **how))
    with open_records(tmp_path) as records:
        assert records.execute("SELECT count(*) FROM node").fetchone() == (1,)


def test_later_rounds_can_be_forgotten_with_events_of_a_round_that_is_not_on_record_yet(tmp_path):
    """A round is stored last; what ended with an earlier incarnation of the client stays."""
    write(
        tmp_path,
        *(done(0, number, wall_s=number) for number in range(3)), *(sent(0, 1, number, 9) for number in range(4)),
        event(1, "warning", 1.0, "kept"), event(1, "warning", 1.5, "comes again"), done(1, 1, wall_s=1.0),
        event(0, "warning", 2.0, "comes again"), event(1, "timeout", 2.0, "2 waits"),
    )  # fmt: skip
    with contextlib.closing(Store(tmp_path / "run.sqlite")) as store:
        store.forget_after(1)
    for table in ("round", "traffic"):
        assert query(tmp_path, f"SELECT max(round) FROM {table}") == [(1,)]
    assert query(tmp_path, "SELECT detail FROM event ORDER BY kind") == [("2 waits",), ("kept",)]
