"""The user's own table with named columns, as people bring them: separators, text, dates, gaps, owners with hardly any
rows. What bad_inputs.txt has refused is not repeated here."""

import numpy as np
import pandas as pd
import pytest

from sheafgossip.launcher.config.data import DataSection
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.config.sections import ConfigError
from sheafgossip.launcher.data.pool import DataError
from sheafgossip.launcher.data.sets import load as load_data
from sheafgossip.launcher.data.shards import cut, prepare

FRAME = pd.DataFrame(
    {
        "age": [30, 40, 50, 60],
        "who": ["bo", "al", "bo", "al"],
        "weight": [1.5, 2.5, 3.5, 4.5],
        "ill": [False, True, True, False],
        "smokes": [True, False, False, True],
    }
)
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
FORMATS = [".csv", ".csv.gz", ".npz", ".parquet"]


def section(folder, form=".csv", **keys):
    return DataSection(**{"dataset": "table", "root": folder / f"mine{form}", "target": "ill"} | keys)


@pytest.fixture
def read(tmp_path):
    """Reads a text, or a frame in one of the formats."""

    def read(table, form=".csv", /, **keys):
        path = tmp_path / f"mine{form}"
        if isinstance(table, str):
            path.write_text(table)
        elif form == ".npz":
            np.savez(path, **{name: np.array(column.tolist()) for name, column in table.items()})
        elif form == ".parquet":
            pytest.importorskip("pyarrow")
            table.to_parquet(path)
        else:
            table.to_csv(path, index=False)
        return load_data(section(tmp_path, form, **keys), 0)

    return read


def refusal(read, *given, **keys) -> str:
    with pytest.raises(DataError) as raised:
        read(*given, **keys)
    assert str(raised.value).startswith("data.root = ")
    assert "\n" not in str(raised.value)
    return str(raised.value).partition('mine.csv": ')[2] or str(raised.value)


@pytest.mark.parametrize("form", FORMATS)
def test_the_columns_that_are_neither_target_nor_client_are_the_features(read, form):
    pool = read(FRAME, form, client="who")
    assert pool.x.tolist() == [[30, 1.5, 1], [40, 2.5, 0], [50, 3.5, 0], [60, 4.5, 1]]
    assert pool.x.dtype == np.float32
    assert (pool.y.tolist(), pool.outputs, pool.task) == ([0, 1, 1, 0], 2, "classification")
    assert pool.client.tolist() == [1, 0, 1, 0]
    assert read(FRAME.drop(columns="who"), form, client="").client is None
    assert read(FRAME.assign(ill=["no", "yes", "yes", "no"]), form, client="who").y.tolist() == [0, 1, 1, 0]
    pool = read(FRAME.drop(columns="ill"), form, client="who", target="weight", task="regression")
    assert (pool.y.tolist(), pool.outputs, pool.input_shape) == ([[1.5], [2.5], [3.5], [4.5]], 1, (2,))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (FRAME.assign(age=[1, np.nan, 3, 4]), "age is empty in row 1, and 1 of 4 rows lack a value, in age (1): write"),
        (FRAME.assign(age=[1, 2, np.inf, 4]), "age holds NaN, an infinity"),
        (FRAME.assign(ill=True), "ill holds one class only"),
        (FRAME[["who", "ill"]], "it has no column of features"),
    ],
)
def test_values_that_cannot_be_used_are_refused_in_every_format(read, form, frame, complaint):
    assert complaint in refusal(read, frame, form, client="who")


@pytest.mark.parametrize("form", [".csv", ".parquet"])
def test_a_row_without_a_client_is_named(read, form):
    assert "who is empty in row 3" in refusal(read, FRAME.assign(who=["a", "b", "c", None]), form, client="who")


@pytest.mark.parametrize("content", ["", "a,who,ill\n1,2\n1,2,3,4,5,6\n"])
def test_a_damaged_file_is_refused(read, content):
    assert refusal(read, content).startswith("it can't be read: ")


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"a": np.eye(3)}, "a has shape (3, 3); a column is (n,)"),
        ({"a": np.ones(3), "target": np.ones(2)}, "its columns differ in length: a 3, target 2"),
        ({"a": np.array([{}, {}])}, "a is damaged or holds Python objects"),
    ],
)
def test_arrays_that_are_no_columns_are_refused(tmp_path, arrays, complaint):
    np.savez(tmp_path / "mine.npz", **arrays)
    assert complaint in refusal(load_data, section(tmp_path, ".npz"), 0)


def test_parquet_without_its_library_says_what_to_install(read, monkeypatch):
    def missing(path):
        raise ImportError("Unable to find a usable engine")

    monkeypatch.setattr(pd, "read_parquet", missing)
    assert "Parquet needs pyarrow: .venv/bin/pip install -e '.[parquet]'" in refusal(read, "", ".parquet")


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_what_stands_between_columns_is_found_out_and_told(read, separator):
    pool = read(f"a{separator}b{separator}c\n1.5{separator}2{separator}0\n3{separator}4{separator}1\n", target="c")
    assert pool.x.tolist() == [[1.5, 2], [3, 4]]
    assert any("between its columns" in line for line in pool.told) == (separator != ",")
    assert read('"a;b;c;d",y\n1,0\n2,1\n', target="y").told == ("features: a;b;c;d",)


def test_commas_in_numbers_are_read_between_semicolons(read):
    pool = read("a;b;c\n1,5;2;0\n-3;0,25;1\n", target="c")
    assert pool.x.tolist() == [[1.5, 2], [-3, 0.25]]
    assert "a semicolon stands between its columns, a comma in its numbers" in pool.told


def test_text_gaps_and_dates_are_told_in_one_line_with_what_to_write(read):
    assert refusal(read, PENGUINS, target="species") == (
        'text, not numbers, in island (such as "Torgersen"), sex (such as "male"), date (such as "2007-11-11"): '
        'write data.drop = ["island", "sex", "date"], or data.text = "one-hot"; '
        "sex is empty in row 2, and 2 of 6 rows lack a value, in bill (1), sex (1): "
        'write data.missing = "drop" to leave these rows out, or name columns in data.drop'
    )


def test_text_becomes_a_feature_for_each_word_and_rows_with_gaps_are_left_out(read):
    pool = read(PENGUINS, target="species", drop=("date",), text="one-hot", missing="drop")
    assert pool.told == (
        "2 of 6 rows left out, in which a value is missing",
        "features: island=Biscoe, island=Torgersen, bill, sex=female, sex=male",
    )
    assert pool.x.tolist() == [
        pytest.approx(row) for row in ([0, 1, 39.1, 0, 1], [1, 0, 39.5, 1, 0], [1, 0, 46.1, 1, 0], [1, 0, 50, 0, 1])
    ]


def test_what_is_dropped_or_not_named_needs_no_values(read):
    pool = read(PENGUINS.replace(",,male", ",1,male"), target="species", features=("bill",))
    assert pool.x.shape == (6, 1)
    dropped = read(PENGUINS, target="species", drop=("island", "sex", "date"), missing="drop")
    assert dropped.x[:, 0].tolist() == pytest.approx([39.1, 39.5, 40.3, 46.1, 50.0])


@pytest.mark.parametrize("keys", [{}, {"text": "one-hot"}])
def test_texts_of_which_there_are_very_many_and_columns_without_a_name_are_no_features(read, keys):
    rows = "".join(f"2007-{1 + day // 28:02}-{1 + day % 28:02},{day},{day % 2}\n" for day in range(80))
    assert refusal(read, "date,a,y\n" + rows, target="y", **keys).endswith('write data.drop = ["date"]')
    assert refusal(read, ",a,y\n1,5,0\n2,6,1\n", target="y", **keys) == (
        'no name above column 1: write data.drop = ["Unnamed: 0"]'
    )


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"features": ("bil",)}, 'there is no column "bil" (data.features)'),
        ({"drop": ("bil",)}, 'there is no column "bil" (data.drop)'),
        ({"drop": ("species",)}, 'data.drop names "species", which is data.target'),
        ({"drop": ("sex",), "features": ("bill",)}, "both set"),
        ({"task": "regression"}, 'species is text (such as "Adelie"); write data.task = "classification"'),
        ({"target": "bill"}, 'bill holds 39.1 in row 0; allowed are whole numbers, or data.task = "regression"'),
    ],
)
def test_columns_that_do_not_fit_are_refused_with_what_would(read, keys, complaint):
    given = {"target": "species", "missing": "drop", "text": "one-hot"} | keys
    assert complaint in refusal(read, PENGUINS, **given)


def test_owners_with_few_samples_are_named_and_left_out_and_the_others_keep_their_names(tmp_path, read):
    pool = read(OWNED, client="who")
    with pytest.raises(DataError, match=r"data\.min_samples = 4 leaves out Bo \(2\), Di \(3\)$"):
        cut(section(tmp_path, client="who"), pool, 4, 0)
    with pytest.raises(DataError, match=r'the run has 5; allowed are 1 to 4, or clients = "all"$'):
        cut(section(tmp_path, client="who"), pool, 5, 0)
    data = prepare(section(tmp_path, client="who", min_samples=4), 2, 0, tmp_path / "shards")
    assert data.left_out == ("Bo (2)", "Di (3)")
    assert [client.owner for client in data.clients] == ["Ann", "Cy"]
    assert (data.partition, data.owners) == ("natural", 2)
    with pytest.raises(DataError, match=r"data\.min_samples = 4: samples are split 'even', not by owner; allowed: 0"):
        cut(section(tmp_path, min_samples=4), read(OWNED, drop=("who",)), 2, 0)


def test_all_clients_are_as_many_as_have_enough_samples(tmp_path):
    (tmp_path / "mine.csv").write_text(OWNED)
    (tmp_path / "run.toml").write_text('clients = "all"\n[data]\ndataset = "table"\nroot = "mine.csv"\ntarget = "ill"')
    (config,) = load(tmp_path / "run.toml", ["data.client=who", "data.min_samples=3"])
    assert config.clients == 3
    for overrides, said in (
        ([], r'^data\.root.*text, not numbers, in who \(such as "Ann"\)'),
        (["data.drop=['who']"], r'^clients = "all" stands for the owners.* names none; write a number'),
        (["data.client=who", "data.partition=even"], r'is split by data\.partition = "even"; write a number'),
    ):
        with pytest.raises(ConfigError, match=said):
            load(tmp_path / "run.toml", overrides)
