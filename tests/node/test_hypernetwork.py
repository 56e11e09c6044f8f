"""The server's learned blocks and its message passing, each by its defining property."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sheafgossip.node.algorithms import ALGORITHMS
from sheafgossip.node.algorithms.hypernetworks.diffusion import Relations, cayley, householder, relation_graph
from sheafgossip.node.algorithms.hypernetworks.hypernetwork import Learned, tensor
from sheafgossip.node.assignment import Neighbour
from sheafgossip.node.client import Client

CLIENTS = 6


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_adam_is_that_of_torch(decay):
    rng = np.random.default_rng(4)
    start = {"a": rng.normal(size=(3, 2)), "b": rng.normal(size=4)}
    ours = Learned(start, np.dtype("float64"))
    theirs = {name: torch.from_numpy(block.copy()).requires_grad_() for name, block in start.items()}
    adam = torch.optim.Adam(theirs.values(), lr=0.1, weight_decay=decay)

    def loss(blocks):
        return (blocks["a"] ** 4).sum() + (blocks["a"] @ blocks["b"][:2]).sin().sum() + (blocks["b"] ** 2).sum()

    for _ in range(5):
        adam.zero_grad()
        expected = loss(theirs)
        expected.backward()
        adam.step()
        assert ours.fit(lambda: loss(ours.blocks), eta=0.1, weight_decay=decay) == pytest.approx(expected.item())
    for name, block in theirs.items():
        np.testing.assert_allclose(ours.blocks[name].detach(), block.detach(), rtol=1e-12)


@pytest.mark.parametrize("make", [householder, cayley])
@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_restriction_maps_are_orthogonal_and_differ(make, d):
    numbers = torch.from_numpy(np.random.default_rng(d).normal(size=(4, d * (d - 1) // 2)))
    maps = make(numbers, d)
    assert maps.shape == (4, d, d)
    torch.testing.assert_close(maps @ maps.mT, torch.eye(d, dtype=maps.dtype).expand(4, d, d))
    assert d == 1 or (maps[0] - maps[1]).norm() > 0.1


def test_with_equal_maps_the_sheaf_laplacian_is_the_graphs():
    """F_v = F_u = I: each of the d coordinates diffuses by I - D^-1/2 A D^-1/2."""
    edges = np.array([[0, 1], [0, 2], [1, 2], [2, 3]])
    relations = Relations(edges, 5, torch.float64)  # node 4 is alone
    A = np.zeros((5, 5))
    A[tuple(edges.T)] = 1
    A += A.T
    degree = A.sum(1)
    root = np.diag(np.where(degree > 0, degree, np.inf) ** -0.5)
    laplacian = root @ (np.diag(degree) - A) @ root
    x = np.random.default_rng(6).normal(size=(5, 3, 2))
    same = torch.eye(3, dtype=torch.float64).expand(4, 3, 3)
    found = relations.sheaf_laplacian(same, same, tensor(x))
    np.testing.assert_allclose(found, np.einsum("vu,udf->vdf", laplacian, x), atol=1e-12)


def rough(z):
    """How far clients' features are from one another, relative to their size."""
    return float((z - z.mean(0)).norm() / z.norm())


def server(assignment, name, facts=None, **settings):
    neighbours = tuple(Neighbour(k, 15, 0.0) for k in range(CLIENTS))

    class Learner:
        theta = np.linspace(-1, 1, 15)

    own = replace(assignment, role="server", node=CLIENTS, neighbours=neighbours, facts=facts)
    client = Client(replace(own, run=replace(assignment.run, rounds=90)), Learner())
    algorithm = ALGORITHMS[name](**settings)
    client.state = algorithm.begin(client)
    return algorithm, client


def fed(algorithm, client, rounds):
    """What clients would upload: the model they were sent, moved towards their own."""
    for round in rounds:
        rng = np.random.default_rng(round)
        theta = np.stack([algorithm.reply(client, k) for k in range(CLIENTS)])
        own = np.arange(CLIENTS)[:, None] * np.ones(15)
        chosen = sorted(rng.permutation(CLIENTS)[:4].tolist())
        algorithm.aggregate(client, {k: theta[k] + 0.3 * (own[k] - theta[k]) for k in chosen})
    return np.stack([algorithm.reply(client, k) for k in range(CLIENTS)])


@pytest.mark.parametrize("between", [2, 5])
@pytest.mark.parametrize("name", ["pfedhn", "ghn", "shn"])
def test_a_server_that_goes_on_from_its_state_gives_the_same_bits(assignment, name, between):
    stages = {} if name == "pfedhn" else {"embedding_rounds": 3, "k": 2}
    algorithm, client = server(assignment, name, **stages)
    fed(algorithm, client, range(between))
    kept = {key: array.copy() for key, array in client.state.arrays().items()}
    whole = fed(algorithm, client, range(between, 8))
    later, client = server(assignment, name, **stages)
    client.state.load(kept)
    assert np.array_equal(fed(later, client, range(between, 8)), whole)


@pytest.mark.parametrize("layers", [2, 16])
def test_many_graph_convolutions_make_clients_alike_and_many_sheaf_layers_do_not(assignment, layers):
    """On a ring every client has as many neighbours: then averaging ends with features that are all the same."""
    left = {}
    for name in ("ghn", "shn"):
        ring = [[v, v + 1] for v in range(CLIENTS - 1)] + [[0, CLIENTS - 1]]
        algorithm, client = server(assignment, name, ring, embedding_rounds=1, layers=layers, graph="topology")
        fed(algorithm, client, range(1))
        assert rough(client.state.X) > 0.8
        left[name] = rough(client.state.features().detach())
    assert left["ghn"] > 0.2 if layers == 2 else left["ghn"] < 0.02
    assert left["shn"] > 0.05


def test_stages_that_leave_no_round_for_the_graph_are_told(assignment):
    _, client = server(assignment, "shn", embedding_rounds=90)  # of 90
    (warning,) = client.report.warnings
    assert "algorithm.embedding_rounds = 90 leaves no round for shn" in warning
    assert server(assignment, "shn", embedding_rounds=89)[1].report.warnings == []


def test_the_graph_links_the_most_similar():
    angles = np.radians([0, 10, 25, 180, 190, 80])
    X = np.column_stack([np.cos(angles), np.sin(angles)]) * np.arange(1, 7)[:, None]  # lengths do not count
    settings = ALGORITHMS["ghn"]
    knn = {tuple(edge) for edge in relation_graph(X, settings(k=1)).tolist()}
    assert knn == {(0, 1), (1, 2), (3, 4), (2, 5)}
    cosine = {tuple(edge) for edge in relation_graph(X, settings(graph="cosine", tau=0.9)).tolist()}
    assert cosine == {(0, 1), (1, 2), (0, 2), (3, 4)}
    assert relation_graph(X, settings(graph="cosine", tau=1.0)).shape == (0, 2)
