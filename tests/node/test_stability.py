"""When Sheaf-FMTL's step sizes come near divergence, and whom that is blamed on."""

import math

import pytest

from sheafgossip.node.algorithms.sheaf_fmtl import StabilityWatch


@pytest.mark.parametrize(
    ("crossed", "told", "helps", "does_not"),
    [
        (
            {"models": 1.5, "maps": 0.0},
            "lam alpha ||P||^2 = 1.5 is above 1",
            ("algorithm.lam", "algorithm.start_scale", "training.alpha"),
            "algorithm.eta",
        ),
        (
            {"models": 0.0, "maps": 1.25},
            "eta lam ||theta||^2 = 1.25 is above 1",
            ("algorithm.eta", "algorithm.lam"),
            "start_scale",
        ),
    ],
)
def test_what_is_above_the_limit_is_told_once_with_the_keys_that_help(crossed, told, helps, does_not):
    watch = StabilityWatch()
    assert watch.see(models=1.0, maps=1.0) == []
    (text,) = watch.see(**crossed)
    assert told in text
    assert all(key in text for key in helps)
    assert does_not not in text
    assert watch.cause() == text
    assert watch.see(**crossed) == []
    assert len(watch.see(models=1.6, maps=1.6)) == 1  # the other one is not silenced
    assert watch.see(models=9.0, maps=9.0) == []
    assert len(StabilityWatch().see(models=1.5, maps=1.5)) == 2


def test_local_steps_are_blamed_when_both_sheaf_steps_stayed_small():
    watch = StabilityWatch()
    watch.see(models=0.5, maps=0.9)
    assert "training.alpha" in watch.cause()
    assert "algorithm" not in watch.cause()


@pytest.mark.parametrize(
    ("models", "maps"), [(1e4, 0.9), (0.1, 0.9), (math.nan, 0.2), (math.inf, 0.2), (0.2, math.inf), (0.2, math.nan)]
)
def test_what_crossed_its_limit_first_is_blamed_though_the_other_follows_and_numbers_are_no_longer_finite(models, maps):
    """Maps that diverge make lam alpha ||P||^2 huge within two rounds; theta may first shrink on the way."""
    watch = StabilityWatch()
    watch.see(models=0.1, maps=6.8)
    watch.see(models=models, maps=maps)
    assert "eta lam ||theta||^2 = 6.8 " in watch.cause()
