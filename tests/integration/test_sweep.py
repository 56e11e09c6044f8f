"""Sweeps over real runs: what is missing is run, whatever happened before, and nothing else."""

import csv
from pathlib import Path

import psutil

from runs import Going, run_here
from sheafgossip.launcher.studies.sweep import parse_grids, plan

CONFIG = """
clients = 4
topology.kind = "ring"
data.dataset = "synthetic"
training.alpha = 0.05
algorithm.name = "sheaf-fmtl"
checkpoints.every = 20
"""


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def states(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.glob("*/state/*/*.safetensors"))}


def test_a_sweep_that_was_killed_runs_only_what_is_missing_and_ends_with_the_same_bits(begin, tmp_path):
    config, out = tmp_path / "sweep.toml", tmp_path / "out"
    config.write_text(CONFIG + "rounds = 50")
    grid = "algorithm.gamma=0.05,0.2"
    first, second, _, fourth = (out / f"gamma-{gamma}-seed-{seed}" for seed in (0, 1) for gamma in (0.05, 0.2))
    words = ("sweep", config, "--out", out, "--grid", grid, "--seeds", 2)
    sweep = begin(*words)
    sweep.until((second / "state" / "round-000020").exists)
    processes = sweep.processes()
    sweep.kill()
    assert psutil.wait_procs(processes, timeout=10)[1] == []
    finished_then = (first / "run.sqlite").read_bytes()
    assert not (fourth / "state").exists()

    sweep = begin(*words, "--jobs", 2).process
    shown, said = sweep.communicate(timeout=150)
    assert sweep.returncode == 0, said
    lines = said.splitlines()
    begun = lines.index("4 runs, 1 finished before")  # after what its first run is about to do
    assert [line.split(":")[0] for line in lines[begun + 1 :]] == [f"{number} of 4" for number in (2, 3, 4)]
    assert (first / "run.sqlite").read_bytes() == finished_then
    assert "algorithm.gamma" in shown
    assert [row["status"] for row in rows(out / "runs.csv")] == ["finished"] * 4
    swept = [(row["algorithm.gamma"], row["seeds"]) for row in rows(out / "sweep.csv")]
    assert swept == [("0.05", "0 1"), ("0.2", "0 1")]

    runs = plan(config, [], parse_grids([grid]), 2, out).runs
    undisturbed = [each.config.but(name=each.folder.name) for each in runs]
    run_here(undisturbed, tmp_path / "undisturbed", "threads")
    assert len(states(out)) == 4 * 4 * 4  # runs, checkpoints, clients
    assert states(out) == states(tmp_path / "undisturbed")


def test_a_failing_run_does_not_stop_the_others_and_ctrl_c_ends_all_of_them(begin, tmp_path):
    config, out = tmp_path / "sweep.toml", tmp_path / "out"
    config.write_text(CONFIG + "rounds = 1_000_000")
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
    ended = {row["folder"]: row["status"] for row in rows(out / "runs.csv")}
    assert ended == {good.name: "interrupted", bad.name: "failed"}
