"""`sheafgossip shrink` on a bug that was put in on purpose: an update is applied twice after a restart."""

import csv
import tomllib

from runs import command

TWICE = """
from dataclasses import dataclass
import numpy as np
import sheafgossip as sg

BEGUN = set()

@dataclass(frozen=True)
class Twice(sg.Algorithm):
    traits = sg.Traits(same_size=True)

    def begin(self, client):
        return sg.State(rounds=np.zeros(1), twice=np.zeros(1))

    def round(self, client, peers):
        if client.node not in BEGUN and client.state.rounds[0]:
            client.state.twice[0] = 1
        BEGUN.add(client.node)
        client.state.rounds += 1
        before = client.theta.copy()
        client.learn()
        if client.state.twice[0]:
            client.theta += client.theta - before
        theirs = peers.exchange(dict.fromkeys(client.neighbours, client.theta))
        if theirs:
            client.theta += 0.1 * (sum(theirs.values()) / len(theirs) - client.theta)
"""
CONFIG = """
seed = 3
clients = 3
rounds = 20
topology.kind = "complete"
model.kind = "linear"
algorithm.use = "twice.py:Twice"
checkpoints.every = 1
compute.step_s = 0.1
[data]
dataset = "synthetic"
task = "regression"
synthetic = { samples = 40, groups = 1, dimensions = 5, deviation = 0.0 }
[training]
work = "full"
alpha = 0.5
[time]
clock = "virtual"
deadline_s = 2.0
[chaos]
crash = 0.4
restart = 1.0
slow = 0.6
duplicate = 0.1
"""


def test_a_bug_is_shrunk_to_one_fault_also_if_the_search_was_killed_on_its_way(tmp_path, begin):
    (tmp_path / "twice.py").write_text(TWICE)
    (tmp_path / "twice.toml").write_text(CONFIG)
    out = tmp_path / "out"
    words = ["shrink", tmp_path / "twice.toml", "--until", "diverged", "--jobs", 2, "--runs", 16, "--out", out]
    going = begin(*words, folder=out)
    steps = out / "steps.csv"
    going.until(lambda: steps.exists() and steps.read_text().count("\n") > 3)
    going.kill_everything()
    before = steps.read_text().splitlines()
    said = command(*words).stdout
    assert steps.read_text().splitlines()[: len(before) - 1] == before[:-1]
    keys = [row["candidate"] for row in csv.DictReader(steps.open())]
    assert len(set(keys)) == len(keys)

    smallest = tomllib.loads((out / "smallest.toml").read_text())
    (fault,) = smallest["faults"]
    assert (fault["kind"], len(fault["clients"])) == ("crash", 1)
    assert "restart_after" in fault
    assert "chaos" not in smallest
    assert "deadline_s" not in smallest["time"]
    assert "of which 16 ran" in said
    assert f"sheafgossip run {out / 'smallest.toml'}" in said
    assert sorted(path.name for path in out.iterdir()) == ["smallest.toml", "steps.csv"]
    assert "diverged" in command("run", out / "smallest.toml", "--out", tmp_path / "again", "--quiet").stdout

    found = command(*words[:3], "mse < 0", "--out", tmp_path / "none", code=2)
    assert "there is nothing to shrink, mse < 0 is not so: mse" in found.stderr
    assert not (tmp_path / "none").exists()
    assert "the steps of another search" in command(*words[:3], "failed", "--out", out, code=2).stderr
