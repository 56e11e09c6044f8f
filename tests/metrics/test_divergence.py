"""A run that came to its end and has learned nothing is not told as a success."""

import csv
import json

import pytest

from made import printed, write
from sheafgossip.metrics.comparison import Comparison, summarize_all
from sheafgossip.metrics.events import remarks_on
from sheafgossip.metrics.export import write_groups, write_runs
from sheafgossip.metrics.records import RoundRecord
from sheafgossip.metrics.report.methods import methods_of
from sheafgossip.metrics.report.page import page
from sheafgossip.metrics.summary import summarize
from sheafgossip.metrics.tables import render_comparison, render_summary

CONFIG = 'seed = {seed}\nclients = 2\n[algorithm]\nname = "{name}"\n'


@pytest.fixture
def learned(make_run):
    """A run whose two clients have these test losses and metrics, round by round."""

    def learned(folder, losses, metrics=(), *, metric="mse", constant=1.0, seed=0, status="finish"):
        config = CONFIG.format(seed=seed, name=folder.partition("-")[0])
        path = make_run(folder, ((0.5, 0.5),) * len(losses), config=config, metric=metric, status=status)
        rounds = [
            RoundRecord(client, round, None, loss, value, 1.0, float(round))
            for round, (loss, value) in enumerate(zip(losses, metrics or losses, strict=True))
            for client in (0, 1)
        ]
        return write(path, *rounds, constant_metric=repr(constant))

    return learned


def test_a_loss_that_has_grown_a_hundredfold_is_told_and_marked_in_every_table(learned, tmp_path):
    good, bad = learned("dfedu", (2.0, 0.4)), learned("local", (2.0, 5e17))
    line = "finished, but diverged: test loss 5e+17, 2 at the start"
    assert (remarks_on(bad), remarks_on(good)) == ([line], [])
    groups = summarize_all([good, bad])
    assert "finished, but diverged" in printed(render_summary(summarize_all([bad])))
    for tables in ([render_summary(groups)], render_comparison(Comparison.of(groups))):
        assert "local (diverged)" in printed(*tables)
    methods = methods_of([good, bad])
    html = page(methods, [], [(method, []) for method in methods])
    assert "Finished, but local (seed 0): diverged" in html
    assert "</i>local (diverged)</th>" in html
    write_groups(tmp_path / "groups.csv", Comparison.of(groups))
    write_runs(tmp_path / "runs.csv", [good, bad], [])
    for name in ("groups", "runs"):
        with (tmp_path / f"{name}.csv").open() as file:
            assert [row["flaw"] for row in csv.DictReader(file)] == ["", "diverged"]
    assert json.loads(json.dumps(summarize(bad).as_dict()))["divergence"]["kind"] == "diverged"


def test_of_several_seeds_it_is_told_how_many_diverged_and_they_are_best_in_nothing(learned):
    ends = {"local": (0.5, 0.6), "dfedu": (0.7, 0.8), "d2": (900, 0.4)}
    folders = [
        learned(f"{name}-{seed}", (2.0, loss), seed=seed)
        for name, losses in ends.items()
        for seed, loss in enumerate(losses)
    ]
    comparison = Comparison.of(summarize_all(folders))
    assert comparison.marks("test_metric") == ["best", "", ""]
    assert "(2 seeds, 1 diverged)" in printed(render_summary(comparison.groups))


def test_a_test_loss_that_is_no_number_at_the_end_is_divergence(learned):
    assert "is not a number" in str(summarize(learned("local", (2.0, None))).divergence)
    assert summarize(learned("dfedu", (2.0, 5e17), status="failure")).divergence is None  # not finished


@pytest.mark.parametrize(
    ("metric", "losses", "end", "constant", "kind"),
    [
        ("mse", (9.0, 12.0), 12.0, 1.0, "diverged"),
        ("mse", (9.0, 6.0), 6.0, 1.0, "worse than a constant"),  # it was on its way
        ("mse", (9.0, 0.9), 0.9, 1.0, None),
        ("accuracy", (2.3, 2.9), 0.05, 0.1, "diverged"),
        ("accuracy", (2.3, 2.9), 0.4, 0.1, None),
    ],
)
def test_a_metric_that_a_constant_would_beat_is_told(learned, metric, losses, end, constant, kind):
    found = summarize(learned("local", losses, (0.5, end), metric=metric, constant=constant)).divergence
    assert (found.kind if found else None) == kind
