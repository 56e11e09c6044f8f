"""The subgradient of the tensor trace norm, where it is smooth and where it is not."""

import numpy as np
import pytest
import torch

from sheafgossip.node.algorithms import ALGORITHMS, check
from sheafgossip.node.algorithms.base import Edge, SettingsError
from sheafgossip.node.algorithms.fedsak import orthogonal_factor, trace_norm_subgradient
from sheafgossip.node.model.architecture import Architecture

FEDSAK = ALGORITHMS["fedsak"]


def test_of_layers_of_full_rank_it_is_the_gradient_that_torch_finds():
    shapes = [(4, 3, 2, 2), (4,), (5, 6)]
    rng = np.random.default_rng(1)
    w = rng.normal(size=(3, sum(int(np.prod(shape)) for shape in shapes)))
    clients = torch.from_numpy(w).requires_grad_()
    norm, end = 0, 0
    for shape in shapes:
        start, end = end, end + int(np.prod(shape))
        layer = clients[:, start:end].reshape(3, *shape)
        for k in range(layer.ndim):
            norm = norm + torch.linalg.matrix_norm(layer.movedim(k, 0).flatten(1), "nuc")
    norm.backward()
    np.testing.assert_allclose(trace_norm_subgradient(w, shapes), clients.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_of_matrices_without_full_rank_it_is_a_subgradient(dtype):
    """G is one of ||A||_* exactly if <G, A> = ||A||_* and no singular value of G is above 1; of all these, U V^T of the
    nonzero singular values has the least norm: the root of the rank."""
    rng = np.random.default_rng(2)
    matrix = (rng.normal(size=(8, 2)) @ rng.normal(size=(2, 30))).astype(dtype)
    rounding = np.finfo(dtype).eps
    slope = orthogonal_factor(matrix.astype(float), rounding)
    np.testing.assert_allclose((slope * matrix).sum(), np.linalg.norm(matrix, "nuc"), rtol=1e-5)
    assert np.linalg.norm(slope, 2) < 1 + 1e-6
    np.testing.assert_allclose(np.linalg.norm(slope), np.sqrt(2), rtol=1e-5)
    assert not orthogonal_factor(np.zeros((3, 4)), rounding).any()


@pytest.mark.parametrize("least", [1e-2, 1e-5])
def test_no_direction_of_a_large_layer_in_float32_is_taken_for_rounding(least):
    """20 clients with 10^5 parameters each: singular values of 1 to ``least`` count, and those of rounding do not."""
    rng = np.random.default_rng(4)
    u, v = np.linalg.qr(rng.normal(size=(20, 20)))[0], np.linalg.qr(rng.normal(size=(100_000, 20)))[0]
    for rank in (20, 7):
        s = np.geomspace(1, least, rank)
        matrix = ((u[:, :rank] * s) @ v[:, :rank].T).astype(np.float32)
        slope = orthogonal_factor(matrix.astype(float), np.finfo(np.float32).eps)
        np.testing.assert_allclose(np.linalg.norm(slope) ** 2, rank, rtol=1e-9)
        np.testing.assert_allclose((slope * matrix).sum(), s.sum(), rtol=1e-5)


def test_clients_with_one_model_stay_alike():
    w = np.tile(np.random.default_rng(3).normal(size=12), (4, 1))
    slopes = trace_norm_subgradient(w, [(3, 4)])
    np.testing.assert_allclose(slopes, np.tile(slopes[0], (4, 1)), atol=1e-12)


@pytest.mark.parametrize(
    ("share", "models", "told"),
    [
        (
            "extractor",
            [Architecture("mlp", (9,), 2, hidden=(5,)), Architecture("mlp", (9,), 2, hidden=(6,))],
            "5x9 + 5",
        ),
        ("head", [Architecture("mlp", (9,), 2, hidden=(5,)), Architecture("mlp", (9,), 3, hidden=(5,))], "2x5 + 2"),
        ("extractor", [Architecture("logistic", (9,), 2)] * 2, "allowed are 'model' and 'head'"),
    ],
)
def test_layers_that_cannot_be_shared_are_refused(run_facts, share, models, told):
    with pytest.raises(SettingsError, match=rf"^algorithm\.share = '{share}': .*{told.replace('+', '.')}"):
        FEDSAK(share=share).check(run_facts(models))


def test_algorithms_that_compare_whole_models_refuse_several_tasks(run_facts):
    with pytest.raises(SettingsError, match=r"data\.tasks"):
        check(ALGORITHMS["fedavg"](), run_facts([650, 130, 650], [(0, 2), (1, 2)]))


def test_what_travels_are_the_shared_layers():
    model = Architecture("cnn", (1, 8, 8), 10, filters=(4,), hidden=(6,))
    edge = Edge(0, 1, model.size, model.size, model, from_server=False, facts=None)
    sizes = {share: FEDSAK(share=share).messages(edge)[0].length for share in ("model", "extractor", "head")}
    assert sizes["head"] == 7 * 10
    assert sizes["extractor"] == 4 * 9 + 4 + (4 * 3 * 3 + 1) * 6
    assert sizes["model"] == sizes["extractor"] + sizes["head"] == model.size
