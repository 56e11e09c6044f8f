"""Distributions as they are written, the course of a search against figures that are known, what is left out before
anything is trained, and what `sheafgossip tune` leaves."""

import csv
import json
import math
import tomllib
from contextlib import suppress
from types import SimpleNamespace

import pytest
from hypothesis import given, settings, strategies as st

import sheafgossip as sg
from runs import command, run_here, small
from sheafgossip.launcher.commands.tune import methods_of
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.config.sections import ConfigError
from sheafgossip.launcher.run.run import Outcome
from sheafgossip.launcher.studies.forecast import payload_of
from sheafgossip.launcher.studies.search import Budget, Result, Search, Trial
from sheafgossip.launcher.studies.space import Distribution, parse_space
from sheafgossip.launcher.studies.sweep import Ended
from sheafgossip.launcher.studies.tuning import NoneFinished, best_of, searched, tune
from sheafgossip.metrics.summary import summarize

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


@pytest.mark.parametrize("easy", [0, 1, 2])
def test_a_trial_is_compared_at_the_same_seeds_however_easy_they_are(easy):
    judge = Known(lambda values, step: bowl(values, 0) + 100 * (step != easy))
    assert [(t.values, t.state, len(t.of_seeds)) for t in search(judge)()] == [
        (t.values, t.state, len(t.of_seeds)) for t in search(Known(lambda values, step: bowl(values, 0)))()
    ]


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
    with suppress(KeyboardInterrupt):
        search(broken, first, seed=seed, space=space, keep=keep)()
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


# -- what is left out before anything is trained -----------------------------------------------------------------------

SELECTION = (
    "algorithm = { name = 'sheaf-fmtl', server = true, start = 'selection', eta = 0.0 }\ndata.features_held = 0.6"
)
SCENARIO = "time.clock = 'virtual'\ncompute.step_s = 1.0\n"


@pytest.fixture
def tuned(tmp_path):
    """Tunes a configuration with jobs that make no run, but tell that each has failed; returns trials by state."""

    def tuned(text, *space, trials=8, **budget):
        made = []

        def make(runs, done):
            for run in runs:
                made.append(run.config)
                done(Ended(run, Outcome("failure", ("it was not made",)), 0.1))

        (tmp_path / "tuned.toml").write_text(text)
        (config,) = load(tmp_path / "tuned.toml")
        found = []
        with suppress(NoneFinished):
            jobs = SimpleNamespace(make=make)
            tune(config, parse_space(space), Budget(trials, **budget), tmp_path / "out", jobs, found.append)
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["trials.csv"]
        return found, made

    return tuned


def test_trials_are_judged_on_validation_samples_of_each_seed(tuned):
    found, made = tuned(small("seed = 5", algorithm="dfedu"), "algorithm.lam=0.1,1", trials=2, seeds=1)
    assert {(config.seed, config.data.evaluate_on, config.algorithm.lam) for config in made} == {
        (5, "validation", 0.1),
        (5, "validation", 1),
    }
    assert {trial.reason for trial in found} == {"seed 5: it was not made"}


def test_what_would_send_more_than_is_allowed_is_never_trained(tuned):
    found, made = tuned(small(), "rounds=1,2,3,4", trials=16, payload_bytes=2 * 4 * 2 * 650 * 4)  # ring: 2 neighbours
    assert {config.rounds for config in made} == {1, 2}
    over = [trial for trial in found if trial.state == "over budget"]
    assert {(trial.values["rounds"], trial.reason) for trial in over if "a run" in trial.reason} == {
        (3, "a run sends 62.4 kB, 41.6 kB are allowed"),
        (4, "a run sends 83.2 kB, 41.6 kB are allowed"),
    }


def test_what_would_last_longer_than_is_allowed_on_all_training_samples_is_never_trained(tuned):
    """An epoch of 20 samples, in batches of 10, has two steps; with some of them left out for validation, too."""
    text = small(SCENARIO, "training.work = 'epochs'", "training.batch_size = 10", samples=100)
    found, made = tuned(text, "training.epochs=int:1..4", trials=12, virtual_s=3 * 2 * 2.5)
    assert {config.training.epochs for config in made} == {1, 2}
    assert {trial.state for trial in found if trial.values["training.epochs"] > 2} == {"over budget"}


def test_what_the_configuration_or_the_data_refuses_is_told_with_its_reason(tuned):
    found, made = tuned(small(), "data.samples=100,2,-1", "training.alpha=0.1,0.2")
    refused = {trial.values["data.samples"]: trial.reason for trial in found if trial.state == "refused"}
    assert {config.data.samples for config in made} == {100}
    assert set(refused) == {2, -1}
    assert "need 16 samples" in refused[2]
    assert refused[-1].startswith("data.samples = -1: must be greater than or equal to 0")


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        (small(), True),
        (small(SCENARIO, "time.deadline_s = 5.0", "time.silence = 'skip'", "links.loss = 0.3"), True),
        (small("algorithm.fraction = 0.5", "transport.codec = 'int8'", topology="", algorithm="fedavg"), True),
        (small(SELECTION, topology="", algorithm=""), True),
        (small("algorithm.listen = 1", rounds=6, algorithm="selective-sheaf"), False),
    ],
)
def test_the_payload_is_forecast_as_it_is_sent(tmp_path, text, exact):
    (tmp_path / "run.toml").write_text(text)
    (ended,) = run_here(load(tmp_path / "run.toml"), tmp_path / "run", "threads")
    sent, forecast = summarize(tmp_path / "run").traffic.payload_bytes, payload_of(ended.prepared)
    assert forecast == sent if exact else forecast > sent > 0


# -- methods, and the command ------------------------------------------------------------------------------------------

METHODS = small(
    "[[compare]]\nalgorithm.name = 'dfedu'", "[[compare]]\nname = 'alone'\nalgorithm.name = 'local'", algorithm=""
)


def methods(tmp_path, *space, text=METHODS):
    (tmp_path / "tuned.toml").write_text(text)
    return methods_of(tmp_path / "tuned.toml", (), parse_space(space))


def test_a_method_is_searched_for_the_keys_that_it_has(tmp_path):
    first, second = methods(tmp_path, "algorithm.lam=log:0.1..1", "training.alpha=0.1..1")
    assert list(first.space) == ["algorithm.lam", "training.alpha"]
    assert list(second.space) == ["training.alpha"]
    assert [first.file, second.file] == ["best-dfedu.toml", "best-alone.toml"]
    (first, second) = methods(tmp_path, "algorithm.lam=log:0.1..1")
    assert second.space == {}  # and it is tried as it is


@pytest.mark.parametrize(
    ("space", "why"),
    [
        ("algorithm.lamm=0.1..1", r"unknown key \(did you mean lam\?\)"),
        ("training.alpha=-2..-1", "training.alpha = -"),
        ("training.alpha.x=1..2", "training.alpha"),
        ("training.momentums=0.1..0.9", "unknown key"),
        ("data.beta=0.1..1", "has no effect with data.partition"),
        ("faults.0.factor=1..2", "faults is no table"),
    ],
)
def test_a_key_that_no_method_has_is_refused(tmp_path, space, why):
    with pytest.raises(ConfigError, match=why):
        methods(tmp_path, space)


def test_whether_a_key_has_an_effect_may_depend_on_another_that_is_searched(tmp_path):
    (config,) = load(small_file(tmp_path, small()))
    space = parse_space(["data.partition=even,dirichlet", "data.beta=0.1..1"])
    assert list(searched(config, space)) == ["data.partition", "data.beta"]
    (config,) = load(small_file(tmp_path, small(topology="", algorithm="fedavg")))
    assert list(searched(config, parse_space(["topology.kind=complete,star", "rounds=int:1..3"]))) == ["rounds"]


def small_file(tmp_path, text):
    (tmp_path / "tuned.toml").write_text(text)
    return tmp_path / "tuned.toml"


def trials_of(folder):
    with (folder / "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_tune_leaves_trials_the_best_and_a_picture_and_goes_on_to_the_same(tmp_path):
    words = ["tune", small_file(tmp_path, METHODS), "--search", "algorithm.lam=log:0.01..10", "--trials", 3, "--quiet"]
    shown = command(*words, "--jobs", 2, "--out", tmp_path / "out").stdout
    rows = trials_of(tmp_path / "out")
    assert [row["method"] + row["number"] for row in rows] == ["dfedu1", "dfedu2", "dfedu3", "alone1"]
    assert [row["reason"] for row in rows if row["state"] != "finished"] == []
    best = max(rows[:3], key=lambda row: float(row["mean"]))
    lam = json.loads(best["values"])["algorithm.lam"]
    (config,) = load(tmp_path / "out" / "best-dfedu.toml")
    assert (config.algorithm.lam, config.data.evaluate_on, config.data.samples) == (lam, "test", 100)
    assert tomllib.loads((tmp_path / "out" / "best-alone.toml").read_text())["name"] == "alone"
    assert f"{100 * float(best['mean']):.1f} %" in shown
    assert "best-alone.toml" in shown
    assert "<svg" in (tmp_path / "out" / "search.svg").read_text()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "best-alone.toml", "best-dfedu.toml", "search.svg", "trials.csv",
    }  # fmt: skip
    whole = (tmp_path / "out" / "trials.csv").read_text()
    lines = whole.splitlines(keepends=True)
    begun = lines[2].replace(",finished,", ",begun,")
    (tmp_path / "out" / "trials.csv").write_text("".join([lines[0], begun, lines[1], lines[3][:9]]))  # it was killed
    found = sg.tune(tmp_path / "tuned.toml", {"algorithm.lam": "log:0.01..10"}, trials=3, out=tmp_path / "out")
    dfedu = found.methods["dfedu"]
    assert (dfedu.values, dfedu.value) == ({"algorithm.lam": lam}, float(best["mean"]))
    assert (tmp_path / "out" / "trials.csv").read_text() == whole


def test_a_folder_with_the_trials_of_another_search_is_left_as_it_is(tmp_path, tuned):
    tuned(small(algorithm="dfedu"), "algorithm.lam=0.1,1", trials=2)
    there = (tmp_path / "out" / "trials.csv").read_text()
    for text, space in ((small(rounds=4, algorithm="dfedu"), "0.1,1"), (small(algorithm="dfedu"), "0.1,2")):
        with pytest.raises(ConfigError, match="holds the trials of another search of dfedu"):
            tuned(text, f"algorithm.lam={space}", trials=2)
        assert (tmp_path / "out" / "trials.csv").read_text() == there
    (tmp_path / "out" / "trials.csv").write_text("method,number\n")
    with pytest.raises(ConfigError, match="is none of a search"):
        tuned(small(algorithm="dfedu"), "algorithm.lam=0.1,1", trials=2)
