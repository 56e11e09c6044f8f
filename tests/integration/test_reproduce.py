"""`sheafgossip reproduce` over real processes, at the smallest size that shows everything."""

import shutil

import pytest

import sheafgossip.launcher.commands.runs  # before a test replaces what it imports
from foreign import sheafgossip
from runs import command
from sheafgossip.launcher.studies import runner

SMALLEST = ("--small", "--rounds", "2", "--set", "clients=4", "--set", "topology.kind=ring")


def reproduce(what, out, *options):
    return command("reproduce", what, *SMALLEST, "--out", out, *options, code=None)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    out = tmp_path_factory.mktemp("paper")
    return out, reproduce("figure3", out)


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
    out, done = reproduced
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("Local"))
    assert "about 90" in line
    assert "±" in line
    assert "clients=4 (from the command line)" in done.stdout
    assert (out / "figure3-small.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "figure3-small.svg").read_text()
    rows = (out / "figure3-small.csv").read_text().splitlines()
    assert rows[0] == "run,round,metric,standard_error,mbit"
    assert len(rows) == 1 + 2 * 3  # two runs, rounds 0 to 2


def test_what_is_finished_is_not_run_again_and_figure_4_takes_the_run_of_figure_3(reproduced, again):
    out, done = reproduced
    assert again("figure3") == (0, done.stdout, [])
    code, printed, started = again("figure4")
    assert (code, started) == (0, [])
    assert "norm" in printed
    assert (out / "figure4-small.png").exists()
    assert len((out / "figure4-small.csv").read_text().splitlines()) == 1 + 2 * 4  # two directions of four edges


def test_only_what_is_missing_is_run(reproduced, again):
    out, _ = reproduced
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
    code, printed, started = again("figure3", "--set", "training.alpha=0.01")
    assert (code, started) == (2, [])
    assert "holds a run of another configuration" in printed


def test_a_run_that_diverges_is_shown_as_that_and_not_repeated(again, tmp_path):
    too_strong = ("--set", "algorithm.lam=1e30")
    done = reproduce("figure4", tmp_path, *too_strong)
    assert done.returncode == 1
    assert "is not finite" in done.stderr
    code, printed, started = again("figure4", *too_strong, out=tmp_path)
    assert (code, started) == (0, [])
    assert "diverged" in printed
