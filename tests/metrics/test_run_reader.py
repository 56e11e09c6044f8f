"""A run, and several in one folder, as pandas frames."""

import csv
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from chaos.records import Records
from sheafgossip.metrics import bytes_to_reach, open_run
from sheafgossip.metrics.export import export
from sheafgossip.metrics.reader import runs_in
from sheafgossip.metrics.records import RoundRecord
from sheafgossip.metrics.run_reader import RunReader
from sheafgossip.metrics.schema import ExportError, RunFolderError
from sheafgossip.metrics.store import Store
from sheafgossip.metrics.summary import Reached

TABLES = {"nodes": "node", "rounds": "round", "resources": "resource", "events": "event", "edges": "edge"}
TABLES |= {name: name for name in ("traffic", "overhead", "work", "kernel", "used")}


@pytest.mark.parametrize("attribute", TABLES)
def test_every_table_is_a_frame_with_its_columns_and_rows(make_run, attribute):
    folder = make_run()
    rows = Records(folder).rows(f"SELECT * FROM {TABLES[attribute]}")
    frame = getattr(open_run(folder), attribute)
    assert list(frame.columns) == Records(folder).columns(TABLES[attribute])
    assert [tuple(None if pd.isna(value) else value for value in row) for row in frame.itertuples(index=False)] == rows


def test_every_view_is_a_property_of_the_same_name(make_run):
    folder = make_run()
    run = open_run(folder)
    views = run.sql("SELECT name FROM sqlite_schema WHERE type = 'view'").name
    assert len(views) > 0
    for view in views:
        assert len(getattr(run, view)) == run.sql(f"SELECT count(*) AS rows FROM {view}").rows[0]


def test_numbers_are_numbers_also_where_all_are_missing(make_run):
    run = open_run(make_run())
    assert run.rounds.virtual_s.dtype == np.float64
    assert run.rounds["round"].dtype == np.int64
    assert run.edges.map_norm.dtype == np.float64


def test_cumulative_bytes_are_running_sums_of_the_rounds(make_run):
    run = open_run(make_run(payload=7))
    assert run.round_cumulative.payload_bytes.tolist() == [0, 14, 28]
    assert run.round_cumulative.wire_bytes.tolist() == [0, 74, 148]
    assert run.round_cumulative.mean_test_metric.tolist() == pytest.approx([0.2, 0.6, 0.9])
    assert run.round_cumulative.wall_s.tolist() == [0.5, 1.5, 2.5]


def test_a_query_takes_parameters_by_place_and_by_name_and_cannot_change_the_records(make_run):
    run = open_run(make_run())
    assert run.sql("SELECT test_metric FROM round WHERE node = ? AND round = ?", [1, 2]).test_metric.tolist() == [1.0]
    assert run.sql("SELECT count(*) AS n FROM round WHERE node = :node", {"node": 0}).n.tolist() == [3]
    with pytest.raises(pd.errors.DatabaseError, match="readonly"):
        run.sql("DELETE FROM round")
    assert len(run.rounds) == 6


def test_a_run_in_progress_is_read_anew_at_each_access(make_run):
    folder = make_run()
    run = open_run(folder)
    store = Store(folder / "run.sqlite")
    store.write([RoundRecord(0, 3, 0.5, None, None, 1.0, 3.0)])
    assert len(run.rounds) == 6
    store.commit()
    assert len(run.rounds) == 7
    store.close()


def test_theta_of_every_client_comes_from_the_state_files(make_run):
    folder = make_run()
    for round in (0, 40):
        (folder / "state" / f"round-{round:06d}").mkdir(parents=True)
        for client in (0, 11):
            theta = np.full(2 + client, round + client, dtype=np.float32)
            path = folder / "state" / f"round-{round:06d}" / f"node-{client:04d}.safetensors"
            save_file({"theta": theta, "P.1": np.zeros((3, 3))}, path)
    away = folder / "state" / "round-000040" / "sent-0003.safetensors"
    save_file({"sent.0.39.0": np.zeros(2)}, away)
    run = open_run(folder)
    assert run.state_rounds == [0, 40]
    assert {client: theta.tolist() for client, theta in run.theta(40).items()} == {0: [40.0] * 2, 11: [51.0] * 13}
    with pytest.raises(RunFolderError, match="no state of round 7; rounds with state: 0, 40"):
        run.theta(7)


def test_the_target_is_reached_in_the_first_round_that_is_good_enough(make_run):
    assert bytes_to_reach(make_run(payload=100), 0.6) == Reached(
        round=1, payload_bytes=200, message_bytes=240, wire_bytes=260, wall_s=1.5
    )


def test_an_error_has_to_fall_to_its_target(make_run):
    folder = make_run(metrics=((9.0, 7.0), (5.0, 3.0), (2.0, 2.0)), metric="mse")
    assert bytes_to_reach(folder, 4.0).round == 1
    assert bytes_to_reach(folder, 1.0) is None
    with pytest.raises(RunFolderError, match=r"it has no run\.sqlite"):
        open_run(folder / "nothing")


def test_a_round_that_some_have_not_evaluated_reaches_nothing(make_run):
    folder = make_run(metrics=((0.1, 0.1), (0.9, None), (0.7, 0.9)))
    assert bytes_to_reach(folder, 0.8).round == 2


def test_importing_the_package_costs_no_library():
    code = (
        "import sys, sheafgossip.metrics, sheafgossip.metrics.collector;"
        "print(*[name for name in ('pandas', 'numpy', 'pyarrow') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []


CONFIG = 'seed = {seed}\nclients = {clients}\n[algorithm]\nname = "dfedu"\nlam = {lam}\n[training]\nalpha = 0.1\n'


@pytest.fixture
def folder(make_run, tmp_path):
    """Runs "b" and "a", prepared in this order, and touched in the other."""
    (tmp_path / "runs").mkdir()
    for when, (name, lam, seed, clients) in enumerate([("b", 0.1, 0, 2), ("a", 0.2, 1, 3)]):
        run = make_run(f"runs/{name}", config=CONFIG.format(seed=seed, lam=lam, clients=clients))
        with closing(sqlite3.connect(run / "run.sqlite")) as records, records:
            records.execute("INSERT INTO meta VALUES ('prepared', ?)", [f"2026-11-22T18:30:00.00000{when}+00:00"])
        os.utime(run / "config.toml", (9 - when, 9 - when))
    return tmp_path / "runs"


def test_frames_of_all_runs_have_a_column_for_each_differing_key(folder):
    reader = open_run(folder)
    rounds = reader.rounds
    assert list(rounds.columns[:6]) == ["run", "seed", "clients", "algorithm.lam", "node", "round"]
    assert rounds.groupby("run", sort=False).size().to_dict() == {"b": 6, "a": 6}
    assert rounds[["run", "seed", "algorithm.lam"]].drop_duplicates().values.tolist() == [["b", 0, 0.1], ["a", 1, 0.2]]
    of_one = rounds[rounds.run == "a"].drop(columns=rounds.columns[:4]).reset_index(drop=True)
    pd.testing.assert_frame_equal(of_one, RunReader(folder / "a").rounds)


def test_runs_of_before_they_told_when_are_in_the_order_of_their_dates(folder):
    for run in folder.iterdir():
        with closing(sqlite3.connect(run / "run.sqlite")) as records, records:
            records.execute("DELETE FROM meta WHERE key = 'prepared'")
    assert [run.name for run in runs_in(folder)] == ["a", "b"]


def test_a_key_that_is_called_as_a_column_is_told_apart(folder):
    totals = open_run(folder).round_total
    assert totals["config.clients"].unique().tolist() == [2, 3]
    assert totals.clients.unique().tolist() == [2]


def test_a_query_is_asked_of_every_run(folder):
    found = open_run(folder).sql("SELECT count(*) AS rows FROM round WHERE round > ?", [0])
    assert found[["run", "rows"]].values.tolist() == [["b", 4], ["a", 4]]


def test_what_only_one_run_can_have_is_asked_of_each(folder):
    reader = open_run(folder)
    assert [each.config["algorithm"]["lam"] for each in reader.runs] == [0.1, 0.2]
    with pytest.raises(RunFolderError, match="holds 2 runs, each with a state of its own"):
        reader.theta(0)


@pytest.mark.parametrize("to", ["csv", "json", "parquet"])
def test_exports_hold_all_runs(folder, to):
    files = export(folder, to)
    with pytest.raises(ExportError, match="nothing is overwritten"):
        export(folder, to)
    assert {path.parent for path in files} == {folder / "export"}
    path = folder / "export" / f"round.{to}"
    if to == "csv":
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    else:
        rows = json.loads(path.read_text()) if to == "json" else pd.read_parquet(path).to_dict("records")
    assert [(row["run"], float(row["algorithm.lam"])) for row in rows[::6]] == [("b", 0.1), ("a", 0.2)]
    assert float(rows[-1]["test_metric"]) == 1.0
    assert rows[-1]["test_loss"] in ("", None) or pd.isna(rows[-1]["test_loss"])
    if to == "json":
        summaries = json.loads((folder / "export" / "summary.json").read_text())
        assert [(run["run"], run["algorithm.lam"], run["status"]) for run in summaries] == [
            ("b", 0.1, "finished"),
            ("a", 0.2, "finished"),
        ]
