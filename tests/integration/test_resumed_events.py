"""What is recorded of an interrupted run that was taken up: as often as it happened, whatever was done again."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing

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
"""


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


def cut_after(folder, round: int) -> None:
    """As if the run had been interrupted after this round."""
    with closing(sqlite3.connect(folder.path / "run.sqlite")) as records, records:
        for table in ("round", "traffic", "used"):
            records.execute(f"DELETE FROM {table} WHERE round > {round}")
        records.execute("DELETE FROM event WHERE kind = 'finish'")


def events(folder, kind: str) -> Counter:
    return Counter(folder.rows(f"SELECT node, detail FROM event WHERE kind = '{kind}'"))


def test_waits_that_a_deadline_ended_are_counted_on_after_a_resume(run):
    folder = run(CONFIG.format(clock="virtual", step_s=0.01))
    kinds = ("timeout", "crash", "restart", "leave")
    whole = {kind: events(folder, kind) for kind in kinds}
    assert whole["timeout"]
    cut_after(folder, 23)
    assert "going on after round 20" in folder.resume()
    assert {kind: events(folder, kind) for kind in kinds} == whole


def test_they_are_on_the_wall_clock_too(run):
    folder = run(CONFIG.format(clock="wall", step_s=0.01))
    first = waits(folder)
    cut_after(folder, 23)
    assert "going on after round 20" in folder.resume()
    again = waits(folder)
    assert again.keys() == first.keys()
    assert all(again[node] > first[node] / 2 for node in first)  # a third of the rounds were done again


def waits(folder) -> dict[int, int]:
    """{client: how many}, of those that were there from the first round to the last."""
    rows = folder.rows("SELECT node, detail FROM event WHERE kind = 'timeout' AND node IN (0, 3)")
    assert len(rows) == len(dict(rows))
    return {node: int(detail.split()[0]) for node, detail in rows}


def test_on_the_wall_clock_a_run_goes_on_after_a_departure_and_tells_of_it_once(cut):
    folder = cut(CONFIG.format(clock="wall", step_s=0.02), round=20, away=1)
    assert re.search("going on after round (15|20)", folder.resume())
    for kind, node in (("crash", 1), ("restart", 1), ("leave", 2)):
        assert [who for (who, _) in events(folder, kind).elements()] == [node], kind
    assert dict(folder.rows("SELECT node, max(round) FROM round GROUP BY node")) == {0: 30, 1: 30, 2: 11, 3: 30}


def test_what_the_scenario_does_is_told_once_where_a_run_begins_again(run):
    config = CONFIG.format(clock="virtual", step_s=0.01) + '[[faults]]\nkind = "slow"\nclients = [0]\nrounds = [1, 3]\n'
    folder = run(config, "--quiet")
    told = events(folder, "scenario")
    assert list(told.values()) == [1]
    cut_after(folder, 2)  # before the first checkpoint
    folder.resume()
    assert events(folder, "scenario") == told


def test_a_warning_of_a_round_that_is_done_again_is_told_once(run):
    folder = run(SHEAF, "--quiet")
    told = events(folder, "warning")
    assert told
    cut_after(folder, 2)
    folder.resume()
    assert events(folder, "warning") == told


def test_a_run_goes_on_from_before_a_departure_of_which_nothing_is_on_record(run):
    """The others may be far ahead of it in real time when all are killed."""
    folder = run(CONFIG.format(clock="virtual", step_s=0.01), "--quiet")
    told = {kind: events(folder, kind) for kind in ("crash", "restart", "leave")}
    with closing(sqlite3.connect(folder.path / "run.sqlite")) as records, records:
        records.execute("DELETE FROM event WHERE kind = 'leave'")
    cut_after(folder, 23)
    assert "going on after round 10 " in folder.resume()
    assert {kind: events(folder, kind) for kind in told} == told


def test_what_is_on_record_of_a_round_is_all_of_it_wherever_its_records_were_cut_off(start, monkeypatch):
    """Each record is a batch of its own here, and each is committed: the collector dies between two of one round."""
    monkeypatch.setenv("SHEAFGOSSIP_TEST_CONSTANTS", "records_a_batch=1,burst=1,burst_rows=1,commit_every_s=0")
    monkeypatch.setenv("SHEAFGOSSIP_FAILPOINTS", "committed@collector:62=kill")
    going = start(CONFIG.format(clock="virtual", step_s=0.01))
    assert going.end(60)[0] == 1
    told = going.folder.rows("SELECT node, round FROM round WHERE round > 0")
    assert told
    for node, round in told:
        sent = going.folder.rows(f"SELECT DISTINCT dst FROM traffic WHERE src = {node} AND round = {round}")
        used = going.folder.rows(f"SELECT DISTINCT neighbour FROM used WHERE node = {node} AND round = {round}")
        assert (len(sent), len(used)) == (2, 2), (node, round)
