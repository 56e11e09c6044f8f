"""The last layer that a client refits, against SciPy's minimum of the same function."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax

from sheafgossip.node.algorithms.last_layer import refitted
from sheafgossip.node.client import Client
from sheafgossip.node.model.architecture import Architecture
from sheafgossip.node.model.learner import Learner

MLP = Architecture("mlp", (4,), 3, hidden=(5,))
WIDE = Architecture("mlp", (4,), 3, hidden=(40,))
CNN = Architecture("cnn", (1, 8, 8), 3, filters=(4,))


@pytest.fixture
def client(with_shard):
    def made(architecture, samples, **model):
        own = with_shard(architecture, samples, model=model)
        return Client(own, Learner(own))

    return made


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("variance", [0.01, 1.0, 30.0])
@pytest.mark.parametrize(("architecture", "samples"), [(MLP, 1), (MLP, 60), (WIDE, 12), (CNN, 30)])
def test_no_other_last_layer_is_more_probable(client, architecture, samples, variance, dtype):
    own = client(architecture, samples, dtype=dtype)
    start, size, y = own.theta.copy(), architecture.last_size, np.asarray(own._learner._y_train)
    z = own.features_of(start, (own._learner._x_train, y)).astype(float)

    def objective(last):
        weights, biases = last[:-3].reshape(3, -1), last[-3:]
        scores = z @ weights.T + biases
        loss = (logsumexp(scores, axis=1) - scores[np.arange(len(y)), y]).sum()
        return loss + ((last - start[-size:]) ** 2).sum() / (2 * variance)

    def slope(last):
        weights, biases = last[:-3].reshape(3, -1), last[-3:]
        off = softmax(z @ weights.T + biases, axis=1) - np.eye(3)[y]
        return np.append(off.T @ z, off.sum(axis=0)) + (last - start[-size:]) / variance

    found = refitted(own, start, variance)
    expected = minimize(objective, start[-size:].astype(float), jac=slope, method="BFGS", options={"gtol": 1e-5}).x
    assert found.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(found[:-size], start[:-size])
    np.testing.assert_array_equal(own.theta, start)
    least = objective(expected)
    assert objective(found[-size:].astype(float)) == pytest.approx(least, rel=1e-4)
    assert objective(start[-size:].astype(float)) > 1.0001 * least
    if variance <= 1:
        np.testing.assert_allclose(found[-size:], expected, atol=1e-4)


def test_without_variance_or_where_a_model_has_run_away_it_stays_as_it_is(client):
    own = client(MLP, 20)
    assert refitted(own, own.theta, 0) is own.theta
    lost = np.full_like(own.theta, np.nan)
    assert refitted(own, lost, 1.0) is lost
