"""When Sheaf-FMTL's step sizes come near divergence, and whom that is blamed on."""

import math

import pytest

from sheafgossip.node.algorithms.stability import StabilityWatch


def test_step_sizes_up_to_the_limit_are_not_worth_a_word():
    assert StabilityWatch().see(models=1.0, maps=1.0) == []


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
def test_what_is_above_the_limit_is_told_with_the_keys_that_help(crossed, told, helps, does_not):
    (text,) = StabilityWatch().see(**crossed)
    assert told in text
    assert all(key in text for key in helps)
    assert does_not not in text


def test_each_warning_comes_once_and_does_not_silence_the_other():
    watch = StabilityWatch()
    assert len(watch.see(models=1.5, maps=0.0)) == 1
    for models in (1.6, 0.1, 9.0):
        assert watch.see(models=models, maps=0.0) == []
    (text,) = watch.see(models=1.5, maps=1.5)
    assert "||theta||^2" in text
    assert len(StabilityWatch().see(models=1.5, maps=1.5)) == 2


def test_local_steps_are_blamed_when_both_sheaf_steps_stayed_small():
    watch = StabilityWatch()
    watch.see(models=0.5, maps=0.9)
    assert "training.alpha" in watch.cause()
    assert "algorithm" not in watch.cause()


@pytest.mark.parametrize(("models", "maps", "key"), [(0.1, 3.0, "algorithm.eta"), (3.0, 0.1, "algorithm.start_scale")])
def test_the_number_that_crossed_its_limit_is_blamed(models, maps, key):
    watch = StabilityWatch()
    watch.see(models=models, maps=maps)
    assert key in watch.cause()


@pytest.mark.parametrize("models", [1e4, 0.1])
def test_what_crossed_its_limit_first_is_blamed_though_the_other_follows(models):
    """Maps that diverge make lam alpha ||P||^2 huge within two rounds; theta may first shrink on the way."""
    watch = StabilityWatch()
    watch.see(models=0.1, maps=6.8)
    watch.see(models=models, maps=0.9)
    assert "algorithm.eta" in watch.cause()


@pytest.mark.parametrize(("models", "maps"), [(math.nan, 0.2), (math.inf, 0.2), (0.2, math.inf), (0.2, math.nan)])
def test_a_number_that_is_no_longer_finite_does_not_hide_what_led_to_it(models, maps):
    watch = StabilityWatch()
    watch.see(models=0.2, maps=3.0)
    watch.see(models=models, maps=maps)
    assert "eta lam ||theta||^2 = 3 " in watch.cause()
