"""The user's own .npz file, and the text files of UCI HAR."""

import numpy as np
import pytest

from sheafgossip.launcher.config.data import DataSection
from sheafgossip.launcher.data import DataError, load
from sheafgossip.node.model.architecture import Architecture, ArchitectureError

LABELS = np.arange(8) % 2
ROWS = np.arange(16.0).reshape(8, 2)


@pytest.fixture
def read(tmp_path):
    def read(task="classification", keys=(), **arrays):
        path = tmp_path / "mine.npz"
        np.savez(path, **arrays)
        return load(DataSection(dataset="npz", root=path, task=task, **dict(keys)), 0)

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
    assert pool.input_shape == (channels, 4, 5)
    assert np.array_equal(pool.x[2, :, 1, 3], images[2, 1, 3, :])
    assert read(x=np.zeros((8, 3, 4, 5)), y=LABELS).input_shape == (3, 4, 5)


def test_training_and_test_arrays_are_taken_together(read):
    pool = read(x_train=ROWS[:5], y_train=LABELS[:5], x_test=ROWS[5:], y_test=LABELS[5:])
    assert np.array_equal(pool.x, ROWS)
    assert pool.y.tolist() == LABELS.tolist()


@pytest.mark.parametrize(("y", "outputs"), [(np.linspace(0, 1, 8), 1), (np.ones((8, 3)), 3)])
def test_regression_targets_are_one_column_each(read, y, outputs):
    pool = read(x=ROWS, y=y, task="regression")
    assert (pool.y.shape, pool.y.dtype, pool.outputs) == ((8, outputs), np.float32, outputs)


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"x": ROWS}, "holds arrays x; needed are x, y"),
        ({"data": ROWS}, "holds arrays data; needed are x, y"),
        ({"x": ROWS, "y": LABELS[:7]}, "x has 8 samples and y has 7"),
        ({"x": ROWS, "y": LABELS, "client": LABELS[:3]}, "x has 8 samples and client has 3"),
        ({"x": np.where(ROWS == 5, np.nan, ROWS), "y": LABELS}, "x holds NaN, .* in row 2"),
        ({"x": np.where(ROWS == 5, 1e300, ROWS), "y": LABELS}, "beyond float32 in row 2"),
        ({"x": ROWS.astype(complex), "y": LABELS}, "x has type complex128"),
        ({"x": ROWS.astype(object), "y": LABELS}, "x is damaged or holds Python objects"),
        ({"x": ROWS, "y": LABELS.astype(object)}, "y is damaged or holds Python objects"),
        ({"x": ROWS, "y": np.float64(1)}, "y is a single value"),
        ({"x": ROWS[:, 0], "y": LABELS}, r"x has shape \(8,\); allowed are \(n, features\)"),
        ({"x": np.zeros((8, 32, 32, 4)), "y": LABELS}, "with 1 or 3 channels"),
        ({"x": ROWS[:, :0], "y": LABELS}, r"x has shape \(8, 0\)"),
        ({"x": ROWS, "y": LABELS + 0.5}, r"y holds 0\.5 in row 0; allowed are whole numbers"),
        ({"x": ROWS, "y": np.where(LABELS, np.nan, 0)}, "y holds nan in row 1"),
        ({"x": ROWS, "y": np.eye(8)}, r"y has shape \(8, 8\)"),
        ({"x": ROWS, "y": np.zeros(8)}, "y holds one class only"),
        ({"x": ROWS, "y": np.full(8, np.inf), "task": "regression"}, "y holds NaN, an infinity"),
        ({"x": ROWS, "y": np.zeros((8, 1, 1)), "task": "regression"}, r"y has shape \(8, 1, 1\)"),
        (
            {"x_train": ROWS, "y_train": LABELS, "x_test": ROWS[:, :1], "y_test": LABELS},
            r"x_train has shape \(8, 2\), which does not fit x_test, \(8, 1\)",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line_that_names_the_file(read, arrays, complaint):
    with pytest.raises(DataError, match=complaint) as raised:
        read(**arrays)
    assert str(raised.value).startswith("data.root = ")
    assert "mine.npz" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("none.npz", None, "there is no such file"),
        ("other.npz", b"", r"this is not an \.npz file$"),
        ("other.npz", b"hello", r"this is not an \.npz file$"),
        ("other.npz", b"PK\x03\x04 cut off", r"this is not an \.npz file$"),
        ("one.npy", ROWS, "a file of one array"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, name, content, complaint):
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content is not None:
        np.save(tmp_path / name, content)
    with pytest.raises(DataError, match=complaint):
        load(DataSection(dataset="npz", root=tmp_path / name), 0)


@pytest.mark.parametrize("dataset", ["npz", "table", "sensors", "har", "school", "vehicle", "gleam"])
def test_the_file_has_to_be_named(dataset):
    with pytest.raises(DataError, match=rf'^data\.root is missing: .*"{dataset}" needs it to name '):
        load(DataSection(dataset=dataset), 0)


OWNED = {"x": np.arange(48.0).reshape(8, 3, 2), "y": LABELS, "subject": np.array(["bo", "al"] * 4)}


def test_the_array_of_owners_may_have_any_name(read):
    pool = read(**OWNED, keys={"client": "subject"})
    assert (pool.client.tolist(), pool.owners) == ([1, 0] * 4, ("al", "bo"))
    assert read(**OWNED).client is None
    assert read(**OWNED, client=OWNED["subject"], keys={"client": ""}).client is None
    with pytest.raises(DataError, match=r'data\.client = "who": needed is who; it holds arrays x, y, subject$'):
        read(**OWNED, keys={"client": "who"})
    parts = {f"{name}_{part}": values for name, values in OWNED.items() for part in ("train", "test")}
    assert len(read(**parts, keys={"client": "subject"}).client) == 16
    with pytest.raises(DataError, match=r"needed is who_train and who_test"):
        read(**parts, keys={"client": "who"})


def test_series_of_several_features_stay_series(read):
    pool = read(**OWNED, keys={"series": True})
    assert pool.input_shape == (3, 2)
    assert np.array_equal(pool.inputs(np.arange(8)), OWNED["x"])
    assert read(**OWNED).input_shape == (1, 3, 2)
    with pytest.raises(DataError, match=r"data\.series = true needs \(n, steps, features\)"):
        read(x=ROWS, y=LABELS, keys={"series": True})


SUBJECTS = {"train": [1, 1, 3, 3, 5, 5], "test": [2, 2, 4]}


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


def har(root):
    return load(DataSection(dataset="har", root=root), 0)


@pytest.mark.parametrize("place", [".", "UCI HAR Dataset"])
def test_a_person_is_a_client_and_activities_start_at_0(tmp_path, place):
    write_har(tmp_path / place if place != "." else tmp_path / "here")
    pool = har(tmp_path if place != "." else tmp_path / "here")
    assert (pool.x.shape, pool.x.dtype) == ((9, 561), np.float32)
    assert pool.client.tolist() == [0, 0, 2, 2, 4, 4, 1, 1, 3]
    assert pool.y.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert np.allclose(pool.x[:, 0], [0, 0.01, 0.02, 0.03, 0.04, 0.05, 0, 0.01, 0.02])
    assert (pool.task, pool.outputs) == ("classification", 6)


def test_missing_files_are_named(tmp_path):
    write_har(tmp_path / "har")
    (tmp_path / "har" / "test" / "subject_test.txt").unlink()
    with pytest.raises(DataError, match=r"^data\.root = .* it lacks test/subject_test\.txt$"):
        har(tmp_path / "har")


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("train/y_train.txt", "1\n2\n", r"X_train\.txt has 6 lines, .*y_train\.txt has 2$"),
        ("train/subject_train.txt", "1\n", r"subject_train\.txt has 1$"),
        ("test/y_test.txt", "1\n2\n7\n", r"y_test\.txt holds activity 7: activities are 1 to 6$"),
        ("test/y_test.txt", "1\n2\nwalk\n", r"y_test\.txt can't be read: "),
        ("test/X_test.txt", "1 2\n3 4\n5 nan\n", r"X_test\.txt.*holds NaN.* row 2"),
        ("test/X_test.txt", "1 2\n3 4\n5\n", r"X_test\.txt can't be read: "),
        ("test/X_test.txt", "1 2\n3 4\n5 6\n", "training samples have 561 features, test samples 2$"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, file, content, complaint):
    write_har(tmp_path / "har")
    (tmp_path / "har" / file).write_text(content)
    with pytest.raises(DataError, match=complaint) as raised:
        har(tmp_path / "har")
    assert "\n" not in str(raised.value)


def test_a_gru_that_is_given_images_says_how_series_are_read():
    with pytest.raises(ArchitectureError, match=r"shape \(1, 128, 6\); data\.series = true reads them as series$"):
        Architecture("gru", (1, 128, 6), 12, hidden=(4,))
    assert Architecture("gru", (128, 6), 12, hidden=(4,)).series == (128, 6)
