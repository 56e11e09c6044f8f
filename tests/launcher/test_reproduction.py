"""What the configurations of examples/paper promise, and what is refused before anything starts."""

import re
import tomllib
from collections import Counter
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
from scipy.io import savemat

from foreign import make_run, sheafgossip
from made import printed
from runs import ROOT
from sheafgossip.launcher.commands import runs
from sheafgossip.launcher.config.sections import ConfigError
from sheafgossip.launcher.studies import reproduction
from sheafgossip.launcher.studies.reproduction import Result, names, parts_of, planned, titles
from sheafgossip.launcher.studies.runner import Means, run_each
from sheafgossip.node.algorithms import ALGORITHMS


@cache
def parts(what, small=False):
    return parts_of(what, small=small, data_root=None, overrides=[])


def failed(part):
    return [Result(config.label, None, (), "failed") for config in part.configs]


def test_it_is_known_what_there_is_and_every_published_section_is_shown():
    assert names() == ["table4", "table5", "table6", "all", "fedsak1", "fedsak2", "fedsak3", "fedsak5", "fedsakfig5",
                       "fedsakfig6", "figure2", "figure3", "figure4", "figure6", "flt1", "flt2", "flt3", "flt4", "flt5",
                       "sfmtl", "shn1", "shn2", "shn3", "shn4", "shnfig3"]  # fmt: skip
    published = tomllib.loads((reproduction.PAPER / "published.toml").read_text())
    assert set(published) <= {part.about.published or part.stem for what in names() for part in parts(what)}
    code, out, _ = sheafgossip("reproduce")
    assert code == 0
    assert all(title in out for what in names() for title in titles(what))


@pytest.mark.parametrize("what", names())
def test_the_small_size_needs_no_files_and_has_the_same_runs_and_every_published_line_is_that_of_a_run(what):
    labels = {part.stem: [config.label for config in part.configs] for part in parts(what)}
    first = next(iter(labels.values()))
    for part in (*parts(what), *parts(what, small=True)):
        assert set(part.published) <= {config.label for config in part.configs}
        assert {key for line in part.published.values() for key in line} <= set(part.about.columns)
    for part in parts(what, small=True):
        assert part.data in ("digits", "synthetic")
        expected = labels.get(part.stem.removesuffix("-small"), first)
        assert [config.label for config in part.configs] == expected


CLIENTS = {"mnist": 40, "cifar10": 30, "vehicle": 23, "har": 30, "school": 139, "gleam": 38}
IMAGES = ("mnist", "cifar10")


@pytest.mark.parametrize(
    ("what", "data"),
    [("table4", IMAGES), ("table5", ("vehicle",)), ("table6", IMAGES), ("figure2", IMAGES), ("figure3", IMAGES),
     ("figure4", ()), ("figure6", ("vehicle", "har", "school", "gleam"))],
)  # fmt: skip
def test_the_papers_size_is_that_of_the_paper_and_a_round_one_mini_batch_gradient(what, data):
    assert not data or {part.data: part.configs[0].clients for part in parts(what)} == {d: CLIENTS[d] for d in data}
    for small in (False, True):
        assert {part.about.seeds for part in parts(what, small)} == {1}
        training = [config.training for part in parts(what, small) for config in part.configs]
        work = {(each.work, each.epochs if each.work == "epochs" else each.steps) for each in training}
        assert work == {("steps", 1), ("epochs", 1)} if what == "table4" else {("steps", 1)}


@pytest.mark.parametrize("small", [False, True])
def test_tables_have_the_runs_of_the_paper(small):
    runs = Counter(config.algorithm.name for config in parts("table4", small)[0].configs)
    others = ("dfedu", "d-psgd", "fedavg", "ditto", "pfedme", "per-fedavg", "local", "selective-sheaf")
    assert (runs.pop("sheaf-fmtl"), set(runs)) == (3, set(others))
    configs = parts("table5", small)[0].configs
    runs = Counter((config.topology.kind, config.algorithm.lam, config.algorithm.name) for config in configs)
    graphs, lams = ("watts-strogatz", "barabasi-albert", "complete"), (1e-4, 1e-3, 1e-2, 1e-1, 1, 10)
    assert runs == Counter(product(graphs, lams, {name for *_, name in runs}))
    assert len(configs) == 36
    assert all(f"{config.algorithm.lam}" == config.name.split()[1] for config in configs)
    starts = Counter(config.algorithm.start for config in parts("table6", small)[0].configs)
    assert starts == {"gaussian": 3, "uniform": 3, "orthogonal": 1, "identity": 1}


def test_a_table_shows_algorithms_in_one_line_of_80_columns_and_is_followed_by_what_differs():
    (part,) = parts("table5")
    lines = [line.split() for line in printed(reproduction.render(part, failed(part))).splitlines()]
    assert ["0.0001", "92.38±0.38", "failed", "162", "–", "91.79±0.51", "failed", "808", "–"] in lines
    assert [line for line in lines if len(line) == 1 and line[0][0].isalpha()] == [
        ["small-world"], ["scale-free"], ["complete"]
    ]  # fmt: skip
    part = parts("table4", small=True)[-1]
    told = printed(reproduction.render(part, failed(part)), reproduction.remarks(part, failed(part), ["rounds=2"]))
    for text in ("94.3±0.12", "failed", "not 40 with MNIST", "27.9 MB", "rounds=2 (from the command line)"):
        assert text in told


@pytest.mark.parametrize("small", [False, True])
def test_all_has_every_algorithm_on_a_rotated_and_a_label_skewed_problem_with_three_seeds(small, tmp_path):
    turned, skewed = sorted(parts("all", small), key=lambda part: part.configs[0].data.partition)
    for part in (turned, skewed):
        assert {config.algorithm.name for config in part.configs} == set(ALGORITHMS) - {"fedbn"}  # it needs a module
        assert part.about.columns == ("accuracy", "worst_10", "sent", "wall", "memory")
        for seeds, expected in ((None, 3), (1, 1)):
            drawn = Counter(run.config.seed for run in planned(part, seeds, tmp_path))
            assert drawn == dict.fromkeys(range(expected), len(part.configs))
    assert all(len(config.data.rotations) == 4 for config in turned.configs)
    assert all(config.data.partition == "classes" and config.data.rotations == (0,) for config in skewed.configs)


def test_where_all_parts_are_asked_for_the_one_that_refuses_is_named():
    with pytest.raises(ConfigError, match=r"^table4-epoch-small: nix: unknown key"):
        parts_of("all-papers", small=True, data_root=None, overrides=["nix=1"])


def test_parts_whose_data_is_missing_are_left_out_and_told(tmp_path):
    cells = {"X": np.empty((1, 139), dtype=object), "Y": np.empty((1, 139), dtype=object)}
    for school in range(139):
        cells["X"][0, school], cells["Y"][0, school] = np.ones((8, 28)), np.ones((8, 1))
    (tmp_path / "school").mkdir()
    savemat(tmp_path / "school" / "school.mat", cells)
    there, told = reproduction.with_data("figure6", parts_of("figure6", small=False, data_root=tmp_path, overrides=[]))
    assert ([part.data for part in there], len(told)) == (["school"], 3)
    assert any("Figure 6, Vehicle: left out" in line and "vehicle.mat" in line for line in told)


def test_the_list_tells_of_each_part_what_it_needs_and_what_was_run(tmp_path):
    needed = {part.data for what in names() for part in parts(what)}
    needed |= {each.data.dataset for what in names() for part in parts(what) for each in part.about.encoders}
    assert reproduction.sources().keys() >= needed
    run = tmp_path / "figure3-small" / "local-seed-3"
    make_run(run)
    code, out, _ = sheafgossip("reproduce", "--list", "--out", tmp_path)
    assert code == 0
    assert all(title in out for what in names() for title in titles(what))
    told = dict(pairwise(out.splitlines()))
    assert told["table5   Table 5: graphs and strengths of the pull, Vehicle"].endswith(
        f"Vehicle; 36 runs; not timed; never run in {tmp_path}"
    )
    title = "figure3  Figure 3 at a small size: three models in one federation, rotated digits"
    started = "--small; digits; 2 runs; about 0.2 min a seed here; 1 finished, "
    assert told[title].strip().startswith(started)
    assert told[title].endswith(", 1 of them with other settings")
    files = " ".join(out.partition("Files of the data sets")[2].split())
    assert "MNIST: train-images-idx3-ubyte" in files
    assert "yann.lecun.com/exdb/mnist" in files


PART = """
clients = 2
rounds = 2
[data]
dataset = "{data}"
[algorithm]
{algorithm}
[training]
{training}
[reproduction]
title = "title of {title}"
columns = ["accuracy"]
{about}
"""


def test_all_papers_goes_on_after_parts_that_fail_and_tells_of_each_in_the_end(tmp_path, monkeypatch, with_round):
    def write(name, algorithm, *, data="digits", training="", about=""):
        text = PART.format(data=data, algorithm=algorithm, training=training, title=name, about=about)
        (tmp_path / f"{name}-small.toml").write_text(text)

    local = 'name = "local"'
    own = with_round("raise ValueError('no')").replace("algorithm.", "")
    write("table1", own)
    write("table2", local)
    write("table3", local, data="mnist")
    write("table4", local, training="alpha = 1e38")
    write("table5", local, about='runs = "table2-small"')
    (tmp_path / "published.toml").write_text("")
    monkeypatch.setattr(reproduction, "PAPER", tmp_path)
    monkeypatch.setattr(runs, "run_each", lambda *args: run_each(*args, Means("threads")))
    monkeypatch.setattr(reproduction, "draw", lambda part, *_: 1 / (part.stem != "table2-small") and [])
    code, out, _ = sheafgossip("reproduce", "all-papers", "--small", "--quiet", "--out", tmp_path / "out")
    assert code == 1
    assert "title of table3: left out: no --data-root" in out
    told = dict(re.findall(r"^  (table\d)-small +\d+\.\d min  (.*)$", out, re.MULTILINE))
    assert told == {
        "table1": "failed: 1 of 1 runs",
        "table2": "failed: division by zero",
        "table4": "finished, 1 of 1 runs diverged",
        "table5": "finished",
    }


PAPERS = {  # how many tables and figures each has
    "Sheaf-FMTL": (9, 6),
    "SFMTL-Graph": (2, 4),
    "FLT": (10, 12),
    "Sheaf HyperNetworks": (7, 12),
    "FedSAK": (5, 16),
}


ONE = r"(?:\d+[a-z]?|I+)(?: \([^)]*\))?"


@pytest.mark.parametrize("paper", PAPERS)
def test_no_table_or_figure_of_a_paper_is_missing_on_the_page(paper):
    """Tables 1 (lambda), 2 and 4; Figures 9 to 16; Figure 4a, which is a part of 4; Tables I, II."""
    page = (ROOT / "docs" / "reproduce.md").read_text()
    assert all(f"`{what}`" in page for what in names())
    rows = re.findall(r"^\| (.*?) \|", page.partition(f"| {paper} |")[2].partition("\n\n")[0], re.MULTILINE)
    found = {"Table": set(), "Figure": set()}
    for kind, several in re.findall(rf"(Table|Figure)s? ({ONE}(?:(?:, | to ){ONE})*)", "\n".join(rows)):
        plain = re.sub(r"\(.*?\)", "", several).replace("II", "2").replace("I", "1")
        for first, last in re.findall(r"(\d+)[a-z]?(?: to (\d+))?", plain):
            found[kind] |= set(range(int(first), int(last or first) + 1))
    assert found == {kind: set(range(1, most + 1)) for kind, most in zip(found, PAPERS[paper], strict=True)}
