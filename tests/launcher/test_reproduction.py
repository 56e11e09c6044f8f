"""What the configurations of examples/paper promise, and what is refused before anything starts."""

import io
import tomllib
from collections import Counter
from functools import cache

import numpy as np
import pytest
from rich.console import Console
from scipy.io import savemat

from foreign import sheafgossip
from sheafgossip.launcher.studies.reproduction.parts import names, paper_folder, parts_of, titles, with_data
from sheafgossip.launcher.studies.reproduction.results import Result, planned, remarks, render
from sheafgossip.node.algorithms import ALGORITHMS

PUBLISHED = tomllib.loads((paper_folder() / "published.toml").read_text())


@cache
def parts(what, small=False):
    return parts_of(what, small=small, data_root=None, overrides=[])


def shown(part):
    """The table as it looks before anything has run."""
    text = io.StringIO()
    results = [Result(config.label, None, (), "failed") for config in part.configs]
    Console(file=text, width=80).print(render(part, results))
    return text.getvalue(), results


def test_it_is_known_what_there_is():
    assert names() == ["table4", "table5", "table6", "all", "fedsak1", "fedsak2", "fedsak3", "figure2", "figure3",
                       "figure4", "figure6", "shn1", "shn2"]  # fmt: skip


@pytest.mark.parametrize("what", names())
def test_the_small_size_needs_no_files_and_has_the_same_runs(what):
    small = parts(what, small=True)
    assert {part.data for part in small} <= {"digits", "synthetic"}
    names_at_paper_size = [config.label for config in parts(what)[0].configs]
    for part in small:
        assert [config.label for config in part.configs] == names_at_paper_size


@pytest.mark.parametrize("what", names())
@pytest.mark.parametrize("small", [False, True])
def test_every_published_line_is_that_of_a_run(what, small):
    for part in parts(what, small):
        assert set(part.published) <= {config.label for config in part.configs}
        assert {key for line in part.published.values() for key in line} <= set(part.about.columns)


def test_every_published_section_is_shown_somewhere():
    shown = {part.about.published or part.stem for what in names() for part in parts(what)}
    assert set(PUBLISHED) <= shown


@pytest.mark.parametrize(
    ("what", "clients"),
    [
        ("table4", {"mnist": 40, "cifar10": 30}),
        ("table5", {"vehicle": 23}),
        ("table6", {"mnist": 40, "cifar10": 30}),
        ("figure2", {"mnist": 40, "cifar10": 30}),
        ("figure3", {"mnist": 40, "cifar10": 30}),
        ("figure6", {"vehicle": 23, "har": 30, "school": 139, "gleam": 38}),
    ],
)
def test_the_papers_size_is_that_of_the_paper(what, clients):
    assert {part.data: part.configs[0].clients for part in parts(what)} == clients


@pytest.mark.parametrize("small", [False, True])
def test_the_papers_tables_have_one_mini_batch_gradient_a_round_and_table_4_one_local_epoch_beside_it(small):
    work = {}
    for what in ("table4", "table5", "table6", "figure2", "figure3", "figure4", "figure6"):
        training = [config.training for part in parts(what, small) for config in part.configs]
        work[what] = {(each.work, each.epochs if each.work == "epochs" else each.steps) for each in training}
    assert work.pop("table4") == {("steps", 1), ("epochs", 1)}
    assert all(each == {("steps", 1)} for each in work.values())


def test_table_4_has_eight_algorithms_and_learning_alone():
    runs = Counter(config.algorithm.name for config in parts("table4")[0].configs)
    assert runs.pop("sheaf-fmtl") == 2
    assert set(runs) == {"dfedu", "d-psgd", "fedavg", "ditto", "pfedme", "per-fedavg", "local"}


@pytest.mark.parametrize("small", [False, True])
def test_table_5_has_three_graphs_six_lambdas_and_two_algorithms(small):
    configs = parts("table5", small)[0].configs
    runs = {(config.topology.kind, config.algorithm.lam, config.algorithm.name) for config in configs}
    assert len(configs) == len(runs) == 36
    assert {kind for kind, *_ in runs} == {"watts-strogatz", "barabasi-albert", "complete"}
    assert {lam for _, lam, _ in runs} == {1e-4, 1e-3, 1e-2, 1e-1, 1, 10}
    for config in configs:
        assert f"{config.algorithm.lam}" == config.name.split()[1]


@pytest.mark.parametrize("small", [False, True])
def test_table_6_has_eight_starts(small):
    configs = parts("table6", small)[0].configs
    starts = Counter(config.algorithm.start for config in configs)
    assert starts == {"gaussian": 3, "uniform": 3, "orthogonal": 1, "identity": 1}


def test_table_5_shows_both_algorithms_in_one_line_of_80_columns():
    (part,) = parts("table5")
    table, _ = shown(part)
    lines = [line.split() for line in table.splitlines()]
    assert ["0.0001", "92.38±0.38", "failed", "162", "–", "91.79±0.51", "failed", "808", "–"] in lines
    assert [line for line in lines if len(line) == 1 and line[0][0].isalpha()] == [
        ["small-world"], ["scale-free"], ["complete"]
    ]  # fmt: skip


@pytest.mark.parametrize("small", [False, True])
def test_all_has_every_algorithm_on_a_rotated_and_a_label_skewed_problem(small):
    turned, skewed = sorted(parts("all", small), key=lambda part: part.configs[0].data.partition)
    for part in (turned, skewed):
        assert {config.algorithm.name for config in part.configs} == set(ALGORITHMS)
        assert part.about.columns == ("accuracy", "worst_10", "sent", "wall", "memory")
    assert all(len(config.data.rotations) == 4 for config in turned.configs)
    assert all(config.data.partition == "classes" and config.data.rotations == (0,) for config in skewed.configs)


def test_all_has_three_seeds_unless_told_and_the_others_one(tmp_path):
    part, other = parts("all", small=True)[0], parts("table4", small=True)[0]
    runs = planned(part, None, tmp_path)
    assert Counter(run.config.seed for run in runs) == dict.fromkeys(range(3), len(runs) // 3)
    assert {run.config.seed for run in planned(part, 1, tmp_path)} == {0}
    assert {run.config.seed for run in planned(other, None, tmp_path)} == {0}


def test_a_table_is_followed_by_what_differs():
    part = parts("table4", small=True)[-1]
    table, results = shown(part)
    assert "94.3±0.12" in table
    assert "failed" in table
    told = remarks(part, results, ["rounds=2"])
    assert "not 40 with MNIST" in told
    assert "27.9 MB" in told
    assert "rounds=2 (from the command line)" in told


def test_parts_whose_data_is_missing_are_left_out_and_told(tmp_path):
    cells = {"X": np.empty((1, 139), dtype=object), "Y": np.empty((1, 139), dtype=object)}
    for school in range(139):
        cells["X"][0, school], cells["Y"][0, school] = np.ones((8, 28)), np.ones((8, 1))
    (tmp_path / "school").mkdir()
    savemat(tmp_path / "school" / "school.mat", cells)
    there, told = with_data("figure6", parts_of("figure6", small=False, data_root=tmp_path, overrides=[]))
    assert [part.data for part in there] == ["school"]
    assert len(told) == 3
    assert any("Figure 6, Vehicle: left out" in line and "vehicle.mat" in line for line in told)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("table7", "table7: not among what can be reproduced: table4, table5"),
        ("table5", "table5 at paper size needs the Vehicle data: --data-root FOLDER"),
        ("table4", "or --small"),
        ("table5 --data-root .", "vehicle.mat"),
        ("table5 --small --data-root x", "--data-root"),
        ("table5 --small --set training.aplha=1", "training.aplha: unknown key"),
    ],
)
def test_what_cannot_be_reproduced_is_refused_in_one_line_and_nothing_is_written(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    code, out, error = sheafgossip("reproduce", *words.split())
    assert (code, out, list(tmp_path.iterdir())) == (2, "", [])
    assert error.count("\n") == 1
    assert said in error


def test_without_a_name_it_lists_what_there_is():
    code, out, _ = sheafgossip("reproduce")
    assert code == 0
    assert all(title in out for what in names() for title in titles(what))
