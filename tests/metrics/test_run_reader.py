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
from made import done
from sheafgossip.metrics import bytes_to_reach, open_run
from sheafgossip.metrics.export import ExportError, export
from sheafgossip.metrics.reader import FRAMES, RunReader, runs_in
from sheafgossip.metrics.store import RunFolderError, Store
from sheafgossip.metrics.summary import Reached


@pytest.mark.parametrize("attribute", FRAMES)
def test_every_table_and_view_is_a_frame_with_its_columns_and_rows(make_run, attribute):
    folder = make_run()
    run, relation = open_run(folder), FRAMES[attribute]
    frame = getattr(run, attribute)
    assert attribute in dir(run)
    assert list(frame.columns) == Records(folder).columns(relation)
    rows = [tuple(None if pd.isna(value) else value for value in row) for row in frame.itertuples(index=False)]
    assert rows == Records(folder).rows(f"SELECT * FROM {relation}")


def test_the_names_of_the_frames_are_those_of_tables_and_views_and_numbers_are_numbers_where_all_are_missing(make_run):
    run = open_run(make_run())
    there = run.sql("SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name <> 'meta'").name
    assert set(FRAMES.values()) == set(there)
    assert {"nodes", "rounds", "traffic", "resources", "events", "edges", "overhead", "work", "used"} <= set(FRAMES)
    types = run.rounds.virtual_s.dtype, run.rounds["round"].dtype, run.edges.map_norm.dtype
    assert types == (np.float64, np.int64, np.float64)
    with pytest.raises(AttributeError, match="no 'round' in a run; its tables and views: nodes, rounds"):
        _ = run.round


def test_cumulative_bytes_are_running_sums_of_the_rounds(make_run):
    found = open_run(make_run(payload=7)).round_cumulative
    assert found.payload_bytes.tolist() == [0, 14, 28]
    assert found.wire_bytes.tolist() == [0, 74, 148]
    assert found.mean_test_metric.tolist() == pytest.approx([0.2, 0.6, 0.9])
    assert found.wall_s.tolist() == [0.5, 1.5, 2.5]


def test_a_run_in_progress_is_read_anew_and_a_query_cannot_change_it(make_run):
    folder = make_run()
    run = open_run(folder)
    assert run.sql("SELECT test_metric FROM round WHERE node = ? AND round = ?", [1, 2]).test_metric.tolist() == [1.0]
    assert run.sql("SELECT count(*) AS n FROM round WHERE node = :node", {"node": 0}).n.tolist() == [3]
    with pytest.raises(pd.errors.DatabaseError, match="readonly"):
        run.sql("DELETE FROM round")
    with closing(Store(folder / "run.sqlite")) as store:
        store.write([done(0, 3)])
        assert len(run.rounds) == 6
        store.commit()
        assert len(run.rounds) == 7


def test_theta_of_every_client_comes_from_the_state_files(make_run):
    folder = make_run()
    for round in (0, 40):
        state = folder / "state" / f"round-{round:06d}"
        state.mkdir(parents=True)
        for client in (0, 11):
            theta = np.full(2 + client, round + client, dtype=np.float32)
            save_file({"theta": theta, "P.1": np.zeros((3, 3))}, state / f"node-{client:04d}.safetensors")
    save_file({"sent.0.39.0": np.zeros(2)}, state / "sent-0003.safetensors")
    run = open_run(folder)
    assert run.state_rounds == [0, 40]
    assert {client: theta.tolist() for client, theta in run.theta(40).items()} == {0: [40.0] * 2, 11: [51.0] * 13}
    with pytest.raises(RunFolderError, match="no state of round 7; rounds with state: 0, 40"):
        run.theta(7)


def test_the_target_is_reached_in_the_first_round_that_is_good_enough_and_evaluated_by_all(make_run):
    reached = Reached(round=1, payload_bytes=200, message_bytes=240, wire_bytes=260, wall_s=1.5)
    assert bytes_to_reach(make_run(payload=100), 0.6) == reached
    assert bytes_to_reach(make_run("some", ((0.1, 0.1), (0.9, None), (0.7, 0.9))), 0.8).round == 2
    falling = make_run("mse", ((9.0, 7.0), (5.0, 3.0), (2.0, 2.0)), metric="mse")
    assert bytes_to_reach(falling, 4.0).round == 1
    assert bytes_to_reach(falling, 1.0) is None


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
    totals = reader.round_total  # a key that is called as a column is told apart
    assert (totals["config.clients"].unique().tolist(), totals.clients.unique().tolist()) == ([2, 3], [2])
    found = reader.sql("SELECT count(*) AS rows FROM round WHERE round > ?", [0])
    assert found[["run", "rows"]].values.tolist() == [["b", 4], ["a", 4]]


def test_what_only_one_run_can_have_is_asked_of_each(folder):
    reader = open_run(folder)
    assert [each.config["algorithm"]["lam"] for each in reader.runs] == [0.1, 0.2]
    for ask, what in ((lambda: reader.theta(0), "state"), (lambda: reader.config, "configuration")):
        with pytest.raises(RunFolderError, match=f"holds 2 runs, each with a {what} of its own"):
            ask()


def test_runs_of_before_they_told_when_are_in_the_order_of_their_dates(folder):
    for run in folder.iterdir():
        with closing(sqlite3.connect(run / "run.sqlite")) as records, records:
            records.execute("DELETE FROM meta WHERE key = 'prepared'")
    assert [run.name for run in runs_in(folder)] == ["a", "b"]


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
        found = [(run["run"], run["algorithm.lam"], run["status"]) for run in summaries]
        assert found == [("b", 0.1, "finished"), ("a", 0.2, "finished")]
