"""Several runs in one folder: one frame, with a column for each key in which they differ."""

import csv
import json
import os
import sqlite3
from contextlib import closing

import pandas as pd
import pytest

from sheafgossip.metrics import open_run
from sheafgossip.metrics.export import export
from sheafgossip.metrics.reader import runs_in
from sheafgossip.metrics.run_reader import RunReader
from sheafgossip.metrics.schema import ExportError, RunFolderError

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


def test_summaries_of_all_runs_are_in_one_file_with_their_keys(folder):
    export(folder, "json")
    summaries = json.loads((folder / "export" / "summary.json").read_text())
    assert [(each["run"], each["algorithm.lam"], each["status"]) for each in summaries] == [
        ("b", 0.1, "finished"),
        ("a", 0.2, "finished"),
    ]


def test_nothing_of_an_export_of_several_runs_is_overwritten(folder):
    export(folder, "csv")
    with pytest.raises(ExportError, match="nothing is overwritten"):
        export(folder, "csv")
