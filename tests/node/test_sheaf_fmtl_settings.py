"""Which Sheaf-FMTL settings are refused, and what the others announce on the wire."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sheafgossip.launcher.config.sections import ConfigError, validate
from sheafgossip.node.algorithms.base import Edge, SettingsError, Vector
from sheafgossip.node.algorithms.sheaf_fmtl import SheafFMTL, shared_size
from sheafgossip.node.model.architecture import Architecture

EDGES = [(0, 1), (1, 2)]
EQUAL, UNEQUAL = [650, 650, 650], [650, 650, 922]


@pytest.fixture
def refused(run_facts):
    def refused(sizes=EQUAL, **settings) -> str:
        with pytest.raises(SettingsError) as caught:
            SheafFMTL(**settings).check(run_facts(sizes, EDGES))
        return str(caught.value)

    return refused


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("gamma", 0.0), ("gamma", 1.5), ("lam", -0.1), ("eta", -0.1), ("rank_cap", -1), ("rotate_every", -1)),
        *(("start_scale", 0.0), ("start_scale", -1.0)),
    ],
)
def test_values_outside_their_range_are_refused_in_one_line_with_the_key(key, value):
    with pytest.raises(ConfigError, match=rf"^algorithm\.{key} = {value}: must be [^\n]*$"):
        validate({"algorithm": {"name": "sheaf-fmtl", key: value}})


def test_an_unknown_start_is_refused_with_all_that_are_known():
    with pytest.raises(ConfigError) as caught:
        validate({"algorithm": {"name": "sheaf-fmtl", "start": "zeros"}})
    assert all(kind in str(caught.value) for kind in ("gaussian", "uniform", "orthogonal", "identity", "shared"))


def test_shared_maps_between_models_of_different_sizes_are_refused_with_both_sizes(refused):
    line = refused(UNEQUAL, start="shared")
    assert line.startswith("algorithm.start = 'shared'")
    assert "clients 1 and 2 have 650 and 922 parameters" in line


@pytest.mark.parametrize("start", ["gaussian", "uniform", "orthogonal", "identity"])
def test_independent_maps_may_join_models_of_different_sizes(run_facts, start):
    SheafFMTL(start=start).check(run_facts(UNEQUAL, EDGES))


@pytest.mark.parametrize("changes", [{"eta": 0.0}, {"start": "shared"}, {}], ids=["not shared", "learning", "neither"])
def test_rotating_maps_must_be_shared_and_must_not_learn(refused, changes):
    line = refused(rotate_every=5, **changes)
    assert line == "algorithm.rotate_every: = 5 needs start = 'shared' and eta = 0; or set it to 0"


@pytest.mark.parametrize(
    ("settings", "begins", "names"),
    [
        ({"rank_cap": 20, "storage": "dense"}, "algorithm.rank_cap: ", "storage = 'factored'"),
        ({"start": "selection", "eta": 0.1}, "algorithm.start: = 'selection'", "eta"),
        ({"server": True}, "algorithm.server: = true needs start = 'selection'", ""),
    ],
)
def test_settings_that_contradict_each_other_are_refused(refused, settings, begins, names):
    line = refused(**settings)
    assert line.startswith(begins)
    assert names in line


@pytest.mark.parametrize(
    "settings",
    [
        SheafFMTL(),
        SheafFMTL(start="shared"),
        SheafFMTL(start="shared", eta=0.0, rotate_every=1),
        SheafFMTL(rank_cap=20),
        SheafFMTL(rank_cap=20, storage="factored"),
        SheafFMTL(storage="dense"),
        SheafFMTL(exchange="fused"),
    ],
    ids=lambda settings: f"{settings.start} {settings.storage} {settings.rank_cap} {settings.exchange}",
)
def test_settings_that_fit_are_taken(run_facts, settings):
    settings.check(run_facts(EQUAL, EDGES))


def announced(facts=None, **settings) -> list[Vector]:
    model = Architecture("logistic", (64,), 10)
    return SheafFMTL(**settings).messages(Edge(0, 1, 650, 922, model, from_server=False, facts=facts))


@pytest.mark.parametrize(
    ("settings", "vectors"),
    [
        ({}, [Vector(65), Vector(65)]),
        ({"exchange": "fused"}, [Vector(66, exact=1)]),
        ({"eta": 0.0}, [Vector(65)]),
        ({"eta": 0.0, "exchange": "fused"}, [Vector(65)]),
        ({"eta": 0.0, "start": "selection", "facts": tuple(range(17))}, [Vector(17)]),  # what both ends have
    ],
    ids=str,
)
def test_what_is_announced_a_round(settings, vectors):
    assert announced(gamma=0.1, **settings) == vectors


@pytest.mark.parametrize("percent", [1, 7, 28, 29, 57, 58, 100])
def test_whole_products_are_not_lost_to_rounding(percent):
    """0.29 * 100 is 28.999999999999996 in binary."""
    assert shared_size(percent / 100, 100, 100) == percent


@given(
    thousandths=st.integers(1, 1000),
    d_i=st.integers(1, 5_000_000),
    d_j=st.integers(1, 5_000_000),
)
def test_shared_vectors_are_gamma_times_the_smaller_model_rounded_down_and_at_least_one(thousandths, d_i, d_j):
    expected = max(1, Fraction(thousandths, 1000) * min(d_i, d_j) // 1)
    assert shared_size(thousandths / 1000, d_i, d_j) == expected


@given(gamma=st.floats(1e-6, 1), d_i=st.integers(1, 10**6), d_j=st.integers(1, 10**6))
def test_shared_vectors_are_as_long_at_both_ends_and_no_longer_than_either_model(gamma, d_i, d_j):
    assert shared_size(gamma, d_i, d_j) == shared_size(gamma, d_j, d_i)
    assert 1 <= shared_size(gamma, d_i, d_j) <= min(d_i, d_j)
