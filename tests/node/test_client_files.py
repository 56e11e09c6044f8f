"""What goes in and out of a client process: its assignment, its state files, and the sample of what it uses."""

import json
import mmap
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from sheafgossip.node.assignment import Assignment, Period
from sheafgossip.node.model.architecture import Architecture
from sheafgossip.node.process.main import write_state
from sheafgossip.node.process.reporting import Pace, sample


def test_an_assignment_survives_its_journey_as_json_but_for_what_is_no_plain_value(assignment):
    cnn = Architecture("cnn", (1, 28, 28), 10, filters=(32, 64), hidden=(120,))
    periods = Period((1,), {5: 0.5}), Period((5,), {1: 0.25})
    for sent in (assignment, replace(assignment, architecture=cnn, neighbours=(), periods=periods)):
        assert Assignment.from_json(json.loads(json.dumps(sent.to_json()))) == sent
    with pytest.raises(TypeError):
        replace(assignment, facts=object()).to_json()


def test_the_files_of_a_client_lie_where_the_run_folder_promises(assignment):
    places = assignment.shard, assignment.state(40), assignment.log
    assert [place.relative_to(assignment.run.folder) for place in places] == [
        Path("shards/node-0003.safetensors"),
        Path("state/round-000040/node-0003.safetensors"),
        Path("log/node-0003.log"),
    ]


def test_a_state_comes_out_as_it_was_written_or_stays_as_it_was_and_leaves_nothing_else_behind(tmp_path):
    path = tmp_path / "state" / "round-000040" / "node-0003.safetensors"
    arrays = {"theta": np.arange(5.0), "P.1": np.arange(6, dtype=np.float32).reshape(2, 3).T}
    write_state(path, 39, {"theta": np.zeros(3)})
    write_state(path, 40, arrays)
    with pytest.raises(TypeError, match="object"):
        write_state(path, 41, {"theta": np.array([object()])})
    loaded = load_file(path)
    assert set(loaded) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array, strict=True)
    with safe_open(path, framework="np") as file:
        assert file.metadata()["round"] == "40"
    assert list(path.parent.iterdir()) == [path]


def test_a_sample_tells_the_memory_and_cpu_time_of_this_process_and_grows_with_them():
    cpu = time.process_time()
    before = sample(3, 1.5, (1, 20, 300, 4000))
    assert (before.node, before.wall_s) == (3, 1.5)
    assert 0 < before.uss <= before.pss <= before.rss
    assert before.peak_rss > before.uss
    assert cpu <= before.cpu_s <= time.process_time()
    assert (before.theta_bytes, before.map_bytes, before.history_bytes, before.buffer_bytes) == (1, 20, 300, 4000)
    assert before.state_bytes == 4321
    held = mmap.mmap(-1, 32_000_000)  # new pages, and not what earlier tests have freed
    held[:: mmap.PAGESIZE] = b"x" * -(-len(held) // mmap.PAGESIZE)
    assert sample(3, 0.0).uss - before.uss == pytest.approx(len(held), rel=0.1)


def test_a_sample_may_be_of_another_process_until_it_is_gone():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert sample(-3, 0.0, pid=child.pid).rss > 0
    child.communicate(b"\n")
    with pytest.raises(psutil.NoSuchProcess):
        sample(-3, 0.0, pid=child.pid)


@pytest.fixture
def clock(monkeypatch):
    """CPU time of this thread that passes only when a test says so."""
    now = [5.0]
    monkeypatch.setattr(time, "thread_time", lambda: now[0])
    return now


def test_samples_take_half_a_percent_of_the_cpu_time(clock):
    pace, taken = Pace(every=0.0), 0.0
    for wall in range(10_000):
        clock[0] += 0.01
        if pace.due(wall):
            with pace.sampling(wall):
                clock[0] += 0.004
                taken += 0.004
    assert taken / (clock[0] - 5.0) == pytest.approx(0.005, rel=0.02)


def test_no_sample_is_due_before_its_time(clock):
    pace = Pace(every=2.0)
    for last in (0.0, 2.0):
        clock[0] += 100
        assert [pace.due(last + wall) for wall in (1.9, 2.0)] == [False, True]
        with pace.sampling(last + 2.0):
            pass
