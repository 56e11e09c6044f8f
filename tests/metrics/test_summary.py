"""A run in figures, from the folder alone."""

from __future__ import annotations

import json
import sqlite3
from io import StringIO

import pytest
from rich.console import Console

from sheafgossip.metrics.records import (
    COLLECTOR,
    LAUNCHER,
    EventRecord,
    NodeRecord,
    OverheadRecord,
    Record,
    ResourceRecord,
    RoundRecord,
    TrafficRecord,
)
from sheafgossip.metrics.schema import RunFolderError
from sheafgossip.metrics.store import Store
from sheafgossip.metrics.summary import summarize
from sheafgossip.metrics.summary_table import render


def node(number: int, role: str = "client") -> NodeRecord:
    return NodeRecord(number, role, "logistic", 650, 30, 10, 2, "host", 100, "")


def after_round(client: int, number: int, test_metric: float | None = None, wall_s: float = 0.0) -> RoundRecord:
    return RoundRecord(client, number, 0.5, None, test_metric, 1.0, wall_s)


def launcher_says(kind: str) -> EventRecord:
    return EventRecord(0.0, None, LAUNCHER, kind, "")


@pytest.fixture
def run(tmp_path):
    """Writes records into a run's folder and summarizes it."""

    def write_and_summarize(*records: Record, **facts: str):
        store = Store(tmp_path / "run.sqlite")
        store.write(records)
        store.describe(**facts)
        store.close()
        return summarize(tmp_path)

    return write_and_summarize


def test_rounds_are_those_of_the_slowest_client(run):
    assert run(node(0), node(1), after_round(0, 5), after_round(1, 3)).rounds == 3


def test_a_client_that_never_reported_has_completed_no_round(run):
    assert run(node(0), node(1), after_round(0, 5)).rounds == 0


def test_servers_and_launcher_are_not_counted_as_clients(run):
    summary = run(node(0), node(1, "server"), node(LAUNCHER, "launcher"), after_round(0, 5))
    assert (summary.clients, summary.rounds) == (1, 5)


def test_final_spreads_the_last_evaluation_of_each_client(run):
    summary = run(
        node(0), node(1), after_round(0, 1, 0.1), after_round(0, 2, 0.8), after_round(0, 3), after_round(1, 3, 0.6)
    )
    assert summary.final.mean == pytest.approx(0.7)
    assert summary.final.worst_10 == 0.6


def test_the_worst_client_has_the_largest_error_where_the_metric_is_one(run):
    summary = run(node(0), node(1), after_round(0, 1, 3.0), after_round(1, 1, 7.0), metric="mse")
    assert (summary.metric, summary.final.worst_10) == ("mse", 7.0)


def test_before_the_first_evaluation_there_is_no_final_metric(run):
    assert run(node(0), after_round(0, 1)).final is None


def test_bytes_are_summed_at_three_levels_and_overhead_by_kind(run):
    summary = run(
        TrafficRecord(0, 1, 1, 1, 8, 40, 50),
        TrafficRecord(1, 0, 2, 1, 4, 20, 25),
        OverheadRecord(0, 1, "greeting", 1, 64),
        OverheadRecord(1, 0, "greeting", 1, 64),
        OverheadRecord(0, COLLECTOR, "records", 9, 900),
    )
    traffic = summary.traffic
    assert (traffic.messages, traffic.payload_bytes, traffic.message_bytes, traffic.wire_bytes) == (2, 12, 60, 75)
    assert summary.overhead_bytes == {"greeting": 128, "records": 900}


def test_memory_is_what_each_process_said_last_and_its_highest_peak(run):
    def said(number: int, pss: int, uss: int, peak_rss: int) -> ResourceRecord:
        return ResourceRecord(number, 1.0, 0, pss, uss, peak_rss, 0.0, 0)

    memory = run(
        node(0), node(1), node(LAUNCHER, "launcher"),
        said(0, 10, 1, 900), said(0, 20, 2, 500), said(1, 30, 4, 700), said(LAUNCHER, 1000, 1000, 5000),
    ).memory  # fmt: skip
    assert (memory.clients_pss, memory.clients_max_peak_rss, memory.clients_median_uss) == (50, 900, 3)
    assert (memory.others_pss, memory.others_max_peak_rss) == (1000, 5000)


def test_cpu_of_clients_and_of_others_are_kept_apart(run):
    def spent(number: int, cpu_s: float) -> ResourceRecord:
        return ResourceRecord(number, 1.0, 0, 0, 0, 0, cpu_s, 0)

    summary = run(node(0), node(1), spent(0, 1.0), spent(0, 2.0), spent(1, 3.0), spent(COLLECTOR, 0.5))
    assert (summary.clients_cpu_s, summary.others_cpu_s) == (5.0, 0.5)


def test_wall_time_is_the_latest_end_of_a_round(run):
    assert run(after_round(0, 1, wall_s=1.0), after_round(1, 1, wall_s=2.5)).wall_s == 2.5


@pytest.mark.parametrize(
    ("kinds", "status"),
    [
        ([], "running"),
        (["start"], "running"),
        (["start", "finish"], "finished"),
        (["start", "failure"], "failed"),
        (["start", "interrupt"], "interrupted"),
        (["start", "interrupt", "start", "finish"], "finished"),
    ],
)
def test_the_status_is_the_launchers_last_word(run, kinds, status):
    assert run(*map(launcher_says, kinds)).status == status


def test_a_run_whose_launcher_died_was_interrupted(run):
    collector_left_alone = EventRecord(0.0, None, COLLECTOR, "interrupt", "")
    assert run(launcher_says("start"), collector_left_alone).status == "interrupted"
    assert run(launcher_says("failure"), collector_left_alone).status == "failed"


def test_names_come_from_the_configuration(run, tmp_path):
    (tmp_path / "config.toml").write_text('name = "first try"\n[algorithm]\nname = "sheaf-fmtl"\n')
    assert (run().name, run().algorithm) == ("first try", "sheaf-fmtl")


def test_without_a_configuration_a_run_is_called_as_its_folder(run, tmp_path):
    assert (run().name, run().algorithm) == (tmp_path.name, "?")


def test_a_run_in_progress_can_be_summarized(tmp_path):
    store = Store(tmp_path / "run.sqlite")
    store.write([node(0), after_round(0, 1)])
    store.commit()
    store.write([after_round(0, 2)])
    assert summarize(tmp_path).rounds == 1
    store.close()


def test_the_dictionary_is_plain_json(run):
    summary = run(node(0), after_round(0, 1, 0.5))
    assert json.loads(json.dumps(summary.as_dict(), allow_nan=False))["final"]["standard_error"] is None


@pytest.mark.parametrize("runs", [1, 3])
def test_every_figure_of_a_rendered_table_is_there(run, runs):
    summary = run(
        node(0), node(1), after_round(0, 1, 0.5), after_round(1, 1, 0.6), TrafficRecord(0, 1, 1, 1, 2_500_000, 3, 4)
    )
    console = Console(width=80, file=StringIO())
    console.print(render([summary] * runs))
    text = console.file.getvalue()
    assert "accuracy" in text
    assert text.count("55.0 ± 5.0 %") == runs
    assert text.count("2.50") == runs
    assert "…" not in text


def test_a_folder_without_records_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match=r"it has no run\.sqlite"):
        summarize(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a database at all, but long enough to look like something " * 50])
def test_a_file_that_is_no_database_of_a_run_is_refused(tmp_path, content):
    (tmp_path / "run.sqlite").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"run\.sqlite"):
        summarize(tmp_path)


def test_a_database_of_another_version_is_refused(tmp_path):
    Store(tmp_path / "run.sqlite").close()
    connection = sqlite3.connect(tmp_path / "run.sqlite")
    with connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    connection.close()
    with pytest.raises(RunFolderError, match="schema version 99"):
        summarize(tmp_path)


def test_a_broken_configuration_is_refused_with_its_path(run, tmp_path):
    (tmp_path / "config.toml").write_text("name = ")
    with pytest.raises(RunFolderError, match=r"config\.toml"):
        run()
