"""The tables of a run as files."""

import csv
import importlib.util
import json
import sqlite3

import pandas as pd
import pytest

from sheafgossip.metrics.export import export
from sheafgossip.metrics.records import TABLES, ResourceRecord, RoundRecord
from sheafgossip.metrics.schema import VIEWS, ExportError, RunFolderError
from sheafgossip.metrics.store import Store
from sheafgossip.metrics.summary import summarize


def rows(folder, name):
    connection = sqlite3.connect(folder / "run.sqlite")
    found = connection.execute(f"SELECT * FROM {name}").fetchall()
    connection.close()
    return found


@pytest.mark.parametrize("to", ["csv", "parquet", "json"])
def test_every_table_and_view_becomes_a_file(make_run, to):
    folder = make_run()
    names = [name for (name,) in rows(folder, "(SELECT name FROM sqlite_schema WHERE type IN ('table', 'view'))")]
    files = export(folder, to)
    assert {path.name for path in files} - {"summary.json"} == {f"{name}.{to}" for name in names}
    assert {path.parent for path in files} == {folder / "export"}
    assert sorted((folder / "export").iterdir()) == sorted(files)


@pytest.mark.parametrize("name", ["round", "traffic", "work", "client_total", "edge"])
def test_csv_holds_every_digit(make_run, name, tmp_path):
    folder = make_run(metrics=((1 / 3, 2 / 3),))
    export(folder, "csv", tmp_path / "out")
    with (tmp_path / "out" / f"{name}.csv").open(newline="") as file:
        _, *lines = csv.reader(file)
    assert lines == [["" if value is None else str(value) for value in row] for row in rows(folder, name)]


@pytest.mark.parametrize("name", ["round", "traffic", "work", "client_total", "edge"])
def test_json_is_an_array_of_records(make_run, name, tmp_path):
    folder = make_run(metrics=((1 / 3, 2 / 3),))
    export(folder, "json", tmp_path / "out")
    records = json.loads((tmp_path / "out" / f"{name}.json").read_text())
    assert [tuple(record.values()) for record in records] == rows(folder, name)


def test_json_comes_with_the_summary(make_run):
    folder = make_run()
    export(folder, "json")
    assert json.loads((folder / "export" / "summary.json").read_text()) == summarize(folder).as_dict()


def test_infinity_is_null_in_json(make_run):
    folder = make_run()
    store = Store(folder / "run.sqlite")
    store.write([RoundRecord(0, 3, float("inf"), None, None, 1.0, 3.0)])
    store.close()
    export(folder, "json")
    records = json.loads((folder / "export" / "round.json").read_text(), parse_constant=pytest.fail)
    assert [record["train_loss"] for record in records if record["round"] == 3] == [None]


def test_parquet_keeps_values_and_types(make_run):
    folder = make_run()
    export(folder, "parquet")
    frame = pd.read_parquet(folder / "export" / "round.parquet")
    assert [tuple(None if pd.isna(value) else value for value in row) for row in frame.itertuples(index=False)] == rows(
        folder, "round"
    )
    assert (frame["round"].dtype, frame["virtual_s"].dtype) == ("int64", "float64")


def test_without_pyarrow_parquet_is_refused_before_anything_is_written(make_run, monkeypatch):
    folder = make_run()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExportError, match=r"pyarrow: .venv/bin/pip install -e '.\[parquet\]'"):
        export(folder, "parquet")
    assert not (folder / "export").exists()


def test_files_that_exist_are_kept_and_nothing_is_added(make_run, tmp_path):
    folder, out = make_run(), tmp_path / "out"
    out.mkdir()
    (out / "round.csv").write_text("mine")
    with pytest.raises(ExportError, match=r"round\.csv exists; nothing is overwritten"):
        export(folder, "csv", out)
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [("round.csv", "mine")]


def test_other_files_in_the_folder_do_not_matter(make_run, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    export(make_run(), "csv", tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_told(make_run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot be written"):
        export(make_run(), "csv", tmp_path / "file" / "out")


def test_a_run_in_progress_can_be_exported(make_run):
    folder = make_run()
    store = Store(folder / "run.sqlite")
    store.write([ResourceRecord(0, 1.0, 1, 1, 1, 1, 0.0, 0)])
    export(folder, "csv")
    store.close()
    assert len((folder / "export" / "resource.csv").read_text().splitlines()) == 3  # the titles, and two clients


def test_an_unknown_format_is_refused_with_those_that_are_known(make_run):
    with pytest.raises(ExportError, match="--to xlsx: allowed: csv, parquet, json"):
        export(make_run(), "xlsx")


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError):
        export(tmp_path, "csv")


def test_only_tables_and_views_of_a_run_become_files_below_the_folder(make_run, tmp_path):
    folder = make_run()
    connection = sqlite3.connect(folder / "run.sqlite")
    connection.execute('CREATE TABLE "../../x"(a)')
    connection.execute("CREATE TABLE passwords(a)")
    connection.close()
    before = set(tmp_path.rglob("*"))
    files = export(folder, "csv")
    assert set(tmp_path.rglob("*")) - before == {folder / "export", *files}
    assert {path.stem for path in files} == {"meta", *TABLES, *VIEWS}


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
