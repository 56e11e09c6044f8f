"""FLT's parts: encoder, distances, clusters, and what its server keeps."""

import sys
import types

import numpy as np
import pytest

from sheafgossip.node.algorithms.base import SettingsError
from sheafgossip.node.algorithms.flt.encoder import Autoencoder, EncoderError
from sheafgossip.node.algorithms.flt.method import FLT, clusters, nearest, principal_components
from sheafgossip.node.client import RoundReport
from sheafgossip.node.model.architecture import Architecture


def test_the_autoencoder_is_that_of_the_paper():
    paper = Autoencoder((1, 28, 28), 128)
    assert paper.size == 51_577
    shapes = dict(paper.blocks())
    assert shapes["encoder.linear.weight"] == (128, 196)
    assert paper.encoder_size == 16 * 9 + 16 + 4 * 16 * 9 + 4 + 128 * 196 + 128


def test_training_lowers_the_error_and_changes_the_encoder():
    rng = np.random.default_rng(0)
    images = np.kron(rng.random((60, 1, 2, 2)), np.ones((1, 1, 4, 4))).astype(np.float32)
    autoencoder = Autoencoder((1, 8, 8), 6)
    vector = autoencoder.start(rng).astype(np.float32)
    before = vector.copy()
    errors = list(autoencoder.train(vector, images, 30, rng, alpha=0.01, batch_size=10))
    assert errors[-1] < 0.5 * errors[0]
    assert (vector[: autoencoder.encoder_size] != before[: autoencoder.encoder_size]).mean() > 0.5
    part = autoencoder.embed(vector[: autoencoder.encoder_size], images)
    assert np.array_equal(part, autoencoder.embed(vector, images))
    assert part.shape == (60, 6)


def test_rows_and_columns_beyond_a_multiple_of_four_are_left_out():
    autoencoder = Autoencoder((3, 10, 7), 5)
    rng = np.random.default_rng(1)
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


@pytest.mark.parametrize(
    ("settings", "shape", "complaint"),
    [
        ({}, (12,), r"^algorithm.name = 'flt': encodes images of at least 4x4 pixels"),
        ({"encoder": "/nowhere/encoder"}, (1, 8, 8), r"^algorithm.encoder = '/nowhere/encoder': cannot be read"),
        ({"encoder": __file__}, (1, 8, 8), r"^algorithm.encoder = .*: is no safetensors file"),
    ],
)
def test_what_does_not_fit_is_refused(run_facts, settings, shape, complaint):
    with pytest.raises(SettingsError, match=complaint):
        FLT(**settings).check(run_facts([Architecture("logistic", shape, 10)]))


def test_two_clients_are_as_far_apart_as_their_nearest_centroids():
    points = np.array([[[0.0, 0], [5, 0]], [[9, 0], [5, 1]], [[0, 7], [0, 3]]])
    assert nearest(points).tolist() == [
        [0, 1, 3],
        [1, 0, pytest.approx(np.sqrt(29))],
        [3, pytest.approx(np.sqrt(29)), 0],
    ]


def test_principal_components_keep_the_distances_of_what_lies_in_a_plane():
    rng = np.random.default_rng(3)
    flat = rng.normal(size=(20, 2))
    points = flat @ np.linalg.qr(rng.normal(size=(8, 2)))[0].T + 5
    found = principal_components(points, 2)
    np.testing.assert_allclose(
        np.linalg.norm(found[:, None] - found, axis=-1), np.linalg.norm(flat[:, None] - flat, axis=-1), atol=1e-9
    )
    assert principal_components(points[:2], 3).shape == (2, 3)


@pytest.mark.parametrize("wanted", [0, 3])
def test_clients_that_are_related_to_the_same_ones_are_a_cluster(wanted):
    groups = np.array([0, 1, 0, 2, 2, 1, 1, 0, 2])
    related = groups[:, None] == groups
    assert clusters(related, wanted).tolist() == [0, 1, 0, 2, 2, 1, 1, 0, 2]
    related[0, 1] = related[1, 0] = True  # one relation too many does not join two clusters
    assert clusters(related, wanted).tolist() == [0, 1, 0, 2, 2, 1, 1, 0, 2]


def test_clients_without_relations_are_alone_and_those_with_all_together():
    assert clusters(np.eye(4, dtype=bool)).tolist() == [0, 1, 2, 3]
    assert clusters(np.ones((4, 4), bool)).tolist() == [0, 0, 0, 0]
    assert clusters(np.ones((1, 1), bool)).tolist() == [0]


class FakeClient:
    """A server of four clients whose images have 8x8 pixels."""

    def __init__(self):
        self.role, self.clients, self.node, self.seed = "server", 4, 4, 0
        self.theta, self.report = np.zeros(3), RoundReport()
        self.model = Architecture("logistic", (1, 8, 8), 10)
        self.neighbours = {k: types.SimpleNamespace(samples=k + 1) for k in range(4)}

    def generator(self, purpose, *key):
        return np.random.default_rng(0)


def related_by(settings, signatures):
    server = FakeClient()
    flt = FLT(embedding=2, centroids=1, **settings)
    server.state = flt.begin(server)
    flt._relate(server, signatures)
    return flt, server


SIGNATURES = {0: np.array([1.0, 1]), 1: np.array([9.0, 9]), 2: np.array([1.5, 1]), 3: np.array([9.0, 9.5])}


def test_umap_is_given_all_centroids_and_the_runs_seed(monkeypatch):
    class UMAP:
        def __init__(self, **options):
            assert options == {
                "n_components": 2,
                "n_neighbors": 3,
                "random_state": options["random_state"],
                "n_jobs": 1,
            }
            assert isinstance(options["random_state"], int)

        def fit_transform(self, centroids):
            assert centroids.tolist() == [vector.tolist() for vector in SIGNATURES.values()]
            return np.array([[0, 0], [7, 0], [0, 0.5], [7, 0.5]])

    monkeypatch.setitem(sys.modules, "umap", types.SimpleNamespace(UMAP=UMAP))
    _, server = related_by({}, SIGNATURES)
    assert server.state.model_of.tolist() == [0, 1, 0, 1]
    assert server.report.warnings == []
    assert server.report.events == [("clusters", "0 2 | 1 3")]


def test_asked_for_umap_without_its_library_it_fails_and_tells_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(RuntimeError, match=r"pip install -e '.\[flt\]'"):
        related_by({"manifold": "umap"}, SIGNATURES)


def test_a_client_that_was_not_heard_is_related_to_itself_only():
    _, server = related_by({"manifold": "pca", "case": "related"}, SIGNATURES | {2: np.zeros(2)})
    assert server.state.averaged.astype(int).tolist() == [[1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 1, 0, 1]]


@pytest.mark.parametrize("case", ["related", "clusters"])
def test_what_the_server_keeps_is_enough_to_go_on(case):
    flt, server = related_by({"manifold": "pca", "case": case}, SIGNATURES)
    flt.aggregate(server, {k: np.full(3, k + 1.0) for k in (0, 1, 2)})
    later = FakeClient()
    later.state = flt.begin(later)
    later.state.load({name: array.copy() for name, array in server.state.arrays().items()})
    for k in range(4):
        np.testing.assert_array_equal(flt.reply(later, k), flt.reply(server, k))
    assert flt.reply(server, 0).tolist() == [pytest.approx((1 * 1 + 3 * 3) / 4)] * 3  # n_k = k + 1
    for each in (server, later):
        flt.aggregate(each, {3: np.full(3, 8.0)})
    np.testing.assert_array_equal(flt.reply(later, 3), flt.reply(server, 3))
