"""School, Vehicle and GLEAM."""

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from sheafgossip.launcher.config.data import DataSection
from sheafgossip.launcher.data import DataError, cut, load

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
RNG = np.random.default_rng(0)


def cells(arrays, *, column=False):
    row = np.empty(len(arrays), dtype=object)
    for place, array in enumerate(arrays):
        row[place] = array
    return row.reshape(-1, 1) if column else row.reshape(1, -1)


def tasks(sizes=(5, 7, 4), features=3):
    """Feature 0 of every sample is its task's number."""
    return [
        np.column_stack([np.full(size, task), RNG.normal(size=(size, features - 1))]) for task, size in enumerate(sizes)
    ]


def scores(sizes=(5, 7, 4)):
    return [np.arange(1, size + 1, dtype=np.uint8)[:, None] for size in sizes]


def signs(sizes=(5, 7, 4)):
    return [np.where(np.arange(size) % 2, 1, -1)[:, None] for size in sizes]


@pytest.fixture
def read(tmp_path):
    def read(dataset="school", **variables):
        path = tmp_path / f"{dataset}.mat"
        savemat(path, variables)
        return load(DataSection(dataset=dataset, root=path), 0)

    return read


def test_a_school_is_a_client_and_scores_stay_as_they_are(read):
    pool = read(X=cells(tasks()), Y=cells(scores()))
    assert (pool.x.shape, pool.y.shape, pool.task, pool.outputs) == ((16, 3), (16, 1), "regression", 1)
    assert np.array_equal(pool.x[:, 0], pool.client)
    assert pool.y[:, 0].tolist() == [*range(1, 6), *range(1, 8), *range(1, 5)]
    assert (pool.x.dtype, pool.y.dtype) == (np.float32, np.float32)


@pytest.mark.parametrize("dataset", ["vehicle", "gleam"])
@pytest.mark.parametrize("column", [False, True])
def test_minus_one_and_one_become_classes_0_and_1_from_a_row_or_a_column_of_cells(read, dataset, column):
    pool = read(dataset, X=cells(tasks(), column=column), Y=cells(signs(), column=column))
    assert (pool.task, pool.outputs) == ("classification", 2)
    assert pool.y.tolist() == np.concatenate(signs())[:, 0].clip(0).tolist()
    assert np.bincount(pool.client).tolist() == [5, 7, 4]
    with pytest.raises(DataError, match="Y holds 7 different labels; needed are two, like -1 and 1"):
        read(dataset, X=cells(tasks()), Y=cells(scores()))


def test_each_client_gets_the_samples_of_its_school(read):
    pool = read(X=cells(tasks()), Y=cells(scores()))
    for client, shard in enumerate(cut(DataSection(dataset="school"), pool, 3, seed=1)):
        assert set(shard.x_train[:, 0]) | set(shard.x_test[:, 0]) == {client}


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"X": cells(tasks())}, "it lacks Y; needed are cells X and Y"),
        ({"x": 1}, "it lacks X and Y"),
        ({"X": np.eye(3), "Y": cells(scores())}, r"X has shape \(3, 3\) .*; needed is a row of cells"),
        ({"X": cells(tasks()), "Y": cells(scores((5, 7)))}, "X has 3 cells and Y has 2"),
        ({"X": cells(tasks()), "Y": cells(scores((5, 6, 4)))}, r"Y\{2\} has shape \(6, 1\), but X\{2\} has 7 samples"),
        (
            {"X": cells([*tasks((5, 7)), *tasks((4,), features=2)]), "Y": cells(scores())},
            r"X\{3\} has shape \(4, 2\); needed is \(samples, 3\)",
        ),
        ({"X": cells(["a", "b"]), "Y": cells(scores((5, 7)))}, r"X\{1\} is not an array of whole or real numbers"),
        ({"X": cells([t * np.nan for t in tasks()]), "Y": cells(scores())}, "X holds NaN"),
    ],
)
def test_what_does_not_fit_together_is_refused_in_one_line(read, variables, complaint):
    with pytest.raises(DataError, match=complaint) as raised:
        read(**variables)
    assert str(raised.value).startswith("data.root = ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("dataset", ["school", "vehicle", "gleam"])
def test_without_a_file_its_name_is_told(tmp_path, dataset):
    with pytest.raises(DataError, match=rf'^data\.root is missing: .*"{dataset}" needs it to name {dataset}\.mat'):
        load(DataSection(dataset=dataset), 0)
    with pytest.raises(DataError, match=rf"{dataset}\.mat: there is no such file|there is no such file"):
        load(DataSection(dataset=dataset, root=tmp_path), 0)


@pytest.mark.parametrize("keep", [0, 3, 60, 128, 131, 150, 200])
def test_a_cut_off_file_is_refused(tmp_path, keep):
    path = tmp_path / "school.mat"
    savemat(path, {"X": cells(tasks()), "Y": cells(scores())}, do_compression=True)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"not a MATLAB file, or it is damaged|it lacks"):
        load(DataSection(dataset="school", root=path), 0)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"school,score\n1,2\n" * 100, "not a MATLAB file, or it is damaged"),
        (b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(512), r"version 7\.3; save it with -v7"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, content, complaint):
    (tmp_path / "school.mat").write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        load(DataSection(dataset="school", root=tmp_path), 0)


def test_the_real_file_has_139_schools_and_15362_students():
    if not (SHARED / "school").is_dir():
        pytest.skip(f"no School file in {SHARED / 'school'}")
    pool = load(DataSection(dataset="school", root=SHARED / "school"), 0)
    assert pool.x.shape == (15_362, 28)
    sizes = np.bincount(pool.client)
    assert (len(sizes), sizes.min(), sizes.max()) == (139, 22, 251)  # as the literature says
    assert (pool.y.min(), pool.y.max()) == (1, 70)
    assert np.all(pool.x[:, 27] == pool.x[0, 27])
