"""What message passing makes of the relation graph, and what the server says of its stages."""

from dataclasses import replace

import numpy as np
import pytest

from sheafgossip.node.algorithms import ALGORITHMS
from sheafgossip.node.assignment import Neighbour
from sheafgossip.node.client import Client

CLIENTS = 6


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


def fed(algorithm, client):
    """What clients would upload: the model they were sent, moved towards their own."""
    theta = np.stack([algorithm.reply(client, k) for k in range(CLIENTS)])
    own = np.arange(CLIENTS)[:, None] * np.ones(15)
    algorithm.aggregate(client, {k: theta[k] + 0.3 * (own[k] - theta[k]) for k in (0, 1, 3, 5)})


@pytest.mark.parametrize("layers", [2, 16])
def test_many_graph_convolutions_make_clients_alike_and_many_sheaf_layers_do_not(assignment, layers):
    """On a ring every client has as many neighbours: then averaging ends with features that are all the same."""
    left = {}
    for name in ("ghn", "shn"):
        ring = [[v, v + 1] for v in range(CLIENTS - 1)] + [[0, CLIENTS - 1]]
        algorithm, client = server(assignment, name, ring, embedding_rounds=1, layers=layers, graph="topology")
        fed(algorithm, client)
        assert rough(client.state.X) > 0.8
        left[name] = rough(client.state.features().detach())
    assert left["ghn"] > 0.2 if layers == 2 else left["ghn"] < 0.02
    assert left["shn"] > 0.05


def test_stages_that_leave_no_round_for_the_graph_are_told(assignment):
    _, client = server(assignment, "shn", embedding_rounds=90)  # of 90
    (warning,) = client.report.warnings
    assert "algorithm.embedding_rounds = 90 leaves no round for shn" in warning
    assert server(assignment, "shn", embedding_rounds=89)[1].report.warnings == []


def test_clients_of_whom_no_two_are_similar_learn_all_the_same(assignment):
    algorithm, client = server(assignment, "shn", embedding_rounds=1, graph="cosine", tau=1.0)
    for _ in range(2):
        fed(algorithm, client)
    assert client.state.edges.shape == (0, 2)
    assert np.isfinite(algorithm.reply(client, 0)).all()
