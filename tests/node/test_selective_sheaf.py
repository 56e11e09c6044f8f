"""Who is alike: the cosine estimated from a few rows against the exact one; and whom clients meet by what neighbours
tell each other, played without models."""

import math
from itertools import combinations

import networkx
import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from scipy.fft import dct

from sheafgossip.node.algorithms.selective_sheaf import (
    CONTENT,
    LEAVING,
    NOBODY,
    SEEKING,
    Estimate,
    Introductions,
    SelectiveSheaf,
    relative_variance,
    sampled_cosine,
)

SIZE = 7
vectors = arrays(float, SIZE, elements=st.floats(-3, 3).map(lambda number: round(number, 3)))
seeds = st.integers(0, 2**32 - 1)


# -- the estimated cosine ----------------------------------------------------------------------------------------------


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / math.sqrt((a @ a) * (b @ b)))


@given(
    a=vectors, b=vectors, rows=st.integers(1, SIZE), signs=arrays(float, SIZE, elements=st.sampled_from([-1.0, 1.0]))
)
def test_over_all_choices_of_rows_the_mean_is_the_cosine_and_the_variance_that_without_replacement(a, b, rows, signs):
    assume(a @ a > 0.01 and b @ b > 0.01)
    u, v = (dct(signs * vector, norm="ortho") for vector in (a, b))
    choices = map(list, combinations(range(SIZE), rows))
    estimates = np.array([sampled_cosine(u[each], v[each], u @ u, v @ v, SIZE) for each in choices])
    squares = dct(signs * (a / math.sqrt(a @ a) - b / math.sqrt(b @ b)), norm="ortho") ** 2
    variance = SIZE**2 / 4 * np.var(squares, ddof=1) / rows * (1 - rows / SIZE)
    assert estimates.mean() == pytest.approx(cosine(a, b), abs=1e-10)
    assert estimates.var() == pytest.approx(variance, abs=1e-10)


@given(seed=seeds, rows=st.sampled_from([10, 40, 100]))
def test_over_rows_and_signs_the_variance_is_the_formula_that_the_estimate_goes_by(seed, rows):
    """400 numbers: what the formula leaves out is of the order of 1/400. Averaged over signs, rows by their closed
    form."""
    rng, size = np.random.default_rng(seed), 400
    a, b = rng.normal(size=(2, size))
    b += rng.uniform(0, 2) * a
    difference = a / math.sqrt(a @ a) - b / math.sqrt(b @ b)
    signs = rng.choice([-1.0, 1.0], size=(400, size))
    squares = dct(signs * difference, norm="ortho", axis=1) ** 2
    exact = (size**2 / 4 * squares.var(axis=1, ddof=1) / rows * (1 - rows / size)).mean()
    assert exact == pytest.approx((1 - cosine(a, b)) ** 2 * relative_variance(rows, size), rel=0.06)


@given(seed=seeds, dtype=st.sampled_from(["float32", "float64"]))
def test_both_ends_get_the_same_bits(seed, dtype):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, 65)).astype(dtype)
    n, m = map(float, rng.uniform(0.1, 10, 2).astype(dtype))
    shuffled = rng.permutation(65)  # nor does the order in which a processor adds up matter
    there = sampled_cosine(a, b, n, m, 650)
    assert there == sampled_cosine(b, a, m, n, 650) == sampled_cosine(a[shuffled], b[shuffled], n, m, 650)


@given(seed=seeds, counts=st.lists(st.integers(1, 40), min_size=1, max_size=30), smoothing=st.floats(0, 0.99))
def test_the_mean_and_its_error_are_those_of_weights_that_fade(seed, counts, smoothing):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, 40))
    choices = [rng.choice(40, rows, replace=False) for rows in counts]
    edge = Estimate(SelectiveSheaf(smoothing=smoothing), [40], 1, 1)
    for rows in choices:
        edge.see(np.zeros(len(rows), int), a[rows], b[rows], np.array([a @ a]), np.array([b @ b]))
    (found,), (error,) = edge.mean_and_error()
    weights = smoothing ** np.arange(len(counts))[::-1]
    mean = weights @ [sampled_cosine(a[rows], b[rows], a @ a, b @ b, 40) for rows in choices] / weights.sum()
    assert edge.seen == len(counts)
    variances = [2 / rows * (1 - rows / 40) for rows in counts]
    assert found == pytest.approx(mean, abs=1e-9)
    assert error == pytest.approx((1 - mean) * math.sqrt(weights**2 @ variances) / weights.sum(), abs=1e-9)


# -- introductions -----------------------------------------------------------------------------------------------------

CLIENTS, GROUPS = 20, 4


class Village:
    """Clients of four groups on a random graph; each pair that talks knows at once whether it is alike."""

    def __init__(self, seed: int):
        graph = networkx.gnp_random_graph(CLIENTS, 0.2, seed=seed)
        self.rng = np.random.default_rng(seed)
        self.clients = [
            Introductions([j for j in range(CLIENTS) if j != i], sorted(graph.neighbors(i))) for i in range(CLIENTS)
        ]

    def meet(self) -> None:
        told = []
        for i, client in enumerate(self.clients):
            on = {j for j in client.neighbours if alike((i, j))}
            told.append(client.messages(on, client.neighbours - on, self.rng))
        for i, client in enumerate(self.clients):
            client.hear(told[i], {j: told[j][i] for j in told[i]})

    def edges(self) -> set[tuple[int, int]]:
        return {(i, j) for i, client in enumerate(self.clients) for j in client.neighbours if i < j}


def alike(edge: tuple[int, int]) -> bool:
    i, j = edge
    return i * GROUPS // CLIENTS == j * GROUPS // CLIENTS


def drawn() -> np.random.Generator:
    return np.random.default_rng(0)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_both_ends_know_the_same_of_each_other_after_every_meeting(seed):
    village = Village(seed)
    parted: set[tuple[int, int]] = set()
    for _ in range(15):
        before = village.edges()
        village.meet()
        for i, j in combinations(range(CLIENTS), 2):
            one, other = village.clients[i], village.clients[j]
            assert (j in one.neighbours) == (i in other.neighbours)
            assert (j in one.met) == (i in other.met)
        parted |= before - village.edges()
        assert not parted & village.edges()  # for good
        assert not any(map(alike, before - village.edges()))


def test_most_edges_end_up_between_clients_that_are_alike_and_there_are_about_as_many_as_before():
    found = []
    for village in map(Village, range(10)):
        for meetings in (0, 18):
            for _ in range(meetings):
                village.meet()
            found.append((np.mean([*map(alike, village.edges())]), len(village.edges())))
    (before, edges), (after, edges_after) = np.reshape(found, (10, 2, 2)).mean(axis=0)
    assert before < 0.3
    assert after > 0.8
    assert 0.8 < edges_after / edges < 1.2


def test_two_neighbours_that_are_like_their_friend_are_introduced_to_each_other_first():
    client = Introductions(range(1, 10), [1, 2, 3, 4])
    messages = client.messages(on={2, 4}, off={1, 3}, rng=drawn())
    assert (messages[2][0], messages[4][0]) == (4, 2)
    assert {messages[1][0], messages[3][0]} == {1, 3}  # what is left, at random
    assert client.introduced == {(2, 4)}  # once


def test_only_who_seeks_is_introduced():
    client = Introductions(range(1, 10), [1, 2, 3])
    silent = {j: np.array([NOBODY, CONTENT]) for j in (1, 2)} | {3: np.array([NOBODY, SEEKING])}
    client.hear(client.messages(set(), set(), drawn()), silent)
    assert {word[0] for word in client.messages(set(), {1, 2}, drawn()).values()} == {NOBODY}


@pytest.mark.parametrize(("more", "leaves"), [(0, 0), (1, 1), (2, 1), (5, 3)])
def test_of_the_edges_that_it_has_more_than_at_the_start_a_client_gives_up_half_of_those_that_are_off(more, leaves):
    client = Introductions(range(1, 20), [1, 2, 3])
    assert {word[1] for word in client.messages({1, 2, 3}, set(), drawn()).values()} == {CONTENT}  # all are like itself
    client.neighbours |= set(range(4, 4 + more))
    messages = client.messages(on={2}, off=client.neighbours - {2}, rng=drawn())
    assert sum(word[1] == LEAVING for word in messages.values()) == leaves
    assert messages[2][1] == SEEKING


def test_nobody_is_met_who_does_not_exist_or_was_met_before():
    client = Introductions(range(1, 6), [1, 2])
    told = client.messages(set(), set(), drawn())
    assert client.hear(told, {1: np.array([3, CONTENT]), 2: np.array([99, LEAVING])}) == {3}
    assert client.neighbours == {1, 3}
    told = client.messages(set(), set(), drawn())
    assert client.hear(told, {1: np.array([2, CONTENT]), 3: np.array([NOBODY, CONTENT])}) == set()
