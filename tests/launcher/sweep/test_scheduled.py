"""Runs of a sweep as jobs of submitit, on this machine instead of a cluster."""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from runs import small
from sheafgossip.launcher import interrupts
from sheafgossip.launcher.config.sections import ConfigError
from sheafgossip.launcher.run.earlier import is_finished
from sheafgossip.launcher.studies import scheduled
from sheafgossip.launcher.studies.scheduled import Scheduled, opened
from sheafgossip.launcher.studies.sweep import plan, prepare

pytest.importorskip("submitit", reason="the package submitit is not installed")


@pytest.fixture
def planned(tmp_path):
    """A sweep of two runs that are prepared."""
    (tmp_path / "sweep.toml").write_text(small(clients=2, topology="complete"))
    planned = plan(tmp_path / "sweep.toml", (), {}, 2, tmp_path / "out")
    prepare(planned.runs)
    return planned


def make(planned, batch, most):
    told = []
    with interrupts.handled(), Scheduled("local", planned.out, ["mem_gb=4"], batch, most) as makers:
        ended = makers.make(planned.runs, told.append)
        left = [process for process in psutil.Process().children(recursive=True) if process.status() != "zombie"]
    assert [each for each in left if "submitit" in " ".join(each.cmdline())] == []
    return ended, told


def test_a_batch_of_runs_is_a_job_that_makes_them_all(planned):
    ended, told = make(planned, batch=2, most=1)
    assert [(each.run, each.outcome.status) for each in ended] == [(run, "finish") for run in planned.runs]
    assert told == ended
    assert all(is_finished(run.folder) for run in planned.runs)
    assert len(list((planned.out / "jobs").glob("*_submitted.pkl"))) == 1
    assert planned.missing() == []


def test_a_job_that_dies_is_a_failure_of_its_runs_and_the_same_sweep_would_go_on_with_them(planned, monkeypatch):
    monkeypatch.setattr(scheduled, "command", lambda module: ["false", module])
    ended, _ = make(planned, batch=1, most=2)
    assert sorted(each.run.folder for each in ended) == [run.folder for run in planned.runs]
    (why,) = ended[0].outcome.causes
    assert (ended[0].outcome.status, why[:32]) == ("failure", "its job has ended before it, see")
    assert Path(why.partition("see ")[2]).exists()
    assert planned.missing() == list(planned.runs)


def test_ctrl_c_ends_the_jobs_and_the_runs_that_are_left_were_interrupted(planned, monkeypatch):
    sleeps = [sys.executable, "-c", "import time; open('began', 'w').close(); time.sleep(99)"]
    monkeypatch.setattr(scheduled, "command", lambda module: [*sleeps, module])
    monkeypatch.chdir(planned.out.parent)

    def interrupt():
        while not (planned.out.parent / "began").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        (presses := threading.Thread(target=interrupt)).start()
        ended, _ = make(planned, batch=1, most=1)
        presses.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert [(each.run, each.outcome.status) for each in ended] == [(planned.runs[0], "interrupt")]


@pytest.mark.parametrize(
    ("executor", "batch", "request_", "said"),
    [
        ("sge", 1, [], "--executor sge: allowed: slurm, local"),
        ("local", 1, ["mem_gb=much"], '--executor local: Parameter "mem_gb" expected type'),
        ("slurm", 1, [], '--executor slurm: Could not detect "srun"'),
        (None, 2, [], "--batch and --request are of jobs of a scheduler"),
    ],
)
def test_what_no_scheduler_takes_is_one_line_and_leaves_nothing(executor, batch, request_, said, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=said) as refusal:
        opened(SimpleNamespace(folder=tmp_path / "out", descriptor=0), None, 1, executor, batch, request_)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "out" / "jobs").exists()
