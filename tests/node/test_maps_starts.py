"""What restriction maps begin as: their laws, their draws, and the fast transform against its explicit matrix."""

import math
from itertools import combinations

import numpy as np
import pytest
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
def test_edges_begin_with_matrices_of_their_height_precision_and_norm_which_the_seed_decides_but_for_a_factor(
    kind, dtype
):
    rows = {1: 7, 8: 100}  # more than one block of random numbers
    plain, again, double = (matrices(start(kind, rows=rows, size=130, dtype=d)) for d in (dtype, dtype, "float64"))
    scaled = start(kind, rows=rows, size=130, scale=2.5, dtype=dtype)
    for j, d_ij in rows.items():
        assert (plain[j].shape, plain[j].dtype) == ((d_ij, 130), dtype)
        np.testing.assert_array_equal(plain[j], again[j])
        np.testing.assert_allclose(plain[j], double[j], rtol=4 * EPS[dtype], atol=1e-9)
        matrix = matrices(scaled)[j]
        np.testing.assert_allclose(matrix, 2.5 * plain[j], rtol=4 * EPS[dtype])
        assert scaled.squared_norms()[j] == pytest.approx(np.square(matrix, dtype=float).sum(), rel=30 * EPS[dtype])


@every_kind
def test_a_map_is_drawn_for_its_seed_its_client_and_its_edge_alone_and_anew_at_the_other_end_unless_shared(kind):
    one = one_map(kind, 3, 8)
    np.testing.assert_array_equal(one, matrices(start(kind, rows={1: 5, 8: 7, 9: 2}))[8])
    drawn = [one, one_map(kind, 3, 8, seed=6), one_map(kind, 3, 2), one_map(kind, 4, 8)]
    if kind == "shared":
        np.testing.assert_array_equal(one, one_map(kind, 8, 3))
    else:
        drawn.append(one_map(kind, 8, 3))
    for a, b in combinations(drawn, 2):
        assert not np.allclose(np.abs(a), np.abs(b))  # not even up to signs


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


@pytest.mark.parametrize(
    ("kind", "law", "variance", "fourth_less_square"),
    [
        ("gaussian", norm(), 1, 2),
        ("uniform", uniform(-1, 2), 1 / 3, 4 / 45),
        ("identity", norm(scale=0.01), 1e-4, 2e-8),
    ],
)
def test_random_numbers_follow_their_law_and_do_not_repeat(kind, law, variance, fourth_less_square):
    """Of identity maps, what is added to the rows of the identity."""
    maps = matrices(start(kind, rows={1: 150, 8: 70}, size=200))
    noise = {j: matrix - np.eye(*matrix.shape) if kind == "identity" else matrix for j, matrix in maps.items()}
    for numbers in noise.values():
        n = numbers.size
        assert kstest(numbers.ravel(), law.cdf).pvalue > 1e-4
        assert abs(numbers.mean()) < 5 * math.sqrt(variance / n)
        assert abs(numbers.var() - variance) < 5 * math.sqrt(fourth_less_square / n)
        assert kind != "uniform" or np.abs(numbers).max() <= 1
    stacked = np.concatenate(list(noise.values()))
    assert len(np.unique(stacked)) == stacked.size


def test_shared_rows_are_the_same_at_both_ends_and_those_of_a_period_take_the_place_of_those_before():
    rows = {1: 7, 8: 12}
    maps = start("shared", rows=rows, scale=2.0)
    first = matrices(maps)
    signs = np.sign((first[1] * cosine_rows(shared_rows(5, 3, rows, 40, 0)[1], 40)).sum(axis=0))
    theta = np.random.default_rng(0).normal(size=40)
    for period in (*range(1, 20), 0):
        drawn = shared_rows(5, 3, rows, 40, period)
        np.testing.assert_array_equal(drawn[8], shared_rows(5, 8, {3: 12}, 40, period)[3])
        maps.choose(drawn)
        expected = [2 * cosine_transform(40)[drawn[j]] * signs @ theta for j in rows]
        np.testing.assert_allclose(maps.project(theta), np.concatenate(expected), atol=1e-13)
    for j, matrix in matrices(maps).items():  # those of the first period are what maps begin with
        np.testing.assert_array_equal(matrix, first[j])


def test_rows_of_other_periods_visit_all_directions_equally_often():
    periods = 2000
    counts = np.zeros(20)
    for period in range(periods):
        counts[shared_rows(5, 3, {8: 5}, 20, period)[8]] += 1
    deviation = math.sqrt(periods * 0.25 * 0.75)
    assert counts.sum() == 5 * periods
    assert np.abs(counts - periods / 4).max() < 5 * deviation
    assert counts.std() > deviation / 3  # drawn, not dealt in order


@pytest.mark.parametrize("length", [1, 2, 3, 7, 16, 97, 128, 331, 1024, 34826])
@every_dtype
def test_the_fast_transform_and_its_explicit_rows_are_the_textbook_s(length, dtype):
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
    ends = np.unique([0, min(1, length - 1), max(length - 2, 0), length - 1])
    np.testing.assert_allclose(cosine_rows(ends, length), cosine_transform(length, ends), atol=1e-15)


@pytest.mark.parametrize("kind", ORTHONORMAL)
def test_orthonormal_maps_are_never_stored_as_matrices(kind):
    maps = start(kind, rows=dict.fromkeys(range(4, 14), 500), size=50_000, dtype="float32")
    assert maps.state_bytes() <= 4 * (50_000 + 10 * 500)
