"""Connections that are opened when they are first needed: those of the pairs that talk, and nothing else changes."""

from dataclasses import replace

import pytest

from runs import assert_same, run_here_again, small
from sheafgossip.launcher.prepare import assignments
from sheafgossip.metrics.verification import compare_with_kernel
from sheafgossip.transport.connections import counts_bytes

EPIDEMIC = small(
    'algorithm = {name = "epidemic", k = 1, sampling = "local"}',
    "checkpoints.every = 4",
    clients=12,
    rounds=16,
    samples=240,
    topology="",
    algorithm="",
)
PLANNED = """
time = {clock = "virtual", staleness = 4, silence = "stale", deadline_s = 2.0}
compute = {step_s = 0.05, slowdown = [1.0, 5.0, 1.0]}
links = {latency_s = 0.02, loss = 0.05}
faults = [{kind = "crash", clients = [1, 8], at_round = 5, restart_after = 3},
          {kind = "join", clients = [0], at_round = 4}, {kind = "leave", clients = [5], at_round = 11}]
"""
MEETINGS = small(
    'time.clock = "virtual"',
    "compute.step_s = 0.1",
    "checkpoints.every = 4",
    clients=12,
    rounds=6,
    topology="complete",
    algorithm="ad-psgd",
)
SEEKING = small(
    'algorithm = {name = "selective-sheaf", gamma = 0.1, seek = true}',
    "checkpoints.every = 4",
    clients=12,
    rounds=6,
    algorithm="",
)
CASES = {"graphs that change": EPIDEMIC, "crash, restart, join": EPIDEMIC + PLANNED, "by time": MEETINGS}


@pytest.fixture
def late(monkeypatch):
    """Wherever a client has more than four connections, instead of 64."""
    few = replace(assignments.CONSTANTS, opened_at_start=4)
    monkeypatch.setattr(assignments, "CONSTANTS", few)


def pairs_that_talk(folder):
    return sorted({(min(i, j), max(i, j)) for i, j, _ in folder.payload()})


def same_with_all_at_the_start(monkeypatch, run_in_threads, text, folder):
    monkeypatch.undo()
    at_start = run_in_threads(text)
    assert_same(at_start, folder)
    return at_start


@pytest.mark.parametrize("case", [*CASES, "seeking"])
def test_the_pairs_that_talk_are_connected_and_the_bits_are_those_of_connections_from_the_start(
    run_in_threads, late, monkeypatch, case
):
    text = "seed = 7\n" + (CASES | {"seeking": SEEKING})[case]
    folder = run_in_threads("# late\n" + text)
    assert folder.edges() == pairs_that_talk(folder)
    at_start = same_with_all_at_the_start(monkeypatch, run_in_threads, text, folder)
    if case in ("by time", "seeking"):
        assert len(at_start.edges()) == 12 * 11 / 2 > len(folder.edges())


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_is_taken_up_again_ends_with_the_same_bits(run_in_threads, late, monkeypatch, tmp_path, case):
    text = "seed = 7\n" + CASES[case]
    folder = run_in_threads("# late\n" + text).copy(tmp_path / "cut")
    folder.cut_after(5)
    prepared = run_here_again(folder, "threads").prepared
    assert prepared.resumed_at == 4
    assert prepared.assignments[0].run.opens_late
    same_with_all_at_the_start(monkeypatch, run_in_threads, text, folder)


@pytest.mark.skipif(not counts_bytes(), reason="this kernel does not count the bytes of TCP connections")
@pytest.mark.parametrize("clock", ["", 'time.clock = "virtual"\ncompute = {step_s = 0.05, slowdown = [1.0, 5.0]}\n'])
def test_what_opening_them_took_is_what_the_kernel_counted(run_in_processes, late, clock):
    tcp = 'transport.protocol = "tcp"\nmeasuring.kernel = true\n'
    folder = run_in_processes(EPIDEMIC + tcp + clock, "rounds=8")
    check = compare_with_kernel(folder.path)
    assert not check.differing
    assert not check.loose_ends
    assert folder.edges() == pairs_that_talk(folder)
    rows = folder.rows("SELECT src, dst, count(*) FROM overhead WHERE kind = 'hello' GROUP BY src, dst")
    assert len(rows) == 2 * check.connections == 2 * len(folder.edges())
    assert {count for *_, count in rows} == {1}
