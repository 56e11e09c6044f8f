"""Dense, factored and self-choosing maps against a plain list of matrices, updated as equation (19) says."""

import gc
import math
import weakref
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from sheafgossip.node.maps import START_KINDS, FactoredMaps, Maps, starting_maps, store
from sheafgossip.node.maps.start import MatrixStart
from sheafgossip.node.maps.storage import dense_cost, factored_cost
from sheafgossip.node.process.checkpoint import write_state

EPS = {"float32": 2.0**-23, "float64": 2.0**-52}
LARGE = {"size": 2100, "rows": {2: 40, 7: 50}}  # factored maps pay at first, and history takes several blocks

every_storage = pytest.mark.parametrize("storage", ["auto", "dense", "factored"])
every_dtype = pytest.mark.parametrize("dtype", list(EPS))


def start(kind="orthogonal", *, size, rows, dtype="float64", seed=5):
    return starting_maps(kind, seed=seed, node=3, rows=rows, theta=np.empty(size, dtype), scale=1.5)


class Plain:
    """{j: P_ij} in double precision, and nothing clever."""

    def __init__(self, kind: str, size: int, rows: dict[int, int], seed: int = 5):
        first = start(kind, size=size, rows=rows, seed=seed)
        self.P = {j: first.matrix(part) for j, part in first.stacking.parts.items()}
        self.reach = self.norm()  # what rounding errors are measured against: nothing ever was larger

    def norm(self) -> float:
        return math.sqrt(sum(float((P**2).sum()) for P in self.P.values()))

    def update(self, r: dict[int, np.ndarray], theta: np.ndarray, step: float) -> None:
        for j in self.P:
            self.P[j] = self.P[j] - step * np.outer(r[j].astype(float), theta.astype(float))
            self.reach += step * float(np.linalg.norm(r[j])) * float(np.linalg.norm(theta))

    def pull_back(self, v: dict[int, np.ndarray]) -> np.ndarray:
        return sum(self.P[j].T @ v[j].astype(float) for j in self.P)


class Draws:
    """Random vectors of the right lengths and precision."""

    def __init__(self, size: int, rows: dict[int, int], dtype: str, seed: int = 1):
        self.rng, self.size, self.rows, self.dtype = np.random.default_rng(seed), size, rows, dtype

    def theta(self) -> np.ndarray:
        return self.rng.normal(size=self.size).astype(self.dtype)

    def vectors(self) -> dict[int, np.ndarray]:
        return {j: self.rng.normal(size=d_ij).astype(self.dtype) for j, d_ij in self.rows.items()}


def feed(maps: Maps, draws: Draws, updates: int, *others: Plain | Maps) -> np.ndarray:
    """The same updates for all; r is anything, for the law does not ask where it comes from. Returns the last theta."""
    theta = draws.theta()
    for _ in range(updates):
        theta, r = draws.theta(), draws.vectors()
        for each in (maps, *others):
            if isinstance(each, Plain):
                each.update(r, theta, 0.02)
            else:
                each.update(each.project(theta), r, theta, 0.02)
    return theta


def is_dense(maps: Maps) -> bool:
    return "maps" in maps.state()


def rows_at_the_switch(kind: str = "orthogonal", dtype: str = "float64") -> int:
    """After how many updates LARGE maps that choose themselves turn dense."""
    first = start(kind, **LARGE, dtype=dtype)
    return next(rows for rows in range(1, 200) if factored_cost(first, rows) > dense_cost(first))


shapes = st.one_of(
    st.integers(1, 12).flatmap(
        lambda size: st.fixed_dictionaries(
            {"size": st.just(size), "rows": st.dictionaries(st.integers(4, 9), st.integers(1, size), min_size=1)}
        )
    ),
    st.just(LARGE),
)
histories = {
    "shape": shapes,
    "kind": st.sampled_from(START_KINDS),
    "updates": st.integers(0, 3) | st.sampled_from([31, 32, 33, 65]),  # a block of LARGE history has 32 rows
    "seed": st.integers(0, 1000),
}


@every_storage
@every_dtype
@given(**histories)
@settings(max_examples=15, deadline=None)
def test_maps_projections_pull_backs_and_norms_are_those_of_the_plain_matrices_after_any_updates(
    storage, dtype, shape, kind, updates, seed
):
    maps, plain = store(start(kind, **shape, dtype=dtype, seed=seed), storage), Plain(kind, **shape, seed=seed)
    draws, eps = Draws(**shape, dtype=dtype, seed=seed), EPS[dtype]
    feed(maps, draws, updates, plain)
    theta, v = draws.theta(), draws.vectors()
    projected, pulled, norms = maps.project(theta), maps.pull_back(v), maps.norms()
    assert {j: vector.dtype for j, vector in projected.items()} == dict.fromkeys(shape["rows"], np.dtype(dtype))
    assert pulled.dtype == dtype
    for j, P in plain.P.items():
        assert np.linalg.norm(maps.dense(j) - P) <= 8 * eps * plain.reach
        assert np.linalg.norm(projected[j] - P @ theta) <= 20 * eps * plain.reach * np.linalg.norm(theta)
        assert abs(norms[j] ** 2 - np.linalg.norm(P) ** 2) <= 40 * eps * plain.reach**2
    length = np.linalg.norm(np.concatenate(list(v.values())))
    assert np.linalg.norm(pulled - plain.pull_back(v)) <= 20 * eps * plain.reach * length


@every_storage
def test_norms_of_maps_that_are_no_numbers_any_more_are_no_numbers_either(storage):
    maps = store(start(**LARGE), storage)
    draws = Draws(**LARGE, dtype="float64")
    theta = draws.theta()
    maps.update(maps.project(theta), {j: np.full(d, np.nan) for j, d in LARGE["rows"].items()}, theta, 0.02)
    assert all(math.isnan(norm) for norm in maps.norms().values())


@every_storage
@every_dtype
@given(**histories)
@settings(max_examples=15, deadline=None)
def test_projecting_the_theta_of_the_last_update_again_equals_the_long_way(storage, dtype, shape, kind, updates, seed):
    maps = store(start(kind, **shape, dtype=dtype, seed=seed), storage)
    plain, draws = Plain(kind, **shape, seed=seed), Draws(**shape, dtype=dtype, seed=seed)
    feed(maps, draws, updates, plain)
    theta, r = draws.theta(), draws.vectors()
    maps.update(maps.project(theta), r, theta, 0.5)
    plain.update(r, theta, 0.5)
    for j, vector in maps.project(theta).items():
        assert np.linalg.norm(vector - plain.P[j] @ theta) <= 20 * EPS[dtype] * plain.reach * np.linalg.norm(theta)


class PassOver(Exception):
    """The start was read."""


@pytest.fixture
def watched(monkeypatch) -> FactoredMaps:
    """Factored maps after updates, whose next pass over the start raises PassOver."""
    maps = FactoredMaps(start(**LARGE))
    feed(maps, Draws(**LARGE, dtype="float64"), 3)

    def refuse(theta):
        raise PassOver

    monkeypatch.setattr(maps.start, "project", refuse)
    return maps


def test_projecting_the_theta_of_the_last_update_costs_no_pass_over_anything(watched):
    projected = watched.project(watched.history.newest_theta.copy())
    assert all(np.isfinite(vector).all() for vector in projected.values())


@pytest.mark.parametrize("coordinate", [0, 1234, 2099])
def test_a_theta_that_differs_in_one_coordinate_is_projected_in_full(watched, coordinate):
    theta = watched.history.newest_theta.copy()
    theta[coordinate] = np.nextafter(theta[coordinate], np.inf)
    with pytest.raises(PassOver):
        watched.project(theta)


@every_storage
def test_changing_theta_in_place_after_an_update_does_not_reach_into_the_maps(storage):
    maps, plain, draws = store(start(**LARGE), storage), Plain("orthogonal", **LARGE), Draws(**LARGE, dtype="float64")
    theta, r = draws.theta(), draws.vectors()
    maps.update(maps.project(theta), r, theta, 0.5)
    plain.update(r, theta, 0.5)
    theta[11] += 1  # as a client does in every round
    for j, vector in maps.project(theta).items():
        np.testing.assert_allclose(vector, plain.P[j] @ theta, atol=1e-12)
        np.testing.assert_allclose(maps.dense(j), plain.P[j], atol=1e-12)


@pytest.mark.parametrize("kind", START_KINDS)
def test_self_choosing_maps_are_factored_exactly_as_long_as_that_costs_no_more_and_never_turn_back(kind):
    maps, draws = store(start(kind, **LARGE), "auto"), Draws(**LARGE, dtype="float64")
    feed(maps, draws, rows_at_the_switch(kind) - 1)
    assert not is_dense(maps)
    for _ in range(41):
        feed(maps, draws, 1)
        assert is_dense(maps)
    assert is_dense(store(start(size=12, rows={2: 3}), "auto"))  # small ones from the start


@every_dtype
def test_turning_dense_changes_no_bit_of_the_maps_and_what_they_do_by_rounding_only(dtype):
    maps, twin = store(start(**LARGE, dtype=dtype), "auto"), FactoredMaps(start(**LARGE, dtype=dtype))
    draws = Draws(**LARGE, dtype=dtype)
    feed(maps, draws, rows_at_the_switch(dtype=dtype), twin)
    assert is_dense(maps)
    theta, v = draws.theta(), draws.vectors()
    mine, wanted = maps.project(theta), twin.project(theta)
    for j in LARGE["rows"]:
        np.testing.assert_array_equal(maps.dense(j), twin.dense(j))
        assert np.linalg.norm(mine[j] - wanted[j]) <= 20 * EPS[dtype] * np.linalg.norm(wanted[j])
    pulled, wanted = maps.pull_back(v), twin.pull_back(v)
    assert np.linalg.norm(pulled - wanted) <= 20 * EPS[dtype] * np.linalg.norm(wanted)
    assert dtype == "float32" or maps.norms() == twin.norms()


def test_random_starting_numbers_are_let_go_when_the_maps_turn_dense():
    first = start("gaussian", **LARGE)
    assert isinstance(first, MatrixStart)
    kept = weakref.ref(first)
    maps, draws = store(first, "auto"), Draws(**LARGE, dtype="float64")
    del first
    feed(maps, draws, rows_at_the_switch("gaussian"))
    assert is_dense(maps)
    gc.collect()
    assert kept() is None
    assert maps.state_bytes() == 8 * 2100 * 90


def test_a_growing_history_never_moves_its_earlier_rows():
    maps, draws = FactoredMaps(start(**LARGE)), Draws(**LARGE, dtype="float64")
    feed(maps, draws, 1)
    first = maps.history.blocks()[0]
    feed(maps, draws, 100)
    for before, after in zip(first, maps.history.blocks()[0], strict=True):
        assert np.shares_memory(before, after)


def test_factored_maps_remember_one_theta_and_one_row_of_all_edges_an_update():
    maps, draws = FactoredMaps(start(**LARGE)), Draws(**LARGE, dtype="float64")
    before = maps.state_bytes()
    feed(maps, draws, 45)
    assert maps.state_bytes() - before == 45 * (2100 + 90) * 8


@dataclass
class Kept:
    """A storage as a test starts it, and the number of updates before it is put aside."""

    storage: str
    updates: int = 0
    kind: str = "orthogonal"
    rank_cap: int | None = None
    from_switch: int | None = None
    """In place of ``updates``: counted from the one that turns the maps dense."""

    def start(self, dtype: str) -> Maps:
        return store(start(self.kind, **LARGE, dtype=dtype), self.storage, self.rank_cap)

    def updates_in(self, dtype: str) -> int:
        return self.updates if self.from_switch is None else rows_at_the_switch(self.kind, dtype) + self.from_switch


KEPT = {
    "dense": Kept("dense", 5, "gaussian"),
    "factored": Kept("factored", 37),
    "factored, a new history": Kept("factored", 0),
    "factored, random start": Kept("factored", 5, "uniform"),
    "capped, full": Kept("factored", 10, rank_cap=10),
    "capped, truncated": Kept("factored", 21, rank_cap=10),
    "auto, long before its switch": Kept("auto", 2),
    "auto, just before its switch": Kept("auto", from_switch=-1),
    "auto, at its switch": Kept("auto", from_switch=0),
    "auto, after its switch": Kept("auto", from_switch=9),
    "auto, random start, after its switch": Kept("auto", kind="gaussian", from_switch=9),
}


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
@every_dtype
def test_maps_that_were_put_aside_go_on_bit_by_bit(kept, dtype, tmp_path):
    maps, draws = kept.start(dtype), Draws(**LARGE, dtype=dtype)
    theta = feed(maps, draws, kept.updates_in(dtype))
    write_state(tmp_path / "state", 1, maps.state())
    again = kept.start(dtype)
    again.load(load_file(tmp_path / "state"))
    for _ in range(15):  # rounds as the algorithm goes through them: what is projected first was updated with last
        v = {j: theta[:d_ij] for j, d_ij in LARGE["rows"].items()}
        assert_same(maps.project(theta), again.project(theta))
        np.testing.assert_array_equal(maps.pull_back(v), again.pull_back(v))
        theta, r = draws.theta(), draws.vectors()
        for each in (maps, again):
            each.update(each.project(theta), r, theta, 0.02)
        assert maps.norms() == again.norms()
        assert maps.error_bound == again.error_bound
        assert maps.state_bytes() == again.state_bytes()
    assert_same(maps.state(), again.state())


def assert_same(one: dict, other: dict) -> None:
    assert one.keys() == other.keys()
    for key, vector in one.items():
        np.testing.assert_array_equal(vector, other[key])


@every_storage
@pytest.mark.parametrize("kind", START_KINDS)
def test_a_client_without_neighbours_projects_to_nothing_and_is_pulled_nowhere(storage, kind):
    maps = store(start(kind, size=9, rows={}, dtype="float32"), storage)
    theta = np.ones(9, np.float32)
    maps.update(maps.project(theta), {}, theta, 0.1)
    assert maps.project(theta) == {}
    assert maps.norms() == {}
    assert maps.neighbours == ()
    pulled = maps.pull_back({})
    np.testing.assert_array_equal(pulled, np.zeros(9))
    assert pulled.dtype == np.float32
