"""What is recorded of an interrupted run that was taken up: as often as it happened, whatever was done again."""

import re
from collections import Counter

import pytest

from runs import run_here_again

CONFIG = """
clients = 4
rounds = 30
[topology]
kind = "ring"
[data]
samples = 80
[compute]
step_s = {step_s}
slowdown = [1.0, 1.0, 1.0, 8.0]
[time]
clock = "{clock}"
silence = "skip"
deadline_s = {step_s}
[checkpoints]
every = 5
[algorithm]
name = "d-psgd"
[[faults]]
kind = "crash"
clients = [1]
at_round = 7
restart_after = 3
[[faults]]
kind = "leave"
clients = [2]
at_round = 12
[[faults]]
kind = "slow"
clients = [0]
rounds = [1, 3]
"""
VIRTUAL = CONFIG.format(clock="virtual", step_s=0.01)
SHEAF = """
clients = 3
rounds = 6
[topology]
kind = "ring"
[data]
samples = 60
[algorithm]
name = "sheaf-fmtl"
gamma = 0.05
eta = 0.35
lam = 1.0
start_scale = 0.1
"""
"""Steps of the maps near divergence."""


def events(folder, *kinds):
    return Counter(folder.rows(f"SELECT kind, node, detail FROM event WHERE kind IN {(*kinds, '')}"))


@pytest.mark.parametrize(
    ("forgotten", "last", "resumed_at"),
    [
        ("", 23, 20),
        ("", 2, 0),  # before the first checkpoint: the run begins again
        ("DELETE FROM event WHERE kind = 'leave'", 23, 10),  # others may be far ahead of it when all are killed
    ],
    ids=["after a checkpoint", "before the first one", "before a departure that is not on record"],
)
def test_events_are_on_record_once_whatever_rounds_are_done_again(
    run_in_threads, tmp_path, forgotten, last, resumed_at
):
    whole = run_in_threads(VIRTUAL)
    kinds = ("timeout", "crash", "restart", "leave", "scenario")
    told = events(whole, *kinds)
    assert {kind for kind, *_ in told} == set(kinds)
    folder = whole.copy(tmp_path / "run")
    folder.alter(forgotten)
    folder.cut_after(last)
    assert run_here_again(folder, "threads").prepared.resumed_at == resumed_at
    assert events(folder, *kinds) == told


def test_a_warning_of_a_round_that_is_done_again_is_told_once(run_in_threads, tmp_path):
    folder = run_in_threads(SHEAF).copy(tmp_path / "run")
    told = events(folder, "warning")
    assert told
    folder.cut_after(2)
    run_here_again(folder, "threads")
    assert events(folder, "warning") == told


def test_on_the_wall_clock_a_run_goes_on_after_a_departure_and_tells_of_it_once(cut):
    folder = cut(CONFIG.format(clock="wall", step_s=0.02), round=20, away=1)
    first = waits(folder)
    assert re.search("going on after round (15|20)", folder.resume())
    told = events(folder, "crash", "restart", "leave")
    assert sorted(event[:2] for event in told.elements()) == [("crash", 1), ("leave", 2), ("restart", 1)]
    assert dict(folder.rows("SELECT node, max(round) FROM round GROUP BY node")) == {0: 30, 1: 30, 2: 11, 3: 30}
    again = waits(folder)
    assert all(again.get(node, 0) >= count / 2 for node, count in first.items())  # some rounds were done again


def waits(folder):
    """{client: how many deadlines ended its waits}, of those that were there from the first round to the last."""
    rows = folder.rows("SELECT node, detail FROM event WHERE kind = 'timeout' AND node IN (0, 3)")
    assert len(rows) == len(dict(rows))
    return {node: int(detail.split()[0]) for node, detail in rows}


def test_what_is_on_record_of_a_round_is_all_of_it_wherever_its_records_were_cut_off(start, monkeypatch):
    """Each record is a batch of its own here, and each is committed: the collector dies between two of one round."""
    monkeypatch.setenv("SHEAFGOSSIP_TEST_CONSTANTS", "records_a_batch=1,burst=1,burst_rows=1,commit_every_s=0")
    monkeypatch.setenv("SHEAFGOSSIP_FAILPOINTS", "committed@collector:62=kill")
    going = start(VIRTUAL)
    assert going.end()[0] == 1
    told = going.folder.rows("SELECT node, round FROM round WHERE round > 0")
    assert told
    for node, round in told:
        sent = going.folder.rows(f"SELECT DISTINCT dst FROM traffic WHERE src = {node} AND round = {round}")
        used = going.folder.rows(f"SELECT DISTINCT neighbour FROM used WHERE node = {node} AND round = {round}")
        assert (len(sent), len(used)) == (2, 2), (node, round)
