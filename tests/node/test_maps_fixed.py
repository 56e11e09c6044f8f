"""Maps that stay as they are: the identity and selections of coordinates."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafgossip.node.maps import IdentityMaps, Maps, SelectionMaps

WEIGHTS = {1: 1.0, 4: 0.25, 6: 0.3}
CHOSEN = {1: np.array([4, 0]), 4: np.array([2]), 6: np.array([0, 1, 2, 4])}
THETA = np.array([1.0, -2.0, 0.5, 3.0, 7.0])

every_kind = pytest.mark.parametrize(
    "maps", [IdentityMaps(WEIGHTS, 5), SelectionMaps(CHOSEN, 5)], ids=["identity", "selection"]
)


def test_identity_maps_show_theta_times_the_root_of_the_weight_and_pull_back_the_weighted_sum():
    maps = IdentityMaps(WEIGHTS, 5)
    projected = maps.project(THETA)
    for j, factor in {1: 1.0, 4: 0.5, 6: 0.3**0.5}.items():
        np.testing.assert_allclose(projected[j], factor * THETA, rtol=1e-15)
    np.testing.assert_allclose(maps.pull_back(projected), (1.0 + 0.25 + 0.3) * THETA, rtol=1e-14)


def test_identity_maps_of_weight_one_send_theta_itself_without_a_copy():
    assert IdentityMaps({1: 1.0}, 5).project(THETA)[1] is THETA


def test_selection_maps_show_the_chosen_coordinates_in_the_chosen_order():
    projected = SelectionMaps(CHOSEN, 5).project(THETA)
    assert {j: vector.tolist() for j, vector in projected.items()} == {
        1: [7.0, 1.0],
        4: [0.5],
        6: [1.0, -2.0, 0.5, 7.0],
    }


selections = st.integers(1, 12).flatmap(
    lambda size: st.tuples(
        st.just(size),
        st.dictionaries(
            st.integers(0, 6), st.lists(st.integers(0, size - 1), unique=True, min_size=1).map(np.array), min_size=1
        ),
    )
)


def check_against_matrices(maps: Maps, size: int, rng: np.random.Generator) -> None:
    theta = rng.normal(size=size)
    v = {j: rng.normal(size=len(maps.dense(j))) for j in maps.neighbours}
    projected = maps.project(theta)
    for j in maps.neighbours:
        np.testing.assert_allclose(projected[j], maps.dense(j) @ theta, rtol=1e-14)
    np.testing.assert_allclose(maps.pull_back(v), sum(maps.dense(j).T @ v[j] for j in v), atol=1e-14)
    assert sum(projected[j] @ v[j] for j in v) == pytest.approx(theta @ maps.pull_back(v), abs=1e-12)


@given(selection=selections, seed=st.integers(0, 1000))
@settings(deadline=None)
def test_selections_project_and_pull_back_as_their_matrices_do_and_cover_what_some_edge_sees(selection, seed):
    size, chosen = selection
    maps = SelectionMaps(chosen, size)
    check_against_matrices(maps, size, np.random.default_rng(seed))
    np.testing.assert_array_equal(np.diag(maps.coverage()), sum(maps.dense(j).T @ maps.dense(j) for j in chosen))


@given(
    weights=st.dictionaries(st.integers(0, 6), st.floats(1e-3, 10), min_size=1),
    size=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
@settings(deadline=None)
def test_identities_project_and_pull_back_as_their_matrices_do(weights, size, seed):
    check_against_matrices(IdentityMaps(weights, size), size, np.random.default_rng(seed))


@every_kind
def test_fixed_maps_have_the_norms_of_their_matrices_nothing_to_remember_and_refuse_to_be_updated(maps):
    before = maps.norms()
    for j, norm in before.items():
        assert norm == pytest.approx(np.linalg.norm(maps.dense(j)), rel=1e-15)
    assert maps.state() == {}
    maps.load({})
    assert maps.error_bound == 0.0
    r = {j: np.ones_like(vector) for j, vector in maps.project(THETA).items()}
    with pytest.raises(TypeError, match="fixed"):
        maps.update(maps.project(THETA), r, THETA, 0.1)
    assert maps.norms() == before


def test_identity_maps_take_no_memory():
    assert IdentityMaps(WEIGHTS, 1_000_000).state_bytes() == 0


@pytest.mark.parametrize("maps", [IdentityMaps({}, 5), SelectionMaps({}, 5)], ids=["identity", "selection"])
def test_a_client_without_neighbours_projects_to_nothing_and_is_pulled_nowhere(maps):
    assert maps.project(THETA) == {}
    np.testing.assert_array_equal(maps.pull_back({}), np.zeros(5))
    assert maps.norms() == {}
