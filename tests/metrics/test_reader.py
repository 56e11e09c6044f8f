"""A run, and several in one folder, as pandas frames and as files."""

import csv
import importlib.util
import json
import os
import sqlite3
from contextlib import closing

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from chaos.records import Records
from made import done, write
from sheafgossip.metrics import open_run
from sheafgossip.metrics.export import EVENT_FILE, ExportError, export
from sheafgossip.metrics.reader import FRAMES, runs_in
from sheafgossip.metrics.records import TABLES, ResourceRecord
from sheafgossip.metrics.store import VIEWS, RunFolderError, Store
from sheafgossip.metrics.summary import summarize


def values_of(frame: pd.DataFrame) -> list[tuple]:
    return [tuple(None if pd.isna(value) else value for value in row) for row in frame.itertuples(index=False)]


def in_file(path) -> list[dict]:
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    return json.loads(path.read_text(), parse_constant=pytest.fail)


def test_every_table_and_view_and_nothing_else_is_a_frame_and_a_file_in_every_format(make_run, tmp_path):
    folder = write(make_run(metrics=((1 / 3, 2 / 3), (None, 1.0))), done(0, 3)._replace(train_loss=0.1))
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection:
        connection.executescript('CREATE TABLE "../../x"(a); CREATE TABLE passwords(a)')
    before, run = set(tmp_path.rglob("*")), open_run(folder)
    made = {to: export(folder, to, tmp_path / to) for to in ("csv", "json", "parquet")}
    assert set(FRAMES.values()) == {*TABLES, *VIEWS}
    for to, files in made.items():
        names = {f"{name}.{to}" for name in ("meta", *TABLES, *VIEWS)} | ({"summary.json"} if to == "json" else set())
        assert {path.name for path in files} == names
    assert set(tmp_path.rglob("*")) - before == {
        path for files in made.values() for file in files for path in (file, file.parent)
    }
    for attribute, name in FRAMES.items():
        rows, frame = Records(folder).rows(f"SELECT * FROM {name}"), getattr(run, attribute)
        assert attribute in dir(run)
        assert list(frame.columns) == Records(folder).columns(name)
        assert values_of(frame) == values_of(pd.read_parquet(tmp_path / "parquet" / f"{name}.parquet")) == rows
        csv_rows = [list(row.values()) for row in in_file(tmp_path / "csv" / f"{name}.csv")]
        assert csv_rows == [["" if value is None else str(value) for value in row] for row in rows]  # every digit
        assert [tuple(row.values()) for row in in_file(tmp_path / "json" / f"{name}.json")] == rows
    types = {"round": "int64", "virtual_s": "float64", "train_loss": "float64"}  # where all are missing, too
    for frame in (run.rounds, pd.read_parquet(tmp_path / "parquet" / "round.parquet")):
        assert {column: str(frame[column].dtype) for column in types} == types
    with pytest.raises(AttributeError, match="no 'round' in a run; its tables and views: nodes, rounds"):
        _ = run.round
    export(write(folder, done(0, 4)._replace(train_loss=float("inf"))), "json")
    rounds, told = (in_file(folder / "export" / name) for name in ("round.json", "summary.json"))
    assert [record["train_loss"] for record in rounds if record["round"] == 4] == [None]  # JSON has no infinity
    assert told == summarize(folder).as_dict()


def test_a_run_in_progress_is_read_anew_and_exported_and_a_query_cannot_change_it(make_run):
    folder = make_run()
    run = open_run(folder)
    assert run.sql("SELECT test_metric FROM round WHERE node = ? AND round = ?", [1, 2]).test_metric.tolist() == [1.0]
    assert run.sql("SELECT count(*) AS n FROM round WHERE node = :node", {"node": 0}).n.tolist() == [3]
    with pytest.raises(pd.errors.DatabaseError, match="readonly"):
        run.sql("DELETE FROM round")
    with closing(Store(folder / "run.sqlite")) as store:
        store.write([done(0, 3)])
        assert len(run.rounds) == 6
        export(folder, "csv")
        store.commit()
        assert len(run.rounds) == 7
    assert len(in_file(folder / "export" / "round.csv")) == 6


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


CONFIG = 'seed = {seed}\nclients = {clients}\n[algorithm]\nname = "dfedu"\nlam = {lam}\n[training]\nalpha = 0.1\n'


@pytest.fixture
def runs(make_run, tmp_path):
    """Runs "b" and "a", prepared in this order, and touched in the other."""
    (tmp_path / "runs").mkdir()
    for when, (name, lam, seed, clients) in enumerate([("b", 0.1, 0, 2), ("a", 0.2, 1, 3)]):
        run = make_run(f"runs/{name}", config=CONFIG.format(seed=seed, lam=lam, clients=clients))
        write(run, prepared=f"2026-11-22T18:30:00.00000{when}+00:00")
        os.utime(run / "config.toml", (9 - when, 9 - when))
    return tmp_path / "runs"


def test_frames_of_all_runs_have_a_column_for_each_differing_key_and_older_runs_stand_by_their_dates(runs):
    reader = open_run(runs)
    rounds = reader.rounds
    assert list(rounds.columns[:6]) == ["run", "seed", "clients", "algorithm.lam", "node", "round"]
    assert rounds.groupby("run", sort=False).size().to_dict() == {"b": 6, "a": 6}
    assert rounds[["run", "seed", "algorithm.lam"]].drop_duplicates().values.tolist() == [["b", 0, 0.1], ["a", 1, 0.2]]
    of_one = rounds[rounds.run == "a"].drop(columns=rounds.columns[:4]).reset_index(drop=True)
    pd.testing.assert_frame_equal(of_one, open_run(runs / "a").rounds)
    totals = reader.round_total  # a key that is called as a column is told apart
    assert (totals["config.clients"].unique().tolist(), totals.clients.unique().tolist()) == ([2, 3], [2])
    found = reader.sql("SELECT count(*) AS rows FROM round WHERE round > ?", [0])
    assert found[["run", "rows"]].values.tolist() == [["b", 4], ["a", 4]]
    assert [each.config["algorithm"]["lam"] for each in reader.runs] == [0.1, 0.2]
    for ask, what in ((lambda: reader.theta(0), "state"), (lambda: reader.config, "configuration")):
        with pytest.raises(RunFolderError, match=f"holds 2 runs, each with a {what} of its own"):
            ask()
    for run in runs.iterdir():
        with closing(sqlite3.connect(run / "run.sqlite")) as records, records:
            records.execute("DELETE FROM meta WHERE key = 'prepared'")
    assert [run.name for run in runs_in(runs)] == ["a", "b"]


@pytest.mark.parametrize("to", ["csv", "json", "parquet"])
def test_exports_hold_all_runs(runs, to):
    files = export(runs, to)
    with pytest.raises(ExportError, match="nothing is overwritten"):
        export(runs, to)
    assert {path.parent for path in files} == {runs / "export"}
    path = runs / "export" / f"round.{to}"
    rows = pd.read_parquet(path).to_dict("records") if to == "parquet" else in_file(path)
    assert [(row["run"], float(row["algorithm.lam"])) for row in rows[::6]] == [("b", 0.1), ("a", 0.2)]
    assert float(rows[-1]["test_metric"]) == 1.0
    assert rows[-1]["test_loss"] in ("", None) or pd.isna(rows[-1]["test_loss"])
    if to == "json":
        found = [(run["run"], run["algorithm.lam"], run["status"]) for run in in_file(runs / "export" / "summary.json")]
        assert found == [("b", 0.1, "finished"), ("a", 0.2, "finished")]


def test_an_unknown_format_is_refused_and_nothing_overwritten_nor_a_link_followed(make_run, tmp_path, monkeypatch):
    folder, mine = make_run(), tmp_path / "mine"
    mine.mkdir()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refusals = {"xlsx": "--to xlsx: allowed: csv, parquet, json", "parquet": r"pyarrow: .* -e '.\[parquet\]'"}
    refusals["tensorboard"] = r"needs tensorboard: .venv/bin/pip install -e '.\[tensorboard\]'"
    for to, complaint in refusals.items():
        with pytest.raises(ExportError, match=complaint):
            export(folder, to)
    assert not (folder / "export").exists()
    (mine / "round.csv").write_text("mine")
    with pytest.raises(ExportError, match=r"round\.csv exists; nothing is overwritten"):
        export(folder, "csv", mine)
    with pytest.raises(ExportError, match="cannot be written"):
        export(folder, "csv", mine / "round.csv" / "out")
    with pytest.raises(RunFolderError):
        export(tmp_path / "nothing", "csv")
    (folder / "export").symlink_to(mine)
    with pytest.raises(ExportError, match="export: is a symbolic link"):
        export(folder, "csv")
    (folder / "export").unlink()
    (folder / "export").mkdir()
    (folder / "export" / "round.csv.part").symlink_to(mine / "round.csv")
    export(folder, "csv")
    assert [(path.name, path.read_text()) for path in mine.iterdir()] == [("round.csv", "mine")]


def scalars(folder):
    """{tag: [(step, wall seconds, value), ...]} of a run, as tensorboard itself reads them."""
    module = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(module, reason="the package tensorboard is not installed")
    (file,) = export(folder, "tensorboard")
    assert file == folder / "export" / EVENT_FILE
    events = accumulator.EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
    told = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    return {tag: [(each.step, each.wall_time, each.value) for each in values] for tag, values in told.items()}


def test_every_round_is_there_with_its_wall_time(make_run):
    rounds = [done(client, 3, wall_s=3.0 + client, disagreement=2.0) for client in (0, 1)]
    found = scalars(write(make_run(), *rounds, ResourceRecord(0, 3.5, 300, 150, 100, 400, 2.0, 60)))
    assert found["mean/test_metric"] == [
        (0, 0.5, pytest.approx(0.2)), (1, 1.5, pytest.approx(0.6)), (2, 2.5, pytest.approx(0.9)),
    ]  # fmt: skip
    assert [value for *_, value in found["worst_10/test_metric"]] == pytest.approx([0.1, 0.5, 0.8])
    assert found["sum/payload_bytes"] == [(1, 1.5, 2000.0), (2, 2.5, 2000.0)]
    assert found["sum/pss"] == [(2, 2.5, 400.0), (3, 4.0, 350.0)]
    assert found["mean/disagreement"] == [(3, 4.0, 2.0)]
    assert found["mean/train_loss"][-1] == (3, 4.0, 0.5)
    assert found["client_0001/test_metric"][1:] == [(1, 1.5, pytest.approx(0.7)), (2, 2.5, 1.0)]
    assert found["client_0000/train_loss"][-1] == (3, 3.0, 0.5)
    errors = scalars(make_run("error", metric="mse"))["worst_10/test_metric"]  # the worst are those with the largest
    assert [value for *_, value in errors] == pytest.approx([0.3, 0.7, 1.0])
