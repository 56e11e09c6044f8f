"""Dense, factored and self-choosing maps against a plain list of matrices, updated as equation (19) says; and factored
maps whose history may keep only so many rows: what is lost, and what is said about it."""

import gc
import math
import weakref
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from safetensors.numpy import load_file

from sheafgossip.node.maps import StartKind, starting_maps
from sheafgossip.node.process.states import write_state
from sheafgossip.node.stored_maps import StoredMaps, dense_cost, factored_cost, truncation_flops

EPS = {"float32": 2.0**-23, "float64": 2.0**-52}
LARGE = {"size": 2100, "rows": {2: 40, 7: 50}}  # factored maps pay at first, and history takes several blocks
STEP = 0.02

every_storage = pytest.mark.parametrize("storage", ["auto", "dense", "factored"])
every_dtype = pytest.mark.parametrize("dtype", list(EPS))


def start(kind="orthogonal", *, size, rows, dtype="float64", seed=5):
    return starting_maps(kind, seed=seed, node=3, rows=rows, theta=np.empty(size, dtype), scale=1.5)


class Plain:
    """{j: P_ij} in double precision, and nothing clever."""

    def __init__(self, kind: str, size: int, rows: dict[int, int], seed: int = 5):
        first = start(kind, size=size, rows=rows, seed=seed)
        self.P = {j: first.matrix(part) for j, part in first.stacking.parts.items()}
        # what rounding errors are measured against: nothing ever was larger
        self.reach = math.sqrt(sum(float((P**2).sum()) for P in self.P.values()))

    def project(self, theta: np.ndarray) -> None:
        return

    def update(self, mine: None, r: dict[int, np.ndarray], theta: np.ndarray, step: float) -> None:
        for j in self.P:
            self.P[j] = self.P[j] - step * np.outer(r[j].astype(float), theta.astype(float))
            self.reach += step * float(np.linalg.norm(r[j])) * float(np.linalg.norm(theta))


def draw(rng: np.random.Generator, maps: StoredMaps) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """A theta, and a vector of each edge: anything, for the laws do not ask where they come from."""
    theta, stacked = (rng.normal(size=n).astype(maps.start.dtype) for n in (maps.start.size, maps.stacking.height))
    return theta, maps.stacking.split(stacked)


def feed(rng: np.random.Generator, updates: int, maps: StoredMaps, *others: Plain | StoredMaps) -> np.ndarray:
    """The same updates for all. Returns the last theta."""
    theta, r = draw(rng, maps)
    for _ in range(updates):
        for each in (maps, *others):
            each.update(each.project(theta), r, theta, STEP)
        last, (theta, r) = theta, draw(rng, maps)
    return last if updates else theta


def is_dense(maps: StoredMaps) -> bool:
    return "maps" in maps.state()


def rows_at_the_switch(kind: str = "orthogonal", dtype: str = "float64") -> int:
    """After how many updates LARGE maps that choose themselves turn dense."""
    first = start(kind, **LARGE, dtype=dtype)
    return next(rows for rows in range(1, 200) if factored_cost(first, rows) > dense_cost(first))


def stacked(maps: StoredMaps) -> np.ndarray:
    return np.concatenate([np.zeros((0, maps.start.size)), *map(maps.dense, maps.neighbours)])


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(1)


small = st.integers(1, 15).flatmap(
    lambda size: st.fixed_dictionaries(
        {"size": st.just(size), "rows": st.dictionaries(st.integers(4, 9), st.integers(1, size))}
    )
)


@every_storage
@every_dtype
@given(
    shape=small | st.just(LARGE),
    kind=st.sampled_from(get_args(StartKind)),
    updates=st.integers(0, 3) | st.sampled_from([31, 32, 33, 65]),  # a block of LARGE history has 32 rows
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_maps_do_what_plain_matrices_do_after_any_updates(storage, dtype, shape, kind, updates, seed):
    maps, plain = StoredMaps(start(kind, **shape, dtype=dtype, seed=seed), storage), Plain(kind, **shape, seed=seed)
    rng, eps = np.random.default_rng(seed), EPS[dtype]
    handed = feed(rng, updates, maps, plain)
    updated_with = handed.copy()  # its projection takes the short way
    handed += 1  # as a client does in every round: that does not reach into the maps
    other, v = draw(rng, maps)
    pulled, norms = maps.pull_back(v), maps.norms()
    assert pulled.dtype == dtype
    for theta in (updated_with, handed, other):
        projected = maps.project(theta)
        assert {j: vector.dtype for j, vector in projected.items()} == dict.fromkeys(shape["rows"], np.dtype(dtype))
        for j, P in plain.P.items():
            assert np.linalg.norm(projected[j] - P @ theta) <= 20 * eps * plain.reach * np.linalg.norm(theta)
    assert norms.keys() == plain.P.keys()
    for j, P in plain.P.items():
        assert np.linalg.norm(maps.dense(j) - P) <= 8 * eps * plain.reach
        assert abs(norms[j] ** 2 - np.linalg.norm(P) ** 2) <= 40 * eps * plain.reach**2
    length = np.linalg.norm(maps.stacking.join(v))
    expected = sum((P.T @ v[j].astype(float) for j, P in plain.P.items()), np.zeros(shape["size"]))
    assert np.linalg.norm(pulled - expected) <= 20 * eps * plain.reach * length


@every_storage
def test_norms_of_maps_that_are_no_numbers_any_more_are_no_numbers_either(storage, rng):
    maps = StoredMaps(start(**LARGE), storage)
    theta, r = draw(rng, maps)
    maps.update(maps.project(theta), {j: np.nan * vector for j, vector in r.items()}, theta, STEP)
    assert all(math.isnan(norm) for norm in maps.norms().values())


# -- what storages cost ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coordinate", [None, 0, 1234, 2099])
def test_projecting_the_very_theta_of_the_last_update_costs_no_pass_over_anything(coordinate, rng):
    maps = StoredMaps(start(**LARGE))
    theta = feed(rng, 3, maps).copy()
    if coordinate is not None:
        theta[coordinate] = np.nextafter(theta[coordinate], np.inf)
    before = maps.flops
    maps.project(theta)
    assert (maps.flops > before) == (coordinate is not None)


def test_dense_maps_are_read_by_each_product_and_each_update(rng):
    maps = StoredMaps(start(**LARGE), "dense")
    for passes in (2, 4):
        feed(rng, 1, maps)  # a projection, an update
        assert maps.flops == passes * 2 * 2100 * 90
    maps.pull_back(draw(rng, maps)[1])
    assert maps.flops == 5 * 2 * 2100 * 90


@pytest.mark.parametrize(("kind", "a_product"), [("gaussian", 2 * 60 * 10), ("orthogonal", 886)])  # 2.5 * 60 * log2(60)
def test_factored_maps_are_their_start_and_one_theta_and_one_row_of_all_edges_an_update(kind, a_product):
    maps = StoredMaps(start(kind, size=60, rows={1: 4, 2: 6}))
    theta, r = np.linspace(-1, 1, 60), {1: np.ones(4), 2: np.ones(6)}
    start_bytes, updates = maps.state_bytes(), 45
    for _ in range(updates):
        maps.update(r, r, theta, 0.1)
    assert maps.flops == 0  # an update only remembers
    assert maps.state_bytes() - start_bytes == maps.history_bytes() == 8 * updates * (60 + 10)
    maps.project(2 * theta)
    maps.pull_back(r)
    assert maps.flops == 2 * (a_product + 2 * updates * (60 + 10))


def test_a_growing_history_never_moves_its_earlier_rows(rng):
    maps = StoredMaps(start(**LARGE))
    feed(rng, 1, maps)
    first = maps.history.blocks()[0]
    feed(rng, 100, maps)
    assert all(map(np.shares_memory, first, maps.history.blocks()[0]))


@pytest.mark.parametrize("kind", get_args(StartKind))
def test_self_choosing_maps_are_factored_exactly_as_long_as_that_costs_no_more_and_never_turn_back(kind, rng):
    maps = StoredMaps(start(kind, **LARGE), "auto")
    feed(rng, rows_at_the_switch(kind) - 1, maps)
    assert not is_dense(maps)
    for _ in range(41):
        feed(rng, 1, maps)
        assert is_dense(maps)
    assert is_dense(StoredMaps(start(size=12, rows={2: 3}), "auto"))  # small ones from the start


@pytest.mark.parametrize(
    ("kind", "dtype"), [("orthogonal", "float32"), ("orthogonal", "float64"), ("gaussian", "float64")]
)
def test_turning_dense_changes_no_bit_of_the_maps_and_what_they_do_by_rounding_only(kind, dtype, rng):
    """The product that makes the matrices is paid for, and the random numbers of the start are let go."""
    first = start(kind, **LARGE, dtype=dtype)
    random_start = weakref.ref(first)
    maps, twin = StoredMaps(first, "auto"), StoredMaps(start(kind, **LARGE, dtype=dtype))
    del first
    rows = rows_at_the_switch(kind, dtype)
    feed(rng, rows, maps, twin)
    assert is_dense(maps)
    gc.collect()
    assert random_start() is None
    assert maps.state_bytes() == 2100 * 90 * np.dtype(dtype).itemsize
    assert maps.flops == twin.flops + 2 * rows * 2100 * 90
    np.testing.assert_array_equal(stacked(maps), stacked(twin))
    theta, v = draw(rng, maps)
    pairs = [(maps.pull_back(v), twin.pull_back(v))]
    pairs += zip(maps.project(theta).values(), twin.project(theta).values(), strict=True)
    for mine, wanted in pairs:
        assert np.linalg.norm(mine - wanted) <= 20 * EPS[dtype] * np.linalg.norm(wanted)
    assert dtype == "float32" or maps.norms() == twin.norms()


# -- checkpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("storage", "kind", "updates", "rank_cap"),
    [
        ("dense", "gaussian", 5, None),
        ("factored", "orthogonal", 0, None),
        ("factored", "orthogonal", 37, None),
        ("factored", "uniform", 5, None),
        ("factored", "orthogonal", 10, 10),
        ("factored", "orthogonal", 21, 10),
        ("auto", "orthogonal", 2, None),
        ("auto", "orthogonal", "at switch - 1", None),
        ("auto", "orthogonal", "at switch + 0", None),
        ("auto", "orthogonal", "at switch + 9", None),
        ("auto", "gaussian", "at switch + 9", None),
    ],
)
@every_dtype
def test_maps_that_were_put_aside_go_on_bit_by_bit(storage, kind, updates, rank_cap, dtype, tmp_path, rng):
    maps, again = (StoredMaps(start(kind, **LARGE, dtype=dtype), storage, rank_cap) for _ in range(2))
    if isinstance(updates, str):
        updates = rows_at_the_switch(kind, dtype) + int(updates.removeprefix("at switch").replace(" ", ""))
    theta = feed(rng, updates, maps)
    write_state(tmp_path / "state", 1, maps.state())
    again.load(load_file(tmp_path / "state"))
    for _ in range(15):  # rounds as the algorithm goes through them: what is projected first was updated with last
        v = {j: theta[:d_ij] for j, d_ij in LARGE["rows"].items()}
        assert_same(maps.project(theta), again.project(theta))
        np.testing.assert_array_equal(maps.pull_back(v), again.pull_back(v))
        theta = feed(rng, 1, maps, again)
        assert maps.norms() == again.norms()
        assert (maps.error_bound, maps.state_bytes()) == (again.error_bound, again.state_bytes())
    assert_same(maps.state(), again.state())


def assert_same(one: dict, other: dict) -> None:
    assert one.keys() == other.keys()
    for key, vector in one.items():
        np.testing.assert_array_equal(vector, other[key])


# -- rank caps ---------------------------------------------------------------------------------------------------------


def capped_and_exact(cap: int, **shape) -> tuple[StoredMaps, StoredMaps]:
    return StoredMaps(start(**shape), "factored", cap), StoredMaps(start(**shape))


def error(capped: StoredMaps, exact: StoredMaps) -> float:
    return float(np.linalg.norm(stacked(capped) - stacked(exact)))


@given(shape=small, cap=st.integers(1, 20), updates=st.integers(1, 60), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_the_error_of_capped_maps_is_within_their_bound_and_their_history_within_the_cap(shape, cap, updates, seed):
    (capped, exact), plain = capped_and_exact(cap, **shape), Plain("orthogonal", **shape)
    rng = np.random.default_rng(seed)
    for _ in range(updates):
        feed(rng, 1, capped, exact, plain)
        assert capped.history.rows <= cap
    assert error(capped, exact) <= capped.error_bound + 1e-13 * (1 + plain.reach)


def test_a_cap_that_acts_loses_something_and_its_bound_is_no_wild_guess_of_projections_either(rng):
    capped, exact = capped_and_exact(12, size=60, rows={1: 20, 4: 20})
    for _ in range(40):
        theta = feed(rng, 1, capped, exact)
        for x in (theta, draw(rng, exact)[0]):  # the theta of the update takes the short way
            gap = capped.stacking.join(capped.project(x)) - exact.stacking.join(exact.project(x))
            assert np.linalg.norm(gap) <= capped.error_bound * np.linalg.norm(x) + 1e-11
    assert 0.1 * capped.error_bound < error(capped, exact) < capped.error_bound
    assert error(capped, exact) > 0.01 * np.linalg.norm(stacked(exact))


def test_one_truncation_loses_exactly_the_smallest_singular_values_and_is_paid_for(rng):
    capped, exact = capped_and_exact(8, size=30, rows={1: 12, 4: 12})
    feed(rng, 8, capped, exact)
    assert capped.error_bound == 0.0
    lost = np.linalg.svd(exact.history.matrix(slice(None)), compute_uv=False)[6:]
    feed(rng, 1, capped, exact)
    assert capped.error_bound == pytest.approx(np.linalg.norm(lost), rel=1e-12)
    assert error(capped, exact) == pytest.approx(capped.error_bound, rel=1e-9)
    assert (exact.error_bound, exact.history.rows) == (0.0, 9)
    qr = (4 * 30 * 8**2 - 4 * 8**3 // 3) + (4 * 24 * 8**2 - 4 * 8**3 // 3)
    paid = qr + 2 * 8**3 + 21 * 8**3 + 2 * 6 * 8 * (30 + 24)
    assert capped.flops - exact.flops == truncation_flops(30, 24, 8, 6) == paid


@pytest.mark.parametrize(
    ("size", "rows", "few"),
    [
        (40, {1: 15, 4: 15}, "thetas"),
        (40, {1: 15, 4: 15}, "disagreements"),
        (50, {1: 2}, ""),  # no sum of updates has a greater rank than the maps have rows or columns
        (50, {1: 1, 4: 1}, ""),
        (3, {1: 2, 4: 3}, ""),
    ],
)
@pytest.mark.parametrize(("dtype", "eps"), [("float64", 1e-14), ("float32", 1e-5)])
def test_nothing_is_lost_while_the_true_rank_is_within_what_a_truncation_keeps(size, rows, few, dtype, eps, rng):
    capped, exact = capped_and_exact(12, size=size, rows=rows, dtype=dtype)
    height = sum(rows.values())
    few_thetas, few_r = rng.normal(size=(9, size)), rng.normal(size=(9, height))
    for _ in range(60):
        theta = rng.normal(size=9) @ few_thetas if few == "thetas" else rng.normal(size=size)
        r = rng.normal(size=9) @ few_r if few == "disagreements" else rng.normal(size=height)
        theta, r = theta.astype(dtype), capped.stacking.split(r.astype(dtype))
        for maps in (capped, exact):
            maps.update(maps.project(theta), r, theta, 0.05)
        assert capped.history.rows <= 12
    assert max(error(capped, exact), capped.error_bound) < eps * np.linalg.norm(stacked(exact))
