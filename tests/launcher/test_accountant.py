"""Epsilon of noised gradients, against published tables and closed forms."""

import math

import numpy as np
import pytest

from sheafgossip.launcher.prepare.accountant import ORDERS, epsilon, rdp

LEAST = 1 / 60_000  # of MNIST's samples


@pytest.mark.parametrize(("noise", "epochs", "published"), [(1.3, 15, 1.19), (1.1, 60, 3.01), (0.7, 45, 7.10)])
def test_the_table_of_tensorflow_privacys_tutorial(noise, epochs, published):
    """MNIST in batches of 256, delta 1e-5, by the conversion of Mironov (2017), eps(alpha) + log(1/delta)/(alpha - 1),
    which the tutorial has used; ours tells no more than that."""
    q, steps = 256 * LEAST, math.ceil(epochs / (256 * LEAST))
    told = (steps * rdp(q, noise) + math.log(1e5) / (ORDERS - 1)).min()
    assert told == pytest.approx(published, abs=0.005)
    assert epsilon({(q, noise): steps}, 1e-5) < told


@pytest.mark.parametrize(
    ("q", "noise", "steps", "found"),
    [
        (256 * LEAST, 1.3, 3516, 0.95456395),
        (256 * LEAST, 1.1, 14063, 2.59665553),
        (256 * LEAST, 0.7, 10547, 6.31974801),
        (0.01, 4, 1000, 0.30116116),
        (0.5, 2, 50, 10.28780809),
        (1, 3, 10, 5.02394975),
    ],
)
def test_it_is_what_google_s_dp_accounting_finds(q, noise, steps, found):
    """Version 0.6.0, RdpAccountant with its own orders, of which ours have more."""
    assert epsilon({(q, noise): steps}, 1e-5) == pytest.approx(found, rel=0.003)


@pytest.mark.parametrize(("q", "noise"), [(0.004, 1.1), (0.1, 0.5), (0.3, 0.25), (0.9, 20.0), (0.02, 0.1)])
def test_whole_orders_are_the_binomial_sum(q, noise):
    """Mironov, Talwar, Zhang (2019): sum_k (alpha over k) (1 - q)^(alpha - k) q^k exp(k (k - 1) / (2 s^2))."""
    for place in np.flatnonzero(np.round(ORDERS) == ORDERS):
        alpha = int(ORDERS[place])
        k = np.arange(alpha + 1)
        logs = [math.lgamma(alpha + 1) - math.lgamma(j + 1) - math.lgamma(alpha - j + 1) for j in k]
        logs = np.array(logs) + (alpha - k) * math.log1p(-q) + k * math.log(q) + k * (k - 1) / (2 * noise**2)
        assert rdp(q, noise)[place] == pytest.approx(np.logaddexp.reduce(logs) / (alpha - 1), rel=1e-9, abs=1e-12)


def test_without_sampling_it_is_that_of_the_gaussian():
    np.testing.assert_allclose(12 * rdp(1, 3.0), 12 * ORDERS / 18)
    np.testing.assert_allclose(rdp(1 - 1e-12, 3.0), rdp(1, 3.0), rtol=1e-9)


def test_k_gradients_with_noise_are_one_with_less():
    assert epsilon({(1, 6.0): 8}, 1e-6) == pytest.approx(epsilon({(1, 3.0): 2}, 1e-6))


def test_gradients_on_one_draw_tell_more_than_on_draws_of_their_own():
    """So taking the former for the latter would tell of too little."""
    assert epsilon({(0.1, 2 / math.sqrt(5)): 20}, 1e-5) > 1.3 * epsilon({(0.1, 2.0): 100}, 1e-5)


def test_a_gradient_without_noise_tells_all_and_none_nothing():
    assert epsilon({(0.1, 0.0): 1}, 1e-5) == math.inf
    assert epsilon({}, 1e-5) == 0
