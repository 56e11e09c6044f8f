"""Random scenarios full of faults, and random kills on top: every run ends by itself, with whole records.

A handful by default; `make chaos` runs thirty. SHEAFGOSSIP_CHAOS_SEEDS=7 or =0-29 chooses.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from itertools import pairwise

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

ROUNDS = 20


def chosen_seeds() -> range:
    first, _, last = os.environ.get("SHEAFGOSSIP_CHAOS_SEEDS", "0-2").partition("-")
    return range(int(first), int(last or first) + 1)


def scenario(seed: int) -> tuple[str, np.random.Generator]:
    rng = np.random.default_rng(seed)
    clients = int(rng.integers(8, 17))
    staleness = rng.choice(["0", "1", "4", '"inf"'])
    clock = rng.choice(["virtual", "virtual", "wall"])
    rates = {
        name: round(float(rng.uniform(0, most)), 3)
        for name, most in {
            "crash": 0.3,
            "restart": 1.0,
            "leave": 0.1,
            "join": 0.2,
            "slow": 0.2,
            "cut": 0.2,
            "partition": 0.5,
            "loss": 0.1,
            "duplicate": 0.1,
            "delay": 0.05,
            "reorder": 0.1,
        }.items()
    }
    algorithm = rng.choice(
        [
            'name = "sheaf-fmtl"\ngamma = 0.05\nstart_scale = 0.1',
            'name = "sheaf-fmtl"\nstart = "orthogonal"\neta = 0\nlam = 0.1',
            'name = "d-psgd"',
            'name = "dfedu"\nlam = 0.05',
        ]
    )
    codec = rng.choice(["none", "float16", "int8", "int8" if "d-psgd" in algorithm else "top-k"])
    chaos = "\n".join(f"{name} = {rate}" for name, rate in rates.items())
    return (
        f"""
seed = {seed}
clients = {clients}
rounds = {ROUNDS}
[topology]
kind = "{rng.choice(["erdos-renyi", "ring", "complete"])}"
p = 0.4
[data]
samples = 600
[training]
alpha = 0.05
[time]
clock = "{clock}"
staleness = {staleness}
silence = "{rng.choice(["stale", "skip"])}"
deadline_s = 0.2
deaths = "continue"
[compute]
step_s = 0.01
[stragglers]
kind = "{rng.choice(["none", "fixed", "lognormal", "exponential", "pareto", "on-off"])}"
factor = 5
[links]
latency = "{rng.choice(["fixed", "lognormal"])}"
latency_s = 0.005
[checkpoints]
every = 4
[transport]
codec = "{codec}"
[algorithm]
{algorithm}
[chaos]
{chaos}
""",
        rng,
    )


@pytest.mark.parametrize("seed", chosen_seeds())
def test_a_run_in_chaos_ends_by_itself_and_keeps_its_records(start, seed):
    text, rng = scenario(seed)
    kills = int(rng.integers(0, 3))
    going = start(text)
    killed = kill_some(going, rng, kills)
    code, said = going.end(120)
    assert code == 0, said
    assert "finished" in said
    assert_nothing_is_left(going)
    folder = going.folder
    assert folder.rows("SELECT count(*) FROM event WHERE kind = 'lost-records'") == [(0,)]
    assert {node for (node,) in folder.rows("SELECT node FROM event WHERE kind = 'death'")} <= killed
    assert_records_are_whole(folder, killed)


def kill_some(going, rng: np.random.Generator, kills: int) -> set[int]:
    """Kills random clients at random moments; returns those it hit."""
    killed: set[int] = set()
    deadline = time.monotonic() + 60
    while kills and going.process.poll() is None and time.monotonic() < deadline:
        time.sleep(float(rng.uniform(0.02, 0.2)))
        try:
            if not going.folder.rows("SELECT 1 FROM event WHERE kind = 'start'"):
                continue
            clients = going.folder.rows("SELECT node, pid FROM node WHERE role = 'client' ORDER BY node")
        except sqlite3.Error:  # not made yet
            continue
        node, pid = clients[int(rng.integers(len(clients)))]
        kills -= 1
        try:
            process = psutil.Process(pid)
            if going.process.pid in [parent.pid for parent in process.parents()]:
                os.kill(pid, signal.SIGKILL)
                killed.add(node)
        except (psutil.Error, ProcessLookupError):
            continue
    return killed


def assert_nothing_is_left(going) -> None:
    for node, pid in going.folder.rows("SELECT node, pid FROM node"):
        try:
            command = " ".join(psutil.Process(pid).cmdline())
        except psutil.Error:
            continue
        assert "sheafgossip" not in command, (node, command)


def assert_records_are_whole(folder, killed: set[int]) -> None:
    """Every round that a client has completed is on record with all that belongs to it, and all numbers are numbers."""
    rounds = folder.rows("SELECT node, round, theta_norm, train_loss FROM round ORDER BY node, round")
    assert all(np.isfinite(norm) for _, _, norm, _ in rounds)
    assert all(loss is not None and np.isfinite(loss) for _, round, _, loss in rounds if round)
    done: dict[int, list[int]] = {}
    for node, round, _, _ in rounds:
        done.setdefault(node, []).append(round)
    used = set(folder.rows("SELECT DISTINCT node, round FROM used"))
    degree = dict(folder.rows("SELECT node, degree FROM node"))
    away = {
        node: folder.rows(f"SELECT count(*) FROM event WHERE node = {node} AND kind IN ('crash', 'leave', 'join')")[0][
            0
        ]
        for node in done
    }
    for node, numbers in done.items():
        gaps = sum(after != before + 1 for before, after in pairwise(numbers))
        assert gaps <= away[node], (node, numbers)
        if node not in killed and not away[node]:
            assert numbers == list(range(ROUNDS + 1))
        if degree[node]:
            assert {(node, round) for round in numbers if round} <= used
    for path in folder.path.glob("state/*/node-*.safetensors"):
        assert all(np.isfinite(array).all() for array in load_file(path).values()), path
