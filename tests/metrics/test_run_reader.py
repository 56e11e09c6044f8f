"""A run as pandas frames."""

import sqlite3
import subprocess
import sys
import tomllib

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from sheafgossip.metrics import bytes_to_reach, open_run
from sheafgossip.metrics.records import RoundRecord
from sheafgossip.metrics.schema import RunFolderError
from sheafgossip.metrics.store import Store
from sheafgossip.metrics.target import Reached

TABLES = {
    "nodes": "node",
    "rounds": "round",
    "traffic": "traffic",
    "resources": "resource",
    "events": "event",
    "edges": "edge",
    "overhead": "overhead",
    "work": "work",
    "kernel": "kernel",
    "used": "used",
}


@pytest.mark.parametrize("attribute", TABLES)
def test_every_table_is_a_frame_with_its_columns_and_rows(make_run, attribute):
    folder = make_run()
    connection = sqlite3.connect(folder / "run.sqlite")
    cursor = connection.execute(f"SELECT * FROM {TABLES[attribute]}")
    columns, rows = [column[0] for column in cursor.description], cursor.fetchall()
    connection.close()
    frame = getattr(open_run(folder), attribute)
    assert list(frame.columns) == columns
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


def test_a_query_takes_parameters_by_place_and_by_name(make_run):
    run = open_run(make_run())
    assert run.sql("SELECT test_metric FROM round WHERE node = ? AND round = ?", [1, 2]).test_metric.tolist() == [1.0]
    assert run.sql("SELECT count(*) AS n FROM round WHERE node = :node", {"node": 0}).n.tolist() == [3]


def test_a_query_cannot_change_the_records(make_run):
    run = open_run(make_run())
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


def test_the_configuration_is_the_files(make_run):
    text = 'seed = 3\n[algorithm]\nname = "dfedu"\n'
    assert open_run(make_run(config=text)).config == tomllib.loads(text)


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


def test_a_folder_that_is_no_run_is_refused_at_once(tmp_path):
    with pytest.raises(RunFolderError, match=r"it has no run\.sqlite"):
        open_run(tmp_path)


def test_the_target_is_reached_in_the_first_round_that_is_good_enough(make_run):
    assert bytes_to_reach(make_run(payload=100), 0.6) == Reached(
        round=1, payload_bytes=200, message_bytes=240, wire_bytes=260, wall_s=1.5
    )


def test_an_error_has_to_fall_to_its_target(make_run):
    folder = make_run(metrics=((9.0, 7.0), (5.0, 3.0), (2.0, 2.0)), metric="mse")
    reached = bytes_to_reach(folder, 4.0)
    assert reached is not None
    assert reached.round == 1
    assert bytes_to_reach(folder, 1.0) is None


def test_a_round_that_some_have_not_evaluated_reaches_nothing(make_run):
    folder = make_run(metrics=((0.1, 0.1), (0.9, None), (0.7, 0.9)))
    reached = bytes_to_reach(folder, 0.8)
    assert reached is not None
    assert reached.round == 2


def test_a_target_that_was_not_reached_is_none(make_run):
    assert bytes_to_reach(make_run(), 0.95) is None


def test_importing_the_package_costs_no_library():
    code = (
        "import sys, sheafgossip.metrics, sheafgossip.metrics.collector;"
        "print(*[name for name in ('pandas', 'numpy', 'pyarrow') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []
