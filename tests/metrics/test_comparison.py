"""Groups side by side: where they differ, who is best in what, and how a person and a program read it; a run that came
to its end and has learned nothing is not told as a success."""

import csv
import json
import math

import numpy as np
import pytest

from made import done, printed, write
from sheafgossip.metrics.comparison import Comparison, render_comparison, render_summary, summarize_all
from sheafgossip.metrics.config_file import differing, setting_of, short_names
from sheafgossip.metrics.events import remarks_on
from sheafgossip.metrics.export import ExportError, write_groups, write_runs
from sheafgossip.metrics.records import MetricRecord
from sheafgossip.metrics.report.methods import methods_of
from sheafgossip.metrics.report.page import page, worst_clients
from sheafgossip.metrics.summary import summarize

CONFIG = 'seed = {seed}\nname = ""\n[algorithm]\nname = "sheaf-fmtl"\ngamma = {gamma}\n[training]\nalpha = 0.1\n'
SAME_CLIENTS = 'seed = {seed}\nclients = 2\n[data]\ndataset = "{data}"\n[algorithm]\nname = "{name}"\n'


@pytest.fixture
def compare(make_run):
    """Of settings {gamma: test metrics of its seeds, each the same for both clients}."""

    def compare(settings, *, target=None, payloads=None, **how):
        folders = []
        for gamma, values in settings.items():
            for seed, value in enumerate(values):
                how |= {"config": CONFIG.format(seed=seed, gamma=gamma), "payload": (payloads or {}).get(gamma, 10**6)}
                folders.append(make_run(f"{gamma}-{seed}", ((0.0, 0.0), (value, value)), **how))
        return Comparison(summarize_all(folders, target))

    return compare


def shown(comparison, target=None) -> str:
    return printed(*render_comparison(comparison, target))


def read(path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_keys_that_differ_are_found_also_where_some_do_not_have_them():
    wall = setting_of({"seed": 1, "name": "a", "rounds": 5, "time": {"clock": "wall"}})
    virtual = setting_of({"seed": 2, "name": "b", "rounds": 5, "time": {"clock": "virtual", "deadline_s": 2.0}})
    assert differing([wall, virtual]) == ["time.clock", "time.deadline_s"]
    algorithms = [{"name": "local"}, {"name": "dfedu", "lam": 0.1}, {"name": "sheaf-fmtl", "lam": 0.2, "gamma": 0.1}]
    settings = [setting_of({"algorithm": algorithm}) for algorithm in algorithms]
    assert differing(settings) == ["algorithm.name", "algorithm.lam"]  # those of one algorithm go without saying
    assert differing(settings[:2]) == ["algorithm.name"]
    assert short_names(["algorithm.gamma", "topology.kind", "model.kind"]) == ["gamma", "topology.kind", "model.kind"]


@pytest.mark.parametrize(
    ("settings", "metric", "marks"),
    [
        ({0.1: (0.80, 0.84), 0.2: (0.70, 0.74)}, "accuracy", ["best", ""]),  # a standard error of 0.02 each
        # 0.02 apart: sqrt(0.02^2 + 0.01^2) is more
        ({0.1: (0.80, 0.84), 0.2: (0.79, 0.81), 0.3: (0.50, 0.54)}, "accuracy", ["close", "close", ""]),
        ({0.1: (0.9, 0.9), 0.2: (0.1, 0.1)}, "accuracy", ["best", ""]),
        ({0.1: (0.9, 0.9), 0.2: (0.1, 0.1)}, "mse", ["", "best"]),
    ],
)
def test_the_best_is_best_by_more_than_the_standard_error_of_the_difference(compare, settings, metric, marks):
    assert compare(settings, metric=metric).marks("test_metric") == marks


def test_bytes_are_best_where_they_are_few_and_known_from_one_run_that_has_finished(compare, make_run):
    comparison = compare({0.1: (0.5,), 0.2: (0.5,)}, payloads={0.1: 9_000, 0.2: 8_000})
    assert comparison.marks("payload_bytes") == comparison.marks("wire_bytes") == ["", "best"]
    assert comparison.marks("flops") == ["", ""]  # where all are equal nobody is
    assert comparison.marks("worst_10") == ["", ""]  # of single runs it is not known how lucky they were
    failed = make_run(config=CONFIG.format(seed=0, gamma=0.3), payload=1, status="failure")
    assert Comparison([*summarize_all([failed]), *comparison.groups]).marks("payload_bytes") == ["", "", "best"]


def test_few_groups_stand_side_by_side_with_every_key_and_figure_and_what_it_took_to_reach_a_target(compare):
    settings, payloads = {0.1: (0.80, 0.84), 0.2: (0.70, 0.74)}, {0.1: 3_000_000, 0.2: 1_500_000}
    text = shown(compare(settings, payloads=payloads, target=0.75), 0.75)
    lines = {line[:20].strip(): line[20:].split() for line in text.splitlines()}
    assert lines["algorithm.gamma"] == ["0.1", "0.2"]
    assert lines["accuracy % ± s.e."] == ["82.0", "±", "2.0", "*", "72.0", "±", "2.0"]
    assert lines["payload MB"] == ["6.00", "3.00", "*"]
    found = [lines[f"{figure} to 75 %"] for figure in ("rounds", "payload MB", "wire MB", "wall s")]
    assert found == [["1.00", "–"], ["6.00", "–"], ["6.00", "–"], ["1.50", "–"]]
    assert "alpha" not in text
    assert "* best by more than the standard error of the difference; ≈ too close to tell" in text


def test_many_groups_stand_one_below_the_other_unless_a_key_is_too_many_for_lines(compare, make_run):
    text = shown(compare({gamma / 10: (gamma / 10, gamma / 10 + 0.04) for gamma in range(1, 9)}))
    rows = [line.split() for line in text.splitlines() if "±" in line and line.strip()[0] == "0"]
    assert [row[:2] for row in rows] == [[f"{gamma / 10}", "2"] for gamma in range(1, 9)]  # gamma, seeds
    assert rows[-1][2:6] == ["82.0", "±", "2.0", "*"]
    assert all(len(line) <= 80 for line in text.splitlines()[:-4])
    long = "".join(f'a_key_with_a_long_name_{number} = "{{gamma}}"\n' for number in range(4))
    named = CONFIG.replace('""', '"run {gamma}"') + long
    folders = [make_run(f"r{gamma}", config=named.format(seed=0, gamma=gamma)) for gamma in range(6)]
    beside = shown(Comparison(summarize_all(folders)))
    wanted = ["training.a_key_with_a_long_name_3", *(f"run {gamma}" for gamma in range(6))]
    assert [word for word in wanted if word not in beside] == []
    assert "…" not in text + beside


def test_csv_has_a_line_a_group_with_standard_errors_or_a_run_with_figures_if_finished(compare, make_run, tmp_path):
    write_groups(tmp_path / "groups.csv", compare({0.1: (0.80, 0.84), 0.2: (0.70,)}))
    first, second = read(tmp_path / "groups.csv")
    assert (first["algorithm.gamma"], first["runs"], first["seeds"], first["metric"]) == ("0.1", "2", "0 1", "accuracy")
    assert [float(first[key]) for key in ("test_metric", "test_metric_se")] == pytest.approx([0.82, 0.02])
    assert (first["payload_bytes"], first["payload_bytes_se"]) == ("2000000.0", "0.0")
    assert (second["test_metric"], second["test_metric_se"], "virtual_s" in first) == ("0.7", "", False)
    with pytest.raises(ExportError, match="cannot be written"):
        write_groups(tmp_path / "nowhere" / "groups.csv", compare({0.3: (0.5,)}))
    config = CONFIG.format(seed=3, gamma=0.1)
    folders = [make_run("a", config=config), make_run("b", config=config, status="failure"), tmp_path / "c"]
    write_runs(tmp_path / "runs.csv", folders, ["algorithm.gamma"])
    columns = ("folder", "algorithm.gamma", "seed", "status", "test_metric")
    rows = [[row[column] for column in columns] for row in read(tmp_path / "runs.csv")]
    assert rows == [["a", "0.1", "3", "finished", "0.9"], ["b", "0.1", "3", "failed", ""], ["c", "", "", "missing", ""]]


OWN = SAME_CLIENTS + '[[evaluation.metrics]]\nname = "Brier {{s}}"\nbetter = "lower"\nuse = "mine.py:brier"\n'


@pytest.mark.parametrize("seeds", [1, 2])
def test_metrics_of_the_users_own_are_figures_like_the_test_metric(make_run, tmp_path, seeds):
    """Of clients 0 and 1 of two methods: the first is better where lower is, by 0.1 for each client; 1 of both is NaN
    at the last evaluation and counts with the one before."""
    folders = []
    for name, more in (("dfedu", 0.0), ("local", 0.1)):
        for seed in range(seeds):
            config = OWN.format(seed=seed, data="digits", name=name)
            values = {(0, 1): 0.9, (1, 1): 0.6 + more, (0, 2): 0.2 + more, (1, 2): math.nan}
            told = [MetricRecord(client, round, "Brier {s}", v + seed / 10) for (client, round), v in values.items()]
            told += [MetricRecord(0, 2, "nobody asked", 1.0)]
            folders.append(write(make_run(f"{name}-{seed}", config=config), *told))
    groups = summarize_all(folders)
    found = groups[0].run.metrics
    assert list(found) == ["Brier {s}"]
    assert (found["Brier {s}"].mean, found["Brier {s}"].worst_10) == pytest.approx((0.4, 0.6))
    comparison = Comparison(groups)
    assert comparison.marks("metric.Brier {s}") == ["best", ""]
    assert comparison.difference("metric.Brier {s}", 1, 0) == pytest.approx((0.1, 0.0), abs=1e-9)
    write_groups(tmp_path / "groups.csv", comparison)
    rows = [
        [float(row.get(f"metric.Brier {{s}}{end}") or "nan") for end in ("", "_se")]
        for row in read(tmp_path / "groups.csv")
    ]
    expected = [[0.4, math.nan], [0.5, math.nan]] if seeds == 1 else [[0.45, 0.05], [0.55, 0.05]]
    np.testing.assert_allclose(rows, expected)
    error = {1: "0.4 ± 0.2 *  0.5 ± 0.2", 2: "0.45 ± 0.05 *  0.55 ± 0.05"}[seeds]
    (line,) = [line for line in shown(comparison).splitlines() if "Brier {s}" in line]
    assert " ".join(line.split()) == f"Brier {{s}} ± s.e. {' '.join(error.split())}"
    alone = printed(render_summary(summarize_all(folders[:1])))
    assert "Brier {s}, mean over clients ± standard error │ 0.4 ± 0.2 │" in " ".join(alone.split())


HARD_AND_EASY = [[(0.3, 0.3), (0.8, 0.8)], [(0.31, 0.31), (0.82, 0.82)]]  # 0.015 apart, with an error of 0.005
ONE_SEED = [[(0.3, 0.8)], [(0.31, 0.82)]]


@pytest.mark.parametrize(
    ("metrics", "data", "seeds", "marks"),
    [
        (HARD_AND_EASY, ("digits", "digits"), (0, 0), ["", "best"]),
        (ONE_SEED, ("digits", "digits"), (0, 0), ["", "best"]),
        (HARD_AND_EASY, ("digits", "mnist"), (0, 0), ["close", "close"]),
        (ONE_SEED, ("har", "har"), (5, 6), ["close", "close"]),
    ],
    ids=["the same seeds", "the same clients", "other data", "other seeds"],
)
def test_what_two_methods_have_in_common_is_compared_one_by_one(make_run, metrics, data, seeds, marks):
    """``metrics`` are those of both clients, for each method and seed."""
    folders = []
    for name, of_seeds in enumerate(metrics):
        for seed, values in enumerate(of_seeds):
            config = SAME_CLIENTS.format(seed=seeds[name] + seed, data=data[name], name=name)
            folders.append(make_run(f"{name}-{seed}", ((0.0, 0.0), values), config=config))
    comparison = Comparison(summarize_all(folders))
    assert comparison.marks("test_metric") == marks
    if marks == ["", "best"]:
        assert comparison.difference("test_metric", 1, 0) == pytest.approx((0.015, 0.005))
        assert "differences are paired where seeds and clients are the same" in shown(comparison)


def test_a_client_of_one_seed_is_not_taken_for_that_of_another_in_a_report(make_run):
    configs = {seed: SAME_CLIENTS.format(seed=seed, data="digits", name="local") for seed in (3, 4)}
    last = {3: (0.1, 0.9), 4: (0.9, 0.1)}
    (method,) = methods_of([make_run(f"{k}", ((0.0, 0.0), last[k]), config=each) for k, each in configs.items()])
    assert sorted(method.latest_metric().test_metric) == [0.1, 0.1, 0.9, 0.9]
    assert worst_clients(method, 2) == "0 (seed 3): 10.0, 1 (seed 4): 10.0"


@pytest.fixture
def learned(make_run):
    """A run whose two clients have these test losses and metrics, round by round."""

    def learned(folder, losses, metrics=(), *, metric="mse", constant=1.0, seed=0, status="finish"):
        config = SAME_CLIENTS.format(seed=seed, data="digits", name=folder.partition("-")[0])
        path = make_run(folder, ((0.5, 0.5),) * len(losses), config=config, metric=metric, status=status)
        for round, (loss, value) in enumerate(zip(losses, metrics or losses, strict=True)):
            rounds = (done(client, round, value, float(round)) for client in (0, 1))
            write(path, *(each._replace(train_loss=None, test_loss=loss) for each in rounds))
        return write(path, constant_metric=repr(constant))

    return learned


def test_a_loss_that_has_grown_a_hundredfold_is_told_and_marked_in_every_table(learned, tmp_path):
    good, bad = learned("dfedu", (2.0, 0.4)), learned("local", (2.0, 5e17))
    assert (remarks_on(bad), remarks_on(good)) == (["finished, but diverged: test loss 5e+17, 2 at the start"], [])
    groups = summarize_all([good, bad])
    assert "finished, but diverged" in printed(render_summary(summarize_all([bad])))
    for tables in ([render_summary(groups)], render_comparison(Comparison(groups))):
        assert "local (diverged)" in printed(*tables)
    methods = methods_of([good, bad])
    html = page(methods, [], [(method, []) for method in methods])
    assert "Finished, but local (seed 0): diverged" in html
    assert "local</span> (diverged)</label></th>" in html
    write_groups(tmp_path / "groups.csv", Comparison(groups))
    write_runs(tmp_path / "runs.csv", [good, bad], [])
    for name in ("groups", "runs"):
        assert [row["flaw"] for row in read(tmp_path / f"{name}.csv")] == ["", "diverged"]
    assert json.loads(json.dumps(summarize(bad).as_dict()))["divergence"]["kind"] == "diverged"


def test_of_several_seeds_it_is_told_how_many_diverged_and_they_are_best_in_nothing(learned):
    ends = {"local": (0.5, 0.6), "dfedu": (0.7, 0.8), "d2": (900, 0.4)}
    runs = [(name, seed, loss) for name, losses in ends.items() for seed, loss in enumerate(losses)]
    folders = [learned(f"{name}-{seed}", (2.0, loss), seed=seed) for name, seed, loss in runs]
    comparison = Comparison(summarize_all(folders))
    assert comparison.marks("test_metric") == ["best", "", ""]
    assert "(2 seeds, 1 diverged)" in printed(render_summary(comparison.groups))


@pytest.mark.parametrize(
    ("metric", "losses", "end", "constant", "kind"),
    [
        ("mse", (9.0, 12.0), 12.0, 1.0, "diverged"),
        ("mse", (9.0, 6.0), 6.0, 1.0, "worse than a constant"),  # it was on its way
        ("mse", (9.0, 0.9), 0.9, 1.0, None),
        ("accuracy", (2.3, 2.9), 0.05, 0.1, "diverged"),
        ("accuracy", (2.3, 2.9), 0.4, 0.1, None),
        ("accuracy", (2.3, None), 0.4, 0.1, "diverged"),  # a test loss that is no number at the end
    ],
)
def test_a_metric_that_a_constant_would_beat_is_told_at_the_end(learned, metric, losses, end, constant, kind):
    metrics = {"metrics": (0.5, end), "metric": metric, "constant": constant}
    found = summarize(learned("local", losses, **metrics)).divergence
    assert (found.kind if found else None) == kind
    assert summarize(learned("dfedu", losses, **metrics, status="failure")).divergence is None
