"""What trackers hold of a run, read by their own readers, against run.sqlite read by plain SQL."""

import importlib.util
import json
import shlex
import sqlite3
import struct
import subprocess
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from chaos.records import differences
from made import done, write
from runs import small
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.config.sections import ConfigError
from sheafgossip.launcher.processes.tracker import TrackerProcess
from sheafgossip.launcher.studies.runner import PlannedRun, run_each
from sheafgossip.metrics import tracking
from sheafgossip.metrics.config_file import read_config, setting_of
from sheafgossip.metrics.export import ExportError, export
from sheafgossip.metrics.trackers import EVENT_FILE
from sheafgossip.topology.errors import UserError

Found = dict[tuple[str, int], float]  # {(tag, round): value}


def on_record(folder: Path) -> Found:
    """Of runs of at most ten clients."""
    found: Found = {}
    columns = ("test_metric", "train_loss", "disagreement")
    with closing(sqlite3.connect(folder / "run.sqlite")) as records:
        rows = records.execute(f"SELECT round, node, wall_s, {', '.join(columns)} FROM round").fetchall()
        sizes = records.execute("SELECT wall_s, node, pss FROM resource JOIN node USING (node) WHERE role = 'client'")
        samples = sorted(sizes)
        for round, size in records.execute("SELECT round, sum(payload_bytes) FROM traffic GROUP BY round"):
            found["sum/payload_bytes", round] = size
    for round in {row[0] for row in rows}:
        there = [row for row in rows if row[0] == round]
        for number, column in enumerate(columns, 3):
            values = {row[1]: row[number] for row in there if row[number] is not None}
            found |= {(f"client_{node:04d}/{column}", round): value for node, value in values.items()}
            if values:
                found[f"mean/{column}", round] = sum(values.values()) / len(values)
            if values and column == "test_metric":
                found["worst_10/test_metric", round] = min(values.values())
        last_s = max(row[2] for row in there)
        if latest := {node: pss for wall_s, node, pss in samples if wall_s <= last_s}:
            found["sum/pss", round] = sum(latest.values())
    return found


def in_tensorboard(folder: Path) -> Found:
    module = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(module, reason="the package tensorboard is not installed")
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {(tag, each.step): each.value for tag in events.Tags()["scalars"] for each in events.Scalars(tag)}


def in_wandb(folder: Path) -> Found:
    """Its file is LevelDB's log: blocks of 32 KiB, of records with checksum, length and which part of a whole it is."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, at, whole, found = file.read_bytes(), 7, b"", Found()
    while at + 7 <= len(data):
        if (left := -at % 32768) < 7:
            at += left
            continue
        _, length, part = struct.unpack_from("<IHB", data, at)
        whole, at = whole + data[at + 7 : at + 7 + length], at + 7 + length
        if part in (1, 4):  # the only one, the last
            items = {item.key or item.nested_key[0]: item for item in Record.FromString(whole).history.item}
            found |= {
                (tag, int(items["_step"].value_json)): float(i.value_json) for tag, i in items.items() if "/" in tag
            }
            whole = b""
    return found


def in_trackio(folder: Path) -> Found:
    with closing(sqlite3.connect(folder / "sheafgossip.db")) as records:
        rows = records.execute("SELECT step, metrics FROM metrics").fetchall()
    return {(tag, step): value for step, text in rows for tag, value in json.loads(text).items()}


def test_mlflow_reads_back_a_run_figure_by_figure_and_once_however_often_it_is_written(make_run, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="the package mlflow-skinny is not installed")
    store = f"file:{tmp_path}/store"  # without a database, quick to make
    for name, value in (("TRACKING_URI", store), ("ALLOW_FILE_STORE", "true"), ("DISABLE_TELEMETRY", "true")):
        monkeypatch.setenv(f"MLFLOW_{name}", value)
    run = make_run(config='seed = 3\n[algorithm]\nname = "d-psgd"\n')
    for _ in range(2):
        tracking.main(run, "mlflow", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    client = mlflow.MlflowClient(store)
    (found,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params == {"seed": "3", "algorithm.name": "d-psgd"}
    history = {tag: client.get_metric_history(found.info.run_id, tag) for tag in found.data.metrics}
    values = {(tag, each.step): each.value for tag, each_round in history.items() for each in each_round}
    assert len(values) == sum(map(len, history.values()))
    assert values == pytest.approx(on_record(run), rel=1e-12)


@pytest.mark.parametrize(("to", "read"), [("wandb", in_wandb), ("trackio", in_trackio)])
def test_trackers_without_a_network_read_back_a_run_figure_by_figure(to, read, make_run, tmp_path):
    pytest.importorskip(to, reason=f"the package {to} is not installed")
    run = make_run(config='seed = 3\n[algorithm]\nname = "d-psgd"\n')
    for _ in range(2):
        assert export(run, to, tmp_path / "store") == [tmp_path / "store"]
    assert read(tmp_path / "store") == pytest.approx(on_record(run), rel=1e-12)


class Kept:
    """A tracker that keeps what it is told; a later one of the same run takes its place."""

    def __init__(self):
        self.found: dict[int, object] = {}

    def log(self, round, scalars):
        assert round not in self.found
        self.found[round] = [dict(tags) for _, tags in scalars]

    def flush(self): ...

    def end(self, status):
        self.status = status


def test_rounds_are_told_when_all_have_completed_them_and_corrected_where_somebody_comes_late(make_run):
    run, made, seen = make_run(metrics=((0.1, 0.3), (0.5, 0.7))), [], []
    write(run, done(0, 2, 0.8, 2.0))
    looks = iter([lambda: None, lambda: None, lambda: write(run, done(1, 2, 1.0, 2.5)), lambda: None, lambda: None])

    def word(seconds: float) -> str:
        if made:
            seen.append(sorted(made[-1].found))
        act = next(looks, None)
        if act is None:
            write(run, done(2, 0, 0.9, 0.7))  # changes what was told of round 0
            return "finished"
        act()
        return ""

    tracking.follow(run, lambda: made.append(Kept()) or made[-1], word)
    assert seen == [[], [], [0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert len(made) == 2
    assert made[-1].status == "finished"
    told = {(tag, round): value for round, each in made[-1].found.items() for own in each for tag, value in own.items()}
    assert told == pytest.approx(on_record(run), rel=1e-12)


def test_a_tracked_run_is_the_same_run_and_a_tracker_whose_disk_is_full_is_one_warning(run_in_threads, tmp_path):
    plain = run_in_threads(small())
    tracked = run_in_threads(small(), "tracking.to=tensorboard")
    assert in_tensorboard(tracked.path / "tracking") == pytest.approx(on_record(tracked.path), rel=1e-6)  # single
    assert tracked.rows("SELECT * FROM event WHERE kind = 'warning'") == []
    ours, theirs = (setting_of(read_config(each.path)) for each in (plain, tracked))
    assert ours == theirs
    assert load(tracked.path / "config.toml") == load(plain.path / "config.toml")
    assert [line for line in differences(plain, tracked, interrupted=False) if "config" not in line] == []

    (full := tmp_path / "store" / "run").mkdir(parents=True)
    (full / EVENT_FILE).symlink_to("/dev/full")
    failing = run_in_threads(small(), "tracking.to=tensorboard", f"tracking.folder={tmp_path}/store")
    ((why,),) = failing.rows("SELECT detail FROM event WHERE kind = 'warning'")
    assert why.startswith("tracking.to = 'tensorboard': not all rounds are there, write them with `sheafgossip export ")
    assert why.endswith("`: OSError: [Errno 28] No space left on device")
    assert failing.rows("SELECT kind FROM event WHERE node = -1 ORDER BY rowid DESC LIMIT 1") == [("finish",)]


def test_an_interrupted_run_does_not_wait_for_its_tracker_and_names_the_command_that_completes_it(make_run, tmp_path):
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    (tmp_path / "run.toml").write_text(small("tracking.to = 'tensorboard'"))
    (config,), run = load(tmp_path / "run.toml"), make_run()
    (run / "log").mkdir()
    with TrackerProcess(SimpleNamespace(config=config, folder=run)) as tracker:
        assert tracker.news() == ""
        (process,) = (each for each in psutil.Process().children() if "sheafgossip.metrics.tracking" in each.cmdline())
        process.suspend()  # as one that waits for its server
        began = time.monotonic()
        told = tracker.end("interrupt", lambda _: None, lambda: False)
        assert time.monotonic() - began < 1.0
        assert not process.is_running()
    assert told.endswith(": the run did not wait for it")
    program, command, folder, _, to = shlex.split(told.split("`")[1])
    assert (program, command) == ("sheafgossip", "export")
    export(folder, to)
    assert in_tensorboard(run / "export") == pytest.approx(on_record(run), rel=1e-6)


def test_no_tracker_outlives_a_launcher_that_is_killed(make_run, tmp_path):
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    words = tracking.process_of(make_run(), "tensorboard", tmp_path / "store", chosen=True)["args"]
    launcher = f"sleep 99 | {shlex.join(words)} $$ & echo $!; wait"
    with subprocess.Popen(["bash", "-c", launcher], stdout=subprocess.PIPE, text=True) as parent:
        tracker = psutil.Process(int(parent.stdout.readline()))
        while not (tmp_path / "store").exists():
            time.sleep(0.02)
        assert tracker.is_running()
        sleeping = psutil.Process(parent.pid).children()
        parent.kill()
        tracker.wait(2.0)
        for each in sleeping:
            if each.is_running():
                each.kill()


def test_a_server_that_is_not_there_is_told_in_one_line_without_its_password(make_run, tmp_path, monkeypatch):
    class Nowhere(Kept):
        def __init__(self, *_: object):
            raise ConnectionError("no answer\n from http://me:secret@there:1/api")

    monkeypatch.setitem(tracking.TRACKERS, "wandb", Nowhere)
    with pytest.raises(SystemExit) as refusal:
        tracking.main(make_run(), "wandb", tmp_path)
    assert tracking.last_line(refusal.value.code) == "ConnectionError: no answer from http://there:1/api"
    assert "secret@" not in refusal.value.code


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("tracking.to = 'tensorbord'",), r"tracking\.to = 'tensorbord'; allowed: .*did you mean 'tensorboard'"),
        (("tracking.folder = 'x'",), r"tracking\.folder = .*: has no effect"),
    ],
)
def test_wrong_keys_are_one_line(lines, said, tmp_path):
    (tmp_path / "run.toml").write_text(small(*lines))
    with pytest.raises(ConfigError, match=said) as refusal:
        load(tmp_path / "run.toml")
    assert len(refusal.value.args) == 1


def test_a_missing_package_and_a_folder_that_is_none_are_refused_before_the_start(make_run, tmp_path, monkeypatch):
    (tmp_path / "run.toml").write_text(small("tracking.to = 'tensorboard'", "tracking.folder = 'run.toml'"))
    (config,) = load(tmp_path / "run.toml")
    planned = [PlannedRun(config, tmp_path / "out")]
    with pytest.raises(UserError, match=r"run.toml.*: cannot be written: .*run.toml is no folder"):
        run_each(planned)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"tracking.to = 'tensorboard' needs tensorboard: .*\.\[tensorboard\]"):
        run_each(planned)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ExportError, match=r"--to wandb needs wandb: .*\.\[wandb\]"):
        export(make_run(), "wandb")
