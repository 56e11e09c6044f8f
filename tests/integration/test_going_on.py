"""Several runs of one file go on where they were: the same command makes what is missing."""

import shutil

import pytest
from pandas import read_csv

import foreign
from runs import RunFolder, assert_same_states, run_here, small
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.studies.sweep import parse_grids, plan

ALGORITHMS = {"first": "local", "second": "d-psgd", "third": "dfedu"}
COMPARED = [f'{{name = "{name}", algorithm.name = "{algorithm}"}}' for name, algorithm in ALGORITHMS.items()]
RUN = small("checkpoints.every = 2", clients=3, rounds=8, samples=60, algorithm="")
COMPARE = f"{RUN}compare = [{', '.join(COMPARED)}]\n"
TIMED = 'compute.slowdown = [1.0, 2.0, 1.0]\ntime.clock = "virtual"\n'
GRID, SEEDS = "algorithm.lam=0.01,0.1", 2


def sheafgossip(*words: object, code: int = 0) -> str:
    ended, out, err = foreign.sheafgossip(*words)
    assert ended == code, out + err
    return out + err


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Where a file is for each command, and a folder of its runs, which have finished."""
    root = tmp_path_factory.mktemp("several")
    (root / "run.toml").write_text(COMPARE + TIMED)
    (root / "sweep.toml").write_text(RUN + 'algorithm.name = "dfedu"')
    run_here(load(root / "run.toml"), root / "run", "threads")
    for each in plan(root / "sweep.toml", [], parse_grids([GRID]), SEEDS, root / "sweep").runs:
        run_here([each.config], each.folder, "threads")
    return root


@pytest.mark.parametrize(
    ("command", "options", "told", "told_at_last"),
    [
        ("run", [], ["1 of 3 runs finished before", "second: going on after round 4", "third"], "3 of 3 runs finished"),
        (
            "sweep",
            ["--grid", GRID, "--seeds", SEEDS, "--jobs", 2],
            ["4 runs, 1 finished before", "2 of 4: ", "3 of 4: ", "4 of 4: "],
            "4 runs, 4 finished",
        ),
    ],
)
def test_the_same_command_makes_the_runs_that_are_missing_to_the_same_bits(
    root, tmp_path, command, options, told, told_at_last
):
    """The second one was interrupted after round 5, before the others had begun."""
    whole, out = RunFolder(root / command), RunFolder(root / command).copy(tmp_path / "out")
    first, second, *others = out.runs().values()
    before = (first.path / "run.sqlite").read_bytes()
    second.cut_after(5)
    for other in others:
        other.alter("DELETE FROM round; DELETE FROM event; DELETE FROM node")
        shutil.rmtree(other.path / "state")
    words = (command, root / f"{command}.toml", "--out", out.path, *options)
    said = sheafgossip(*words)
    assert [text for text in told if text not in said] == []
    assert (first.path / "run.sqlite").read_bytes() == before
    for name, there in out.runs().items():
        assert_same_states(there, whole.runs()[name], 8)
        assert there.config == whole.runs()[name].config
    starts = "SELECT count(*) FROM event WHERE kind = 'start'"
    assert [there.rows(starts) for there in out.runs().values()] == [[(1,)], [(2,)], *[[(1,)]] * len(others)]
    if command == "sweep":
        assert read_csv(out.path / "runs.csv").status.tolist() == ["finished"] * 4
        swept = read_csv(out.path / "sweep.csv")[["algorithm.lam", "seeds"]]
        assert swept.values.tolist() == [[0.01, "0 1"], [0.1, "0 1"]]
    assert told_at_last in sheafgossip(*words)


def test_a_folder_that_holds_other_runs_is_refused_and_left_alone(root, tmp_path):
    config, out = root / "run.toml", shutil.copytree(root / "run", tmp_path / "out")
    said = sheafgossip("run", config, "--set", "training.alpha=0.3", "--out", out, code=2)
    assert "holds a run of another configuration" in said
    (out / "second").rename(out / "mine")
    assert "is not an empty folder" in sheafgossip("run", config, "--out", out, code=2)
    assert (out / "mine" / "run.sqlite").exists()


def test_ctrl_c_tells_how_to_go_on(start):
    going = start(COMPARE.replace("rounds = 8", "rounds = 1000000"))
    out, going.folder = going.folder.path, RunFolder(going.folder.path / "first")
    going.until_round(1)
    said = going.ends(130, going.signal, seconds=60)
    assert f"the same command with --out {out} goes on with what is missing" in said
