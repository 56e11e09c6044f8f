"""Distributions as they are written, the course of a search against figures that are known, what is left out before
anything is trained, and what `sheafgossip tune` leaves."""

import csv
import json
import math
import tomllib

import pytest
from hypothesis import given, settings, strategies as st

from runs import command, small
from sheafgossip.launcher.commands.tune import methods_of
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.config.sections import ConfigError
from sheafgossip.launcher.run.folder import facts
from sheafgossip.launcher.studies import tuning
from sheafgossip.launcher.studies.forecast import payload_of
from sheafgossip.launcher.studies.search import Budget, Result, Search, Trial
from sheafgossip.launcher.studies.space import Distribution, parse_space
from sheafgossip.launcher.studies.tuning import NoneFinished, best_of, searched, tune, with_values

LAM = {"algorithm.lam": "log:0.001..10"}


# -- distributions -----------------------------------------------------------------------------------------------------


def test_distributions_are_read_as_they_are_written():
    space = parse_space(
        ["a.b = log:1e-3..10", "c=0.1..1", "d=int:-1..10", "e=int:log:1..64", "f=ring,star", "g=[4],[4, 8]", "h=true,1"]
    )
    assert list(space.values()) == [
        Distribution(0.001, 10, log=True),
        Distribution(0.1, 1),
        Distribution(-1, 10, whole=True),
        Distribution(1, 64, log=True, whole=True),
        Distribution(choices=("ring", "star")),
        Distribution(choices=([4], [4, 8])),
        Distribution(choices=(True, 1)),
    ]
    assert parse_space({"a": "0.1..1", "b": [1, 2]})["b"] == Distribution(choices=(1, 2))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a", "write it as KEY="),
        ("=1..2", "write it as KEY="),
        ("a=", "write it as KEY="),
        ("a=1", "no choice of at least two"),
        ("a=1,1", "is there twice"),
        ("a=1,,2", "is missing"),
        ("a=2..1", "must be below"),
        ("a=1..1", "must be below"),
        ("a=1..1e999", "must be finite"),
        ("a=log:0..1", "above 0"),
        ("a=int:1..2.5", "whole numbers"),
        ("a=int:1..1e30", "within"),
        ("a=log:1,2", "write it as KEY="),
        ("a=nan..1", "write it as KEY="),
        ("a={b = 1},{b = 2}", "is a table|no choice"),
        ("seed=1,2", "--seeds"),
        ("algorithm.name=fedavg,ditto", r"\[\[compare\]\]"),
        ("data.evaluate_on=test,validation", "always judged on validation"),
    ],
)
def test_other_distributions_are_refused_in_a_line(text, why):
    with pytest.raises(ConfigError, match=f"(?s)^--search {text[:1]}.*({why})"):
        parse_space([text])


@given(st.floats(1e-6, 1e6), st.floats(1.0001, 1e6), st.booleans(), st.floats(0, 1))
def test_a_number_is_rounded_within_its_range_and_little(low, factor, log, share):
    what = Distribution(low, low * factor, log)
    found = what.at(share)
    value = what.value(found)
    assert what.low <= value <= what.high
    assert abs(value - found) <= 0.001 * (min(found, what.high - what.low) if log else what.high - what.low)
    whole = Distribution(1, 9, whole=True)
    assert whole.value(whole.at(share)) in range(1, 10)


# -- the course of a search --------------------------------------------------------------------------------------------


class Known:
    """Judges by a function of values and step; ``most`` runs, then Ctrl-C."""

    def __init__(self, figure, most=math.inf, backwards=False):
        self.figure, self.most, self.backwards = figure, most, backwards
        self.made, self.open = [], set()

    def admit(self, trial):
        value = self.figure(trial.values, 0)
        self.open.add(trial.number)
        return value if isinstance(value, Result) and value.state in ("refused", "over budget") else None

    def run(self, trials, step, note):
        for trial in reversed(trials) if self.backwards else trials:
            if len(self.made) >= self.most:
                raise KeyboardInterrupt
            self.made.append((trial.number, step))
            found = self.figure(trial.values, step)
            note(trial, found if isinstance(found, Result) else Result(found, "mse"))

    def end(self, trial):
        self.open.discard(trial.number)


def bowl(values, step):
    return abs(math.log10(values["algorithm.lam"] / 0.05)) + 0.01 * step


def search(judge, trials=16, seeds=3, seed=1, space=LAM, **others):
    return Search(parse_space(space), Budget(trials, seeds), seed, judge, **others)


def told(trials):
    return [(t.number, t.values, t.state, t.of_seeds, t.reason) for t in trials]


@pytest.mark.parametrize("seed", range(5))
def test_a_search_comes_near_the_minimum_and_the_first_trials_fill_the_range(seed):
    trials = search(Known(bowl), 12, seed=seed)()
    best = min(trials, key=lambda trial: trial.loss)
    assert 1 / 2 < best.values["algorithm.lam"] / 0.05 < 2
    parts = sorted(int(2 * (math.log10(trial.values["algorithm.lam"]) + 3)) for trial in trials[:8])
    assert parts == list(range(8))


def test_accuracy_is_maximized():
    judge = Known(lambda values, step: Result(1 / (1 + bowl(values, step)), "accuracy"))
    mine = search(judge)()
    assert [t.values for t in mine[:8]] == [t.values for t in search(Known(bowl))()[:8]]
    best = best_of(mine, Budget(16))
    assert best.metric == "accuracy"
    assert best.value == max(t.mean for t in mine if t.state == "finished")
    assert 1 / 3 < best.values["algorithm.lam"] / 0.05 < 3


def test_trials_that_are_worse_than_the_median_after_a_seed_end_there():
    judge = Known(bowl)
    trials = search(judge)()
    assert {trial.state for trial in trials} == {"finished", "pruned"}
    assert [trial.state for trial in trials[:4]] == ["finished"] * 4  # there is nothing to compare them with
    whole = [trial.of_seeds[0] for trial in trials[:4]]
    for trial in trials[4:8]:  # they are judged against those that had finished when they were asked for
        pruned = trial.of_seeds[0] > sum(sorted(whole)[1:3]) / 2
        assert (trial.state, len(trial.of_seeds)) == (("pruned", 1) if pruned else ("finished", 3))
    assert len(judge.made) == sum(len(trial.of_seeds) for trial in trials)
    assert not judge.open


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 40), st.booleans(), st.integers(0, 3), st.integers(1, 16))
def test_an_interrupted_search_ends_as_an_unbroken_one_and_so_does_one_that_is_given_more_trials(
    most, backwards, seed, first
):
    def figure(values, step):
        lam, k = values["algorithm.lam"], values["k"]
        if k == 2:
            return Result(state="refused", reason="k = 2: is not allowed")
        return Result(state="diverged", reason="grew") if lam > 3 and step else bowl(values, step) + 0.1 * k

    space = LAM | {"k": "int:1..3"}
    whole = Known(figure)
    expected = told(search(whole, seed=seed, space=space)())
    kept = {}

    def keep(trial):
        kept[trial.number] = json.loads(json.dumps(vars(trial)))

    def known():
        return {number: Trial(**each) for number, each in kept.items()}

    broken = Known(figure, most, backwards)
    try:
        search(broken, first, seed=seed, space=space, keep=keep)()
    except KeyboardInterrupt:
        pass
    rest = Known(figure)
    assert told(search(rest, seed=seed, space=space, keep=keep, known=known())()) == expected
    assert sorted(broken.made + rest.made) == sorted(whole.made)  # nothing is made twice
    again = Known(figure)
    assert told(search(again, seed=seed, space=space, known=known())()) == expected
    assert not again.made


def test_trials_with_the_same_values_are_made_once():
    judge = Known(lambda values, step: values["k"])
    trials = search(judge, space={"k": "int:1..3"})()
    assert len({number for number, _ in judge.made}) <= 3
    assert any(trial.reason.startswith("the values of trial") for trial in trials)
    assert best_of(trials, Budget(16)).values == {"k": 1}


def test_trials_of_another_search_are_refused():
    with pytest.raises(ConfigError, match="trial 1 has other values"):
        search(Known(bowl), known={1: Trial(1, {"algorithm.lam": 1.0}, "finished", "mse", [1.0])})()


@pytest.mark.parametrize("state", ["refused", "over budget", "diverged", "failed"])
def test_a_search_of_which_nothing_has_finished_tells_why(state):
    trials = search(Known(lambda values, step: Result(state=state, reason="it is so")))()
    with pytest.raises(NoneFinished, match=rf"none of 16 trials has finished \({state}\); the first, .*: it is so"):
        best_of(trials, Budget(16))
