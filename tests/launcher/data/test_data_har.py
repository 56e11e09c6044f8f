"""UCI HAR: text files in the layout of the published archive."""

import numpy as np
import pytest

from sheafgossip.launcher.config.sections import DataSection
from sheafgossip.launcher.data import DataError, load

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
    with pytest.raises(DataError, match=r"^data\.root is missing"):
        har(None)


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
