"""Several who want the same folder, links where files should be, a disk that is full: nobody's files are touched."""

import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest

from foreign import sheafgossip
from runs import RunFolder, command, small, until
from sheafgossip.metrics import lock
from sheafgossip.metrics.reader import open_records
from sheafgossip.metrics.records import LAUNCHER, EventRecord
from sheafgossip.metrics.store import RunFolderError, Store

ENDLESS = small("checkpoints.every = 4", clients=3, rounds=1_000_000, samples=60, algorithm="dfedu")


@pytest.fixture
def killed(run_in_threads, tmp_path) -> RunFolder:
    """A run whose launcher was killed, and of which no process is left."""
    folder = run_in_threads(ENDLESS, "rounds=8").copy(tmp_path / "killed")
    folder.cut_after(6)
    return folder


def test_a_run_that_is_stopped_while_it_prepares_leaves_the_folders_of_others(begin, tmp_path):
    """Both lie in a folder that the first has made."""
    slow, quick, runs = tmp_path / "slow.toml", tmp_path / "quick.toml", tmp_path / "runs"
    slow.write_text(small('data.partition = "overlapping"', clients=1500, rounds=1_000_000))
    quick.write_text(ENDLESS)
    first = begin("run", slow, "--force", cwd=tmp_path)
    first.until((runs / "slow" / "shards").exists)
    first.signal(signal.SIGSTOP)
    second = begin("run", quick, cwd=tmp_path)
    second.until((runs / "quick" / "state" / "round-000004").exists)
    first.signal(signal.SIGINT)
    first.ends(130, lambda: first.signal(signal.SIGCONT))
    assert [path.name for path in runs.iterdir()] == ["quick"]
    second.ends(130, second.signal)
    assert (runs / "quick" / "config.toml").exists()
    assert len(list((runs / "quick" / "shards").iterdir())) == 3


def test_two_runs_into_one_folder_are_one_run_and_one_line(begin, tmp_path):
    config, out = tmp_path / "config.toml", tmp_path / "run"
    config.write_text(ENDLESS.replace("1000000", "40"))
    both = [begin("run", config, "--out", out, stdout=subprocess.DEVNULL) for _ in range(2)]
    (first, _), (second, said) = sorted((each.process.wait(100), each.process.stderr.read()) for each in both)
    assert (first, second, said.count("\n")) == (0, 2, 1)
    assert "another run is at work in it" in said or "is not an empty folder" in said
    assert RunFolder(out).rows("SELECT count(*) FROM round WHERE round = 40") == [(3,)]


def test_of_two_who_take_up_a_run_one_does_and_the_other_is_told(begin, killed):
    """As in a container, where the launcher always has the same one."""
    with subprocess.Popen([sys.executable, "-c", "input()", "sheafgossip"], stdin=subprocess.PIPE) as namesake:
        killed.alter(f"UPDATE node SET pid = {namesake.pid} WHERE node = -1")
        both = [begin("resume", killed.path, "--rounds", 1_000_000) for _ in range(2)]
        until(lambda: any(each.process.poll() is not None for each in both))
        refused, going = sorted(both, key=lambda each: each.process.poll() is None)
        code, said = refused.end()
        assert (code, said.count("\n")) == (2, 1)
        assert "this run is still going on" in said
        assert "going on after round" in going.process.stderr.readline()
        going.ends(130, going.signal)
        namesake.communicate()


def test_a_run_is_not_taken_up_before_its_collector_has_stored_all_and_summary_tells_whether_it_goes_on(
    start, monkeypatch
):
    going = start(ENDLESS)
    going.until_round(8)
    folder, collector = going.folder.path, going.process_of("sheafgossip.metrics.collector")
    assert '"status": "running"' in sheafgossip("summary", folder, "--json")[1]
    collector.suspend()
    going.kill()
    try:
        monkeypatch.delattr("sheafgossip.launcher.studies.runner.open_engine")  # no process is started for that
        code, _, error = sheafgossip("resume", folder)
        assert (code, "this run is still going on" in error) == (2, True)
    finally:
        collector.resume()
    psutil.wait_procs([collector], timeout=20)
    assert not lock.is_held(folder)
    assert '"status": "interrupted"' in sheafgossip("summary", folder, "--json")[1]


@pytest.mark.parametrize("name", ["state", "log/node-0001.log", "config.toml"])
def test_resume_refuses_a_link_below_a_run_folder_and_leaves_what_it_leads_to(killed, tmp_path, name):
    target = tmp_path / "home"
    shutil.move(killed.path / name, target)
    if target.is_dir():
        (target / "thesis.part").write_text("irreplaceable")
    (killed.path / name).symlink_to(target)
    before = {path: path.read_bytes() for path in (target, *target.glob("**/*")) if path.is_file()}
    code, _, said = sheafgossip("resume", killed.path)
    assert (code, said.count("\n")) == (2, 1)
    assert f"{name} is a symbolic link" in said
    assert {path: path.read_bytes() for path in before} == before


@pytest.fixture
def tiny_disk(tmp_path):
    place = tmp_path / "tiny"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "none", str(place)], capture_output=True).returncode:
        pytest.skip("only root may mount a tiny disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_ends_a_run_with_one_line_and_summary_tells_the_truth(tiny_disk, tmp_path):
    (tmp_path / "config.toml").write_text(ENDLESS)
    said = command("run", tmp_path / "config.toml", "--out", tiny_disk / "run", "--quiet", code=1).stderr
    assert "Traceback" not in said
    assert "No space left on device" in said or "disk is full" in said
    _, shown, _ = sheafgossip("summary", tiny_disk / "run", "--json")
    assert '"status": "failed"' in shown or '"status": "interrupted"' in shown, shown


def test_records_are_read_though_the_disk_had_no_room_to_write_how_the_run_ended(tiny_disk):
    """SQLite leaves an empty log there, and cannot put an index beside it."""
    folder = tiny_disk / "run"
    folder.mkdir()
    store = Store(folder / "run.sqlite")
    store.write([EventRecord(0.0, None, LAUNCHER, "start", "3 clients ready")])
    store.close()
    with suppress(OSError), (tiny_disk / "other").open("wb", buffering=0) as other:
        while other.write(bytes(4096)):
            continue
    with pytest.raises(RunFolderError):
        Store(folder / "run.sqlite")
    assert (folder / "run.sqlite-wal").stat().st_size == 0
    with open_records(folder) as records:
        assert records.execute("SELECT detail FROM event").fetchall() == [("3 clients ready",)]


def test_a_disk_that_is_full_before_the_start_is_told_in_one_line_and_nothing_is_left(tiny_disk, tmp_path):
    (tiny_disk / "other").write_bytes(bytes(1_480_000))
    (tmp_path / "config.toml").write_text(small(clients=3, samples=1500))
    code, _, said = sheafgossip("run", tmp_path / "config.toml", "--out", tiny_disk / "run")
    assert (code, said.count("\n")) == (2, 1), said
    assert "No space left on device" in said or "disk is full" in said
    assert [path.name for path in tiny_disk.iterdir()] == ["other"]
