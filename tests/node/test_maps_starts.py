"""What restriction maps begin as: their laws, their draws, and the fast transform against its explicit matrix."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, norm, uniform

from sheafgossip.node.maps import START_KINDS, StartingMaps, starting_maps
from sheafgossip.node.maps.start import TransformStart, cosine_rows, shared_rows

ORTHONORMAL = ("orthogonal", "shared")
EPS = {"float32": 2.0**-23, "float64": 2.0**-52}

every_kind = pytest.mark.parametrize("kind", START_KINDS)
every_dtype = pytest.mark.parametrize("dtype", list(EPS))


def start(kind, *, seed=5, node=3, rows=None, size=40, scale=1.0, dtype="float64") -> StartingMaps:
    rows = {1: 7, 8: 12} if rows is None else rows
    return starting_maps(kind, seed=seed, node=node, rows=rows, theta=np.empty(size, dtype), scale=scale)


def matrices(maps: StartingMaps) -> dict[int, np.ndarray]:
    return {j: maps.matrix(part) for j, part in maps.stacking.parts.items()}


def one_map(kind, node, neighbour, **changes) -> np.ndarray:
    return matrices(start(kind, node=node, rows={neighbour: 7}, **changes))[neighbour]


def cosine_transform(length: int, rows: np.ndarray | None = None) -> np.ndarray:
    """The orthonormal DCT-II matrix as a textbook writes it; with digits to spare, for its angles are huge."""
    pi = np.longdouble("3.14159265358979323846264338327950288")
    k = (np.arange(length) if rows is None else rows)[:, None]
    matrix = math.sqrt(2 / length) * np.cos(pi * k * (2 * np.arange(length) + 1) / (2 * length)).astype(float)
    matrix[k[:, 0] == 0] = math.sqrt(1 / length)
    return matrix


@every_kind
@every_dtype
def test_every_edge_begins_with_a_matrix_of_its_height_and_precision_which_the_seed_decides_but_for_a_factor(
    kind, dtype
):
    plain, again, scaled = (matrices(start(kind, dtype=dtype, scale=scale)) for scale in (1.0, 1.0, 2.5))
    assert {j: matrix.shape for j, matrix in plain.items()} == {1: (7, 40), 8: (12, 40)}
    assert {str(matrix.dtype) for matrix in plain.values()} == {dtype}
    for j in plain:
        np.testing.assert_array_equal(plain[j], again[j])
        np.testing.assert_allclose(scaled[j], 2.5 * plain[j], rtol=4 * EPS[dtype])


@every_kind
def test_single_precision_maps_are_the_double_precision_maps_rounded(kind):
    rows = {1: 7, 8: 100}  # more than one block of random numbers
    single = matrices(start(kind, rows=rows, size=130, dtype="float32"))
    double = matrices(start(kind, rows=rows, size=130))
    for j in rows:
        np.testing.assert_allclose(single[j], double[j], rtol=4 * EPS["float32"], atol=1e-9)


@every_kind
def test_another_seed_client_or_edge_draws_another_map(kind):
    maps = {
        "one": one_map(kind, 3, 1),
        "another seed": one_map(kind, 3, 1, seed=6),
        "another neighbour": one_map(kind, 3, 2),
        "another client": one_map(kind, 4, 1),
    }
    for a, b in combinations(maps, 2):
        assert not np.allclose(maps[a], maps[b]), f"{a} and {b}"


@every_kind
def test_a_map_does_not_depend_on_the_client_s_other_edges(kind):
    np.testing.assert_array_equal(one_map(kind, 3, 8), matrices(start(kind, rows={1: 5, 8: 7, 9: 2}))[8])


@every_kind
def test_the_two_ends_of_an_edge_draw_independent_maps_unless_they_share_one(kind):
    here, there = one_map(kind, 3, 8), one_map(kind, 8, 3)
    if kind == "shared":
        np.testing.assert_array_equal(here, there)
    else:
        assert not np.allclose(np.abs(here), np.abs(there))  # not even up to signs


@pytest.mark.parametrize("kind", ORTHONORMAL)
@pytest.mark.parametrize("scale", [1.0, 3.0])
@every_dtype
def test_rows_of_an_edge_are_orthogonal_and_as_long_as_the_scale(kind, scale, dtype):
    for matrix in matrices(start(kind, rows={1: 1, 8: 37, 9: 101}, size=101, scale=scale, dtype=dtype)).values():
        product = matrix.astype(np.float64) @ matrix.T.astype(np.float64)
        np.testing.assert_allclose(product, scale**2 * np.eye(len(matrix)), atol=16 * EPS[dtype] * scale**2)


def test_orthogonal_maps_of_two_clients_lie_in_unrelated_directions():
    """Were signs not the client's own, rows of two clients would be equal or orthogonal: products 0 or 1."""
    products = one_map("orthogonal", 3, 8, size=500) @ one_map("orthogonal", 8, 3, size=500).T
    assert np.abs(products).max() < 6 / math.sqrt(500)
    assert np.abs(products).mean() > 0.2 / math.sqrt(500)


def significant(sample: np.ndarray, law) -> float:
    return kstest(sample.ravel(), law.cdf).pvalue


@pytest.mark.parametrize(
    ("kind", "law", "variance", "fourth_less_square"),
    [("gaussian", norm(), 1, 2), ("uniform", uniform(-1, 2), 1 / 3, 4 / 45)],
)
def test_gaussian_maps_are_standard_normal_and_uniform_ones_fill_the_interval(kind, law, variance, fourth_less_square):
    matrix = matrices(start(kind, rows={1: 150}, size=200))[1]
    n = matrix.size
    assert significant(matrix, law) > 1e-4
    assert abs(matrix.mean()) < 5 * math.sqrt(variance / n)
    assert abs(matrix.var() - variance) < 5 * math.sqrt(fourth_less_square / n)
    assert kind == "gaussian" or np.abs(matrix).max() <= 1


def test_identity_maps_are_rows_of_the_identity_plus_noise_of_deviation_a_hundredth():
    for j, matrix in matrices(start("identity", rows={1: 30, 8: 150}, size=200)).items():
        noise = matrix - np.eye(200)[: len(matrix)]
        assert significant(noise, norm(scale=0.01)) > 1e-4, j
        assert abs(noise.std() / 0.01 - 1) < 5 / math.sqrt(2 * noise.size)


@pytest.mark.parametrize("kind", ["gaussian", "uniform", "identity"])
def test_random_numbers_do_not_repeat_within_a_client_s_maps(kind):
    stacked = np.concatenate(list(matrices(start(kind, rows={1: 150, 8: 70}, size=200)).values()))
    noise = stacked - np.round(stacked) if kind == "identity" else stacked
    assert len(np.unique(noise)) == noise.size


def test_shared_rows_are_the_same_at_both_ends_in_every_period_and_maps_begin_with_those_of_the_first():
    for period in range(20):
        assert set(shared_rows(5, 3, {8: 6}, 40, period)[8]) == set(shared_rows(5, 8, {3: 6}, 40, period)[3])
    maps = start("shared", rows={1: 7, 8: 12})
    first = matrices(maps)
    maps.choose(shared_rows(5, 3, {1: 7, 8: 12}, 40, 0))
    for j, matrix in matrices(maps).items():
        np.testing.assert_array_equal(matrix, first[j])


def test_rows_of_other_turns_visit_all_directions_equally_often():
    turns = 2000
    counts = np.zeros(20)
    for turn in range(turns):
        counts[shared_rows(5, 3, {8: 5}, 20, turn)[8]] += 1
    deviation = math.sqrt(turns * 0.25 * 0.75)
    assert counts.sum() == 5 * turns
    assert np.abs(counts - turns / 4).max() < 5 * deviation
    assert counts.std() > deviation / 3  # drawn, not dealt in order


def test_chosen_rows_take_the_place_of_those_before():
    maps = start("shared", rows={1: 7, 8: 12}, scale=2.0)
    signs = np.sign((matrices(maps)[1] * cosine_rows(shared_rows(5, 3, {1: 7}, 40, 0)[1], 40)).sum(axis=0))
    turned = shared_rows(5, 3, {1: 7, 8: 12}, 40, 4)
    maps.choose(turned)
    theta = np.random.default_rng(0).normal(size=40)
    expected = [2 * cosine_transform(40)[turned[j]] * signs @ theta for j in (1, 8)]
    np.testing.assert_allclose(maps.project(theta), np.concatenate(expected), atol=1e-13)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 64, 97])
def test_the_explicit_cosine_rows_are_the_textbook_s(length):
    np.testing.assert_allclose(cosine_rows(np.arange(length), length), cosine_transform(length), atol=1e-15)


def test_cosine_rows_of_a_long_transform_keep_their_digits():
    length = 34826
    rows = cosine_rows(np.array([0, 1, length - 2, length - 1]), length)
    np.testing.assert_allclose(rows @ rows.T, np.eye(4), atol=1e-13)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 16, 97, 128, 331, 1024, 34826])
@every_dtype
def test_the_fast_transform_projects_and_pulls_back_as_its_matrix_does(length, dtype):
    rng = np.random.default_rng(length)
    heights = {4: 1, 2: min(length, 5), 9: min(length, 3)}
    rows = {j: rng.choice(length, d_ij, replace=False) for j, d_ij in heights.items()}
    signs = rng.choice([-1.0, 1.0], length)
    maps = TransformStart(rows, signs, scale=1.5, dtype=np.dtype(dtype))
    explicit = 1.5 * np.concatenate([cosine_transform(length, rows[j]) for j in rows]) * signs
    theta = rng.normal(size=length).astype(dtype)
    v = rng.normal(size=len(explicit)).astype(dtype)
    slack = 16 * EPS[dtype]
    for fast, slow in ((maps.project(theta), explicit @ theta), (maps.pull_back(v), v @ explicit)):
        assert fast.dtype == dtype
        assert np.linalg.norm(fast - slow) <= slack * np.linalg.norm(slow)
    np.testing.assert_allclose(np.concatenate(list(matrices(maps).values())), explicit, atol=slack * 1.5)


@given(
    kind=st.sampled_from(START_KINDS),
    dtype=st.sampled_from(list(EPS)),
    size=st.integers(1, 60),
    data=st.data(),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_pulling_back_is_the_adjoint_of_projecting(kind, dtype, size, data, seed):
    rows = {j: data.draw(st.integers(1, size), label=f"d_{j}") for j in range(1, data.draw(st.integers(2, 4)))}
    maps = start(kind, seed=seed, node=9, rows=rows, size=size, dtype=dtype)
    rng = np.random.default_rng(seed)
    theta, v = rng.normal(size=size).astype(dtype), rng.normal(size=sum(rows.values())).astype(dtype)
    left = float(maps.project(theta).astype(float) @ v)
    right = float(theta @ maps.pull_back(v).astype(float))
    reach = np.linalg.norm(np.concatenate(list(matrices(maps).values()))) * np.linalg.norm(theta) * np.linalg.norm(v)
    assert abs(left - right) <= 8 * EPS[dtype] * reach


@every_kind
@every_dtype
def test_starting_norms_are_those_of_the_matrices(kind, dtype):
    maps = start(kind, rows={1: 30, 8: 120}, size=200, scale=1.7, dtype=dtype)
    for j, matrix in matrices(maps).items():
        assert maps.squared_norms()[j] == pytest.approx(np.square(matrix, dtype=float).sum(), rel=30 * EPS[dtype])


@pytest.mark.parametrize("kind", ORTHONORMAL)
def test_orthonormal_maps_are_never_stored_as_matrices(kind):
    maps = start(kind, rows=dict.fromkeys(range(4, 14), 500), size=50_000, dtype="float32")
    assert maps.state_bytes() <= 4 * (50_000 + 10 * 500)


@every_kind
def test_a_client_without_neighbours_starts_with_no_rows(kind):
    maps = start(kind, rows={})
    assert maps.project(np.ones(40)).shape == (0,)
    np.testing.assert_array_equal(maps.pull_back(np.zeros(0)), np.zeros(40))
