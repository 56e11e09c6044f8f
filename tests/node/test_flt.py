"""FLT's encoder, its clusters, and whom its server takes to be related."""

import sys
import types

import numpy as np
import pytest

from sheafgossip.node.algorithms.base import SettingsError
from sheafgossip.node.algorithms.flt import FLT, Autoencoder, EncoderError, clusters
from sheafgossip.node.client import RoundReport
from sheafgossip.node.model.architecture import Architecture


def test_the_autoencoder_is_that_of_the_paper():
    paper = Autoencoder((1, 28, 28), 128)
    assert paper.size == 51_577
    shapes = dict(paper.blocks())
    assert shapes["encoder.linear.weight"] == (128, 196)
    assert paper.encoder_size == 16 * 9 + 16 + 4 * 16 * 9 + 4 + 128 * 196 + 128


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


def test_clients_without_relations_are_alone_and_those_with_all_together():
    assert clusters(np.eye(4, dtype=bool)).tolist() == [0, 1, 2, 3]
    assert clusters(np.ones((4, 4), bool)).tolist() == [0, 0, 0, 0]
    assert clusters(np.ones((1, 1), bool)).tolist() == [0]


def server_that_heard(signatures, **settings):
    """Of four clients whose images have 8x8 pixels."""
    own = types.SimpleNamespace(role="server", clients=4, theta=np.zeros(3), report=RoundReport())
    own.generator = lambda purpose: np.random.default_rng(0)
    flt = FLT(embedding=2, centroids=1, **settings)
    own.model, own.neighbours = Architecture("logistic", (1, 8, 8), 10), signatures
    own.state = flt.begin(own)
    flt.open(own, types.SimpleNamespace(send=lambda vectors: None, receive=lambda: signatures))
    return own


SIGNATURES = {0: np.array([1.0, 1]), 1: np.array([9.0, 9]), 2: np.array([1.5, 1]), 3: np.array([9.0, 9.5])}


def test_umap_is_given_all_centroids_and_the_runs_seed(monkeypatch):
    class UMAP:
        def __init__(self, **options):
            assert isinstance(options.pop("random_state"), int)
            assert options == {"n_components": 2, "n_neighbors": 3, "n_jobs": 1}

        def fit_transform(self, centroids):
            assert centroids.tolist() == [vector.tolist() for vector in SIGNATURES.values()]
            return np.array([[0, 0], [7, 0], [0, 0.5], [7, 0.5]])

    monkeypatch.setitem(sys.modules, "umap", types.SimpleNamespace(UMAP=UMAP))
    server = server_that_heard(SIGNATURES)
    assert server.state.model_of.tolist() == [0, 1, 0, 1]
    assert server.report.warnings == []
    assert server.report.events == [("clusters", "0 2 | 1 3")]


def test_asked_for_umap_without_its_library_it_fails_and_tells_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(RuntimeError, match=r"pip install -e '.\[flt\]'"):
        server_that_heard(SIGNATURES, manifold="umap")


def test_a_client_that_was_not_heard_is_related_to_itself_only():
    server = server_that_heard(SIGNATURES | {2: np.zeros(2)}, manifold="pca", case="related")
    assert server.state.averaged.astype(int).tolist() == [[1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 1, 0, 1]]
