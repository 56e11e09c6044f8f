"""Sheaf-FMTL, and dFedU with it: when its step sizes come near divergence, and its fixed points,
those of objective (8), whatever the local work of the clients.

Psi(theta) = sum_i f_i(theta_i) + lam/2 sum over edges ||P_ij theta_i - P_ji theta_j||^2, each edge once. The losses are
least squares, so that a linear system of equations gives its minimiser."""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from greenlet import getcurrent, greenlet
from hypothesis import example, given, strategies as st
from safetensors.numpy import load_file, save_file

from oracles import normal_equations
from sheafgossip.node.algorithms import ALGORITHMS, sheaf_fmtl
from sheafgossip.node.algorithms.sheaf_fmtl import warn
from sheafgossip.node.assignment import Assignment, Neighbour
from sheafgossip.node.client import Client, RoundReport
from sheafgossip.node.learned_maps import shared_size
from sheafgossip.node.model.architecture import Architecture
from sheafgossip.node.model.learner import Learner


@given(st.integers(1, 1000), st.integers(1, 5_000_000), st.integers(1, 5_000_000))
@example(290, 100, 100)  # 0.29 * 100 is 28.999999999999996 in binary
def test_shared_vectors_are_gamma_times_the_smaller_model_rounded_down_and_at_least_one(thousandths, d_i, d_j):
    expected = max(1, Fraction(thousandths, 1000) * min(d_i, d_j) // 1)
    assert shared_size(thousandths / 1000, d_i, d_j) == shared_size(thousandths / 1000, d_j, d_i) == expected


# -- step sizes near divergence ----------------------------------------------------------------------------------------

MAPS = "eta lam ||theta||^2 = 6.8 is above 1: the maps may diverge; lower algorithm.eta or algorithm.lam"
MODELS = "lam alpha ||P||^2 = 1.5 is above 1: the models may diverge; lower algorithm.lam, algorithm.start_scale or"


@pytest.mark.parametrize(
    ("rounds", "told", "blamed"),
    [
        ([(0.5, 0.9), (1.0, 1.0)], [], ""),  # both stayed small
        ([(0.1, 6.8), (0.1, 7.0), (1.5, 0.9)], [MAPS, MODELS], MAPS),  # each once, and the first is to blame
        ([(1.5, 0.1), (1.6, 6.8)], [MODELS, MAPS], MODELS),
        ([(0.1, 6.8), (math.nan, math.inf)], [MAPS], MAPS),
        ([(math.inf, 0.2), (1.5, math.nan)], [], ""),
    ],
)
def test_what_is_above_its_limit_is_told_once_with_the_keys_that_help_and_the_first_is_blamed(rounds, told, blamed):
    """Maps that diverge make lam alpha ||P||^2 huge within two rounds; theta may first shrink on the way."""
    crossed, report = {}, RoundReport()
    for models, maps in rounds:
        warn(crossed, report, models=models, maps=maps)
    local = " training.alpha"
    assert report.warnings == [text + local * (text == MODELS) for text in told]
    assert report.cause_of_divergence.startswith(blamed or f"the local steps diverged; lower{local}")


# -- fixed points ------------------------------------------------------------------------------------------------------

CLIENTS, FEATURES, LAM, L2, ALPHA = 4, 4, 0.3, 2.0, 0.1
SIZE = FEATURES + 1
EDGES = ((0, 1), (1, 2), (2, 3), (0, 3), (0, 2))
STAR = tuple((client, CLIENTS) for client in range(CLIENTS))
WEIGHTS = {edge: 0.2 + 0.1 * place for place, edge in enumerate(EDGES)}
ALL = dict.fromkeys(range(CLIENTS + 1), tuple(range(SIZE)))
HELD = ALL | {0: (0, 1, 2, 4), 1: (0, 2, 3, 4), 2: (1, 3, 4)}
"""The parameters of each client, and of a server, where features differ: the intercept comes last."""

UNEQUAL = "unequal"
ROUNDS = {1: 100, 3: 60, 10: 60, UNEQUAL: 100}
STEPS = (1, 3, 10, 5)


class Problem:
    """Clients with their samples, in step: each hears what the others are before the round."""

    def __init__(self, name: str, settings: dict, assignments: list[Assignment]):
        self.algorithm = ALGORITHMS[name](**{"lam": LAM} | settings)
        self.assignments, self.round = assignments, 0
        self.clients = [Client(each, Learner(each)) for each in assignments]
        for client in self.clients:
            client.state = self.algorithm.begin(client)

    def play(self, rounds: int = 1) -> list[np.ndarray]:
        for _ in range(rounds):
            self.round += 1
            peers = SimpleNamespace(round=self.round, exchange=getcurrent().switch)
            turns = {client: greenlet(self.algorithm.round) for client in self.clients}
            sent = [turn.switch(client, peers) for client, turn in turns.items()]
            sent = [{j: vector.copy() for j, vector in vectors.items()} for vectors in sent]
            for client, turn in turns.items():
                turn.switch({j: sent[j][client.node] for j in client.neighbours})
        return [client.theta.copy() for client in self.clients]

    def minimiser(self) -> list[np.ndarray]:
        """Of (8). A server has no loss."""
        ends = np.cumsum([client.theta.size for client in self.clients])
        of = [slice(end - client.theta.size, end) for end, client in zip(ends, self.clients, strict=True)]
        matrix, right, lam = np.zeros((ends[-1], ends[-1])), np.zeros(ends[-1]), self.algorithm.lam
        for own, client in zip(self.assignments, self.clients, strict=True):
            i = client.node
            if own.role == "client":
                H, right[of[i]] = normal_equations(load_file(own.shard))
                matrix[of[i], of[i]] += H + L2 * np.eye(len(H))
            for j in client.neighbours:
                P_ij, P_ji = client.state.maps.dense(j), self.clients[j].state.maps.dense(i)
                matrix[of[i], of[i]] += lam * P_ij.T @ P_ij
                matrix[of[i], of[j]] -= lam * P_ij.T @ P_ji
        return np.split(np.linalg.solve(matrix, right), ends[:-1])


@pytest.fixture
def problem(assignment) -> Callable[..., Problem]:
    """Every mini-batch is one sample, and all samples of a client are the same one: epochs of few and of many."""

    def build(name: str, work: int | str, *, edges=EDGES, held=ALL, momentum=0.0, **settings) -> Problem:
        steps = {"work": "epochs", "batch_size": 1} if work == UNEQUAL else {"work": "steps", "steps": work}
        training = replace(assignment.training, alpha=ALPHA, l2=L2, momentum=momentum, **steps)
        run = replace(assignment.run, clients=CLIENTS, task="regression")
        assignments = []
        for node in sorted({node for edge in edges for node in edge}):
            mine, neighbours = held[node], []
            for edge in (edge for edge in edges if node in edge):
                other = sum(edge) - node
                common = tuple(mine.index(p) for p in mine if p in held[other])
                neighbours.append(Neighbour(other, len(held[other]), WEIGHTS.get(edge, 1.0), facts=(1.0, 0, common)))
            own = replace(assignment, node=node, run=run, training=training, neighbours=tuple(neighbours))
            own = replace(own, architecture=Architecture("linear", (len(mine) - 1,), 1))
            assignments.append(own if node < CLIENTS else replace(own, role="server"))
            if node < CLIENTS:
                rng = np.random.default_rng(node)
                x, y = 0.5 * rng.normal(size=(1, FEATURES)), rng.normal(size=(1, 1))
                x, y = (np.repeat(each, STEPS[node], axis=0) for each in (x[:, list(mine)[:-1]], y))
                save_file({"x_train": x, "y_train": y, "x_test": x, "y_test": y}, own.shard)
        return Problem(name, settings, assignments)

    return build


FIXED = {
    "dfedu": {"name": "dfedu"},
    "dfedu with weights": {"name": "dfedu", "weights": "mixing"},
    "dfedu with momentum": {"name": "dfedu", "momentum": 0.5, "lam": 0.1},
    "personalised": {"name": "dfedu", "server": True, "edges": STAR},
    "gaussian": {"start": "gaussian", "start_scale": 0.25},
    "uniform": {"start": "uniform", "start_scale": 0.4},
    "orthogonal": {"start": "orthogonal"},
    "identity": {"start": "identity"},
    "shared": {"start": "shared"},
    "selection": {"start": "selection", "held": HELD},
    "hybrid": {"start": "selection", "held": HELD, "server": True, "edges": STAR},
    "dense": {"start": "orthogonal", "storage": "dense"},
}


@pytest.mark.parametrize("work", ROUNDS)
@pytest.mark.parametrize("maps", FIXED)
def test_the_fixed_point_is_the_minimiser_of_objective_8_whatever_the_local_steps(problem, maps, work):
    fixed = {} if "name" in FIXED[maps] else {"name": "sheaf-fmtl", "gamma": 0.6, "eta": 0.0}
    played = problem(work=work, **fixed | FIXED[maps])
    assert tuple(client.steps for client in played.clients[:CLIENTS]) == (STEPS if work == UNEQUAL else (work,) * 4)
    for found, theta in zip(played.play(ROUNDS[work]), played.minimiser(), strict=True):
        np.testing.assert_allclose(found, theta, rtol=0, atol=1e-7)


@pytest.mark.parametrize("work", ROUNDS)
def test_rotating_maps_have_it_in_the_mean_over_the_rows_that_may_be_drawn(problem, work, monkeypatch):
    """One row an edge, each of the d rows once: E P^T P = I / d, so that (8) is dFedU's with lam / d."""
    monkeypatch.setattr(
        sheaf_fmtl,
        "shared_rows",
        lambda seed, node, rows, size, period: {j: np.array([(period + node + j) % size]) for j in rows},
    )
    played = problem("sheaf-fmtl", work, gamma=0.2, eta=0.0, start="shared", rotate_every=1, lam=LAM * SIZE)
    thetas = np.array([client.theta for client in played.clients])
    for _ in range(ROUNDS[work]):
        ends = []
        for _ in range(SIZE):
            for client, theta in zip(played.clients, thetas, strict=True):
                client.theta[:] = theta
            ends.append(played.play())
        thetas = np.mean(ends, axis=0)
    np.testing.assert_allclose(thetas, problem("dfedu", work).minimiser(), rtol=0, atol=1e-7)


def test_the_warning_about_a_pull_that_is_too_strong_counts_the_local_steps(problem):
    warnings = {}
    for work in (1, 10):
        played = problem("dfedu", work, lam=1.0)  # ||P||^2 is between 2 and 4
        played.play(3)
        warnings[work] = [text for client in played.clients for text in client.report.warnings]
    assert warnings[1] == []
    assert all("10 local steps: 10 lam alpha ||P||^2 = " in text for text in warnings[10])
    assert warnings[10]
