"""The tables of a run as files."""

import csv
import importlib.util
import json
import sqlite3
from contextlib import closing

import pandas as pd
import pytest

from chaos.records import Records
from made import write
from sheafgossip.metrics.export import EVENT_FILE, ExportError, export
from sheafgossip.metrics.records import TABLES, ResourceRecord, RoundRecord
from sheafgossip.metrics.store import VIEWS, RunFolderError, Store
from sheafgossip.metrics.summary import summarize


def rows(folder, name):
    return Records(folder).rows(f"SELECT * FROM {name}")


@pytest.mark.parametrize("to", ["csv", "parquet", "json"])
def test_every_table_and_view_of_a_run_becomes_a_file_and_nothing_else_in_the_database(make_run, tmp_path, to):
    folder = make_run()
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection:
        connection.executescript('CREATE TABLE "../../x"(a); CREATE TABLE passwords(a)')
    before = set(tmp_path.rglob("*"))
    files = export(folder, to)
    names = {f"{name}.{to}" for name in ("meta", *TABLES, *VIEWS)} | ({"summary.json"} if to == "json" else set())
    assert {path.name for path in files} == names
    assert set(tmp_path.rglob("*")) - before == {folder / "export", *files}


@pytest.mark.parametrize("name", ["round", "traffic", "work", "client_total", "edge"])
def test_csv_holds_every_digit_json_an_array_of_records_and_parquet_the_types(make_run, name, tmp_path):
    folder = write(make_run(metrics=((1 / 3, 2 / 3),)), RoundRecord(0, 3, 0.1, None, None, 1.0, 3.0))
    export(folder, "csv", tmp_path)
    with (tmp_path / f"{name}.csv").open(newline="") as file:
        _, *lines = csv.reader(file)
    assert lines == [["" if value is None else str(value) for value in row] for row in rows(folder, name)]
    export(folder, "json", tmp_path)
    records = json.loads((tmp_path / f"{name}.json").read_text())
    assert [tuple(record.values()) for record in records] == rows(folder, name)
    assert json.loads((tmp_path / "summary.json").read_text()) == summarize(folder).as_dict()
    export(folder, "parquet", tmp_path)
    frame = pd.read_parquet(tmp_path / f"{name}.parquet")
    found = [tuple(None if pd.isna(value) else value for value in row) for row in frame.itertuples(index=False)]
    assert found == rows(folder, name)
    if name == "round":
        assert (frame["round"].dtype, frame["virtual_s"].dtype) == ("int64", "float64")


@pytest.mark.parametrize(
    ("to", "complaint"),
    [
        ("xlsx", "--to xlsx: allowed: csv, parquet, json"),
        ("parquet", r"pyarrow: .venv/bin/pip install -e '.\[parquet\]'"),
        ("tensorboard", r"needs tensorboard: .venv/bin/pip install -e '.\[tensorboard\]'"),
    ],
)
def test_a_format_that_is_unknown_or_not_installed_is_refused_before_anything_is_written(
    make_run, monkeypatch, to, complaint
):
    folder = make_run()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExportError, match=complaint):
        export(folder, to)
    assert not (folder / "export").exists()


def test_a_folder_that_cannot_be_made_or_is_no_run_is_told(make_run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot be written"):
        export(make_run(), "csv", tmp_path / "file" / "out")
    with pytest.raises(RunFolderError):
        export(tmp_path / "nothing", "csv")


def test_infinity_is_null_in_json(make_run):
    folder = write(make_run(), RoundRecord(0, 3, float("inf"), None, None, 1.0, 3.0))
    export(folder, "json")
    records = json.loads((folder / "export" / "round.json").read_text(), parse_constant=pytest.fail)
    assert [record["train_loss"] for record in records if record["round"] == 3] == [None]


def test_a_run_in_progress_can_be_exported_and_files_that_exist_are_kept(make_run, tmp_path):
    folder, out = make_run(), tmp_path / "out"
    with closing(Store(folder / "run.sqlite")) as store:
        store.write([ResourceRecord(0, 1.0, 1, 1, 1, 1, 0.0, 0)])
        export(folder, "csv")
    assert len((folder / "export" / "resource.csv").read_text().splitlines()) == 3  # the titles, and two clients
    out.mkdir()
    (out / "round.csv").write_text("mine")
    with pytest.raises(ExportError, match=r"round\.csv exists; nothing is overwritten"):
        export(folder, "csv", out)
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [("round.csv", "mine")]


def test_a_link_in_a_run_folder_is_not_written_through(make_run, tmp_path):
    folder, home = make_run(), tmp_path / "home"
    home.mkdir()
    (home / "document").write_text("mine")
    (folder / "export").symlink_to(home)
    with pytest.raises(ExportError, match="export: is a symbolic link"):
        export(folder, "csv")
    (folder / "export").unlink()
    (folder / "export").mkdir()
    (folder / "export" / "round.csv.part").symlink_to(home / "document")
    export(folder, "csv")
    assert [(path.name, path.read_text()) for path in home.iterdir()] == [("document", "mine")]


@pytest.fixture
def scalars():
    """{tag: [(step, wall seconds, value), ...]} of a run, as tensorboard itself reads them."""
    module = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(module, reason="the package tensorboard is not installed")

    def scalars(folder):
        assert export(folder, "tensorboard") == [folder / "export" / EVENT_FILE]
        events = accumulator.EventAccumulator(str(folder / "export" / EVENT_FILE), size_guidance={"scalars": 0})
        events.Reload()
        found = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
        return {tag: [(event.step, event.wall_time, event.value) for event in each] for tag, each in found.items()}

    return scalars


def test_every_round_is_there_with_its_wall_time(make_run, scalars):
    rounds = [RoundRecord(client, 3, 0.25, None, None, 1.0, 3.0 + client, disagreement=2.0) for client in (0, 1)]
    found = scalars(write(make_run(), *rounds, ResourceRecord(0, 3.5, 300, 150, 100, 400, 2.0, 60)))
    assert found["mean/test_metric"] == [
        (0, 0.5, pytest.approx(0.2)), (1, 1.5, pytest.approx(0.6)), (2, 2.5, pytest.approx(0.9)),
    ]  # fmt: skip
    assert [value for *_, value in found["worst_10/test_metric"]] == [pytest.approx(x) for x in (0.1, 0.5, 0.8)]
    assert found["sum/payload_bytes"] == [(1, 1.5, 2000.0), (2, 2.5, 2000.0)]
    assert found["sum/pss"] == [(2, 2.5, 400.0), (3, 4.0, 350.0)]
    assert found["mean/disagreement"] == [(3, 4.0, 2.0)]
    assert found["mean/train_loss"][-1] == (3, 4.0, 0.25)
    assert found["client_0001/test_metric"][1:] == [(1, 1.5, pytest.approx(0.7)), (2, 2.5, 1.0)]
    assert found["client_0000/train_loss"][-1] == (3, 3.0, 0.25)


def test_the_worst_clients_are_those_with_the_largest_error(make_run, scalars):
    found = scalars(make_run(metric="mse"))["worst_10/test_metric"]
    assert [value for *_, value in found] == [pytest.approx(x) for x in (0.3, 0.7, 1.0)]
