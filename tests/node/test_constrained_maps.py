"""Maps that stay within a set while they learn, against plain matrices that are projected by other means."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sheafgossip.node.algorithms import links_of
from sheafgossip.node.algorithms.sheaf_fmtl import SheafFMTL
from sheafgossip.node.assignment import Neighbour
from sheafgossip.node.constrained_maps import (
    BallMaps,
    DiagonalMaps,
    LayerMaps,
    OrthonormalMaps,
    nearest_orthonormal,
)
from sheafgossip.node.maps import starting_maps
from sheafgossip.node.stored_maps import StoredMaps

SIZE, ROWS, STEP, LENGTH, RADIUS = 30, {2: 5, 7: 8}, 0.3, 1.5, 3.0
PLACES = {2: np.array([3, 29, 0, 11, 7]), 7: np.arange(8)}
SEEN = np.array([1, 2, 5, 6, 7, 8, 9, 20, 21, 22])


def start(kind: str = "gaussian", size: int = SIZE):
    return starting_maps(kind, seed=5, node=3, rows=ROWS, theta=np.empty(size), scale=LENGTH)


def nearest_by_svd(matrix: np.ndarray) -> np.ndarray:
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    return LENGTH * left @ right


def into_the_ball(matrix: np.ndarray) -> np.ndarray:
    return matrix * min(1.0, RADIUS / np.linalg.norm(matrix))


def onto_places(j: int):
    mask = np.zeros((ROWS[j], SIZE))
    mask[np.arange(ROWS[j]), PLACES[j]] = 1
    return lambda matrix: mask * matrix


def onto_columns(matrix: np.ndarray) -> np.ndarray:
    return np.where(np.isin(np.arange(SIZE), SEEN), matrix, 0)


def diagonal() -> DiagonalMaps:
    return DiagonalMaps(SIZE, PLACES, {j: np.linspace(0.5, 2, len(places)) for j, places in PLACES.items()})


KINDS = {
    "orthonormal": (lambda: OrthonormalMaps(start(), LENGTH), lambda j: nearest_by_svd),
    "ball": (lambda: BallMaps(start(), "auto", None, RADIUS), lambda j: into_the_ball),
    "ball, dense": (lambda: BallMaps(start(), "dense", None, RADIUS), lambda j: into_the_ball),
    "ball, factored": (lambda: BallMaps(start("orthogonal"), "factored", None, RADIUS), lambda j: into_the_ball),
    "diagonal": (diagonal, onto_places),
    "layers": (lambda: LayerMaps(StoredMaps(start(size=10), "factored"), SEEN, SIZE), lambda j: onto_columns),
    "ball on layers": (
        lambda: LayerMaps(BallMaps(start("orthogonal", 10), "factored", None, RADIUS), SEEN, SIZE),
        lambda j: lambda matrix: into_the_ball(onto_columns(matrix)),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_maps_are_the_nearest_of_their_set_after_each_update_and_do_what_their_matrices_do(kind):
    make, nearest = KINDS[kind]
    maps, rng = make(), np.random.default_rng(1)
    P = {j: maps.dense(j).copy() for j in ROWS}
    for j, matrix in P.items():  # at the start, too
        np.testing.assert_allclose(matrix, nearest(j)(matrix), rtol=0, atol=1e-12)
    for number in range(40):
        theta = rng.normal(size=SIZE) / math.sqrt(SIZE)
        heard = list(ROWS) if number % 5 else [7]  # of one nothing was heard
        r = {j: rng.normal(size=ROWS[j]) for j in heard}
        maps.update(maps.project(theta), r, theta, STEP)
        maps.constrain()
        P |= {j: nearest(j)(P[j] - STEP * np.outer(r[j], theta)) for j in heard}
        projected, v = maps.project(theta), {j: rng.normal(size=d_ij) for j, d_ij in ROWS.items()}
        for j, matrix in P.items():
            np.testing.assert_allclose(maps.dense(j), matrix, rtol=0, atol=1e-12)
            np.testing.assert_allclose(projected[j], matrix @ theta, rtol=0, atol=1e-12)
            assert maps.norms()[j] == pytest.approx(np.linalg.norm(matrix), rel=1e-12)
        np.testing.assert_allclose(maps.pull_back(v), sum(P[j].T @ v[j] for j in ROWS), rtol=0, atol=1e-12)
    again = make()
    again.load({name: array.copy() for name, array in maps.state().items()})
    for j in ROWS:
        np.testing.assert_array_equal(again.dense(j), maps.dense(j))
        assert again.norms()[j] == pytest.approx(maps.norms()[j], rel=1e-12)


def test_balls_and_layers_keep_the_history_and_diagonals_only_their_entries():
    """Updates that are scaled need no more memory than others."""
    rng, kept = np.random.default_rng(0), {}
    for kind, (make, _) in KINDS.items():
        maps = make()
        for _ in range(4):
            theta, r = rng.normal(size=SIZE), {j: rng.normal(size=d_ij) for j, d_ij in ROWS.items()}
            maps.update(maps.project(theta), r, theta, STEP)
            maps.constrain()
        kept[kind] = maps.history_bytes()
    assert kept["ball, factored"] == 8 * 4 * (SIZE + 13)
    assert kept["layers"] == kept["ball on layers"] == 8 * 4 * (len(SEEN) + 13)
    assert kept["orthonormal"] == kept["diagonal"] == 0
    assert diagonal().state_bytes() == 2 * 8 * 13


@given(st.integers(1, 6), st.integers(0, 6), st.integers(-14, 3), st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_the_nearest_orthonormal_rows_are_orthonormal_and_no_others_nearer(rows, more, exponent, seed):
    """Also where the matrix is nearly of lower rank, and its polar factor badly conditioned."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(rows, rows + more))
    matrix[-1] = 10.0**exponent * matrix[-1] + matrix[0] * (rows > 1)
    nearest = nearest_orthonormal(matrix)
    np.testing.assert_allclose(nearest @ nearest.T, np.eye(rows), rtol=0, atol=1e-12)
    others = [np.linalg.qr(rng.normal(size=matrix.T.shape))[0].T for _ in range(5)]
    distance = np.linalg.norm(nearest - matrix)
    assert all(distance <= np.linalg.norm(other - matrix) + 1e-12 for other in others)
    # its distance is that of the singular values from 1
    assert distance == pytest.approx(np.linalg.norm(np.linalg.svd(matrix)[1] - 1), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("dtype", "slack"), [("float32", 2e-5), ("float64", 1e-12)])
def test_rows_stay_orthonormal_over_many_updates(dtype, slack):
    """Updates are of rank one and so is what a projection looks at: it must not let errors add up. Among them are some
    that leave hardly anything of a row, or change nothing."""
    first = starting_maps("orthogonal", seed=1, node=0, rows={1: 20}, theta=np.empty(100, dtype), scale=1.0)
    maps, rng = OrthonormalMaps(first, 1.0), np.random.default_rng(2)
    for number in range(1000):
        theta, r = (rng.normal(size=n).astype(dtype) / 5 for n in (100, 20))
        mine = maps.project(theta)
        if number % 50 == 0:
            r = {0: 0 * r, 1: mine[1]}[number // 50 % 2]
            theta = maps.dense(1)[0].copy()
            mine = maps.project(theta)
        maps.update(mine, {1: r}, theta, 0.9)
        maps.constrain()
    P = maps.dense(1).astype(float)
    assert np.abs(P @ P.T - np.eye(20)).max() < slack


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("kind", KINDS)
def test_maps_of_a_run_that_diverges_are_no_numbers_and_no_error(kind):
    maps = KINDS[kind][0]()
    theta, r = np.full(SIZE, np.inf), {j: np.full(d_ij, np.nan) for j, d_ij in ROWS.items()}
    maps.update(maps.project(theta), r, theta, STEP)
    maps.constrain()
    assert all(math.isnan(norm) for norm in maps.norms().values())


def test_memory_and_messages_follow_from_the_rows_of_each_edge(assignment):
    """As the launcher tells them of a file; gamma has no part in it. Models have 15 parameters."""
    peers = (Neighbour(1, 15, 0.25, facts=[1.0, 3, []]), Neighbour(5, 15, 0.5, facts=[2.0, 10, []]))
    sizes = {}
    for constraint in ("none", "orthonormal", "diagonal"):
        algorithm = SheafFMTL(start="identity", storage="dense", constraint=constraint)
        own = replace(assignment, neighbours=peers, algorithm=vars(algorithm))
        sizes[constraint] = algorithm.cost(own).numbers
        assert {j: link.sends for j, link in links_of(own).items()} == {1: (3, 3), 5: (10, 10)}
    assert sizes == {"none": 13 * 15, "orthonormal": 13 * 15 + 2 * 10 * 15, "diagonal": 12 * 15 + 2 * 13}
