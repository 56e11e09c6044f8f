"""Groups side by side: where they differ, who is best in what, and how a person and a program read it."""

import csv
from io import StringIO

import pytest
from rich.console import Console

from sheafgossip.metrics.comparison import Comparison, differing, setting_of, short_names, summarize_all
from sheafgossip.metrics.export import write_groups, write_runs
from sheafgossip.metrics.schema import ExportError
from sheafgossip.metrics.tables import render_comparison

CONFIG = 'seed = {seed}\nname = "{name}"\n[algorithm]\nname = "sheaf-fmtl"\ngamma = {gamma}\n[training]\nalpha = 0.1\n'


@pytest.fixture
def compare(make_run):
    """Of settings {gamma: test metrics of its seeds, each the same for both clients}."""

    def compare(settings, *, target=None, payloads=None, **how):
        folders = [
            make_run(
                f"{gamma}-{seed}",
                ((0.0, 0.0), (value, value)),
                config=CONFIG.format(seed=seed, gamma=gamma, name=""),
                payload=(payloads or {}).get(gamma, 1_000_000),
                **how,
            )
            for gamma, values in settings.items()
            for seed, value in enumerate(values)
        ]
        return Comparison.of(summarize_all(folders, target))

    return compare


def shown(comparison, target=None, width=80) -> str:
    console = Console(width=width, file=StringIO(), highlight=False)
    for part in render_comparison(comparison, target, width):
        console.print(part, soft_wrap=isinstance(part, str))
    return console.file.getvalue()


def test_keys_that_differ_are_found_also_where_some_do_not_have_them():
    settings = [
        setting_of({"seed": 1, "name": "a", "rounds": 5, "time": {"clock": "wall"}}),
        setting_of({"seed": 2, "name": "b", "rounds": 5, "time": {"clock": "virtual", "deadline_s": 2.0}}),
    ]
    assert differing(settings) == ["time.clock", "time.deadline_s"]


def test_settings_of_one_algorithm_alone_go_without_saying():
    algorithms = [{"name": "local"}, {"name": "dfedu", "lam": 0.1}, {"name": "sheaf-fmtl", "lam": 0.2, "gamma": 0.1}]
    settings = [setting_of({"algorithm": algorithm}) for algorithm in algorithms]
    assert differing(settings) == ["algorithm.name", "algorithm.lam"]
    assert differing(settings[:2]) == ["algorithm.name"]


def test_short_names_leave_out_sections_unless_two_keys_end_alike():
    assert short_names(["algorithm.gamma", "topology.kind", "model.kind"]) == ["gamma", "topology.kind", "model.kind"]


def test_the_best_is_best_by_more_than_the_standard_error_of_the_difference(compare):
    comparison = compare({0.1: (0.80, 0.84), 0.2: (0.70, 0.74)})  # 0.82 and 0.72, each with a standard error of 0.02
    assert comparison.marks("test_metric") == ["best", ""]


def test_differences_within_the_standard_error_are_not_sold_as_best(compare):
    comparison = compare({0.1: (0.80, 0.84), 0.2: (0.79, 0.81), 0.3: (0.50, 0.54)})
    assert comparison.marks("test_metric") == ["close", "close", ""]  # 0.02 apart; sqrt(0.02^2 + 0.01^2) is more


@pytest.mark.parametrize(("metric", "marks"), [("accuracy", ["best", ""]), ("mse", ["", "best"])])
def test_accuracy_is_best_where_it_is_high_and_an_error_where_it_is_low(compare, metric, marks):
    assert compare({0.1: (0.9, 0.9), 0.2: (0.1, 0.1)}, metric=metric).marks("test_metric") == marks


def test_bytes_are_best_where_they_are_few_and_known_from_one_run(compare):
    comparison = compare({0.1: (0.5,), 0.2: (0.5,)}, payloads={0.1: 9_000, 0.2: 8_000})
    assert comparison.marks("payload_bytes") == ["", "best"]
    assert comparison.marks("wire_bytes") == ["", "best"]
    assert comparison.marks("flops") == ["", ""]  # where all are equal nobody is
    assert comparison.marks("worst_10") == ["", ""]  # of single runs it is not known how lucky they were


def test_runs_that_have_not_finished_are_not_compared(compare, make_run):
    config = CONFIG.format(seed=0, gamma=0.3, name="")
    done = [make_run(f"d{gamma}", config=CONFIG.format(seed=0, gamma=gamma, name=""), payload=9) for gamma in (1, 2)]
    comparison = Comparison.of(summarize_all([make_run(config=config, payload=1, status="failure"), *done]))
    assert comparison.marks("payload_bytes") == ["", "", ""]


def test_few_groups_stand_side_by_side_with_every_key_and_figure(compare):
    text = shown(compare({0.1: (0.80, 0.84), 0.2: (0.70, 0.74)}, payloads={0.1: 3_000_000, 0.2: 1_500_000}))
    lines = {line[:18].strip(): line[18:].split() for line in text.splitlines()}
    assert lines["algorithm.gamma"] == ["0.1", "0.2"]
    assert lines["accuracy % ± s.e."] == ["82.0", "±", "2.0", "*", "72.0", "±", "2.0"]
    assert lines["payload MB"] == ["6.00", "3.00", "*"]
    assert "alpha" not in text
    assert "* best by more than the standard error of the difference; ≈ too close to tell" in text


def test_many_groups_stand_one_below_the_other(compare):
    text = shown(compare({gamma / 10: (gamma / 10, gamma / 10 + 0.04) for gamma in range(1, 9)}))
    rows = [line.split() for line in text.splitlines() if "±" in line and line.strip()[0] == "0"]
    assert [row[:2] for row in rows] == [[f"{gamma / 10}", "2"] for gamma in range(1, 9)]  # gamma, seeds
    assert rows[-1][2:6] == ["82.0", "±", "2.0", "*"]
    assert all(len(line) <= 80 for line in text.splitlines()[:-4])
    assert "…" not in text


def test_a_key_too_many_for_lines_puts_the_groups_side_by_side(make_run):
    long = "".join(f'a_key_with_a_long_name_{number} = "{{gamma}}"\n' for number in range(4))
    folders = [
        make_run(f"r{gamma}", config=CONFIG.format(seed=0, gamma=gamma, name=f"run {gamma}") + long.format(gamma=gamma))
        for gamma in range(6)
    ]
    text = shown(Comparison.of(summarize_all(folders)))
    assert "training.a_key_with_a_long_name_3" in text
    assert [f"run {gamma}" in text for gamma in range(6)] == [True] * 6
    assert "…" not in text


def test_a_target_adds_what_it_took_to_reach_it(compare):
    comparison = compare({0.1: (0.80, 0.84), 0.2: (0.70, 0.74)}, target=0.75)
    lines = {line[:20].strip(): line[20:].split() for line in shown(comparison, 0.75).splitlines()}
    assert lines["rounds to 75 %"] == ["1.00", "–"]
    assert lines["payload MB to 75 %"] == ["2.00", "–"]
    assert lines["wire MB to 75 %"] == ["2.00", "–"]
    assert lines["wall s to 75 %"] == ["1.50", "–"]


def test_csv_has_a_line_a_group_with_standard_errors(compare, tmp_path):
    write_groups(tmp_path / "groups.csv", compare({0.1: (0.80, 0.84), 0.2: (0.70,)}))
    with (tmp_path / "groups.csv").open() as file:
        first, second = csv.DictReader(file)
    assert (first["algorithm.gamma"], first["runs"], first["seeds"], first["metric"]) == ("0.1", "2", "0 1", "accuracy")
    assert float(first["test_metric"]) == pytest.approx(0.82)
    assert float(first["test_metric_se"]) == pytest.approx(0.02)
    assert (first["payload_bytes"], first["payload_bytes_se"]) == ("2000000.0", "0.0")
    assert (second["test_metric"], second["test_metric_se"]) == ("0.7", "")
    assert "virtual_s" not in first
    with pytest.raises(ExportError, match="cannot be written"):
        write_groups(tmp_path / "nowhere" / "groups.csv", compare({0.3: (0.5,)}))


def test_csv_of_runs_has_figures_only_of_those_that_finished(make_run, tmp_path):
    config = CONFIG.format(seed=3, gamma=0.1, name="")
    folders = [make_run("a", config=config), make_run("b", config=config, status="failure"), tmp_path / "c"]
    write_runs(tmp_path / "runs.csv", folders, ["algorithm.gamma"])
    with (tmp_path / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [
        (row["folder"], row["algorithm.gamma"], row["seed"], row["status"], row["test_metric"]) for row in rows
    ] == [
        ("a", "0.1", "3", "finished", "0.9"),
        ("b", "0.1", "3", "failed", ""),
        ("c", "", "", "missing", ""),
    ]


SAME_CLIENTS = 'seed = {seed}\nclients = 2\n[data]\ndataset = "{data}"\n[algorithm]\nname = "{name}"\n'


def runs_of(make_run, metrics, data=("digits", "digits")):
    """Two methods; ``metrics`` are those of both clients, for each method and seed."""
    folders = [
        make_run(
            f"{name}-{seed}", ((0.0, 0.0), values), config=SAME_CLIENTS.format(seed=seed, data=data[name], name=name)
        )
        for name, of_seeds in enumerate(metrics)
        for seed, values in enumerate(of_seeds)
    ]
    return Comparison.of(summarize_all(folders))


def test_the_same_seeds_of_two_methods_are_compared_one_by_one(make_run):
    hard_and_easy = [[(0.3, 0.3), (0.8, 0.8)], [(0.31, 0.31), (0.82, 0.82)]]  # 0.015 apart, with an error of 0.005
    comparison = runs_of(make_run, hard_and_easy)
    assert comparison.marks("test_metric") == ["", "best"]
    difference = comparison.difference("test_metric", 1, 0)
    assert (difference.mean, difference.standard_error) == (pytest.approx(0.015), pytest.approx(0.005))
    assert comparison.difference("worst_10", 1, 0).mean == pytest.approx(0.015)


def test_the_same_clients_of_two_runs_are_compared_one_by_one(make_run):
    comparison = runs_of(make_run, [[(0.3, 0.8)], [(0.31, 0.82)]])
    assert comparison.marks("test_metric") == ["", "best"]
    assert "differences are paired where seeds and clients are the same" in shown(comparison)


def test_runs_on_other_data_or_of_other_seeds_are_independent_samples(make_run, tmp_path):
    other_data = runs_of(make_run, [[(0.3, 0.3), (0.8, 0.8)], [(0.31, 0.31), (0.82, 0.82)]], ("digits", "mnist"))
    assert other_data.marks("test_metric") == ["close", "close"]
    one, other = (
        make_run(f"of-{seed}", ((0.0, 0.0), values), config=SAME_CLIENTS.format(seed=seed, data="har", name=name))
        for seed, name, values in ((5, "a", (0.3, 0.8)), (6, "b", (0.31, 0.82)))
    )
    assert Comparison.of(summarize_all([one, other])).marks("test_metric") == ["close", "close"]


def test_a_client_of_one_seed_is_not_taken_for_that_of_another_in_a_report(make_run):
    from sheafgossip.metrics.report.learning import worst_clients
    from sheafgossip.metrics.report.methods import methods_of

    folders = [
        make_run(str(seed), ((0.0, 0.0), values), config=SAME_CLIENTS.format(seed=seed, data="digits", name="local"))
        for seed, values in ((3, (0.1, 0.9)), (4, (0.9, 0.1)))
    ]
    (method,) = methods_of(folders)
    assert sorted(method.latest_metric().test_metric) == [0.1, 0.1, 0.9, 0.9]
    assert worst_clients([method], 2) == [(method.name, "0 (seed 3): 10.0, 1 (seed 4): 10.0")]
