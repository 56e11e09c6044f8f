"""Maps that stay as they are, and what others begin as: their matrices, laws and draws."""

import math
from functools import partial
from itertools import combinations
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import kstest, norm, uniform

from sheafgossip.node.maps import (
    FixedMaps,
    StartingMaps,
    StartKind,
    TransformStart,
    cosine_rows,
    fast_lengths,
    rows_in_turn,
    shared_rows,
    shared_transform,
    starting_maps,
)

EPS = {"float32": 2.0**-23, "float64": 2.0**-52}
ALL = slice(None)

every_kind = pytest.mark.parametrize("kind", get_args(StartKind))
every_dtype = pytest.mark.parametrize("dtype", list(EPS))


# -- maps that stay as they are ----------------------------------------------------------------------------------------


@given(data=st.data(), size=st.integers(1, 12), seed=st.integers(0, 1000))
def test_fixed_maps_do_what_their_matrices_do_and_refuse_to_be_updated(data, size, seed):
    coordinates = st.lists(st.integers(0, size - 1), unique=True, min_size=1).map(np.array)
    weights = st.just(1.0) | st.floats(1e-3, 10)
    edges = data.draw(st.dictionaries(st.integers(0, 6), st.tuples(coordinates | st.just(ALL), weights)))
    maps = FixedMaps(size, {j: seen for j, (seen, _) in edges.items()}, {j: a for j, (_, a) in edges.items()})
    matrices = {j: math.sqrt(a) * np.eye(size)[seen] for j, (seen, a) in edges.items()}
    rng = np.random.default_rng(seed)
    theta, v = rng.normal(size=size), {j: rng.normal(size=len(P)) for j, P in matrices.items()}
    projected = maps.project(theta)
    assert projected.keys() == maps.norms().keys() == set(matrices)
    for j, P in matrices.items():
        np.testing.assert_array_equal(maps.dense(j), P)
        np.testing.assert_allclose(projected[j], P @ theta, rtol=1e-14)
        assert maps.norms()[j] == pytest.approx(np.linalg.norm(P), rel=1e-14)
        assert (projected[j] is theta) == (
            edges[j][0] is ALL and edges[j][1] == 1
        )  # which is copied once for all neighbours
    nothing = np.zeros(size)
    np.testing.assert_allclose(maps.pull_back(v), sum((P.T @ v[j] for j, P in matrices.items()), nothing), atol=1e-14)
    covered = sum((np.diag(P.T @ P) for P in matrices.values()), nothing)
    np.testing.assert_allclose(maps.coverage(), covered, rtol=1e-14)
    assert (maps.state(), maps.error_bound, maps.flops) == ({}, 0.0, 0)
    assert maps.state_bytes() == sum(8 * len(seen) for seen, _ in edges.values() if seen is not ALL)
    with pytest.raises(TypeError, match="fixed"):
        maps.update(projected, v, theta, 0.1)


# -- what maps begin as ------------------------------------------------------------------------------------------------


def start(kind, *, seed=5, node=3, rows=None, size=40, scale=1.0, dtype="float64") -> StartingMaps:
    rows = {1: 7, 8: 12} if rows is None else rows
    return starting_maps(kind, seed=seed, node=node, rows=rows, theta=np.empty(size, dtype), scale=scale)


def matrices_of(maps: StartingMaps) -> dict[int, np.ndarray]:
    return {j: maps.matrix(part) for j, part in maps.stacking.parts.items()}


def one_map(kind, node, neighbour, **changes) -> np.ndarray:
    return matrices_of(start(kind, node=node, rows={neighbour: 7}, **changes))[neighbour]


def cosine_transform(length: int, rows: np.ndarray | None = None) -> np.ndarray:
    """The orthonormal DCT-II matrix as a textbook writes it; with digits to spare, for its angles are huge."""
    pi = np.longdouble("3.14159265358979323846264338327950288")
    k = (np.arange(length) if rows is None else rows)[:, None]
    matrix = math.sqrt(2 / length) * np.cos(pi * k * (2 * np.arange(length) + 1) / (2 * length)).astype(float)
    matrix[k[:, 0] == 0] = math.sqrt(1 / length)
    return matrix


@every_kind
@every_dtype
def test_edges_begin_with_matrices_of_their_height_precision_and_norm_which_the_seed_decides(kind, dtype):
    """But for a factor. The rows of orthonormal kinds are orthogonal, and as long as that."""
    rows = {1: 7, 8: 100}  # more than one block of random numbers
    plain, again, double = (matrices_of(start(kind, rows=rows, size=130, dtype=d)) for d in (dtype, dtype, "float64"))
    scaled = start(kind, rows=rows, size=130, scale=2.5, dtype=dtype)
    for j, matrix in matrices_of(scaled).items():
        assert (plain[j].shape, plain[j].dtype) == ((rows[j], 130), dtype)
        np.testing.assert_array_equal(plain[j], again[j])
        np.testing.assert_allclose(plain[j], double[j], rtol=4 * EPS[dtype], atol=1e-9)
        np.testing.assert_allclose(matrix, 2.5 * plain[j], rtol=4 * EPS[dtype])
        assert scaled.squared_norms()[j] == pytest.approx(np.square(matrix, dtype=float).sum(), rel=30 * EPS[dtype])
        if kind in ("orthogonal", "shared"):
            product = matrix.astype(float) @ matrix.T.astype(float)
            np.testing.assert_allclose(product, 2.5**2 * np.eye(rows[j]), atol=16 * EPS[dtype] * 2.5**2)
            assert scaled.state_bytes == 130 * np.dtype(dtype).itemsize + 107 * 4  # no matrix is stored


@every_kind
def test_a_map_is_drawn_for_its_seed_its_client_and_its_edge_alone_and_anew_at_the_other_end_unless_shared(kind):
    one = one_map(kind, 3, 8)
    np.testing.assert_array_equal(one, matrices_of(start(kind, rows={1: 5, 8: 7, 9: 2}))[8])
    drawn = [one, one_map(kind, 3, 8, seed=6), one_map(kind, 3, 2), one_map(kind, 4, 8)]
    if kind == "shared":
        np.testing.assert_array_equal(one, one_map(kind, 8, 3))
    else:
        drawn.append(one_map(kind, 8, 3))
    for a, b in combinations(drawn, 2):
        assert not np.allclose(np.abs(a), np.abs(b))  # not even up to signs


def test_orthogonal_maps_of_two_clients_lie_in_unrelated_directions():
    """Were signs not the client's own, rows of two clients would be equal or orthogonal: products 0 or 1."""
    products = one_map("orthogonal", 3, 8, size=500) @ one_map("orthogonal", 8, 3, size=500).T
    assert np.abs(products).max() < 6 / math.sqrt(500)
    assert np.abs(products).mean() > 0.2 / math.sqrt(500)


@pytest.mark.parametrize(
    ("kind", "law"), [("gaussian", norm()), ("uniform", uniform(-1, 2)), ("identity", norm(scale=0.01))]
)
def test_random_numbers_follow_their_law_and_do_not_repeat(kind, law):
    """Of identity maps, what is added to the rows of the identity."""
    maps = matrices_of(start(kind, rows={1: 150, 8: 70}, size=200))
    noise = {j: matrix - np.eye(*matrix.shape) if kind == "identity" else matrix for j, matrix in maps.items()}
    for numbers in noise.values():
        assert kstest(numbers.ravel(), law.cdf).pvalue > 1e-4
        assert numbers.std() == pytest.approx(law.std(), rel=5 / math.sqrt(numbers.size))
        assert (law.pdf(numbers) > 0).all()
    stacked = np.concatenate(list(noise.values()))
    assert len(np.unique(stacked)) == stacked.size


def test_shared_rows_are_the_same_at_both_ends_and_those_of_a_period_take_the_place_of_those_before():
    rows = {1: 7, 8: 12}
    maps = start("shared", rows=rows, scale=2.0)
    first = matrices_of(maps)
    signs = np.sign((first[1] * cosine_rows(shared_rows(5, 3, rows, 40, 0)[1], 40)).sum(axis=0))
    theta = np.random.default_rng(0).normal(size=40)
    for period in (*range(1, 20), 0):
        drawn = shared_rows(5, 3, rows, 40, period)
        np.testing.assert_array_equal(drawn[8], shared_rows(5, 8, {3: 12}, 40, period)[3])
        maps.choose(drawn)
        expected = [2 * cosine_transform(40)[drawn[j]] * signs @ theta for j in rows]
        np.testing.assert_allclose(maps.project(theta), np.concatenate(expected), atol=1e-13)
    for j, matrix in matrices_of(maps).items():  # those of the first period are what maps begin with
        np.testing.assert_array_equal(matrix, first[j])


def test_rows_of_other_periods_visit_all_directions_equally_often():
    periods = 2000
    drawn = [shared_rows(5, 3, {8: 5}, 20, period)[8] for period in range(periods)]
    counts, deviation = np.bincount(np.concatenate(drawn), minlength=20), math.sqrt(periods * 0.25 * 0.75)
    assert counts.sum() == 5 * periods
    assert np.abs(counts - periods / 4).max() < 5 * deviation
    assert counts.std() > deviation / 3  # drawn, not dealt in order


@pytest.mark.parametrize(("size", "d_ij"), [(20, 5), (23, 4), (9, 9), (7, 1)])
def test_rows_in_turn_are_the_same_at_both_ends_and_come_all_equally_often(size, d_ij):
    turns = math.ceil(size / d_ij)
    drawn = [rows_in_turn(5, 3, {8: d_ij, 1: 1}, size, period) for period in range(2 * turns)]
    for period, rows in enumerate(drawn):
        np.testing.assert_array_equal(rows[8], rows_in_turn(5, 8, {3: d_ij}, size, period)[3])
        assert len(set(rows[8])) == d_ij
    seen = [rows[8] for rows in drawn]
    assert all(set(np.concatenate(seen[k : k + turns])) == set(range(size)) for k in range(turns))
    assert np.ptp(np.bincount(np.concatenate(seen), minlength=size)) <= 1
    firsts = {int(rows_in_turn(seed, 3, {8: 5}, 20, 0)[8][0]) for seed in range(200)}
    assert firsts == set(range(20))


@given(size=st.integers(1, 200_000))
def test_fast_lengths_add_up_and_have_no_large_prime_factor(size):
    lengths = fast_lengths(size)
    assert sum(lengths) == size
    assert all(30**20 % length == 0 for length in lengths)  # 2, 3 and 5 alone
    assert list(lengths) == sorted(lengths, reverse=True)


@every_dtype
@given(size=st.integers(1, 40), plain=st.integers(0, 40), seed=st.integers(0, 1000))
def test_all_rows_of_a_transform_in_blocks_and_its_inverse_are_its_matrix_and_the_transpose(dtype, size, plain, seed):
    plain = min(plain, size)
    lengths = fast_lengths(size - plain)
    maps = shared_transform(seed, {1: np.arange(size)}, lengths, plain=plain, dtype=np.dtype(dtype))
    near = partial(np.testing.assert_allclose, rtol=0, atol=50 * EPS[dtype])
    matrix, v = maps.matrix(slice(None)), np.random.default_rng(seed).normal(size=size).astype(dtype)
    near(maps.of(v), matrix @ v)
    near(maps.inverse(v.copy()), matrix.T @ v)
    near(maps.inverse(maps.of(v)), v)
    np.testing.assert_array_equal(maps.of(v)[size - plain :], v[size - plain :])


@pytest.mark.parametrize("length", [1, 2, 3, 7, 16, 97, 128, 331, 1024, 34826])
@every_dtype
def test_the_fast_transform_and_its_explicit_rows_are_the_textbook_s(length, dtype):
    rng = np.random.default_rng(length)
    heights = {4: 1, 2: min(length, 5), 9: min(length, 3)}
    rows = {j: rng.choice(length, d_ij, replace=False) for j, d_ij in heights.items()}
    signs = 1 - 2 * np.random.default_rng(3).integers(0, 2, length)
    maps = TransformStart(rows, (length,), np.random.default_rng(3), 1.5, np.dtype(dtype))
    explicit = 1.5 * np.concatenate([cosine_transform(length, rows[j]) for j in rows]) * signs
    theta = rng.normal(size=length).astype(dtype)
    v = rng.normal(size=len(explicit)).astype(dtype)
    slack = 16 * EPS[dtype]
    for fast, slow in ((maps.project(theta), explicit @ theta), (maps.pull_back(v), v @ explicit)):
        assert fast.dtype == dtype
        assert np.linalg.norm(fast - slow) <= slack * np.linalg.norm(slow)
    np.testing.assert_allclose(np.concatenate(list(matrices_of(maps).values())), explicit, atol=slack * 1.5)
    ends = np.unique([0, min(1, length - 1), max(length - 2, 0), length - 1])
    np.testing.assert_allclose(cosine_rows(ends, length), cosine_transform(length, ends), atol=1e-15)
