"""run.sqlite as other programs find it."""

import contextlib
import math
import sqlite3

import pytest

from made import done, event, node, sent
from sheafgossip.metrics.reader import open_records
from sheafgossip.metrics.records import TABLES, ResourceRecord, RoundRecord
from sheafgossip.metrics.schema import RunFolderError
from sheafgossip.metrics.store import Store
from sheafgossip.metrics.summary import summarize


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "run.sqlite")
    yield store
    store.close()


def resource(node: int, cpu_s: float, peak_rss: int = 100) -> ResourceRecord:
    return ResourceRecord(node, 1.0, 90, 80, 70, peak_rss, cpu_s, 60)


def query(store: Store, tmp_path, sql: str) -> list[tuple]:
    store.commit()
    with open_records(tmp_path) as records:
        return records.execute(sql).fetchall()


def test_the_columns_of_a_table_are_the_fields_of_its_record(store, tmp_path):
    for name, record_class in TABLES.items():
        columns = [row[1] for row in query(store, tmp_path, f"PRAGMA table_info({name})")]
        assert columns == list(record_class._fields)


def test_a_record_is_read_back_as_it_was_written(store, tmp_path):
    store.write([done(3, 7, 0.25, 7.0)])
    assert query(store, tmp_path, "SELECT * FROM round") == [(3, 7, 0.5, None, 0.25, 1.0, 7.0, *[None] * 7)]


def test_nothing_is_seen_before_it_is_committed(store, tmp_path):
    store.write([node(0)])
    assert store.uncommitted
    with open_records(tmp_path) as records:
        assert records.execute("SELECT * FROM node").fetchall() == []
    store.commit()
    assert not store.uncommitted
    with open_records(tmp_path) as records:
        assert len(records.execute("SELECT * FROM node").fetchall()) == 1


def test_a_repetition_replaces_rows_and_adds_events(store, tmp_path):
    store.write([node(0, pid=100), node(0, pid=200), done(0, 1, 0.1), done(0, 1, 0.2)])
    store.write([sent(0, 1, 1, 8), sent(0, 1, 1, 16)])
    assert query(store, tmp_path, "SELECT test_metric FROM round") == [(0.2,)]
    assert query(store, tmp_path, "SELECT payload_bytes FROM traffic") == [(16,)]
    assert query(store, tmp_path, "SELECT pid FROM node") == [(200,)]
    store.write([event(0, "warning", 1.0, "again")] * 2)
    assert len(query(store, tmp_path, "SELECT * FROM event")) == 2


def test_a_diverged_client_is_stored_with_nan_as_null(store, tmp_path):
    store.write([RoundRecord(0, 1, math.nan, math.inf, None, math.nan, 1.0)])
    assert query(store, tmp_path, "SELECT train_loss, test_loss, theta_norm FROM round") == [(None, math.inf, None)]


def test_round_total_sums_traffic_and_spreads_the_metric_over_the_clients(store, tmp_path):
    store.write([node(0), node(1), node(2, "server")])
    store.write([done(0, 1, 0.2), done(1, 1, 0.6), done(2, 1, wall_s=1.0)])
    store.write([sent(0, 1, 1, 8), sent(1, 0, 1, 4)])
    columns = "clients, mean_test_metric, min_test_metric, max_test_metric, payload_bytes, message_bytes, wire_bytes"
    assert query(store, tmp_path, f"SELECT {columns} FROM round_total") == [
        (2, pytest.approx(0.4), 0.2, 0.6, 12, 52, 72)
    ]


def test_edge_total_sums_a_directed_edge_over_the_rounds(store, tmp_path):
    store.write([sent(0, 1, number, 8) for number in (1, 2, 3)] + [sent(1, 0, 1, 4)])
    assert query(store, tmp_path, "SELECT * FROM edge_total") == [(0, 1, 3, 24, 84, 114), (1, 0, 1, 4, 24, 34)]


def test_client_total_gives_bytes_last_metric_and_peak_memory(store, tmp_path):
    store.write([node(0), node(1)])
    store.write([done(0, 1, 0.1), done(0, 2, 0.3), done(0, 3, wall_s=3.0)])
    store.write([sent(0, 1, 1, 8), sent(1, 0, 1, 4)])
    store.write([resource(0, 1.0, peak_rss=500), resource(0, 2.0, peak_rss=400)])
    columns = "payload_bytes_sent, payload_bytes_received, test_round, test_metric, peak_rss, cpu_s"
    assert query(store, tmp_path, f"SELECT {columns} FROM client_total WHERE node = 0") == [(8, 4, 2, 0.3, 500, 2.0)]


def test_cpu_seconds_of_a_client_that_was_started_again_add_up(store, tmp_path):
    store.write([resource(0, cpu_s) for cpu_s in (1.0, 5.0, 0.5, 2.0)])
    assert query(store, tmp_path, "SELECT * FROM cpu_total") == [(0, 7.0)]


def test_a_run_can_be_taken_up_again(tmp_path):
    first = Store(tmp_path / "run.sqlite")
    first.write([node(0)])
    first.describe(metric="mse")
    first.close()
    second = Store(tmp_path / "run.sqlite")
    second.write([node(1)])
    assert query(second, tmp_path, "SELECT node FROM node") == [(0,), (1,)]
    assert query(second, tmp_path, "SELECT value FROM meta WHERE key = 'metric'") == [("mse",)]
    second.close()


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


def test_later_rounds_can_be_forgotten_in_every_table_that_has_them(store, tmp_path):
    traffic = [sent(0, 1, number, 10) for number in range(4)]
    store.write([node(0), *(done(0, number, wall_s=number) for number in range(4)), *traffic, event(0, "x", 1.0)])
    store.forget_after(1)
    store.commit()
    with open_records(tmp_path) as records:
        for table in ("round", "traffic"):
            assert records.execute(f"SELECT round FROM {table} ORDER BY round").fetchall() == [(0,), (1,)]
        assert records.execute("SELECT count(*) FROM event").fetchone() == (1,)


def test_events_of_a_round_that_is_not_on_record_yet_are_forgotten_with_those_after_it(store, tmp_path):
    """A round is stored last; what ended with an earlier life of the client stays."""
    at = done(0, 1, wall_s=1.0).wall_s
    store.write([node(0), done(0, 0, wall_s=0.0), done(0, 1, wall_s=1.0)])
    store.write([event(0, "warning", at, "kept"), event(0, "warning", at + 1, "comes again")])
    store.write([event(0, "timeout", at + 1, "2 waits")])
    store.forget_after(1)
    store.commit()
    assert query(store, tmp_path, "SELECT detail FROM event ORDER BY kind") == [("2 waits",), ("kept",)]


def test_reading_a_closed_database_makes_no_file_beside_it(tmp_path):
    Store(tmp_path / "run.sqlite").close()
    with open_records(tmp_path) as records:
        assert records.execute("SELECT count(*) FROM round").fetchone() == (0,)
    assert [path.name for path in tmp_path.iterdir()] == ["run.sqlite"]
