"""Data sets in files, of the user and of others. What bad_inputs.txt has refused is not repeated here."""

import sys
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from scipy.io import savemat

from sheafgossip.launcher.config.data import DataSection
from sheafgossip.launcher.config.files import load as load_configuration
from sheafgossip.launcher.config.sections import ConfigError
from sheafgossip.launcher.data.pool import DataError
from sheafgossip.launcher.data.sets import load
from sheafgossip.launcher.data.shards import cut, prepare

MATLAB = ("school", "vehicle", "gleam")


@pytest.fixture
def read(tmp_path):
    """Writes a text as .csv, a frame or arrays in one of the formats, and reads that."""

    def read(dataset, content, form="", /, **keys):
        form = form or (".csv" if isinstance(content, str) else ".mat" if dataset in MATLAB else ".npz")
        path = tmp_path / f"mine{form}"
        if isinstance(content, str):
            path.write_text(content)
        elif form == ".mat":
            savemat(path, content)
        elif form == ".npz":
            lists = isinstance(content, pd.DataFrame)
            np.savez(path, **{name: np.array(values.tolist()) if lists else values for name, values in content.items()})
        elif form == ".parquet":
            pytest.importorskip("pyarrow")
            content.to_parquet(path)
        else:
            content.to_csv(path, index=False)
        return load(DataSection(dataset=dataset, root=path, **keys), 0)

    return read


def refusal(read, *given, **keys) -> str:
    """What is said of a file, after its name."""
    with pytest.raises(DataError) as raised:
        read(*given, **keys)
    name, _, said = str(raised.value).partition('": ')
    assert name.startswith("data.root = ")
    assert "\n" not in said
    return said


# -- the user's own table ----------------------------------------------------------------------------------------------

PEOPLE = [(30, "bo", False, True), (40, "al", True, False), (50, "bo", True, False), (60, "al", False, True)]
FRAME = pd.DataFrame(PEOPLE, columns=["age", "who", "ill", "smokes"])
FRAME.insert(2, "weight", FRAME["age"] / 10 - 1.5)
PENGUINS = """species,island,bill,sex,date
Adelie,Torgersen,39.1,male,2007-11-11
Adelie,Biscoe,39.5,female,2007-11-12
Adelie,Dream,40.3,,2007-11-13
Gentoo,Biscoe,,male,2007-11-14
Gentoo,Biscoe,46.1,female,2007-11-15
Gentoo,Biscoe,50.0,male,2007-11-16
"""
OWNED = "who,age,ill\n" + "".join(
    f"{name},{age},{age % 2}\n" for name, rows in (("Ann", 9), ("Bo", 2), ("Cy", 8), ("Di", 3)) for age in range(rows)
)


@pytest.mark.parametrize("form", [".csv", ".csv.gz", ".npz", ".parquet"])
def test_the_columns_that_are_neither_target_nor_client_are_the_features(read, form):
    ill = {"target": "ill", "client": "who"}
    pool = read("table", FRAME, form, **ill)
    assert pool.x.tolist() == [[30, 1.5, 1], [40, 2.5, 0], [50, 3.5, 0], [60, 4.5, 1]]
    assert pool.x.dtype == np.float32
    assert (pool.y.tolist(), pool.outputs, pool.task) == ([0, 1, 1, 0], 2, "classification")
    assert pool.client.tolist() == [1, 0, 1, 0]
    assert read("table", FRAME.drop(columns="who"), form, target="ill", client="").client is None
    assert read("table", FRAME.assign(ill=["no", "yes", "yes", "no"]), form, **ill).y.tolist() == [0, 1, 1, 0]
    pool = read("table", FRAME.drop(columns="ill"), form, client="who", target="weight", task="regression")
    assert (pool.y.tolist(), pool.outputs, pool.input_shape) == ([[1.5], [2.5], [3.5], [4.5]], 1, (2,))
    said = refusal(read, "table", FRAME.assign(age=[1, np.nan, 3, 4]), form, **ill)
    assert said.startswith("age is empty in row 1, and 1 of 4 rows lack a value, in age (1): write")
    if form != ".npz":  # whose columns have no gaps
        assert "who is empty in row 3" in refusal(read, "table", FRAME.assign(who=["a", "b", "c", None]), form, **ill)


def test_parquet_without_its_library_says_what_to_install(read, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "Parquet needs pyarrow: .venv/bin/pip install -e '.[parquet]'" in refusal(read, "table", "", ".parquet")


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_what_stands_between_columns_and_in_numbers_is_found_out_and_told(read, mark):
    pool = read("table", f"a{mark}b{mark}c\n1.5{mark}2{mark}0\n3{mark}4{mark}1\n", target="c")
    assert pool.x.tolist() == [[1.5, 2], [3, 4]]
    assert any("between its columns" in line for line in pool.told) == (mark != ",")
    assert read("table", '"a;b;c;d",y\n1,0\n2,1\n', target="y").told == ("features: a;b;c;d",)
    pool = read("table", "a;b;c\n1,5;2;0\n-3;0,25;1\n", target="c")
    assert pool.x.tolist() == [[1.5, 2], [-3, 0.25]]
    assert "a semicolon stands between its columns, a comma in its numbers" in pool.told


def test_a_first_line_of_numbers_is_no_line_of_names(read):
    for first in ("5.1,3,0", "7,7,0"):  # what pandas calls a second column 7 is no whole number either
        said = refusal(read, "table", f"{first}\n1,2,1\n3,4,0\n", target="0")
        assert said.startswith("its first line holds numbers (")
    assert refusal(read, "sensors", "64.4,62.7\n61.1,67.8\n", window=1).startswith("its first line holds numbers")
    assert read("sensors", "773869,767541\n61.1,67.8\n61.2,67.7\n", window=1).told == ("sensors: 773869, 767541",)


@pytest.mark.parametrize("form", [".csv", ".csv.gz", ".parquet"])
def test_a_table_that_would_not_fit_into_memory_is_not_unpacked(read, monkeypatch, form):
    zeros = pd.DataFrame({"a": np.zeros(100_000, np.int8), "target": np.zeros(100_000, np.int8)})
    monkeypatch.setattr("psutil.virtual_memory", lambda: Mock(available=1_000_000))
    for reader in ("read_csv", "read_parquet"):
        monkeypatch.setattr(pd, reader, lambda *_, **__: pytest.fail("it is unpacked"))
    assert refusal(read, "table", zeros, form).endswith("more than the memory that is free")


def test_text_gaps_and_dates_are_told_in_one_line_with_what_to_write(read):
    assert refusal(read, "table", PENGUINS, target="species") == (
        'text, not numbers, in island (such as "Torgersen"), sex (such as "male"), date (such as "2007-11-11"): '
        'write data.drop = ["island", "sex", "date"], or data.text = "one-hot"; '
        "sex is empty in row 2, and 2 of 6 rows lack a value, in bill (1), sex (1): "
        'write data.missing = "drop" to leave these rows out, or name columns in data.drop'
    )


def test_text_becomes_a_feature_for_each_word_and_rows_with_gaps_are_left_out(read):
    pool = read("table", PENGUINS, target="species", drop=("date",), text="one-hot", missing="drop")
    assert pool.told == (
        "2 of 6 rows left out, in which a value is missing",
        "features: island=Biscoe, island=Torgersen, bill, sex=female, sex=male",
    )
    rows = [[0, 1, 39.1, 0, 1], [1, 0, 39.5, 1, 0], [1, 0, 46.1, 1, 0], [1, 0, 50, 0, 1]]
    assert np.array_equal(pool.x, np.array(rows, np.float32))

    pool = read("table", PENGUINS.replace(",,male", ",1,male"), target="species", features=("bill",))
    assert pool.x.shape == (6, 1)  # what is dropped or not named needs no values
    dropped = read("table", PENGUINS, target="species", drop=("island", "sex", "date"), missing="drop")
    assert dropped.x[:, 0].tolist() == pytest.approx([39.1, 39.5, 40.3, 46.1, 50.0])


def test_texts_of_which_there_are_very_many_and_columns_without_a_name_are_no_features(read):
    rows = "".join(f"2007-{1 + day // 28:02}-{1 + day % 28:02},{day},{day % 2}\n" for day in range(80))
    for keys in ({"target": "y"}, {"target": "y", "text": "one-hot"}):
        assert refusal(read, "table", "date,a,y\n" + rows, **keys).endswith('write data.drop = ["date"]')
        said = refusal(read, "table", ",a,y\n1,5,0\n2,6,1\n", **keys)
        assert said == 'no name above column 1: write data.drop = ["Unnamed: 0"]'


def test_owners_with_few_samples_are_named_and_left_out_and_the_others_keep_their_names(tmp_path, read):
    keys = {"target": "ill", "client": "who"}
    section, pool = DataSection(dataset="table", root=tmp_path / "mine.csv", **keys), read("table", OWNED, **keys)
    with pytest.raises(DataError, match=r"data\.min_samples = 4 leaves out Bo \(2\), Di \(3\)$"):
        cut(section, pool, 4, 0)
    with pytest.raises(DataError, match=r'the run has 5; allowed are 1 to 4, or clients = "all"$'):
        cut(section, pool, 5, 0)
    enough = DataSection(dataset="table", root=tmp_path / "mine.csv", min_samples=4, **keys)
    data = prepare(enough, 2, 0, tmp_path / "shards")
    assert (data.left_out, data.partition, data.owners) == (("Bo (2)", "Di (3)"), "natural", 2)
    assert [client.owner for client in data.clients] == ["Ann", "Cy"]
    with pytest.raises(DataError, match=r"data\.min_samples = 4: samples are split 'even', not by owner; allowed: 0"):
        cut(enough, read("table", OWNED, target="ill", drop=("who",)), 2, 0)


def test_all_clients_are_as_many_as_have_enough_samples(tmp_path):
    (tmp_path / "mine.csv").write_text(OWNED)
    (tmp_path / "run.toml").write_text('clients = "all"\n[data]\ndataset = "table"\nroot = "mine.csv"\ntarget = "ill"')
    (config,) = load_configuration(tmp_path / "run.toml", ["data.client=who", "data.min_samples=3"])
    assert config.clients == 3
    for overrides, said in (
        ([], r'^data\.root.*text, not numbers, in who \(such as "Ann"\)'),
        (["data.drop=['who']"], r'^clients = "all" stands for the owners.* names none; write a number'),
        (["data.client=who", "data.partition=even"], r'is split by data\.partition = "even"; write a number'),
    ):
        with pytest.raises(ConfigError, match=said):
            load_configuration(tmp_path / "run.toml", overrides)


# -- the user's own arrays ---------------------------------------------------------------------------------------------

LABELS = np.arange(8) % 2
ROWS = np.arange(16.0).reshape(8, 2)
SERIES = {"x": np.arange(48.0).reshape(8, 3, 2), "y": LABELS, "subject": np.array(["bo", "al"] * 4)}


def parts(arrays, at=5):
    """The same as arrays to train on and arrays to test with."""
    halves = (("train", slice(at)), ("test", slice(at, None)))
    return {f"{name}_{part}": values[rows] for name, values in arrays.items() for part, rows in halves}


def test_labels_and_owners_become_their_places_in_sorted_order_and_targets_one_column_each(read):
    pool = read("npz", {"x": ROWS, "y": np.array([30, -1, 7, 30, 7, -1, 7, 7])})
    assert (pool.x.dtype, pool.outputs, pool.client) == (np.float32, 3, None)
    assert np.array_equal(pool.inputs(np.arange(8)), ROWS)
    assert pool.y.tolist() == [2, 0, 1, 2, 1, 0, 1, 1]
    pool = read("npz", {"x": ROWS, "y": np.array(["walk", "sit"] * 4), "client": SERIES["subject"]})
    assert pool.y.tolist() == pool.client.tolist() == [1, 0] * 4
    pool = read("npz", parts({"x": ROWS, "y": LABELS}))
    assert (pool.x.tolist(), pool.y.tolist()) == (ROWS.tolist(), LABELS.tolist())
    for y, outputs in ((np.linspace(0, 1, 8), 1), (np.ones((8, 3)), 3)):
        pool = read("npz", {"x": ROWS, "y": y}, task="regression")
        assert (pool.y.shape, pool.y.dtype, pool.outputs) == ((8, outputs), np.float32, outputs)


def test_bytes_of_images_are_scaled_channels_move_to_the_front_and_series_stay_series(read):
    for shape, expected in (((8, 4, 5), np.ones((8, 1, 4, 5))), ((8, 4), np.full((8, 4), 255))):
        pool = read("npz", {"x": np.full(shape, 255, np.uint8), "y": LABELS})
        assert np.array_equal(pool.inputs(np.arange(8)), expected)
    for channels in (1, 3):
        images = np.random.default_rng(0).random((8, 4, 5, channels))
        pool = read("npz", {"x": images, "y": LABELS})
        assert np.array_equal(pool.x, images.transpose(0, 3, 1, 2).astype(np.float32))
    assert read("npz", {"x": np.zeros((8, 3, 4, 5)), "y": LABELS}).input_shape == (3, 4, 5)
    assert np.array_equal(read("npz", SERIES, series=True).inputs(np.arange(8)), SERIES["x"])
    assert read("npz", SERIES).input_shape == (1, 3, 2)


def test_the_array_of_owners_may_have_any_name(read):
    pool = read("npz", SERIES, client="subject")
    assert (pool.client.tolist(), pool.owners) == ([1, 0] * 4, ("al", "bo"))
    assert read("npz", SERIES).client is None
    assert read("npz", SERIES | {"client": SERIES["subject"]}, client="").client is None
    assert len(read("npz", parts(SERIES), client="subject").client) == 8


# -- UCI HAR -----------------------------------------------------------------------------------------------------------

SUBJECTS = {"train": [1, 1, 3, 3, 5, 5], "test": [2, 2, 4]}


def write_har(folder):
    """Fixed-width scientific numbers, as in the archive; feature 0 is the row's number / 100."""
    for part, subjects in SUBJECTS.items():
        (folder / part).mkdir(parents=True)
        x = np.random.default_rng(0).uniform(-1, 1, (len(subjects), 561))
        x[:, 0] = np.arange(len(subjects)) / 100
        np.savetxt(folder / part / f"X_{part}.txt", x, fmt="%16.7e", delimiter="")
        np.savetxt(folder / part / f"y_{part}.txt", 1 + np.arange(len(subjects)) % 6, fmt="%d")
        np.savetxt(folder / part / f"subject_{part}.txt", subjects, fmt="%d")


@pytest.mark.parametrize("place", ["", "UCI HAR Dataset"])
def test_a_person_is_a_client_and_activities_start_at_0(tmp_path, place):
    write_har(tmp_path / place)
    pool = load(DataSection(dataset="har", root=tmp_path), 0)
    assert (pool.x.shape, pool.x.dtype, pool.task, pool.outputs) == ((9, 561), np.float32, "classification", 6)
    assert pool.client.tolist() == [0, 0, 2, 2, 4, 4, 1, 1, 3]
    assert pool.y.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert pool.tests.tolist() == [False] * 6 + [True] * 3
    assert np.allclose(pool.x[:, 0], [0, 0.01, 0.02, 0.03, 0.04, 0.05, 0, 0.01, 0.02])


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("test/subject_test.txt", None, "it lacks test/subject_test.txt"),
        ("train/y_train.txt", "1\n2\n", "X_train.txt has 6 lines, "),
        ("test/y_test.txt", "1\n2\n7\n", "y_test.txt holds activity 7: activities are 1 to 6"),
        ("test/y_test.txt", "1\n2\nwalk\n", "y_test.txt can't be read: "),
        ("test/X_test.txt", "1 2\n3 4\n5 nan\n", "X holds NaN, an infinity or a number beyond float32 in row 2"),
        ("test/X_test.txt", "1 2\n3 4\n5 6\n", "training samples have 561 features, test samples 2"),
    ],
)
def test_a_damaged_archive_is_refused(tmp_path, file, content, complaint):
    write_har(tmp_path)
    (tmp_path / file).unlink() if content is None else (tmp_path / file).write_text(content)
    with pytest.raises(DataError, match=complaint):
        load(DataSection(dataset="har", root=tmp_path), 0)


# -- School, Vehicle and GLEAM -----------------------------------------------------------------------------------------


def cells(arrays, *, column=False):
    row = np.empty((1, len(arrays)), dtype=object)
    row[0, :] = arrays
    return row.T if column else row


def tasks(sizes=(5, 7, 4), features=3):
    """Feature 0 of every sample is its task's number."""
    rng = np.random.default_rng(0)
    return [np.column_stack([np.full(n, task), rng.normal(size=(n, features - 1))]) for task, n in enumerate(sizes)]


def scores(sizes=(5, 7, 4)):
    return [np.arange(1, size + 1, dtype=np.uint8)[:, None] for size in sizes]


def test_a_school_is_a_client_and_scores_stay_as_they_are(read):
    pool = read("school", {"X": cells(tasks()), "Y": cells(scores())})
    assert (pool.x.shape, pool.y.shape, pool.task, pool.outputs) == ((16, 3), (16, 1), "regression", 1)
    assert np.array_equal(pool.x[:, 0], pool.client)
    assert pool.y[:, 0].tolist() == [*range(1, 6), *range(1, 8), *range(1, 5)]
    assert (pool.x.dtype, pool.y.dtype) == (np.float32, np.float32)
    for client, shard in enumerate(cut(DataSection(dataset="school"), pool, 3, seed=1)):
        assert set(shard.x_train[:, 0]) | set(shard.x_test[:, 0]) == {client}


@pytest.mark.parametrize(("dataset", "column"), [("vehicle", False), ("gleam", True)])
def test_minus_one_and_one_become_classes_0_and_1_from_a_row_or_a_column_of_cells(read, dataset, column):
    signs = [np.where(np.arange(size) % 2, 1, -1)[:, None] for size in (5, 7, 4)]
    pool = read(dataset, {"X": cells(tasks(), column=column), "Y": cells(signs, column=column)})
    assert (pool.task, pool.outputs) == ("classification", 2)
    assert pool.y.tolist() == np.concatenate(signs)[:, 0].clip(0).tolist()
    assert np.bincount(pool.client).tolist() == [5, 7, 4]


# -- series of sensors -------------------------------------------------------------------------------------------------

VALUES = np.arange(20)[:, None] + 100 * np.arange(3)[None]
"""At moment t, sensor s shows t + 100 s."""


@pytest.fixture(params=["csv", "csv with time", "parquet", "npz", "npz with channels"])
def sensors(request, read):
    frame = pd.DataFrame(VALUES, columns=["a", "b", "c"])
    content = {
        "csv with time": frame.assign(time=pd.date_range("2020-01-01", periods=20, freq="5min").astype(str)),
        "npz": {"values": VALUES},
        "npz with channels": {"data": np.stack([VALUES, -VALUES], axis=2)},
    }.get(request.param, frame)
    form = f".{request.param.partition(' ')[0]}"
    return lambda **keys: read("sensors", content, form, **{"window": 4, "horizon": 2} | keys)


def test_a_sample_is_a_window_and_the_values_that_follow_it(sensors):
    pool = sensors()
    assert (pool.x.shape, pool.y.shape, pool.task, pool.outputs) == ((45, 4), (45, 2), "regression", 2)
    for sensor in range(3):
        start = 100 * sensor + np.arange(15)[:, None]
        assert np.array_equal(pool.x[pool.client == sensor], start + np.arange(4))
        assert np.array_equal(pool.y[pool.client == sensor], start + 4 + np.arange(2))
    assert len(sensors(window=18)) == 3
    said = refusal(sensors, window=19)
    assert "holds 20 moments, but data.window and data.horizon together take 21" in said


def test_test_samples_are_the_latest_of_a_client_and_reduced_training_data_is_right_before_them(sensors):
    for shard in cut(DataSection(dataset="sensors", partition="even"), sensors(), 3, seed=0):
        assert (shard.y_train[:, 0] % 100).max() <= (shard.y_test[:, 0] % 100).min()
    section = DataSection(dataset="sensors", reduced_clients=1, reduced_to=0.5)
    for client, shard in enumerate(cut(section, sensors(), 3, seed=0)):
        assert sorted(shard.y_train[:, 0] - 100 * client) == [9, 10, 11, 12, 13, 14]
        assert sorted(shard.y_test[:, 0] - 100 * client) == [15, 16, 17, 18]


# -- what does not hold together ---------------------------------------------------------------------------------------

UNLIKE = parts({"x": ROWS, "y": LABELS}) | {"x_test": ROWS[5:, :1]}
UNLIKE_CELLS = cells([*tasks((5, 7)), *tasks((4,), 2)])


@pytest.mark.parametrize(
    ("dataset", "content", "keys", "complaint"),
    [
        ("table", {"a": np.eye(3)}, {}, "a has shape (3, 3); a column is (n,)"),
        ("table", {"a": np.ones(3), "target": np.ones(2)}, {}, "its columns differ in length: a 3, target 2"),
        ("table", {"a": np.array([{}, {}])}, {}, "a is damaged or holds Python objects"),
        ("npz", {"x": ROWS[:, 0], "y": LABELS}, {}, "x has shape (8,); allowed are (n, features)"),
        ("npz", {"x": np.zeros((8, 32, 32, 4)), "y": LABELS}, {}, "with 1 or 3 channels"),
        ("npz", {"x": ROWS[:, :0], "y": LABELS}, {}, "x has shape (8, 0)"),
        ("npz", {"x": ROWS, "y": np.full(8, np.inf)}, {"task": "regression"}, "y holds NaN, an infinity"),
        ("npz", {"x": ROWS, "y": np.zeros((8, 1, 1))}, {"task": "regression"}, "y has shape (8, 1, 1)"),
        ("npz", {"x": ROWS, "y": LABELS}, {"series": True}, "data.series = true needs (n, steps, features)"),
        ("npz", parts(SERIES), {"client": "who"}, "needed is who_train and who_test; it holds arrays x_train, x_test,"),
        ("npz", UNLIKE, {}, "x_train has shape (5, 2), which does not fit x_test, (3, 1)"),
        ("school", {"X": cells(tasks())}, {}, "it lacks Y; needed are cells X and Y"),
        ("school", {"X": np.eye(3), "Y": cells(scores())}, {}, "; needed is a row of cells"),
        ("school", {"X": cells(tasks()), "Y": cells(scores((5, 7)))}, {}, "X has 3 cells and Y has 2"),
        ("school", {"X": cells(tasks()), "Y": cells(scores((5, 6, 4)))}, {}, "Y{2} has shape (6, 1), but X{2} has 7 "),
        ("school", {"X": UNLIKE_CELLS, "Y": cells(scores())}, {}, "X{3} has shape (4, 2); needed is (samples, 3)"),
        ("school", {"X": cells(["a", "b"]), "Y": cells(scores((5, 7)))}, {}, "X{1} is not an array of whole or real"),
        ("school", {"X": cells([task * np.nan for task in tasks()]), "Y": cells(scores())}, {}, "X holds NaN"),
        ("gleam", {"X": cells(tasks()), "Y": cells(scores())}, {}, "Y holds 7 different labels; needed are two, like"),
        ("sensors", "a,b\n1,2\n3,\n", {}, "b holds NaN, an infinity or a number beyond float32 in row 1"),
        ("sensors", "a,b\n1,2\n3,x\n", {}, "; allowed are whole and real numbers"),
        ("sensors", "time\n1\n2\n", {}, "it has no column of a sensor"),
        ("sensors", {"speeds": VALUES}, {}, "it holds arrays speeds; needed is values or data"),
        ("sensors", {"values": VALUES[:, 0]}, {}, "values has shape (20,)"),
    ],
)
def test_what_does_not_hold_together_is_refused(read, dataset, content, keys, complaint):
    assert complaint in refusal(read, dataset, content, **keys)
