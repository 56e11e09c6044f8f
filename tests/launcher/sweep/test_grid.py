"""Grids as they are written on the command line."""

import pytest

from sheafgossip.launcher.config.sections import ConfigError
from sheafgossip.launcher.studies.sweep import parse_grids, settings


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("algorithm.gamma=0.01,0.03", (0.01, 0.03)),
        ("algorithm.gamma = 0.01, 0.03", (0.01, 0.03)),
        ("clients=4", (4,)),
        ("algorithm.name=dfedu,d-psgd", ("dfedu", "d-psgd")),
        ("algorithm.start='shared',\"gaussian, so\"", ("shared", "gaussian, so")),
        ("time.staleness=0,free", (0, "free")),
        ("measuring.kernel=true,false", (True, False)),
        ("model.hidden=[4],[4, 8]", ([4], [4, 8])),
    ],
)
def test_values_are_read_as_in_toml_and_bare_words_need_no_quotes(text, values):
    (found,) = parse_grids([text]).values()
    assert found == values


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["gamma"], "--grid gamma: write it as key=value,value"),
        (["=1,2"], "write it as key=value,value"),
        (["algorithm.gamma="], "write it as key=value,value"),
        (["algorithm.gamma=1,,2"], "a value between the commas is missing"),
        (["rounds=1,2,1"], "1 is there twice"),
        (["rounds=1,2", "rounds=3"], "rounds has a grid already"),
        (["seed=1,2"], "--seeds"),
        (["name=a,b"], "it changes nothing"),
        (["compare=1"], "[[compare]] tables are written in the file"),
        (["algorithm={name='local'},{name='dfedu'}"], "a grid for each of its keys"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(texts, expected):
    with pytest.raises(ConfigError) as caught:
        parse_grids(texts)
    assert expected in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_settings_are_the_product_of_all_grids():
    grids = {"a": (1, 2), "b": ("x", "y")}
    assert list(settings(grids)) == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]
    assert list(settings({})) == [{}]
