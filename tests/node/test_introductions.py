"""Whom clients meet: all that neighbours tell each other, played without models."""

from itertools import combinations

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafgossip.node.algorithms.selective_sheaf import CONTENT, LEAVING, NOBODY, SEEKING, Introductions

CLIENTS, GROUPS = 20, 4


class Village:
    """Clients of four groups on a random graph; each pair that talks knows at once whether it is alike."""

    def __init__(self, seed: int, p: float = 0.2):
        graph = networkx.gnp_random_graph(CLIENTS, p, seed=seed)
        self.rng = np.random.default_rng(seed)
        self.clients = [
            Introductions([j for j in range(CLIENTS) if j != i], sorted(graph.neighbors(i))) for i in range(CLIENTS)
        ]

    def meet(self) -> None:
        told = []
        for i, client in enumerate(self.clients):
            on = {j for j in client.neighbours if alike(i, j)}
            told.append(client.messages(on, client.neighbours - on, self.rng))
        for i, client in enumerate(self.clients):
            client.hear(told[i], {j: told[j][i] for j in told[i]})

    def edges(self) -> set[tuple[int, int]]:
        return {(i, j) for i, client in enumerate(self.clients) for j in client.neighbours if i < j}

    def share_alike(self) -> float:
        return sum(alike(*edge) for edge in self.edges()) / len(self.edges())


def alike(i: int, j: int) -> bool:
    return i * GROUPS // CLIENTS == j * GROUPS // CLIENTS


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
        assert before - village.edges() <= {edge for edge in before if not alike(*edge)}


def test_most_edges_end_up_between_clients_that_are_alike_and_there_are_about_as_many_as_before():
    villages = [Village(seed) for seed in range(10)]
    first = [(village.share_alike(), len(village.edges())) for village in villages]
    for village in villages:
        for _ in range(18):
            village.meet()
    last = [(village.share_alike(), len(village.edges())) for village in villages]
    (before, edges), (after, edges_after) = np.mean(first, axis=0), np.mean(last, axis=0)
    assert before < 0.3
    assert after > 0.8
    assert 0.8 < edges_after / edges < 1.2


def test_two_neighbours_that_are_like_their_friend_are_introduced_to_each_other_first():
    client = Introductions(range(1, 10), [1, 2, 3, 4])
    messages = client.messages(on={2, 4}, off={1, 3}, rng=np.random.default_rng(0))
    assert messages[2][0] == 4
    assert messages[4][0] == 2
    assert {messages[1][0], messages[3][0]} == {1, 3}  # what is left, at random
    assert client.introduced == {(2, 4)}  # once


def test_only_who_seeks_is_introduced():
    client = Introductions(range(1, 10), [1, 2, 3])
    silent = {j: np.array([NOBODY, CONTENT]) for j in (1, 2)} | {3: np.array([NOBODY, SEEKING])}
    client.hear(client.messages(set(), set(), np.random.default_rng(0)), silent)
    messages = client.messages(set(), {1, 2}, np.random.default_rng(0))
    assert {word[0] for word in messages.values()} == {NOBODY}


@pytest.mark.parametrize(("more", "leaves"), [(0, 0), (1, 1), (2, 1), (5, 3)])
def test_of_the_edges_that_it_has_more_than_at_the_start_a_client_gives_up_half_of_those_that_are_off(more, leaves):
    client, rng = Introductions(range(1, 20), [1, 2, 3]), np.random.default_rng(0)
    assert {word[1] for word in client.messages({1, 2, 3}, set(), rng).values()} == {CONTENT}  # all are like itself
    client.neighbours |= set(range(4, 4 + more))
    messages = client.messages(on={2}, off=client.neighbours - {2}, rng=rng)
    assert sum(word[1] == LEAVING for word in messages.values()) == leaves
    assert messages[2][1] == SEEKING


def test_nobody_is_met_who_does_not_exist_or_was_met_before():
    client = Introductions(range(1, 6), [1, 2])
    told = client.messages(set(), set(), np.random.default_rng(0))
    heard = {1: np.array([3, CONTENT]), 2: np.array([99, LEAVING])}
    assert client.hear(told, heard) == {3}
    assert client.neighbours == {1, 3}
    told = client.messages(set(), set(), np.random.default_rng(0))
    assert client.hear(told, {1: np.array([2, CONTENT]), 3: np.array([NOBODY, CONTENT])}) == set()
