"""The fixed points of methods with a penalty: those of objective (8), whatever the local work of the clients.

Psi(theta) = sum_i f_i(theta_i) + lam/2 sum over edges ||P_ij theta_i - P_ji theta_j||^2, each edge once. The losses are
least squares, so that a linear system of equations gives its minimiser.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from oracles import bordered
from sheafgossip.node.algorithms import ALGORITHMS, sheaf_fmtl
from sheafgossip.node.algorithms.base import Algorithm
from sheafgossip.node.assignment import Assignment, Neighbour
from sheafgossip.node.client import Client
from sheafgossip.node.model.architecture import Architecture
from sheafgossip.node.model.learner import Learner

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
STEPS = dict(enumerate((1, 3, 10, 5)))


class HasSent(Exception):
    """The vectors are its argument."""


@dataclass
class Problem:
    """Clients with their samples, in step: each hears what the others are before the round."""

    clients: list[Client]
    algorithm: Algorithm
    shards: list[dict[str, np.ndarray]]
    round: int = 0

    def play(self, rounds: int = 1) -> list[np.ndarray]:
        for _ in range(rounds):
            self.round += 1
            sent = [self._sent_by(client) for client in self.clients]
            for client in self.clients:
                hears = {j: sent[j][client.node] for j in client.neighbours}
                self._round_of(client, lambda vectors, hears=hears: hears)
        return [client.theta.copy() for client in self.clients]

    def _round_of(self, client: Client, exchange: Callable) -> None:
        self.algorithm.round(client, SimpleNamespace(round=self.round, exchange=exchange))

    def _sent_by(self, client: Client) -> dict[int, np.ndarray]:
        """What it sends before it changes anything."""

        def exchange(vectors):
            raise HasSent({j: vector.copy() for j, vector in vectors.items()})

        with pytest.raises(HasSent) as sent:
            self._round_of(client, exchange)
        return sent.value.args[0]

    def minimiser(self) -> list[np.ndarray]:
        """Of (8). A server has no loss."""
        ends = np.cumsum([client.theta.size for client in self.clients])
        of = [slice(end - client.theta.size, end) for end, client in zip(ends, self.clients, strict=True)]
        matrix, right, lam = np.zeros((ends[-1], ends[-1])), np.zeros(ends[-1]), self.algorithm.lam
        for client, shard in zip(self.clients, self.shards, strict=True):
            i = client.node
            if shard:
                x, y = bordered(shard["x_train"]), shard["y_train"].ravel()
                matrix[of[i], of[i]] += 2 * x.T @ x / len(x) + L2 * np.eye(x.shape[1])
                right[of[i]] += 2 * x.T @ y / len(x)
            for j in client.neighbours:
                P_ij, P_ji = client.state.maps.dense(j), self.clients[j].state.maps.dense(i)
                matrix[of[i], of[i]] += lam * P_ij.T @ P_ij
                matrix[of[i], of[j]] -= lam * P_ij.T @ P_ji
        return np.split(np.linalg.solve(matrix, right), ends[:-1])


def assigned(given: Assignment, node: int, work: int | str, edges: Sequence, held: dict, momentum: float) -> Assignment:
    """Every mini-batch is one sample, and all samples of a client are the same one: epochs of few and of many."""
    mine, neighbours = held[node], []
    for edge in edges:
        if node in edge:
            other = sum(edge) - node
            common = tuple(mine.index(p) for p in mine if p in held[other])
            neighbours.append(Neighbour(other, len(held[other]), WEIGHTS.get(tuple(sorted(edge)), 1.0), facts=common))
    steps = {"work": "epochs", "batch_size": 1} if work == UNEQUAL else {"work": "steps", "steps": work}
    own = replace(
        given,
        node=node,
        role="client" if node < CLIENTS else "server",
        architecture=Architecture("linear", (len(mine) - 1,), 1),
        run=replace(given.run, clients=CLIENTS, task="regression"),
        training=replace(given.training, alpha=ALPHA, l2=L2, momentum=momentum, **steps),
        neighbours=tuple(neighbours),
    )
    if node < CLIENTS:
        rng = np.random.default_rng(node)
        x, y = 0.5 * rng.normal(size=(1, FEATURES)), rng.normal(size=(1, 1))
        x, y = (np.repeat(each, STEPS[node], axis=0) for each in (x[:, list(mine)[:-1]], y))
        save_file({"x_train": x, "y_train": y, "x_test": x, "y_test": y}, own.shard)
    return own


@pytest.fixture
def problem(assignment) -> Callable[..., Problem]:
    def build(name: str, work: int | str, *, edges=EDGES, held=ALL, momentum=0.0, **settings) -> Problem:
        nodes = sorted({node for edge in edges for node in edge})
        own = [assigned(assignment, node, work, edges, held, momentum) for node in nodes]
        clients = [Client(each, Learner(each)) for each in own]
        algorithm = ALGORITHMS[name](**{"lam": LAM} | settings)
        for client in clients:
            client.state = algorithm.begin(client)
        return Problem(clients, algorithm, [load_file(each.shard) if each.role == "client" else {} for each in own])

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
    expected_steps = [STEPS[node] if work == UNEQUAL else work for node in range(CLIENTS)]
    assert [client.steps for client in played.clients[:CLIENTS]] == expected_steps
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
    for _ in range(ROUNDS[work]):
        start, ends = [client.theta.copy() for client in played.clients], []
        for _ in range(SIZE):
            ends.append(played.play())
            for client, theta in zip(played.clients, start, strict=True):
                client.theta[:] = theta
        for client, theta in zip(played.clients, map(partial(np.mean, axis=0), zip(*ends, strict=True)), strict=True):
            client.theta[:] = theta
    for client, theta in zip(played.clients, problem("dfedu", work).minimiser(), strict=True):
        np.testing.assert_allclose(client.theta, theta, rtol=0, atol=1e-7)


def test_the_warning_about_a_pull_that_is_too_strong_counts_the_local_steps(problem):
    warnings = {}
    for work in (1, 10):
        played = problem("dfedu", work, lam=1.0)  # ||P||^2 is between 2 and 4
        played.play(3)
        warnings[work] = [text for client in played.clients for text in client.report.warnings]
    assert warnings[1] == []
    assert all("10 local steps: 10 lam alpha ||P||^2 = " in text for text in warnings[10])
    assert warnings[10]
