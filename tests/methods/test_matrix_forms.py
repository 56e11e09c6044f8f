"""Methods without a server against the network's matrix form: the whole computation once more, with no messages."""

import numpy as np
import pytest

import oracles
from sheafgossip.topology import TopologySpec, draw, draw_sequence
from sheafgossip.topology.weights import mixing_matrix

ROUNDS, ALPHA = 25, 0.5
SHEAF = f"""
clients = 8
rounds = {ROUNDS}
seed = 3
[topology]
p = 0.4
[data]
samples = 600
rotations = [0, 90]
[training]
alpha = {ALPHA}
[checkpoints]
save_maps = true
[evaluation]
every = 0
[model]
dtype = "{{dtype}}"
{{mix}}
[algorithm]
name = "sheaf-fmtl"
gamma = 0.05
lam = 0.05
eta = 0.05
start = "{{start}}"
start_scale = {{scale}}
"""
MIX = 'mix = [{ kind = "mlp", hidden = [12] }, { kind = "mlp", hidden = [7] }]'
HIDDEN = {650: 0, 64 * 12 + 12 + 130: 12, 64 * 7 + 7 + 80: 7}
TOLERANCE = {"float64": 1e-10, "float32": 1e-4}


def gradients(theta, shards, of):
    parts = []
    for node, part in of.items():
        hidden = HIDDEN[theta[part].size]
        one = oracles.mlp_gradient(theta[part], shards[node], hidden) if hidden else None
        parts.append(oracles.logistic_gradient(theta[part], shards[node]) if one is None else one)
    return np.concatenate(parts)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("start", "scale", "mix"),
    [
        ("gaussian", 0.1, ""),
        ("uniform", 0.2, ""),
        ("orthogonal", 2.0, ""),
        ("identity", 1.0, ""),
        ("gaussian", 0.1, MIX),
    ],
    ids=["gaussian", "uniform", "orthogonal", "identity", "different model sizes"],
)
def test_sheaf_fmtl_equals_its_matrix_form(run, dtype, start, scale, mix):
    """Equations (30) and (31) of the paper, theta and the maps of all clients stacked."""
    lam = eta = 0.05
    folder = run(SHEAF.format(dtype=dtype, mix=mix, start=start, scale=scale))
    first, last, shards = folder.states(0), folder.states(ROUNDS), folder.shards()
    P, H, of = oracles.stacked_maps(first, folder.edges())
    start, theta = P.copy(), np.concatenate([first[node]["theta"] for node in of]).astype(np.float64)
    for _ in range(ROUNDS):
        theta = theta - ALPHA * (gradients(theta, shards, of) + lam * P.T @ (P @ theta))  # (30)
        P = H * (P - eta * lam * np.outer(P @ theta, theta))  # (31)
    assert oracles.error(np.concatenate([last[node]["theta"] for node in of]), theta) < TOLERANCE[dtype]
    assert oracles.error(P, start) > 5e-4  # the maps took part
    assert oracles.error(oracles.stacked_maps(last, folder.edges())[0], P) < TOLERANCE[dtype]


CLIENTS = 6
CONFIG = f"""
clients = {CLIENTS}
rounds = {ROUNDS}
seed = 3
[topology]
p = 0.5
[data]
samples = 360
partition = "classes"
[training]
alpha = {ALPHA}
[model]
dtype = "float64"
[evaluation]
every = 0
[algorithm]
"""


class Network:
    """Row i of ``theta`` is the start of client i; W are the mixing weights of its graph."""

    def __init__(self, folder, vectors=1, more=0, arcs_of=None):
        """Each arc of a round, of the graph by default, carries so many vectors of theta's size and numbers more."""
        self.folder, self.theta, self.shards, self.edges = folder, folder.thetas(0), folder.shards(), folder.edges()
        self.adjacency = oracles.adjacency(self.edges, CLIENTS)
        self.W = oracles.metropolis_hastings(self.edges, CLIENTS)
        arcs_of = arcs_of or (lambda round: oracles.both_directions(self.edges))
        assert folder.sent() == {
            (*arc, round): (1, 8 * (vectors * self.theta.shape[1] + more))
            for round in range(1, ROUNDS + 1)
            for arc in arcs_of(round)
        }

    def gradient(self, theta):
        return np.stack([oracles.logistic_gradient(theta[i], self.shards[i]) for i in range(CLIENTS)])

    def error(self, theta):
        return oracles.error(self.folder.thetas(ROUNDS), theta)


def test_dfedu_is_gradient_descent_on_the_graph_laplacian(run):
    network = Network(run(CONFIG + 'name = "dfedu"\nlam = 0.1'))
    L, theta = oracles.laplacian(network.edges, CLIENTS), network.theta
    for _ in range(ROUNDS):
        theta = theta - ALPHA * (network.gradient(theta) + 0.1 * L @ theta)
    assert network.error(theta) < 1e-10


def test_d_psgd_mixes_with_metropolis_hastings_weights(run):
    network = Network(run(CONFIG + 'name = "d-psgd"'))
    assert len(set(network.adjacency.sum(axis=0))) > 1
    theta = network.theta
    for _ in range(ROUNDS):
        theta = network.W @ theta - ALPHA * network.gradient(theta)
    assert network.error(theta) < 1e-10


def test_gradient_tracking_is_diging(run):
    network = Network(run(CONFIG + 'name = "gradient-tracking"'), vectors=2)
    W, theta = network.W, network.theta
    y = gradient = network.gradient(theta)
    for _ in range(ROUNDS):
        theta = W @ theta - ALPHA * y
        before, gradient = gradient, network.gradient(theta)
        y = W @ y + gradient - before
    assert network.error(theta) < 1e-10


@pytest.mark.parametrize("lazy", [True, False])
def test_d2_is_its_two_step_recursion(run, lazy):
    network = Network(run(CONFIG + f'name = "d2"\nlazy = {str(lazy).lower()}'))
    W = (network.W + np.eye(CLIENTS)) / 2 if lazy else network.W
    before, gradient_before = network.theta, network.gradient(network.theta)
    theta = W @ (before - ALPHA * gradient_before)
    for _ in range(ROUNDS - 1):
        gradient = network.gradient(theta)
        step = ALPHA * (gradient - gradient_before)
        before, theta, gradient_before = theta, W @ (2 * theta - before - step), gradient
    assert network.error(theta) < 1e-10


@pytest.mark.parametrize("directed", [False, True])
def test_push_sum_is_right_with_weights_whose_columns_alone_sum_to_one(run, directed):
    text = CONFIG.replace("p = 0.5", "p = 0.4\ndirected = true") if directed else CONFIG
    arcs = draw(TopologySpec(p=0.4, directed=True), CLIENTS, seed=3).arcs
    network = Network(run(text + 'name = "push-sum"'), more=1, arcs_of=(lambda _: arcs) if directed else None)
    P = np.eye(CLIENTS)
    for i, j in arcs if directed else oracles.both_directions(network.edges):
        P[j, i] = 1
    P /= P.sum(axis=0)
    assert np.abs(P.sum(axis=1) - 1).max() > 0.1
    x, w = network.theta, np.ones((CLIENTS, 1))
    for _ in range(ROUNDS):
        x, w = P @ (x - ALPHA * network.gradient(x / w)), P @ w
    assert network.error(x / w) < 1e-10


def test_d_psgd_on_one_peer_exponential_graphs_goes_half_way_to_another_client_each_round(run):
    hops = [2 ** (t % 3) for t in range(ROUNDS)]
    folder = run(CONFIG.replace("p = 0.5", 'kind = "one-peer-exponential"') + 'name = "d-psgd"')
    network = Network(folder, arcs_of=lambda round: {(i, (i + hops[round - 1]) % CLIENTS) for i in range(CLIENTS)})
    theta = network.theta
    for hop in hops:
        theta = (theta + np.roll(theta, hop, axis=0)) / 2 - ALPHA * network.gradient(theta)
    assert network.error(theta) < 1e-10


def test_gradient_tracking_mixes_with_the_graph_of_the_round(run):
    folder = run(CONFIG.replace("p = 0.5", "p = 0.5\nredraw_every = 3") + 'name = "gradient-tracking"')
    graphs = draw_sequence(TopologySpec(p=0.5, redraw_every=3), CLIENTS, seed=3, rounds=ROUNDS)
    network = Network(folder, vectors=2, arcs_of=lambda round: oracles.both_directions(graphs.of(round).edges))
    theta = network.theta
    y = gradient = network.gradient(theta)
    for round in range(1, ROUNDS + 1):
        theta = mixing_matrix(graphs.of(round), "metropolis-hastings") @ theta - ALPHA * y
        before, gradient = gradient, network.gradient(theta)
        y = mixing_matrix(graphs.of(round + 1), "metropolis-hastings") @ y + gradient - before
    assert network.error(theta) < 1e-10


@pytest.mark.parametrize("order", ["random", "cyclic"])
def test_pairwise_gossip_halves_the_distance_between_the_pairs_that_the_traffic_tells(run, order):
    folder = run(CONFIG + f'name = "pairwise"\norder = "{order}"')
    pairs_of = {k: {(i, j) for i, j, round in folder.sent() if round == k} for k in range(1, ROUNDS + 1)}
    network = Network(folder, arcs_of=pairs_of.get)
    theta, met = network.theta, set()
    for pairs in pairs_of.values():
        assert pairs == {(j, i) for i, j in pairs}
        assert len({i for i, _ in pairs}) == len(pairs) > 0  # one partner each
        W = np.eye(CLIENTS)
        for i, j in pairs:
            W[i, i] = W[i, j] = 1 / 2
        theta = W @ theta - ALPHA * network.gradient(theta)
        met |= {pair for pair in pairs if pair[0] < pair[1]}
    assert met == set(network.edges)
    assert network.error(theta) < 1e-10
