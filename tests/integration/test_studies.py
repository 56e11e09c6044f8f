"""Sweeps and reproductions over real runs: what is missing is run, whatever happened before, and nothing else."""

import shutil

import pytest
from pandas import read_csv

import sheafgossip.launcher.commands.runs  # before a test replaces what it imports
from foreign import sheafgossip
from runs import Going, command, small
from sheafgossip.launcher.studies import runner


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
    """Calls the command once more; returns exit code, what it printed, and the runs that it would have started."""

    def again(out, what, *options):
        started = []
        monkeypatch.setattr(runner, "run_each", lambda runs, *_: started.extend(run.folder for run in runs) or [])
        code, shown, said = sheafgossip("reproduce", what, *SMALLEST, "--out", out, *options)
        return code, shown + said, [folder.name for folder in started]

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
    assert ",".join(figures) == "run,round,metric,standard_error,mbit"
    assert len(figures) == 2 * 3  # two runs, rounds 0 to 2

    assert again(tmp_path, "figure3") == (0, shown, [])
    code, printed, started = again(tmp_path, "figure4")
    assert (code, started, "norm" in printed) == (0, [], True)
    assert (tmp_path / "figure4-small.png").exists()
    assert len(read_csv(tmp_path / "figure4-small.csv")) == 2 * 4  # two directions of four edges
    assert again(tmp_path, "figure3", "--seeds", "2")[2] == ["sheaf-fmtl-seed-1", "local-seed-1"]
    shutil.rmtree(tmp_path / "figure3-small" / "local-seed-0")
    code, printed, started = again(tmp_path, "figure3")
    assert (code, started, "failed" in printed) == (0, ["local-seed-0"], True)


def test_a_run_that_diverges_is_shown_as_that_and_not_repeated(again, tmp_path):
    too_strong = ("--set", "algorithm.lam=1e30")
    done = command("reproduce", "figure4", *SMALLEST, "--out", tmp_path, *too_strong, code=1)
    assert "is not finite" in done.stderr
    code, printed, started = again(tmp_path, "figure4", *too_strong)
    assert (code, started) == (0, [])
    assert "diverged" in printed
