"""Which settings of Sheaf-FMTL and of selective sheaf are refused, and what the others announce on the wire."""

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sheafgossip.node.algorithms.base import Edge, SettingsError, Vector
from sheafgossip.node.algorithms.selective_sheaf import SelectiveSheaf
from sheafgossip.node.algorithms.sheaf_fmtl import SheafFMTL, shared_size
from sheafgossip.node.model.architecture import Architecture

EDGES = [(0, 1), (1, 2)]
EQUAL, UNEQUAL = [650, 650, 650], [650, 650, 922]


ROTATING = r"^algorithm.rotate_every: = 5 needs start = 'shared' and eta = 0; or set it to 0$"


@pytest.mark.parametrize(
    ("sizes", "settings", "told"),
    [
        (UNEQUAL, {"start": "shared"}, r"^algorithm.start = 'shared'.*clients 1 and 2 have 650 and 922 parameters"),
        (EQUAL, {"rotate_every": 5, "eta": 0.0}, ROTATING),
        (EQUAL, {"rotate_every": 5, "start": "shared"}, ROTATING),
        (EQUAL, {"rank_cap": 20, "storage": "dense"}, "^algorithm.rank_cap: .*storage = 'factored'"),
        (EQUAL, {"start": "selection", "eta": 0.1}, "^algorithm.start: = 'selection'.*eta"),
        (EQUAL, {"server": True}, "^algorithm.server: = true needs start = 'selection'"),
    ],
    ids=str,
)
def test_settings_that_contradict_each_other_or_the_clients_are_refused(run_facts, sizes, settings, told):
    with pytest.raises(SettingsError, match=told):
        SheafFMTL(**settings).check(run_facts(sizes, EDGES))
    SheafFMTL().check(run_facts(UNEQUAL, EDGES))


def test_selective_sheaf_refuses_clients_that_start_apart_and_heads_without_layers_before_them(run_facts):
    one, two = Architecture("logistic", (59,), 5), Architecture("mlp", (20,), 6, hidden=(10,))
    with pytest.raises(SettingsError, match=r"^model.same_start: = false: .* common start; set it to true$"):
        SelectiveSheaf().check(run_facts([one], same_start=False))
    SelectiveSheaf(blocks="head").check(run_facts([two]))
    with pytest.raises(SettingsError, match=r"^algorithm.blocks: = 'head' needs a model with layers before"):
        SelectiveSheaf(blocks="head").check(run_facts([one]))


@pytest.mark.parametrize(
    ("settings", "vectors"),
    [
        ({}, [Vector(65), Vector(65)]),
        ({"exchange": "fused"}, [Vector(66, exact=1)]),
        ({"eta": 0.0}, [Vector(65)]),
        ({"eta": 0.0, "exchange": "fused"}, [Vector(65)]),
        ({"eta": 0.0, "start": "selection"}, [Vector(17)]),  # what both ends have
    ],
    ids=str,
)
def test_what_is_announced_a_round(settings, vectors):
    model = Architecture("logistic", (64,), 10)
    edge = Edge(0, 1, 650, 922, model, from_server=False, facts=tuple(range(17)))
    assert SheafFMTL(gamma=0.1, **settings).messages(edge) == vectors


@given(st.integers(1, 1000), st.integers(1, 5_000_000), st.integers(1, 5_000_000))
@example(290, 100, 100)  # 0.29 * 100 is 28.999999999999996 in binary
def test_shared_vectors_are_gamma_times_the_smaller_model_rounded_down_and_at_least_one(thousandths, d_i, d_j):
    expected = max(1, Fraction(thousandths, 1000) * min(d_i, d_j) // 1)
    assert shared_size(thousandths / 1000, d_i, d_j) == shared_size(thousandths / 1000, d_j, d_i) == expected
