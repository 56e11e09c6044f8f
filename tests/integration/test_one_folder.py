"""Several who want the same folder, links where files should be, a disk that is full: nobody's files are touched."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from runs import CLI, default_signals

from sheafgossip.metrics import lock

SHORT = """
clients = 3
rounds = {rounds}
[topology]
kind = "ring"
[data]
samples = 60
[checkpoints]
every = 4
[algorithm]
name = "dfedu"
"""


def until(reached: Callable[[], object], process: subprocess.Popen[str] | None = None, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def begin(*arguments: object, cwd: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*CLI, *map(str, arguments)], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=default_signals,
    )  # fmt: skip


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory) -> Path:
    """The folder of a run whose launcher was killed, and of which no process is left."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    (folder.parent / "config.toml").write_text(SHORT.format(rounds=1_000_000))
    going = begin("run", folder.parent / "config.toml", "--out", folder)
    until((folder / "state" / "round-000008" / "node-0002.safetensors").exists, going)
    until((folder / "state" / "round-000400").exists, going)
    processes = psutil.Process(going.pid).children(recursive=True)
    going.kill()
    going.communicate()
    psutil.wait_procs(processes, timeout=20)
    return folder


@pytest.fixture
def killed(killed_once, tmp_path) -> Path:
    return shutil.copytree(killed_once, tmp_path / "killed")


def require_it_goes_on(folder: Path) -> None:
    """It is taken up; then it is stopped."""
    again = begin("resume", folder)
    assert again.stderr is not None
    line = again.stderr.readline()
    assert "going on after round" in line, line
    again.send_signal(signal.SIGINT)
    assert again.wait(60) == 130
    again.communicate()


def test_a_run_that_is_stopped_while_it_prepares_leaves_the_folders_of_others(tmp_path):
    """Both lie in a folder that the first has made."""
    slow, quick = tmp_path / "slow.toml", tmp_path / "quick.toml"
    text = SHORT.format(rounds=1_000_000)
    slow.write_text(text.replace("clients = 3", "clients = 1500").replace("samples = 60", 'partition = "overlapping"'))
    quick.write_text(text)
    first = begin("run", slow, "--force", cwd=tmp_path)
    until((tmp_path / "runs" / "slow" / "shards").exists, first)
    os.kill(first.pid, signal.SIGSTOP)
    second = begin("run", quick, cwd=tmp_path)
    until((tmp_path / "runs" / "quick" / "state" / "round-000004").exists, second)
    os.kill(first.pid, signal.SIGINT)
    os.kill(first.pid, signal.SIGCONT)
    assert (first.wait(60), first.communicate()[1].count("Traceback")) == (130, 0)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["quick"]
    second.send_signal(signal.SIGINT)
    assert second.wait(60) == 130, second.communicate()
    second.communicate()
    assert (tmp_path / "runs" / "quick" / "config.toml").exists()
    assert len(list((tmp_path / "runs" / "quick" / "shards").iterdir())) == 3


def test_two_runs_into_one_folder_are_one_run_and_one_line(tmp_path):
    config, out = tmp_path / "config.toml", tmp_path / "out"
    config.write_text(SHORT.format(rounds=40))
    both = [begin("run", config, "--out", out) for _ in range(2)]
    ended = sorted(((each.communicate(timeout=100)[1], each.returncode) for each in both), key=lambda end: end[1])
    assert [code for _, code in ended] == [0, 2]
    assert ended[1][0].count("\n") == 1
    assert "another run is at work in it" in ended[1][0] or "is not an empty folder" in ended[1][0]
    with closing(sqlite3.connect(out / "run.sqlite")) as records:
        assert records.execute("SELECT count(*) FROM round WHERE round = 40").fetchone() == (3,)


def test_a_run_is_taken_up_whatever_process_has_its_launchers_number_now(killed):
    """As in a container, where the launcher always has the same one."""
    namesake = subprocess.Popen([sys.executable, "-c", "input()", "sheafgossip"], stdin=subprocess.PIPE)
    with closing(sqlite3.connect(killed / "run.sqlite")) as records, records:
        records.execute(f"UPDATE node SET pid = {namesake.pid} WHERE node = -1")
    require_it_goes_on(killed)
    namesake.communicate()


def test_of_two_who_take_up_a_run_one_does_and_the_other_is_told(killed):
    both = [begin("resume", killed) for _ in range(2)]
    until(lambda: any(each.poll() is not None for each in both))
    (refused,) = (each for each in both if each.poll() is not None)
    (going,) = (each for each in both if each is not refused)
    said = refused.communicate()[1]
    assert (refused.returncode, said.count("\n")) == (2, 1)
    assert "this run is still going on" in said
    going.send_signal(signal.SIGINT)
    assert going.wait(60) == 130
    going.communicate()


def test_a_run_is_not_taken_up_before_its_collector_has_stored_all(start):
    going = start(SHORT.format(rounds=1_000_000))
    going.until_round(8)
    folder = going.folder.path
    collector = next(each for each in going.processes() if "sheafgossip.metrics.collector" in each.cmdline())
    collector.suspend()
    going.kill()
    try:
        early = begin("resume", folder)
        assert (early.wait(60), "this run is still going on" in early.communicate()[1]) == (2, True)
    finally:
        collector.resume()
    psutil.wait_procs([collector], timeout=20)
    assert not lock.is_held(folder)
    require_it_goes_on(folder)


def test_summary_tells_a_run_that_was_killed_from_one_that_goes_on(start):
    going = start(SHORT.format(rounds=1_000_000))
    going.until_round(4)

    def shown() -> str:
        return subprocess.run(
            [*CLI, "summary", str(going.folder.path), "--json"], capture_output=True, text=True
        ).stdout

    assert '"status": "running"' in shown()
    for process in going.processes():
        with suppress(psutil.NoSuchProcess):  # with its parent
            process.kill()
    going.process.communicate()
    until(lambda: not lock.is_held(going.folder.path))
    assert '"status": "interrupted"' in shown()


@pytest.mark.parametrize("name", ["state", "log/collector.log", "log/node-0001.log", "config.toml", "shards"])
def test_resume_refuses_a_link_below_a_run_folder_and_leaves_what_it_leads_to(killed, tmp_path, name):
    target = tmp_path / "home"
    shutil.move(killed / name, target)
    documents = [target / "papers", target / "papers" / "thesis.part"]
    if target.is_dir():
        documents[0].mkdir()
        documents[1].write_text("irreplaceable")
    (killed / name).symlink_to(target)
    before = target.read_bytes() if target.is_file() else documents[1].read_bytes()
    done = subprocess.run([*CLI, "resume", str(killed)], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{name} is a symbolic link" in done.stderr
    assert (target.read_bytes() if target.is_file() else documents[1].read_bytes()) == before


@pytest.fixture
def tiny_disk(tmp_path):
    place = tmp_path / "tiny"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "none", str(place)], capture_output=True).returncode:
        pytest.skip("only root may mount a tiny disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_ends_a_run_with_one_line_and_summary_tells_the_truth(tiny_disk, tmp_path):
    (tmp_path / "config.toml").write_text(SHORT.format(rounds=1_000_000))
    done = subprocess.run(
        [*CLI, "run", str(tmp_path / "config.toml"), "--out", str(tiny_disk / "run"), "--quiet"],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "No space left on device" in done.stderr or "disk is full" in done.stderr
    shown = subprocess.run([*CLI, "summary", str(tiny_disk / "run"), "--json"], capture_output=True, text=True)
    assert '"status": "failed"' in shown.stdout or '"status": "interrupted"' in shown.stdout, shown


def test_a_disk_that_is_full_before_the_start_is_told_in_one_line_and_nothing_is_left(tiny_disk, tmp_path):
    (tiny_disk / "other").write_bytes(bytes(1_480_000))
    (tmp_path / "config.toml").write_text(SHORT.format(rounds=4).replace("samples = 60", "samples = 1500"))
    done = subprocess.run(
        [*CLI, "run", str(tmp_path / "config.toml"), "--out", str(tiny_disk / "run")], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "No space left on device" in done.stderr or "disk is full" in done.stderr
    assert [path.name for path in tiny_disk.iterdir()] == ["other"]
