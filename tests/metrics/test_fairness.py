"""The spread of a figure over the clients, against the statistics module and hand-counted cases."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sheafgossip.metrics.fairness import Spread, mean, worst

clients = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)
close = {"rel": 1e-6, "abs": 1e-6}


@given(clients)
def test_deviation_is_that_of_the_population_and_the_standard_error_that_of_a_sample(values):
    spread = Spread.of(values)
    assert spread.mean == pytest.approx(statistics.fmean(values), **close)
    assert spread.std == pytest.approx(statistics.pstdev(values), **close)
    assert spread.variance == pytest.approx(spread.std**2, **close)
    expected = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    assert spread.standard_error == pytest.approx(expected, nan_ok=True, **close)


@pytest.mark.parametrize(
    ("clients", "share", "taken"), [(10, 0.1, 1), (11, 0.1, 2), (30, 0.1, 3), (3, 0.1, 1), (100, 0.07, 7)]
)
def test_worst_takes_the_share_of_the_clients_rounded_up(clients, share, taken):
    assert worst(range(clients), share) == mean(range(taken))


@given(clients, st.floats(0.01, 1.0), st.randoms())
def test_worst_is_never_better_than_the_mean_and_of_everyone_the_mean_in_whatever_order(values, share, random):
    assert worst(values, share) <= mean(values) + 1e-6
    assert worst(values, share, higher_is_better=False) >= mean(values) - 1e-6
    assert worst(values, 1.0) == pytest.approx(mean(values), **close)
    assert worst(random.sample(values, len(values)), share) == worst(values, share)


def test_a_spread_holds_the_worst_clients_in_the_direction_of_the_metric():
    spread = Spread.of([1.0, 2.0, 3.0, 4.0, 10.0], higher_is_better=False)
    assert (spread.mean, spread.variance, spread.worst_10, spread.worst_20) == (4.0, 10.0, 10.0, 10.0)
    with pytest.raises(ValueError, match="one value a client"):
        Spread.of([])
    with pytest.raises(ValueError, match=r"share is 1\.5"):
        worst([1.0], 1.5)
