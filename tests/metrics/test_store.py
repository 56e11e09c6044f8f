"""run.sqlite as other programs find it."""

import contextlib
import math
import sqlite3

import pytest

from made import done, event, node, sent, write
from sheafgossip.metrics.reader import open_records
from sheafgossip.metrics.records import TABLES, ResourceRecord, RoundRecord
from sheafgossip.metrics.store import RunFolderError, Store
from sheafgossip.metrics.summary import summarize


@pytest.fixture
def store(tmp_path):
    with contextlib.closing(Store(tmp_path / "run.sqlite")) as store:
        yield store


def resource(cpu_s: float, peak_rss: int = 100) -> ResourceRecord:
    return ResourceRecord(0, 1.0, 90, 80, 70, peak_rss, cpu_s, 60)


def query(folder, sql: str) -> list[tuple]:
    with open_records(folder) as records:
        return records.execute(sql).fetchall()


def test_a_record_is_read_back_as_it_was_written_with_nan_as_null_and_in_the_order_of_its_fields(tmp_path):
    write(tmp_path, done(3, 7, 0.25, 7.0), RoundRecord(0, 1, math.nan, math.inf, None, math.nan, 1.0))
    assert query(tmp_path, "SELECT * FROM round ORDER BY node") == [
        (0, 1, None, math.inf, None, None, 1.0, *[None] * 7),
        (3, 7, 0.5, None, 0.25, 1.0, 7.0, *[None] * 7),
    ]
    for name, record_class in TABLES.items():
        assert [row[1] for row in query(tmp_path, f"PRAGMA table_info({name})")] == list(record_class._fields)


def test_nothing_is_seen_before_it_is_committed(store, tmp_path):
    for seen in (False, True):
        if not seen:
            store.write([node(0)])
        else:
            store.commit()
        assert (store.uncommitted, len(query(tmp_path, "SELECT * FROM node"))) == (not seen, seen)


def test_a_run_can_be_taken_up_again_and_a_repetition_replaces_rows_and_adds_events(tmp_path):
    write(
        tmp_path, node(0, pid=100), done(0, 1, 0.1), sent(0, 1, 1, 8), event(0, "warning", 1.0, "again"), metric="mse"
    )
    write(tmp_path, node(0, pid=200), done(0, 1, 0.2), sent(0, 1, 1, 16), event(0, "warning", 1.0, "again"), node(1))
    found = {"round.test_metric": [0.2], "traffic.payload_bytes": [16], "node.pid": [200, 100], "event.kind": 2}
    found["event.kind"] = ["warning"] * 2
    for name, values in found.items():
        table, column = name.split(".")
        assert [value for (value,) in query(tmp_path, f"SELECT {column} FROM {table}")] == values
    assert query(tmp_path, "SELECT value FROM meta WHERE key = 'metric'") == [("mse",)]


def test_views_sum_up_rounds_edges_and_clients(tmp_path):
    write(
        tmp_path,
        *(node(0), node(1), node(2, "server")),
        *(done(0, 1, 0.2), done(0, 2, 0.3), done(0, 3, wall_s=3.0), done(1, 1, 0.6), done(2, 1, wall_s=1.0)),
        *(sent(0, 1, 1, 8), sent(1, 0, 1, 4), *(sent(0, 1, number, 8) for number in (2, 3))),
        *(resource(1.0, peak_rss=500), resource(5.0), resource(0.5), resource(2.0, peak_rss=400)),
    )
    columns = "clients, mean_test_metric, min_test_metric, max_test_metric, payload_bytes, message_bytes, wire_bytes"
    assert query(tmp_path, f"SELECT {columns} FROM round_total WHERE round = 1") == [
        (2, pytest.approx(0.4), 0.2, 0.6, 12, 52, 72)
    ]
    assert query(tmp_path, "SELECT * FROM edge_total") == [(0, 1, 3, 24, 84, 114), (1, 0, 1, 4, 24, 34)]
    columns = "payload_bytes_sent, payload_bytes_received, test_round, test_metric, peak_rss, cpu_s"
    assert query(tmp_path, f"SELECT {columns} FROM client_total WHERE node = 0") == [(24, 4, 2, 0.3, 500, 7.0)]


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


def test_later_rounds_can_be_forgotten_with_events_of_a_round_that_is_not_on_record_yet(store, tmp_path):
    """A round is stored last; what ended with an earlier incarnation of the client stays."""
    store.write(
        [*(done(0, number, wall_s=number) for number in range(3)), *(sent(0, 1, number, 9) for number in range(4))]
    )
    store.write([event(1, "warning", 1.0, "kept"), event(1, "warning", 1.5, "comes again"), done(1, 1, wall_s=1.0)])
    store.write([event(0, "warning", 2.0, "comes again"), event(1, "timeout", 2.0, "2 waits")])
    store.forget_after(1)
    store.commit()
    for table in ("round", "traffic"):
        assert query(tmp_path, f"SELECT max(round) FROM {table}") == [(1,)]
    assert query(tmp_path, "SELECT detail FROM event ORDER BY kind") == [("2 waits",), ("kept",)]


def test_reading_a_closed_database_makes_no_file_beside_it(tmp_path):
    write(tmp_path)
    assert query(tmp_path, "SELECT count(*) FROM round") == [(0,)]
    assert [path.name for path in tmp_path.iterdir()] == ["run.sqlite"]
