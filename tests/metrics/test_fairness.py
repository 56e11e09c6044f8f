"""The spread of a figure over the clients, against the statistics module and hand-counted cases."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sheafgossip.metrics.fairness import Spread, mean, standard_error, std, variance, worst

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)
close = {"rel": 1e-6, "abs": 1e-6}


@given(values)
def test_mean_and_deviation_are_those_of_the_population(given_values):
    assert mean(given_values) == pytest.approx(statistics.fmean(given_values), **close)
    assert std(given_values) == pytest.approx(statistics.pstdev(given_values), **close)


@given(values)
def test_variance_is_the_square_of_the_deviation(given_values):
    assert variance(given_values) == pytest.approx(std(given_values) ** 2, **close)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_standard_error_uses_the_sample_deviation(given_values):
    expected = statistics.stdev(given_values) / math.sqrt(len(given_values))
    assert standard_error(given_values) == pytest.approx(expected, **close)


def test_standard_error_of_one_value_is_not_defined():
    assert math.isnan(standard_error([0.5]))


@pytest.mark.parametrize(
    ("clients", "share", "taken"), [(10, 0.1, 1), (11, 0.1, 2), (30, 0.1, 3), (3, 0.1, 1), (100, 0.07, 7)]
)
def test_worst_takes_the_share_of_the_clients_rounded_up(clients, share, taken):
    assert worst(range(clients), share) == mean(range(taken))


def test_worst_are_the_largest_where_lower_is_better():
    assert worst([1.0, 2.0, 3.0, 4.0, 9.0], 0.2, higher_is_better=False) == 9.0


@given(values)
def test_worst_of_everyone_is_the_mean(given_values):
    assert worst(given_values, 1.0) == pytest.approx(mean(given_values), **close)


@given(values, st.floats(0.01, 1.0))
def test_worst_is_never_better_than_the_mean(given_values, share):
    assert worst(given_values, share) <= mean(given_values) + 1e-6
    assert worst(given_values, share, higher_is_better=False) >= mean(given_values) - 1e-6


@given(values, st.randoms())
def test_the_order_of_the_clients_does_not_matter(given_values, random):
    shuffled = random.sample(given_values, len(given_values))
    assert worst(shuffled, 0.3) == worst(given_values, 0.3)


def test_a_spread_holds_the_figures_of_the_functions():
    spread = Spread.of([1.0, 2.0, 3.0, 4.0, 10.0], higher_is_better=False)
    assert (spread.mean, spread.variance, spread.worst_10, spread.worst_20) == (4.0, 10.0, 10.0, 10.0)


def test_no_clients_have_no_spread():
    with pytest.raises(ValueError, match="one value a client"):
        Spread.of([])


def test_a_share_outside_zero_to_one_is_refused():
    with pytest.raises(ValueError, match=r"share is 1\.5"):
        worst([1.0], 1.5)
