"""Tables as people bring them: separators, text, dates, gaps, owners with hardly any rows."""

import pytest

from sheafgossip.launcher.config.data import DataSection
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.config.sections import ConfigError
from sheafgossip.launcher.data import DataError, cut, prepare
from sheafgossip.launcher.data import load as load_data

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


@pytest.fixture
def read(tmp_path):
    def read(text, /, **keys):
        (tmp_path / "mine.csv").write_text(text)
        return load_data(section(tmp_path, **keys), 0)

    return read


def section(folder, **keys):
    return DataSection(**{"dataset": "table", "root": folder / "mine.csv"} | keys)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_what_stands_between_columns_is_found_out_and_told(read, separator):
    pool = read(f"a{separator}b{separator}c\n1.5{separator}2{separator}0\n3{separator}4{separator}1\n", target="c")
    assert pool.x.tolist() == [[1.5, 2], [3, 4]]
    assert any("between its columns" in line for line in pool.told) == (separator != ",")


def test_commas_in_numbers_are_read_between_semicolons(read):
    pool = read("a;b;c\n1,5;2;0\n-3;,25;1\n".replace(",25", "0,25"), target="c")
    assert pool.x.tolist() == [[1.5, 2], [-3, 0.25]]
    assert "a semicolon stands between its columns, a comma in its numbers" in pool.told


def test_a_separator_within_quotes_is_none(read):
    assert read('"a;b;c;d",y\n1,0\n2,1\n', target="y").told == ("features: a;b;c;d",)


def test_text_gaps_and_dates_are_told_in_one_line_with_what_to_write(read):
    with pytest.raises(DataError) as raised:
        read(PENGUINS, target="species")
    assert str(raised.value).partition("mine.csv")[2] == (
        '": text, not numbers, in island (such as "Torgersen"), sex (such as "male"), date (such as "2007-11-11"): '
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


def test_texts_of_which_there_are_very_many_are_no_features(read):
    rows = "".join(f"2007-{1 + day // 28:02}-{1 + day % 28:02},{day},{day % 2}\n" for day in range(80))
    for keys in ({}, {"text": "one-hot"}):
        with pytest.raises(DataError, match=r'write data\.drop = \["date"\]$'):
            read("date,a,y\n" + rows, target="y", **keys)


def test_a_column_without_a_name_is_no_feature(read):
    with pytest.raises(DataError, match=r'no name above column 1: write data\.drop = \["Unnamed: 0"\]$'):
        read(",a,y\n1,5,0\n2,6,1\n", target="y")


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"features": ("bil",)}, r'there is no column "bil" \(data\.features\)'),
        ({"drop": ("bil",)}, r'there is no column "bil" \(data\.drop\)'),
        ({"drop": ("species",)}, r'data\.drop names "species", which is data\.target'),
        ({"drop": ("sex",), "features": ("bill",)}, "both set"),
        ({"drop": ("island", "bill", "sex", "date")}, "no column of features"),
        ({"task": "regression"}, r'species is text \(such as "Adelie"\); write data\.task = "classification"'),
        ({"target": "bill"}, r'bill holds 39\.1 in row 0; allowed are whole numbers, or data\.task = "regression"'),
    ],
)
def test_columns_that_do_not_fit_are_refused_with_what_would(read, keys, complaint):
    missing = {"missing": "drop", "text": "one-hot"}
    with pytest.raises(DataError, match=complaint):
        read(PENGUINS, **{"target": "species"} | missing | keys)


def test_owners_with_few_samples_are_named_with_the_key_that_leaves_them_out(tmp_path, read):
    pool = read(OWNED, target="ill", client="who")
    with pytest.raises(DataError, match=r"data\.min_samples = 4 leaves out Bo \(2\), Di \(3\)$"):
        list(cut(section(tmp_path, target="ill", client="who"), pool, 4, 0))


def test_owners_that_are_left_out_are_told_and_the_others_keep_their_names(tmp_path, read):
    read(OWNED, target="ill", client="who")
    data = prepare(section(tmp_path, target="ill", client="who", min_samples=4), 2, 0, tmp_path / "shards")
    assert data.left_out == ("Bo (2)", "Di (3)")
    assert [client.owner for client in data.clients] == ["Ann", "Cy"]
    assert (data.partition, data.owners) == ("natural", 2)


def test_fewer_samples_than_asked_for_need_owners(tmp_path, read):
    pool = read(OWNED.replace("who", "name"), target="ill", drop=("name",))
    with pytest.raises(DataError, match=r"data\.min_samples = 4: has an effect on owners only"):
        cut(section(tmp_path, min_samples=4), pool, 2, 0)


def test_all_clients_are_as_many_as_have_enough_samples(tmp_path):
    (tmp_path / "mine.csv").write_text(OWNED)
    (tmp_path / "run.toml").write_text('clients = "all"\n[data]\ndataset = "table"\nroot = "mine.csv"\ntarget = "ill"')
    (config,) = load(tmp_path / "run.toml", ["data.client=who", "data.min_samples=3"])
    assert config.clients == 3
    with pytest.raises(ConfigError, match=r'^data\.root.*text, not numbers, in who \(such as "Ann"\)'):
        load(tmp_path / "run.toml")
    with pytest.raises(ConfigError, match=r'^clients = "all" stands for the owners.* names none; write a number'):
        load(tmp_path / "run.toml", ["data.drop=['who']"])
    with pytest.raises(ConfigError, match=r'is split by data\.partition = "even"; write a number'):
        load(tmp_path / "run.toml", ["data.client=who", "data.partition=even"])


def test_more_clients_than_owners_are_told_of_all(tmp_path, read):
    pool = read(OWNED, target="ill", client="who")
    with pytest.raises(DataError, match=r'the run has 5; allowed are 1 to 4, or clients = "all"$'):
        cut(section(tmp_path, target="ill", client="who"), pool, 5, 0)
