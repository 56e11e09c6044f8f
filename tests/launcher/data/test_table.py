"""The user's own table with named columns."""

import numpy as np
import pandas as pd
import pytest

from sheafgossip.launcher.config.data import DataSection
from sheafgossip.launcher.data import DataError, load

FRAME = pd.DataFrame(
    {
        "age": [30, 40, 50, 60],
        "who": ["bo", "al", "bo", "al"],
        "weight": [1.5, 2.5, 3.5, 4.5],
        "ill": [False, True, True, False],
        "smokes": [True, False, False, True],
    }
)
FORMATS = [".csv", ".csv.gz", ".npz", ".parquet"]


def write(path, frame):
    if path.suffix == ".npz":
        np.savez(
            path, **{name: np.array(c.tolist()) if c.dtype.kind == "O" else c.to_numpy() for name, c in frame.items()}
        )
    elif path.suffix == ".parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    return path


@pytest.fixture
def read(tmp_path):
    def read(frame=FRAME, form=".csv", **keys):
        path = write(tmp_path / f"mine{form}", frame.astype({"who": object}) if "who" in frame else frame)
        return load(DataSection(dataset="table", root=path, **{"target": "ill", "client": "who"} | keys), 0)

    return read


@pytest.mark.parametrize("form", FORMATS)
def test_the_columns_that_are_neither_target_nor_client_are_the_features(read, form):
    pool = read(form=form)
    assert pool.x.tolist() == [[30, 1.5, 1], [40, 2.5, 0], [50, 3.5, 0], [60, 4.5, 1]]
    assert pool.x.dtype == np.float32
    assert (pool.y.tolist(), pool.outputs, pool.task) == ([0, 1, 1, 0], 2, "classification")
    assert pool.client.tolist() == [1, 0, 1, 0]
    assert read(frame=FRAME.drop(columns="who"), form=form, client="").client is None
    assert read(frame=FRAME.assign(ill=["no", "yes", "yes", "no"]), form=form).y.tolist() == [0, 1, 1, 0]
    pool = read(frame=FRAME.drop(columns="ill"), form=form, target="weight", task="regression")
    assert (pool.y.tolist(), pool.outputs, pool.input_shape) == ([[1.5], [2.5], [3.5], [4.5]], 1, (2,))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("frame", "keys", "complaint"),
    [
        (
            FRAME,
            {"target": "sick"},
            r'no column "sick" \(data\.target\); its columns are age, who, weight, ill, smokes',
        ),
        (FRAME, {"client": "client"}, r'no column "client" \(data\.client\)'),
        (FRAME, {"client": "ill"}, 'data.target and data.client are both "ill"'),
        (
            FRAME,
            {"client": "smokes"},
            r'text, not numbers, in who \(such as "bo"\): write data\.drop = \["who"\], or data\.text = "one-hot"',
        ),
        (
            FRAME.assign(age=[1, np.nan, 3, 4]),
            {},
            r"age is empty in row 1, and 1 of 4 rows lack a value, in age \(1\): write",
        ),
        (FRAME.assign(age=[1, 2, np.inf, 4]), {}, "age holds NaN, an infinity.* in row 2"),
        (FRAME.assign(ill=True), {}, "ill holds one class only"),
        (FRAME.assign(ill=[0.5, 1, 2, 3]), {}, r"ill holds 0\.5 in row 0; allowed are whole numbers"),
        (FRAME[["who", "ill"]], {}, "it has no column of features"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line_that_names_the_file(read, form, frame, keys, complaint):
    with pytest.raises(DataError, match=complaint) as raised:
        read(frame, form, **keys)
    assert str(raised.value).startswith("data.root = ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("form", [".csv", ".parquet"])
def test_a_row_without_a_client_is_named(read, form):
    with pytest.raises(DataError, match="who is empty in row 3"):
        read(FRAME.assign(who=["a", "b", "c", None]), form)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("t.xlsx", b"", r"allowed are files that end in \.csv, \.csv\.gz, \.npz, \.parquet"),
        ("none.csv", None, "there is no such file"),
        ("t.csv", b"", "it can't be read: "),
        ("t.csv", b"a,who,ill\n", "it holds no rows"),
        ("t.csv", b"a,who,ill\n1,2\n1,2,3,4,5,6\n", "it can't be read: "),
        ("t.csv", b"\xff\xfe\x00", "it can't be read: "),
        ("t.csv.gz", b"no gzip", "it can't be read: "),
        ("t.npz", b"no zip", r"not an \.npz file"),
        ("t.parquet", b"no parquet", "it can't be read: "),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, name, content, complaint):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=complaint) as raised:
        load(DataSection(dataset="table", root=tmp_path / name), 0)
    assert "\n" not in str(raised.value)


def test_arrays_that_are_no_columns_are_refused(tmp_path):
    for arrays, complaint in (
        ({"a": np.eye(3)}, r"a has shape \(3, 3\); a column is \(n,\)"),
        ({"a": np.ones(3), "target": np.ones(2)}, "its columns differ in length: a 3, target 2"),
        ({"a": np.array([{}, {}])}, "a is damaged or holds Python objects"),
    ):
        np.savez(tmp_path / "t.npz", **arrays)
        with pytest.raises(DataError, match=complaint):
            load(DataSection(dataset="table", root=tmp_path / "t.npz"), 0)


def test_parquet_without_its_library_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"")

    def missing(path):
        raise ImportError("Unable to find a usable engine")

    monkeypatch.setattr(pd, "read_parquet", missing)
    with pytest.raises(DataError, match=r"Parquet needs pyarrow: .*pip install -e '\.\[parquet\]'"):
        load(DataSection(dataset="table", root=tmp_path / "t.parquet"), 0)
