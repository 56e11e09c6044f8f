"""What servers compute of uploads: FLT's encoder and clusters, what message passing makes of a relation graph, and the
subgradient of FedSAK's tensor trace norm."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from sheafgossip.node.algorithms import ALGORITHMS
from sheafgossip.node.algorithms.base import SettingsError
from sheafgossip.node.algorithms.flt import FLT, Autoencoder, EncoderError, clusters
from sheafgossip.node.algorithms.hypernetworks import load_embeddings
from sheafgossip.node.algorithms.shared_layers import orthogonal_factor, trace_norm_subgradient
from sheafgossip.node.assignment import Neighbour
from sheafgossip.node.client import Client, RoundReport
from sheafgossip.node.model.architecture import Architecture

# -- FLT ---------------------------------------------------------------------------------------------------------------


def test_the_autoencoder_is_that_of_the_paper():
    sizes = [block.size for block in Autoencoder((1, 28, 28), 128).parameters()]
    assert sum(sizes) == 51_577
    assert sizes[:6] == [16 * 9, 16, 4 * 16 * 9, 4, 128 * 196, 128]


def test_rows_and_columns_beyond_a_multiple_of_four_are_left_out():
    autoencoder, rng = Autoencoder((3, 10, 7), 5), np.random.default_rng(1)
    images = rng.random((4, 3, 10, 7)).astype(np.float32)
    vector = autoencoder.start(rng).astype(np.float32)
    cropped = Autoencoder((3, 8, 4), 5).embed(vector, images[..., :8, :4].copy())
    np.testing.assert_allclose(autoencoder.embed(vector, images), cropped, rtol=1e-6)
    assert len(list(autoencoder.train(vector, images, 1, rng))) == 1


def test_an_encoder_comes_back_from_its_file_as_it_went(tmp_path):
    autoencoder = Autoencoder((1, 8, 8), 6)
    vector = autoencoder.start(np.random.default_rng(2)).astype(np.float32)
    autoencoder.save(vector, tmp_path / "encoder.safetensors")
    assert np.array_equal(autoencoder.load(tmp_path / "encoder.safetensors"), vector)
    with pytest.raises(EncoderError, match=r"images of shape \[1, 8, 8\] with an embedding of 6; needed .* and 7"):
        Autoencoder((1, 8, 8), 7).load(tmp_path / "encoder.safetensors")


def test_clients_without_relations_are_alone_and_those_with_all_together():
    assert clusters(np.eye(4, dtype=bool)).tolist() == [0, 1, 2, 3]
    assert clusters(np.ones((4, 4), bool)).tolist() == [0, 0, 0, 0]
    assert clusters(np.ones((1, 1), bool)).tolist() == [0]


SIGNATURES = {0: np.array([1.0, 1]), 1: np.array([9.0, 9]), 2: np.array([1.5, 1]), 3: np.array([9.0, 9.5])}


def server_that_heard(signatures, **settings):
    """Of four clients whose images have 8x8 pixels."""
    own = SimpleNamespace(role="server", clients=4, theta=np.zeros(3), report=RoundReport(), neighbours=signatures)
    own.generator, own.model = lambda purpose: np.random.default_rng(0), Architecture("logistic", (1, 8, 8), 10)
    flt = FLT(embedding=2, centroids=1, **settings)
    own.state = flt.begin(own)
    flt.open(own, SimpleNamespace(send=lambda vectors: None, receive=lambda: signatures))
    return own


def test_the_baseline_has_centroids_of_own_principal_components_and_compares_them_as_they_are():
    images = np.random.default_rng(3).normal(size=(9, 1, 8, 8)) * np.arange(1, 65).reshape(8, 8)
    flat = images.reshape(9, -1) - images.reshape(9, -1).mean(axis=0)
    values, vectors = np.linalg.eigh(flat.T @ flat)
    first = vectors[:, np.argsort(values)[:-3:-1]].T
    first *= np.sign([direction[np.abs(direction).argmax()] for direction in first])[:, None]
    client = SimpleNamespace(
        theta=np.zeros(3), inputs=lambda: images, generator=lambda purpose: np.random.default_rng(0)
    )
    flt = FLT(encoding="pca", embedding=2, centroids=9)  # then each sample is a centroid
    found = flt._centroids(client, None, np.ones(1)).reshape(9, 2)
    expected = flat @ first.T
    np.testing.assert_allclose(found[np.lexsort(found.T)], expected[np.lexsort(expected.T)], rtol=1e-8, atol=1e-8)

    server = server_that_heard(SIGNATURES, encoding="pca", gamma=0.6)
    assert server.state.model_of.tolist() == [0, 1, 0, 1]
    points = np.stack(list(SIGNATURES.values()))
    expected = [[np.linalg.norm(u - v) for v in points] for u in points]
    np.testing.assert_allclose(server.state.distances, expected, rtol=1e-6)
    assert (server.state.related == (np.array(expected) <= 0.6)).all()


def test_umap_is_given_all_centroids_and_the_runs_seed(monkeypatch):
    class UMAP:
        def __init__(self, **options):
            assert isinstance(options.pop("random_state"), int)
            assert options == {"n_components": 2, "n_neighbors": 3, "n_jobs": 1}

        def fit_transform(self, centroids):
            assert centroids.tolist() == [vector.tolist() for vector in SIGNATURES.values()]
            return np.array([[0, 0], [7, 0], [0, 0.5], [7, 0.5]])

    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=UMAP))
    server = server_that_heard(SIGNATURES)
    assert server.state.model_of.tolist() == [0, 1, 0, 1]
    assert (server.report.warnings, server.report.events) == ([], [("clusters", "0 2 | 1 3")])


def test_asked_for_umap_without_its_library_it_fails_and_tells_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(RuntimeError, match=r"pip install -e '.\[flt\]'"):
        server_that_heard(SIGNATURES, manifold="umap")


def test_a_client_that_was_not_heard_is_related_to_itself_only():
    server = server_that_heard(SIGNATURES | {2: np.zeros(2)}, manifold="pca", case="related")
    assert server.state.averaged.astype(int).tolist() == [[1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 1, 0, 1]]


# -- hypernetworks -----------------------------------------------------------------------------------------------------

CLIENTS = 6


def begun(assignment, name, facts=None, **settings):
    neighbours = tuple(Neighbour(k, 15, 0.0) for k in range(CLIENTS))
    own = replace(assignment, role="server", node=CLIENTS, neighbours=neighbours, facts=facts)
    learner = SimpleNamespace(theta=np.linspace(-1, 1, 15), train_samples=0)
    client = Client(replace(own, run=replace(assignment.run, rounds=90)), learner)
    algorithm = ALGORITHMS[name](**settings)
    client.state = algorithm.begin(client)
    return algorithm, client


def feed(algorithm, client):
    """What clients would upload: the model they were sent, moved towards their own."""
    theta = np.stack([algorithm.reply(client, k) for k in range(CLIENTS)])
    own = np.arange(CLIENTS)[:, None] * np.ones(15)
    algorithm.aggregate(client, {k: theta[k] + 0.3 * (own[k] - theta[k]) for k in (0, 1, 3, 5)})


def rough(z):
    """How far clients' features are from one another, relative to their size."""
    return float((z - z.mean(0)).norm() / z.norm())


@pytest.mark.parametrize("layers", [2, 16])
def test_many_graph_convolutions_make_clients_alike_and_many_sheaf_layers_do_not(assignment, layers):
    """On a ring every client has as many neighbours: then averaging ends with features that are all the same."""
    ring, left = [[v, v + 1] for v in range(CLIENTS - 1)] + [[0, CLIENTS - 1]], {}
    for name in ("ghn", "shn"):
        algorithm, client = begun(assignment, name, ring, embedding_rounds=1, layers=layers, graph="topology")
        feed(algorithm, client)
        assert rough(client.state.X) > 0.8
        left[name] = rough(client.state.features().detach())
    assert left["ghn"] > 0.2 if layers == 2 else left["ghn"] < 0.02
    assert left["shn"] > 0.05


def test_stages_that_leave_no_round_for_the_graph_are_told(assignment):
    (warning,) = begun(assignment, "shn", embedding_rounds=90)[1].report.warnings  # of 90
    assert "algorithm.embedding_rounds = 90 leaves no round for shn" in warning
    assert begun(assignment, "shn", embedding_rounds=89)[1].report.warnings == []


def test_clients_of_whom_no_two_are_similar_learn_all_the_same(assignment):
    algorithm, client = begun(assignment, "shn", embedding_rounds=1, graph="cosine", tau=1.0)
    for _ in range(2):
        feed(algorithm, client)
    assert client.state.edges.shape == (0, 2)
    assert np.isfinite(algorithm.reply(client, 0)).all()


@pytest.mark.parametrize("name", ["ghn", "shn"])
def test_given_features_and_relations_are_those_of_the_first_round_and_stay(assignment, tmp_path, name):
    X, ring = np.random.default_rng(3).normal(size=(CLIENTS, 5)), [[v, v + 1] for v in range(CLIENTS - 1)]
    save_file({"X": X}, tmp_path / "X.safetensors")
    given = {"embeddings": str(tmp_path / "X.safetensors"), "embedding": 5, "graph": "topology"}
    algorithm, client = begun(assignment, name, ring, **given)
    assert client.report.warnings == []
    np.testing.assert_array_equal(algorithm.reply(client, 0), client.theta)  # HN(z) = theta^0
    for _ in range(60):  # beyond the default embedding_rounds
        feed(algorithm, client)
    np.testing.assert_allclose(client.state.X, X, rtol=1e-6)
    assert client.state.edges.tolist() == ring
    again = begun(assignment, name, ring, **given)[1]
    again.state.load(client.state.arrays())
    np.testing.assert_array_equal(again.state.features().detach(), client.state.features().detach())


def test_without_neighbours_a_graph_convolution_is_a_layer_of_each_client_alone(assignment):
    algorithm, client = begun(assignment, "ghn", embedding_rounds=1, layers=1, k=0)
    feed(algorithm, client)
    state = client.state
    assert state.edges.shape == (0, 2)
    np.testing.assert_allclose(state.features().detach(), (state.X @ state.psi["W0"].detach()).tanh(), rtol=1e-6)


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ({"Y": np.zeros((6, 4))}, "has no tensor X; needed is a tensor X of shape [6, 4]"),
        ({"X": np.zeros((6, 3))}, "has X of shape [6, 3]; needed is"),
        ({"X": np.full((6, 4), np.nan)}, "X holds something else than finite"),
        ({"X": np.zeros((6, 4), int)}, "X holds something else than finite"),
    ],
)
def test_features_that_do_not_fit_are_told_in_one_line(tmp_path, tensors, told):
    path = tmp_path / "X.safetensors"
    save_file(tensors, path)
    with pytest.raises(SettingsError) as caught:
        load_embeddings(str(path), 6, 4)
    assert f"algorithm.embeddings = '{path}'" in str(caught.value)
    assert told in str(caught.value)
    path.write_bytes(b"no such thing")
    with pytest.raises(SettingsError, match="is no safetensors file"):
        load_embeddings(str(path), 6, 4)


# -- FedSAK ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [(1.0,), (0.5,), (0.5, 0.0, 2.0, 1.5, 3.0)])
def test_of_filters_of_full_rank_it_is_the_gradient_that_torch_finds(alpha):
    w = np.random.default_rng(1).normal(size=(3, 48))
    clients = torch.from_numpy(w).requires_grad_()
    layer = clients.reshape(3, 4, 3, 2, 2)
    weights = [alpha[-1], *alpha[:-1]] if len(alpha) > 1 else 5 * alpha  # here the clients' mode comes first
    norms = [torch.linalg.matrix_norm(layer.movedim(k, 0).flatten(1), "nuc") for k in range(5)]
    sum(weight * norm for weight, norm in zip(weights, norms, strict=True)).backward()
    np.testing.assert_allclose(trace_norm_subgradient(w, [(4, 3, 2, 2)], alpha), clients.grad, rtol=1e-10, atol=1e-12)
    alike = np.tile(w[0, :12], (4, 1))  # clients with one model stay alike
    slopes = trace_norm_subgradient(alike, [(3, 4)])
    np.testing.assert_allclose(slopes, np.tile(slopes[0], (4, 1)), atol=1e-12)


@pytest.mark.parametrize(("rank", "least"), [(20, 1e-2), (7, 1e-2), (20, 1e-5), (7, 1e-5), (2, 1)])
@pytest.mark.parametrize(("dtype", "size"), [("float32", 100_000), ("float32", 30), ("float64", 30)])
def test_of_matrices_of_any_rank_it_is_the_subgradient_of_least_norm(rank, least, dtype, size):
    """G is one of ||A||_* exactly if <G, A> = ||A||_* and no singular value of G is above 1; of all these, U V^T of the
    nonzero singular values has the least norm: the root of the rank. Of 20 clients with 10^5 parameters each singular
    values of 1 to ``least`` count, and those of rounding do not."""
    rng, s = np.random.default_rng(4), np.geomspace(1, least, rank)
    u, v = np.linalg.qr(rng.normal(size=(20, 20)))[0], np.linalg.qr(rng.normal(size=(size, 20)))[0]
    matrix = ((u[:, :rank] * s) @ v[:, :rank].T).astype(dtype)
    slope = orthogonal_factor(matrix.astype(float), np.finfo(dtype).eps)
    np.testing.assert_allclose((slope * matrix).sum(), s.sum(), rtol=1e-5)
    assert np.linalg.norm(slope, 2) < 1 + 1e-6
    np.testing.assert_allclose(np.linalg.norm(slope) ** 2, rank, rtol=1e-9)
    assert not orthogonal_factor(0 * slope, np.finfo(dtype).eps).any()
