"""Data sets in files of arrays. What bad_inputs.txt has refused is not repeated here."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.io import savemat

from sheafgossip.launcher.config.data import DataSection
from sheafgossip.launcher.data.pool import DataError
from sheafgossip.launcher.data.sets import load
from sheafgossip.launcher.data.shards import cut
from sheafgossip.node.model.architecture import Architecture, ArchitectureError

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
LABELS = np.arange(8) % 2
ROWS = np.arange(16.0).reshape(8, 2)
OWNED = {"x": np.arange(48.0).reshape(8, 3, 2), "y": LABELS, "subject": np.array(["bo", "al"] * 4)}


def refusal(read, *given, **keys) -> str:
    with pytest.raises(DataError) as raised:
        read(*given, **keys)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# -- the user's own arrays ---------------------------------------------------------------------------------------------


@pytest.fixture
def read(tmp_path):
    def read(task="classification", keys=(), **arrays):
        np.savez(tmp_path / "mine.npz", **arrays)
        return load(DataSection(dataset="npz", root=tmp_path / "mine.npz", task=task, **dict(keys)), 0)

    return read


def test_labels_and_owners_become_their_places_in_sorted_order(read):
    pool = read(x=ROWS, y=np.array([30, -1, 7, 30, 7, -1, 7, 7]))
    assert (pool.x.dtype, pool.outputs, pool.client) == (np.float32, 3, None)
    assert np.array_equal(pool.inputs(np.arange(8)), ROWS)
    assert pool.y.tolist() == [2, 0, 1, 2, 1, 0, 1, 1]
    pool = read(x=ROWS, y=np.array(["walk", "sit"] * 4), client=np.array(["bo", "al"] * 4))
    assert pool.y.tolist() == pool.client.tolist() == [1, 0] * 4


def test_only_bytes_that_are_images_are_scaled(read):
    images = read(x=np.full((8, 4, 5), 255, np.uint8), y=LABELS)
    assert images.input_shape == (1, 4, 5)
    assert np.all(images.inputs(np.arange(8)) == 1)
    assert np.all(read(x=np.full((8, 4), 200, np.uint8), y=LABELS).inputs(np.arange(8)) == 200)


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_at_the_end_move_to_the_front(read, channels):
    images = np.random.default_rng(0).random((8, 4, 5, channels)).astype(np.float32)
    pool = read(x=images, y=LABELS)
    assert np.array_equal(pool.x, images.transpose(0, 3, 1, 2))
    assert read(x=np.zeros((8, 3, 4, 5)), y=LABELS).input_shape == (3, 4, 5)


def test_training_and_test_arrays_are_taken_together(read):
    pool = read(x_train=ROWS[:5], y_train=LABELS[:5], x_test=ROWS[5:], y_test=LABELS[5:])
    assert (pool.x.tolist(), pool.y.tolist()) == (ROWS.tolist(), LABELS.tolist())


@pytest.mark.parametrize(("y", "outputs"), [(np.linspace(0, 1, 8), 1), (np.ones((8, 3)), 3)])
def test_regression_targets_are_one_column_each(read, y, outputs):
    pool = read(x=ROWS, y=y, task="regression")
    assert (pool.y.shape, pool.y.dtype, pool.outputs) == ((8, outputs), np.float32, outputs)


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"x": ROWS[:, 0], "y": LABELS}, "x has shape (8,); allowed are (n, features)"),
        ({"x": np.zeros((8, 32, 32, 4)), "y": LABELS}, "with 1 or 3 channels"),
        ({"x": ROWS[:, :0], "y": LABELS}, "x has shape (8, 0)"),
        ({"x": ROWS, "y": np.full(8, np.inf), "task": "regression"}, "y holds NaN, an infinity"),
        ({"x": ROWS, "y": np.zeros((8, 1, 1)), "task": "regression"}, "y has shape (8, 1, 1)"),
        (
            {"x_train": ROWS, "y_train": LABELS, "x_test": ROWS[:, :1], "y_test": LABELS},
            "x_train has shape (8, 2), which does not fit x_test, (8, 1)",
        ),
        ({"x": ROWS, "y": LABELS, "keys": {"series": True}}, "data.series = true needs (n, steps, features)"),
        (OWNED | {"keys": {"client": "who"}}, 'data.client = "who": needed is who; it holds arrays x, y, subject'),
    ],
)
def test_arrays_that_cannot_be_used_are_refused_with_the_files_name(read, arrays, complaint):
    said = refusal(read, **arrays)
    assert said.startswith("data.root = ")
    assert "mine.npz" in said
    assert complaint in said


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off"])
def test_a_cut_off_archive_is_refused(tmp_path, content):
    (tmp_path / "other.npz").write_bytes(content)
    said = refusal(load, DataSection(dataset="npz", root=tmp_path / "other.npz"), 0)
    assert said.endswith("this is not an .npz file")


def test_the_array_of_owners_may_have_any_name(read):
    pool = read(**OWNED, keys={"client": "subject"})
    assert (pool.client.tolist(), pool.owners) == ([1, 0] * 4, ("al", "bo"))
    assert read(**OWNED).client is None
    assert read(**OWNED, client=OWNED["subject"], keys={"client": ""}).client is None
    parts = {f"{name}_{part}": values for name, values in OWNED.items() for part in ("train", "test")}
    assert len(read(**parts, keys={"client": "subject"}).client) == 16
    assert "needed is who_train and who_test" in refusal(read, **parts, keys={"client": "who"})


def test_series_of_several_features_stay_series_and_a_gru_that_is_given_images_says_so(read):
    pool = read(**OWNED, keys={"series": True})
    assert np.array_equal(pool.inputs(np.arange(8)), OWNED["x"])
    assert read(**OWNED).input_shape == (1, 3, 2)
    with pytest.raises(ArchitectureError, match=r"shape \(1, 128, 6\); data\.series = true reads them as series$"):
        Architecture("gru", (1, 128, 6), 12, hidden=(4,))
    assert Architecture("gru", (128, 6), 12, hidden=(4,)).series == (128, 6)


# -- UCI HAR -----------------------------------------------------------------------------------------------------------

SUBJECTS = {"train": [1, 1, 3, 3, 5, 5], "test": [2, 2, 4]}


def har(root):
    return load(DataSection(dataset="har", root=root), 0)


def write_har(folder, features=561):
    """Fixed-width scientific numbers, as in the archive; feature 0 is the row's number / 100."""
    for part, subjects in SUBJECTS.items():
        (folder / part).mkdir(parents=True)
        x = np.random.default_rng(0).uniform(-1, 1, (len(subjects), features))
        x[:, 0] = np.arange(len(subjects)) / 100
        np.savetxt(folder / part / f"X_{part}.txt", x, fmt="%16.7e", delimiter="")
        np.savetxt(folder / part / f"y_{part}.txt", 1 + np.arange(len(subjects)) % 6, fmt="%d")
        np.savetxt(folder / part / f"subject_{part}.txt", subjects, fmt="%d")
    return folder


@pytest.mark.parametrize("place", ["", "UCI HAR Dataset"])
def test_a_person_is_a_client_and_activities_start_at_0(tmp_path, place):
    write_har(tmp_path / "here" / place)
    pool = har(tmp_path / "here")
    assert (pool.x.shape, pool.x.dtype) == ((9, 561), np.float32)
    assert pool.client.tolist() == [0, 0, 2, 2, 4, 4, 1, 1, 3]
    assert pool.y.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert np.allclose(pool.x[:, 0], [0, 0.01, 0.02, 0.03, 0.04, 0.05, 0, 0.01, 0.02])
    assert (pool.task, pool.outputs) == ("classification", 6)


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("test/subject_test.txt", None, "it lacks test/subject_test.txt"),
        ("train/y_train.txt", "1\n2\n", "X_train.txt has 6 lines, "),
        ("train/subject_train.txt", "1\n", "subject_train.txt has 1"),
        ("test/y_test.txt", "1\n2\n7\n", "y_test.txt holds activity 7: activities are 1 to 6"),
        ("test/y_test.txt", "1\n2\nwalk\n", "y_test.txt can't be read: "),
        ("test/X_test.txt", "1 2\n3 4\n5 nan\n", "X holds NaN, an infinity or a number beyond float32 in row 2"),
        ("test/X_test.txt", "1 2\n3 4\n5\n", "X_test.txt can't be read: "),
        ("test/X_test.txt", "1 2\n3 4\n5 6\n", "training samples have 561 features, test samples 2"),
    ],
)
def test_a_damaged_archive_is_refused(tmp_path, file, content, complaint):
    path = write_har(tmp_path / "har") / file
    path.unlink() if content is None else path.write_text(content)
    assert complaint in refusal(har, tmp_path / "har")


# -- School, Vehicle and GLEAM -----------------------------------------------------------------------------------------


def cells(arrays, *, column=False):
    row = np.empty(len(arrays), dtype=object)
    row[:] = arrays
    return row.reshape(-1, 1) if column else row.reshape(1, -1)


def tasks(sizes=(5, 7, 4), features=3):
    """Feature 0 of every sample is its task's number."""
    rng = np.random.default_rng(0)
    return [np.column_stack([np.full(n, task), rng.normal(size=(n, features - 1))]) for task, n in enumerate(sizes)]


def scores(sizes=(5, 7, 4)):
    return [np.arange(1, size + 1, dtype=np.uint8)[:, None] for size in sizes]


@pytest.fixture
def read_matlab(tmp_path):
    def read(dataset="school", **variables):
        savemat(tmp_path / f"{dataset}.mat", variables)
        return load(DataSection(dataset=dataset, root=tmp_path / f"{dataset}.mat"), 0)

    return read


def test_a_school_is_a_client_and_scores_stay_as_they_are(read_matlab):
    pool = read_matlab(X=cells(tasks()), Y=cells(scores()))
    assert (pool.x.shape, pool.y.shape, pool.task, pool.outputs) == ((16, 3), (16, 1), "regression", 1)
    assert np.array_equal(pool.x[:, 0], pool.client)
    assert pool.y[:, 0].tolist() == [*range(1, 6), *range(1, 8), *range(1, 5)]
    assert (pool.x.dtype, pool.y.dtype) == (np.float32, np.float32)
    for client, shard in enumerate(cut(DataSection(dataset="school"), pool, 3, seed=1)):
        assert set(shard.x_train[:, 0]) | set(shard.x_test[:, 0]) == {client}


@pytest.mark.parametrize("dataset", ["vehicle", "gleam"])
@pytest.mark.parametrize("column", [False, True])
def test_minus_one_and_one_become_classes_0_and_1_from_a_row_or_a_column_of_cells(read_matlab, dataset, column):
    signs = [np.where(np.arange(size) % 2, 1, -1)[:, None] for size in (5, 7, 4)]
    pool = read_matlab(dataset, X=cells(tasks(), column=column), Y=cells(signs, column=column))
    assert (pool.task, pool.outputs) == ("classification", 2)
    assert pool.y.tolist() == np.concatenate(signs)[:, 0].clip(0).tolist()
    assert np.bincount(pool.client).tolist() == [5, 7, 4]
    complaint = "Y holds 7 different labels; needed are two, like -1 and 1"
    assert complaint in refusal(read_matlab, dataset, X=cells(tasks()), Y=cells(scores()))


@pytest.mark.parametrize(
    ("x", "y", "complaint"),
    [
        (cells(tasks()), None, "it lacks Y; needed are cells X and Y"),
        (np.eye(3), cells(scores()), "; needed is a row of cells"),
        (cells(tasks()), cells(scores((5, 7))), "X has 3 cells and Y has 2"),
        (cells(tasks()), cells(scores((5, 6, 4))), "Y{2} has shape (6, 1), but X{2} has 7 samples"),
        (cells([*tasks((5, 7)), *tasks((4,), 2)]), cells(scores()), "X{3} has shape (4, 2); needed is (samples, 3)"),
        (cells(["a", "b"]), cells(scores((5, 7))), "X{1} is not an array of whole or real numbers"),
        (cells([task * np.nan for task in tasks()]), cells(scores()), "X holds NaN"),
    ],
)
def test_cells_that_do_not_fit_together_are_refused(read_matlab, x, y, complaint):
    said = refusal(read_matlab, X=x, **({} if y is None else {"Y": y}))
    assert said.startswith("data.root = ")
    assert complaint in said


def test_a_matlab_file_of_version_7_3_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "school.mat").write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(512))
    assert "version 7.3; save it with -v7" in refusal(load, DataSection(dataset="school", root=tmp_path), 0)


def test_the_real_file_has_139_schools_and_15362_students():
    if not (SHARED / "school").is_dir():
        pytest.skip(f"no School file in {SHARED / 'school'}")
    pool = load(DataSection(dataset="school", root=SHARED / "school"), 0)
    assert pool.x.shape == (15_362, 28)
    sizes = np.bincount(pool.client)
    assert (len(sizes), sizes.min(), sizes.max()) == (139, 22, 251)  # as the literature says
    assert (pool.y.min(), pool.y.max()) == (1, 70)
    assert np.all(pool.x[:, 27] == pool.x[0, 27])


# -- series of sensors -------------------------------------------------------------------------------------------------

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
    assert len(sensors(file, window=18)) == 3
    said = refusal(sensors, file, window=19)
    assert "holds 20 moments, but data.window and data.horizon together take 21" in said


def test_test_samples_are_the_latest_of_a_client_and_reduced_training_data_is_right_before_them(file):
    for shard in cut(DataSection(dataset="sensors", partition="even"), sensors(file), 3, seed=0):
        assert (shard.y_train[:, 0] % 100).max() <= (shard.y_test[:, 0] % 100).min()
    section = DataSection(dataset="sensors", reduced_clients=1, reduced_to=0.5)
    for client, shard in enumerate(cut(section, sensors(file), 3, seed=0)):
        assert sorted(shard.y_train[:, 0] - 100 * client) == [9, 10, 11, 12, 13, 14]
        assert sorted(shard.y_test[:, 0] - 100 * client) == [15, 16, 17, 18]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("a,b\n1,2\n3,\n", "b holds NaN, an infinity or a number beyond float32 in row 1"),
        ("a,b\n1,2\n3,x\n", "; allowed are whole and real numbers"),
        ("time\n1\n2\n", "it has no column of a sensor"),
        ({"speeds": VALUES}, "it holds arrays speeds; needed is values or data"),
        ({"values": VALUES[:, 0]}, "values has shape (20,)"),
    ],
)
def test_a_file_that_holds_no_series_is_refused(tmp_path, content, complaint):
    path = tmp_path / ("v.csv" if isinstance(content, str) else "v.npz")
    path.write_text(content) if isinstance(content, str) else np.savez(path, **content)
    assert complaint in refusal(sensors, path)


def test_a_week_of_metr_la_has_207_sensors():
    path = SHARED / "metr-la-week" / "los_speed.csv.gz"
    if not path.is_file():
        pytest.skip(f"no METR-LA file at {path}")
    pool = sensors(path, window=12, horizon=3)
    assert pool.x.shape == ((2016 - 14) * 207, 12)
    # Its third line starts with these speeds of sensors 0 and 1.
    assert np.allclose(pool.x[:2, 1], [62.66666667, 68.55555556])
