"""A run that came to its end and has learned nothing is not told as a success."""

import csv
import json
from io import StringIO

import pytest
from rich.console import Console

from made import write
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

    def learned(folder, losses, metrics, *, metric="mse", constant=1.0, seed=0, status="finish"):
        config = CONFIG.format(seed=seed, name=folder.partition("-")[0])
        path = make_run(folder, ((0.5, 0.5),) * len(losses), config=config, metric=metric, status=status)
        rounds = [
            RoundRecord(client, round, None, loss, value, 1.0, float(round))
            for round, (loss, value) in enumerate(zip(losses, metrics, strict=True))
            for client in (0, 1)
        ]
        return write(path, *rounds, constant_metric=repr(constant))

    return learned


def text(*parts) -> str:
    console = Console(width=100, file=StringIO(), highlight=False)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    return console.file.getvalue()


def test_a_loss_that_has_grown_a_hundredfold_is_told_and_marked_in_every_table(learned, tmp_path):
    good, bad = learned("dfedu", (2.0, 0.4), (2.0, 0.4)), learned("local", (2.0, 5e17), (2.0, 5e17))
    line = "finished, but diverged: test loss 5e+17, 2 at the start"
    assert (remarks_on(bad), remarks_on(good)) == ([line], [])
    groups = summarize_all([good, bad])
    assert "finished, but diverged" in text(render_summary(summarize_all([bad])))
    assert "local (diverged)" in text(render_summary(groups))
    assert "local (diverged)" in text(*render_comparison(Comparison.of(groups)))
    methods = methods_of([good, bad])
    assert "Finished, but local (seed 0): diverged" in page(methods, [], [(method, []) for method in methods])
    assert "</i>local (diverged)</th>" in page(methods, [], [(method, []) for method in methods])
    write_groups(tmp_path / "groups.csv", Comparison.of(groups))
    write_runs(tmp_path / "runs.csv", [good, bad], [])
    for name in ("groups", "runs"):
        with (tmp_path / f"{name}.csv").open() as file:
            assert [row["flaw"] for row in csv.DictReader(file)] == ["", "diverged"]
    assert json.loads(json.dumps(summarize(bad).as_dict()))["divergence"]["kind"] == "diverged"


def test_of_several_seeds_it_is_told_how_many_diverged(learned):
    folders = [learned(f"local-{seed}", (2.0, loss), (2.0, loss), seed=seed) for seed, loss in enumerate((1, 900, 0.5))]
    assert "(3 seeds, 1 diverged)" in text(render_summary(summarize_all(folders)))


def test_who_has_diverged_is_best_in_nothing(learned):
    folders = [
        learned(f"{name}-{seed}", (2.0, loss), (2.0, loss), seed=seed)
        for name, losses in (("local", (0.5, 0.6)), ("dfedu", (0.7, 0.8)), ("d2", (900, 901)))
        for seed, loss in enumerate(losses)
    ]
    assert Comparison.of(summarize_all(folders)).marks("test_metric") == ["best", "", ""]


def test_a_test_loss_that_is_no_number_at_the_end_is_divergence(learned):
    assert "is not a number" in str(summarize(learned("local", (2.0, None), (2.0, None))).divergence)
    assert summarize(learned("dfedu", (2.0, 5e17), (2.0, 5e17), status="failure")).divergence is None  # not finished


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
