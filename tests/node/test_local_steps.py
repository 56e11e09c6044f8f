"""The fixed points of methods with a penalty: those of objective (8), whatever the local work of the clients.

Psi(theta) = sum_i f_i(theta_i) + lam/2 sum over edges ||P_ij theta_i - P_ji theta_j||^2, each edge once. The losses are
least squares, so that a linear system of equations gives its minimiser.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import save_file

from sheafgossip.node.algorithms import ALGORITHMS, sheaf_fmtl
from sheafgossip.node.algorithms.base import Algorithm
from sheafgossip.node.assignment import Neighbour
from sheafgossip.node.client import Client
from sheafgossip.node.model.architecture import Architecture
from sheafgossip.node.model.learner import Learner

CLIENTS, FEATURES, LAM, L2, ALPHA = 4, 4, 0.3, 2.0, 0.1
SIZE = FEATURES + 1
EDGES = ((0, 1), (1, 2), (2, 3), (0, 3), (0, 2))
STAR = tuple((client, CLIENTS) for client in range(CLIENTS))
WEIGHTS = {edge: 0.2 + 0.1 * place for place, edge in enumerate(EDGES)}
HELD = {0: (0, 1, 2, 4), 1: (0, 2, 3, 4), 2: (1, 3, 4), 3: (0, 1, 2, 3, 4), CLIENTS: (0, 1, 2, 3, 4)}
"""The parameters of each client, and of a server, where features differ: the intercept comes last."""

UNEQUAL = "unequal"
ROUNDS = {1: 100, 3: 60, 10: 60, UNEQUAL: 100}
STEPS = dict(enumerate((1, 3, 10, 5)))


def local_work(work: int | str) -> dict:
    """Every mini-batch is one sample, and all samples of a client are the same one: epochs of few and of many."""
    return {"work": "epochs", "batch_size": 1} if work == UNEQUAL else {"work": "steps", "steps": work}


@dataclass
class Problem:
    """Clients with their samples, in step: each hears what the others are before the round."""

    clients: list[Client]
    algorithm: Algorithm
    round: int = 0

    def play(self, rounds: int) -> list[np.ndarray]:
        for _ in range(rounds):
            self.round += 1
            sent = [sent_by(self.algorithm, client, self.round) for client in self.clients]
            for client in self.clients:
                hears = {j: sent[j][client.node] for j in client.neighbours}
                self.algorithm.round(client, Peers(self.round, lambda vectors, hears=hears: hears))
        return [client.theta.copy() for client in self.clients]

    def minimiser(self, lam: float = LAM) -> list[np.ndarray]:
        """Of (8). A server has no loss."""
        ends = np.cumsum([client.theta.size for client in self.clients])
        of = [slice(end - client.theta.size, end) for end, client in zip(ends, self.clients, strict=True)]
        matrix, right = np.zeros((ends[-1], ends[-1])), np.zeros(ends[-1])
        for client in self.clients:
            i = client.node
            if client.role == "client":
                x, y = client.inputs(), client._learner._y_train
                x = np.column_stack([x, np.ones(len(x))])
                matrix[of[i], of[i]] += 2 * x.T @ x / len(x) + L2 * np.eye(x.shape[1])
                right[of[i]] += 2 * x.T @ y.ravel() / len(x)
            for j in client.neighbours:
                P_ij, P_ji = client.state.maps.dense(j), self.clients[j].state.maps.dense(i)
                matrix[of[i], of[i]] += lam * P_ij.T @ P_ij
                matrix[of[i], of[j]] -= lam * P_ij.T @ P_ji
        return np.split(np.linalg.solve(matrix, right), ends[:-1])


@dataclass
class Peers:
    round: int
    exchange: Callable


class HasSent(Exception):
    """The vectors are its argument."""


def sent_by(algorithm, client: Client, round: int) -> dict[int, np.ndarray]:
    """What it sends before it changes anything."""

    def exchange(vectors):
        raise HasSent({j: vector.copy() for j, vector in vectors.items()})

    with pytest.raises(HasSent) as sent:
        algorithm.round(client, Peers(round, exchange))
    return sent.value.args[0]


@pytest.fixture
def problem(assignment) -> Callable[..., Problem]:
    def build(
        name: str,
        work: int | str,
        edges: Sequence[tuple[int, int]] = EDGES,
        held: dict[int, tuple[int, ...]] | None = None,
        momentum: float = 0.0,
        **settings,
    ) -> Problem:
        settings = {"lam": LAM} | settings
        nodes = sorted({node for edge in edges for node in edge})
        parameters = held or {node: tuple(range(SIZE)) for node in nodes}
        clients = []
        for node in nodes:
            architecture = Architecture("linear", (len(parameters[node]) - 1,), 1)
            own = replace(
                assignment,
                node=node,
                role="client" if node < CLIENTS else "server",
                architecture=architecture,
                run=replace(assignment.run, clients=CLIENTS, task="regression"),
                training=replace(assignment.training, alpha=ALPHA, l2=L2, momentum=momentum, **local_work(work)),
                neighbours=tuple(
                    Neighbour(
                        other,
                        len(parameters[other]),
                        WEIGHTS.get((min(node, other), max(node, other)), 1.0),
                        facts=tuple(parameters[node].index(p) for p in parameters[node] if p in parameters[other]),
                    )
                    for edge in edges
                    if node in edge
                    for other in edge
                    if other != node
                ),
            )
            if own.role == "client":
                rng = np.random.default_rng(node)
                x, y = 0.5 * rng.normal(size=(1, FEATURES)), rng.normal(size=(1, 1))
                mine = x[:, list(parameters[node])[:-1]]
                repeated = [np.repeat(each, STEPS[node], axis=0) for each in (mine, y)]
                save_file(dict(zip(("x_train", "y_train", "x_test", "y_test"), repeated * 2, strict=True)), own.shard)
            clients.append(Client(own, Learner(own)))
        algorithm = ALGORITHMS[name](**settings)
        for client in clients:
            client.state = algorithm.begin(client)
        return Problem(clients, algorithm)

    return build


FIXED = {
    "dfedu": {"name": "dfedu"},
    "dfedu with weights": {"name": "dfedu", "weights": "mixing"},
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
    settings = {"name": "sheaf-fmtl", "gamma": 0.6, "eta": 0.0} | FIXED[maps]
    if settings["name"] == "dfedu":
        del settings["gamma"], settings["eta"]
    played = problem(work=work, **settings)
    assert [client.steps for client in played.clients[:CLIENTS]] == [
        STEPS[node] if work == UNEQUAL else work for node in range(CLIENTS)
    ]
    expected = played.minimiser()
    for found, theta in zip(played.play(ROUNDS[work]), expected, strict=True):
        np.testing.assert_allclose(found, theta, rtol=0, atol=1e-7)


@pytest.mark.parametrize("work", [1, 10, UNEQUAL])
def test_momentum_does_not_move_the_fixed_point_either(problem, work):
    played = problem("dfedu", work, momentum=0.5, lam=0.1)
    for found, theta in zip(played.play(ROUNDS[work]), played.minimiser(lam=0.1), strict=True):
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
    expected = problem("dfedu", work).minimiser()
    for _ in range(ROUNDS[work]):
        start = [client.theta.copy() for client in played.clients]
        ends = []
        for _ in range(SIZE):
            ends.append(played.play(1))
            for client, theta in zip(played.clients, start, strict=True):
                client.theta[:] = theta
        for client, theta in zip(played.clients, map(partial(np.mean, axis=0), zip(*ends, strict=True)), strict=True):
            client.theta[:] = theta
    for client, theta in zip(played.clients, expected, strict=True):
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
