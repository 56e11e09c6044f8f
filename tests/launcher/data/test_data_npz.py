"""The user's own .npz file."""

import numpy as np
import pytest

from sheafgossip.launcher.config.sections import DataSection
from sheafgossip.launcher.data import DataError, load

LABELS = np.arange(8) % 2
ROWS = np.arange(16.0).reshape(8, 2)


@pytest.fixture
def read(tmp_path):
    def read(task="classification", **arrays):
        path = tmp_path / "mine.npz"
        np.savez(path, **arrays)
        return load(DataSection(dataset="npz", root=path, task=task), 0)

    return read


def test_rows_of_features_stay_rows_of_features(read):
    pool = read(x=ROWS, y=LABELS)
    assert pool.x.dtype == np.float32
    assert np.array_equal(pool.inputs(np.arange(8)), ROWS)
    assert pool.y.tolist() == LABELS.tolist()
    assert pool.client is None


def test_class_labels_become_their_places_in_sorted_order(read):
    pool = read(x=ROWS, y=np.array([30, -1, 7, 30, 7, -1, 7, 7]))
    assert pool.y.tolist() == [2, 0, 1, 2, 1, 0, 1, 1]
    assert pool.outputs == 3


def test_labels_and_owners_may_be_text(read):
    pool = read(x=ROWS, y=np.array(["walk", "sit"] * 4), client=np.array(["bo", "al"] * 4))
    assert pool.y.tolist() == [1, 0] * 4
    assert pool.client.tolist() == [1, 0] * 4


def test_byte_images_run_from_0_to_1(read):
    images = np.full((8, 4, 5), 255, np.uint8)
    pool = read(x=images, y=LABELS)
    assert pool.input_shape == (1, 4, 5)
    assert np.all(pool.inputs(np.arange(8)) == 1)


def test_byte_features_that_are_no_images_are_not_scaled(read):
    pool = read(x=np.full((8, 4), 200, np.uint8), y=LABELS)
    assert np.all(pool.inputs(np.arange(8)) == 200)


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_at_the_end_move_to_the_front(read, channels):
    images = np.random.default_rng(0).random((8, 4, 5, channels)).astype(np.float32)
    pool = read(x=images, y=LABELS)
    assert pool.input_shape == (channels, 4, 5)
    assert np.array_equal(pool.x[2, :, 1, 3], images[2, 1, 3, :])


def test_channels_in_front_stay_there(read):
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


def test_the_file_has_to_be_named():
    with pytest.raises(DataError, match=r"^data\.root is missing"):
        load(DataSection(dataset="npz"), 0)


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path):
    with pytest.raises(DataError, match="there is no such file"):
        load(DataSection(dataset="npz", root=tmp_path / "none.npz"), 0)


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 cut off"])
def test_another_kind_of_file_is_refused(tmp_path, content):
    path = tmp_path / "other.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"this is not an \.npz file$"):
        load(DataSection(dataset="npz", root=path), 0)


def test_a_single_array_file_is_refused(tmp_path):
    np.save(tmp_path / "one.npy", ROWS)
    with pytest.raises(DataError, match="a file of one array"):
        load(DataSection(dataset="npz", root=tmp_path / "one.npy"), 0)
