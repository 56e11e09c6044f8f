"""Sweeps and reproductions over real runs: what is missing is run, whatever happened before, and nothing else."""

import shutil

import psutil
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
    processes = sweep.processes()
    sweep.signal()
    code, said = sweep.end()
    assert code == 130
    assert f"error: {bad.name}: client" in said
    assert "is not finite after round" in said
    assert "Traceback" not in said
    assert psutil.wait_procs(processes, timeout=5)[1] == []
    ended = read_csv(out / "runs.csv", index_col="folder").status.to_dict()
    assert ended == {good.name: "interrupted", bad.name: "failed"}


# -- reproductions, at the smallest size that shows everything ---------------------------------------------------------

SMALLEST = ("--small", "--rounds", "2", "--set", "clients=4", "--set", "topology.kind=ring")


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    out = tmp_path_factory.mktemp("paper")
    return out, command("reproduce", "figure3", *SMALLEST, "--out", out).stdout


@pytest.fixture
def again(reproduced, monkeypatch):
    """Calls the command once more; returns exit code, what it printed, and the runs that it would have started."""
    before, _ = reproduced

    def again(what, *options, out=before):
        started = []
        monkeypatch.setattr(runner, "run_each", lambda runs, *_: started.extend(run.folder for run in runs) or [])
        code, shown, said = sheafgossip("reproduce", what, *SMALLEST, "--out", out, *options)
        return code, shown + said, [folder.name for folder in started]

    return again


def test_published_figures_and_ours_stand_side_by_side_and_a_picture_is_written_with_its_data(reproduced):
    out, shown = reproduced
    (line,) = (line for line in shown.splitlines() if line.startswith("Local"))
    assert "about 90" in line
    assert "±" in line
    assert "clients=4 (from the command line)" in shown
    assert (out / "figure3-small.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "figure3-small.svg").read_text()
    figures = read_csv(out / "figure3-small.csv")
    assert ",".join(figures) == "run,round,metric,standard_error,mbit"
    assert len(figures) == 2 * 3  # two runs, rounds 0 to 2


def test_only_what_is_missing_is_run_and_figure_4_takes_the_run_of_figure_3(reproduced, again):
    out, shown = reproduced
    assert again("figure3") == (0, shown, [])
    code, printed, started = again("figure4")
    assert (code, started) == (0, [])
    assert "norm" in printed
    assert (out / "figure4-small.png").exists()
    assert len(read_csv(out / "figure4-small.csv")) == 2 * 4  # two directions of four edges
    code, _, started = again("figure3", "--seeds", "2")
    assert started == ["sheaf-fmtl-seed-1", "local-seed-1"]
    folder, away = out / "figure3-small" / "local-seed-0", out / "away"
    shutil.move(folder, away)
    try:
        code, printed, started = again("figure3")
    finally:
        shutil.move(away, folder)
    assert (code, started) == (0, ["local-seed-0"])
    assert "failed" in printed


def test_a_run_that_diverges_is_shown_as_that_and_not_repeated(again, tmp_path):
    too_strong = ("--set", "algorithm.lam=1e30")
    done = command("reproduce", "figure4", *SMALLEST, "--out", tmp_path, *too_strong, code=1)
    assert "is not finite" in done.stderr
    code, printed, started = again("figure4", *too_strong, out=tmp_path)
    assert (code, started) == (0, [])
    assert "diverged" in printed
