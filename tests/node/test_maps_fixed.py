"""Maps that stay as they are, against their matrices: sqrt(a_ij) I, and rows of the identity."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafgossip.node.maps import FixedMaps, IdentityMaps, SelectionMaps

CHOSEN = {1: np.array([4, 0]), 4: np.array([2]), 6: np.array([0, 1, 2, 4])}


@st.composite
def drawn_maps(draw) -> tuple[FixedMaps, int, dict[int, np.ndarray]]:
    """Maps, the length of theta, and the matrices that the maps stand for."""
    size = draw(st.integers(1, 12))
    if draw(st.booleans()):
        weights = draw(st.dictionaries(st.integers(0, 6), st.floats(1e-3, 10)))
        return IdentityMaps(weights, size), size, {j: math.sqrt(a) * np.eye(size) for j, a in weights.items()}
    coordinates = st.lists(st.integers(0, size - 1), unique=True, min_size=1).map(np.array)
    chosen = draw(st.dictionaries(st.integers(0, 6), coordinates))
    return SelectionMaps(chosen, size), size, {j: np.eye(size)[each] for j, each in chosen.items()}


@given(drawn=drawn_maps(), seed=st.integers(0, 1000))
@settings(deadline=None)
def test_fixed_maps_do_what_their_matrices_do_and_cover_what_some_edge_sees(drawn, seed):
    maps, size, matrices = drawn
    rng = np.random.default_rng(seed)
    theta, v = rng.normal(size=size), {j: rng.normal(size=len(P)) for j, P in matrices.items()}
    projected = maps.project(theta)
    assert projected.keys() == maps.norms().keys() == set(matrices)
    for j, P in matrices.items():
        np.testing.assert_array_equal(maps.dense(j), P)
        np.testing.assert_allclose(projected[j], P @ theta, rtol=1e-14)
    nothing = np.zeros(size)
    np.testing.assert_allclose(maps.pull_back(v), sum((P.T @ v[j] for j, P in matrices.items()), nothing), atol=1e-14)
    seen = sum((np.diag(P.T @ P) for P in matrices.values()), nothing)
    np.testing.assert_allclose(maps.coverage(), seen, rtol=1e-14)


@pytest.mark.parametrize("maps", [IdentityMaps({1: 1.0, 4: 0.25, 6: 0.3}, 5), SelectionMaps(CHOSEN, 5)])
def test_fixed_maps_have_the_norms_of_their_matrices_nothing_to_remember_and_refuse_to_be_updated(maps):
    theta, before = np.array([1.0, -2.0, 0.5, 3.0, 7.0]), maps.norms()
    for j, norm in before.items():
        assert norm == pytest.approx(np.linalg.norm(maps.dense(j)), rel=1e-15)
    mine = maps.project(theta)
    maps.pull_back(mine)
    assert (maps.state(), maps.error_bound, maps.flops) == ({}, 0.0, 0)
    maps.load({})
    with pytest.raises(TypeError, match="fixed"):
        maps.update(mine, {j: np.ones_like(vector) for j, vector in mine.items()}, theta, 0.1)
    assert maps.norms() == before


def test_identity_maps_of_weight_one_send_theta_itself_without_a_copy_and_take_no_memory():
    theta = np.ones(5)
    assert IdentityMaps({1: 1.0}, 5).project(theta)[1] is theta
    assert IdentityMaps({1: 0.3}, 1_000_000).state_bytes() == 0
