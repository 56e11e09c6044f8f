"""Several runs of one command go on where they were: what is missing is run, and nothing else."""

import shutil

import pytest
from pandas import read_csv

import foreign
from runs import Going, RunFolder, assert_same_states, command, run_here, small
from sheafgossip.launcher.commands import runs as commands
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
    ("kind", "options", "told", "told_at_last"),
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
    root, tmp_path, kind, options, told, told_at_last
):
    """The second one was interrupted after round 5, before the others had begun."""
    whole, out = RunFolder(root / kind), RunFolder(root / kind).copy(tmp_path / "out")
    first, second, *others = out.runs().values()
    before = (first.path / "run.sqlite").read_bytes()
    second.cut_after(5)
    for other in others:
        other.alter("DELETE FROM round; DELETE FROM event; DELETE FROM node")
        shutil.rmtree(other.path / "state")
    words = (kind, root / f"{kind}.toml", "--out", out.path, *options)
    said = sheafgossip(*words)
    assert [text for text in told if text not in said] == []
    assert (first.path / "run.sqlite").read_bytes() == before
    for name, there in out.runs().items():
        assert_same_states(there, whole.runs()[name], 8)
        assert there.config == whole.runs()[name].config
    starts = "SELECT count(*) FROM event WHERE kind = 'start'"
    assert [there.rows(starts) for there in out.runs().values()] == [[(1,)], [(2,)], *[[(1,)]] * len(others)]
    if kind == "sweep":
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


def test_a_failing_run_does_not_stop_the_others_and_ctrl_c_ends_all_of_them(begin, tmp_path):
    config, out = tmp_path / "sweep.toml", tmp_path / "out"
    config.write_text(small("checkpoints.every = 20", rounds=1_000_000, algorithm="sheaf-fmtl"))
    sweep: Going = begin("sweep", config, "--out", out, "--grid", "algorithm.lam=1e9,0.01")
    good, bad = out / "lam-0.01-seed-0", out / "lam-1000000000-seed-0"
    lines: list[str] = []
    while "failed" not in "".join(lines[-1:]):
        lines.append(sweep.process.stderr.readline())
        assert lines[-1], lines
    assert lines[-1].startswith(f"1 of 2: {bad.name} failed after")
    sweep.until((good / "state" / "round-000020").exists)
    said = sweep.ends(130, sweep.signal)
    assert f"error: {bad.name}: client" in said
    assert "is not finite after round" in said
    ended = read_csv(out / "runs.csv", index_col="folder").status.to_dict()
    assert ended == {good.name: "interrupted", bad.name: "failed"}


# -- reproductions, at the smallest size that shows everything ---------------------------------------------------------

SMALLEST = ("--small", "--rounds", "2", "--set", "clients=4", "--set", "topology.kind=ring")


@pytest.fixture
def again(monkeypatch):
    """Calls the command once more; returns what it printed, and the runs that it would have started."""

    def again(out, what, *options):
        started = []
        monkeypatch.setattr(commands, "run_each", lambda runs, *_: started.extend(run.folder for run in runs) or [])
        printed = sheafgossip("reproduce", what, *SMALLEST, "--out", out, *options)
        return printed, [folder.name for folder in started]

    return again


def test_published_figures_and_ours_stand_side_by_side_with_pictures_and_only_what_is_missing_is_run(tmp_path, again):
    """Figure 4 takes a run of figure 3."""
    shown = command("reproduce", "figure3", *SMALLEST, "--out", tmp_path).stdout
    (line,) = (line for line in shown.splitlines() if line.startswith("Local"))
    assert "about 90" in line
    assert "±" in line
    assert "clients=4 (from the command line)" in shown
    assert (tmp_path / "figure3-small.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "figure3-small.svg").read_text()
    figures = read_csv(tmp_path / "figure3-small.csv")
    assert ",".join(figures) == "run,round,metric,standard_error,mbit,train"
    assert len(figures) == 2 * 3  # two runs, rounds 0 to 2

    assert again(tmp_path, "figure3") == (shown, [])
    printed, started = again(tmp_path, "figure4")
    assert (started, "norm" in printed) == ([], True)
    assert (tmp_path / "figure4-small.png").exists()
    assert len(read_csv(tmp_path / "figure4-small.csv")) == 2 * 4  # two directions of four edges
    assert again(tmp_path, "figure3", "--seeds", "2")[1] == ["sheaf-fmtl-seed-1", "local-seed-1"]
    shutil.rmtree(tmp_path / "figure3-small" / "local-seed-0")
    printed, started = again(tmp_path, "figure3")
    assert (started, "failed" in printed) == (["local-seed-0"], True)


def test_a_run_that_diverges_is_shown_as_that_and_not_repeated(again, tmp_path):
    too_strong = ("--set", "algorithm.lam=1e30")
    done = command("reproduce", "figure4", *SMALLEST, "--out", tmp_path, *too_strong, code=1)
    assert "is not finite" in done.stderr
    printed, started = again(tmp_path, "figure4", *too_strong)
    assert (started, "diverged" in printed) == ([], True)
