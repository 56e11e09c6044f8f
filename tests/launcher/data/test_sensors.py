"""Windows of time series, a sensor a client."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sheafgossip.launcher.config.data import DataSection
from sheafgossip.launcher.data import DataError, cut, load

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
VALUES = np.arange(20)[:, None] + 100 * np.arange(3)[None]
"""At moment t, sensor s shows t + 100 s."""


def sensors(path, **keys):
    return load(DataSection(dataset="sensors", root=path, **{"window": 4, "horizon": 2} | keys), 0)


@pytest.fixture(params=["csv", "csv with time", "parquet", "npz", "npz with channels"])
def file(request, tmp_path):
    frame = pd.DataFrame(VALUES, columns=["a", "b", "c"])
    match request.param:
        case "csv":
            frame.to_csv(tmp_path / "v.csv", index=False)
        case "csv with time":
            times = pd.date_range("2020-01-01", periods=20, freq="5min").astype(str)
            frame.assign(time=times).to_csv(tmp_path / "v.csv", index=False)
        case "parquet":
            pytest.importorskip("pyarrow")
            frame.to_parquet(tmp_path / "v.parquet")
        case "npz":
            np.savez(tmp_path / "v.npz", values=VALUES)
        case "npz with channels":
            np.savez(tmp_path / "v.npz", data=np.stack([VALUES, -VALUES], axis=2))
    return next(tmp_path.iterdir())


def test_a_sample_is_a_window_and_the_values_that_follow_it(file):
    pool = sensors(file)
    assert (pool.x.shape, pool.y.shape, pool.task, pool.outputs) == ((45, 4), (45, 2), "regression", 2)
    for sensor in range(3):
        start = 100 * sensor + np.arange(15)[:, None]
        assert np.array_equal(pool.x[pool.client == sensor], start + np.arange(4))
        assert np.array_equal(pool.y[pool.client == sensor], start + 4 + np.arange(2))


@pytest.mark.parametrize("partition", ["natural", "even"])
def test_test_samples_are_the_latest_of_a_client(file, partition):
    section = DataSection(dataset="sensors", partition=partition)
    for client, shard in enumerate(cut(section, sensors(file), 3, seed=0)):
        train, test = shard.y_train[:, 0] % 100, shard.y_test[:, 0] % 100
        assert train.max() <= test.min()
        if partition == "natural":
            assert train.max() < test.min()
            assert {int(value) // 100 for value in shard.y_train[:, 0]} == {client}


def test_reduced_training_data_is_the_latest_before_the_test_samples(file):
    section = DataSection(dataset="sensors", reduced_clients=1, reduced_to=0.5)
    for shard in cut(section, sensors(file), 3, seed=0):
        assert sorted(shard.y_train[:, 0] % 100) == [9, 10, 11, 12, 13, 14]
        assert sorted(shard.y_test[:, 0] % 100) == [15, 16, 17, 18]


def test_a_series_just_long_enough_gives_one_window_a_sensor(file):
    assert len(sensors(file, window=18)) == 3


def test_a_series_shorter_than_window_and_horizon_is_refused(file):
    with pytest.raises(DataError, match=r"holds 20 moments, but data\.window and data\.horizon together take 21"):
        sensors(file, window=19)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("a,b\n1,2\n3,\n", "b holds NaN, .* in row 1"),
        ("a,b\n1,2\n3,x\n", "b has type .*; allowed are whole and real numbers"),
        ("time\n1\n2\n", "it has no column of a sensor"),
    ],
)
def test_a_table_that_holds_no_series_is_refused(tmp_path, content, complaint):
    (tmp_path / "v.csv").write_text(content)
    with pytest.raises(DataError, match=complaint):
        sensors(tmp_path / "v.csv")


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"speeds": VALUES}, "it holds arrays speeds; needed is values or data"),
        ({"values": VALUES[:, 0]}, r"values has shape \(20,\)"),
        ({"values": VALUES.astype(object)}, "values is damaged or holds Python objects"),
    ],
)
def test_arrays_that_hold_no_series_are_refused(tmp_path, arrays, complaint):
    np.savez(tmp_path / "v.npz", **arrays)
    with pytest.raises(DataError, match=complaint):
        sensors(tmp_path / "v.npz")


def test_a_week_of_metr_la_has_207_sensors():
    path = SHARED / "metr-la-week" / "los_speed.csv.gz"
    if not path.is_file():
        pytest.skip(f"no METR-LA file at {path}")
    pool = sensors(path, window=12, horizon=3)
    assert pool.x.shape == ((2016 - 14) * 207, 12)
    # Its third line starts with these speeds of sensors 0 and 1.
    assert np.allclose(pool.x[:2, 1], [62.66666667, 68.55555556])
