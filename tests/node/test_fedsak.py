"""The subgradient of the tensor trace norm, where it is smooth and where it is not; and which layers can be shared."""

import numpy as np
import pytest
import torch

from sheafgossip.node.algorithms import ALGORITHMS
from sheafgossip.node.algorithms.base import SettingsError
from sheafgossip.node.algorithms.shared_layers import orthogonal_factor, trace_norm_subgradient
from sheafgossip.node.model.architecture import Architecture

FEDSAK = ALGORITHMS["fedsak"]


def test_of_filters_of_full_rank_it_is_the_gradient_that_torch_finds():
    w = np.random.default_rng(1).normal(size=(3, 48))
    clients = torch.from_numpy(w).requires_grad_()
    layer = clients.reshape(3, 4, 3, 2, 2)
    sum(torch.linalg.matrix_norm(layer.movedim(k, 0).flatten(1), "nuc") for k in range(5)).backward()
    np.testing.assert_allclose(trace_norm_subgradient(w, [(4, 3, 2, 2)]), clients.grad, rtol=1e-10, atol=1e-12)


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


def mlp(width: int, outputs: int = 2) -> Architecture:
    return Architecture("mlp", (9,), outputs, hidden=(width,))


@pytest.mark.parametrize(
    ("share", "models", "told"),
    [
        ("extractor", [mlp(5), mlp(6)], "5x9 . 5"),
        ("head", [mlp(5), mlp(5, outputs=3)], "2x5 . 2"),
        ("extractor", [Architecture("logistic", (9,), 2)] * 2, "allowed are 'model' and 'head'"),
    ],
)
def test_layers_that_cannot_be_shared_are_refused(run_facts, share, models, told):
    with pytest.raises(SettingsError, match=rf"^algorithm\.share = '{share}': .*{told}"):
        FEDSAK(share=share).check(run_facts(models))
