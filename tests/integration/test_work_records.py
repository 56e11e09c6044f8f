"""What clients record of their own work: CPU time by part, operations, memory by part; and that one can do without."""

import math

import pytest

from runs import assert_same_states, small

ROUNDS = 12
D, D_IJ, DEGREE = 650, 65, 2  # logistic regression on digits, gamma 0.1, three clients who all know each other
HEIGHT = DEGREE * D_IJ
CONFIG = small(clients=3, rounds=ROUNDS, samples=300, topology="complete", algorithm="")
MAPS = ("algorithm.name=sheaf-fmtl", "algorithm.gamma=0.1", "algorithm.start_scale=0.1")
PARTS = {"start", "gradient", "maps", "exchange", "waiting", "evaluation", "records", "io"}


def flops(folder, part: str) -> list[int]:
    return [count for (count,) in folder.rows(f"SELECT flops FROM work_total WHERE part = '{part}' ORDER BY node")]


@pytest.mark.parametrize("storage", ["dense", "factored"])
def test_cpu_time_operations_and_memory_of_a_run_with_maps(run_in_processes, storage):
    folder = run_in_processes(
        CONFIG, *MAPS, f"algorithm.storage={storage}", "algorithm.start=orthogonal", "training.momentum=0.5"
    )

    parts = folder.rows("SELECT node, part FROM work_total")
    assert set(parts) == {(node, part) for node in range(3) for part in PARTS}
    # of all clients together: of one it is some 50 ms, of which a busy machine takes a fifth to start and to end it
    ((parts_s, all_s),) = folder.rows(
        "SELECT (SELECT sum(cpu_s) FROM work_total WHERE node >= 0), (SELECT sum(cpu_s) FROM cpu_total WHERE node >= 0)"
    )
    assert parts_s == pytest.approx(all_s, rel=0.2)
    assert folder.rows("SELECT sum(cpu_s) FROM work_total WHERE part = 'waiting'") == [(0,)]
    assert folder.rows("SELECT count(*) FROM work WHERE cpu_s < 0 OR elapsed_s < 0 OR flops < 0") == [(0,)]

    samples = folder.rows("SELECT train_samples, test_samples FROM node WHERE role = 'client' ORDER BY node")
    layer = 2 * 64 * 10  # of one sample through the one layer
    assert flops(folder, "gradient") == [ROUNDS * train * 2 * layer for train, _ in samples]
    assert flops(folder, "evaluation") == [(ROUNDS + 1) * test * layer for _, test in samples]
    assert flops(folder, "exchange") == [0] * 3
    if storage == "dense":  # project, pull back, project, update
        by_hand, maps, history = ROUNDS * 4 * 2 * HEIGHT * D, 4 * D * HEIGHT, 0
    else:  # only a round's first projection is left over from the round before
        transform = round(2.5 * D * math.log2(D))
        by_hand = transform + sum(2 * (transform + 2 * k * (D + HEIGHT)) for k in range(ROUNDS))
        maps, history = 4 * (D + HEIGHT), 4 * ROUNDS * (D + HEIGHT)  # the start's signs and chosen rows
    assert flops(folder, "maps") == [by_hand] * 3

    state = folder.rows(
        "SELECT theta_bytes, map_bytes, history_bytes, buffer_bytes, state_bytes FROM resource WHERE node >= 0 "
        "GROUP BY node HAVING wall_s = max(wall_s)"
    )
    theta, buffers = 4 * D, 2 * 4 * D  # gradient and velocity; after the last round no message is early
    assert state == [(theta, maps, history, buffers, theta + maps + history + buffers)] * 3
    assert folder.rows("SELECT sum(state_bytes) FROM resource WHERE node < 0") == [(0,)]


def test_operations_follow_the_steps_that_were_taken(run_in_threads):
    steps = ("training.work=steps", "training.steps=3", "training.batch_size=16", "algorithm.name=d-psgd")
    folder = run_in_threads(CONFIG, "model.kind=cnn", "model.filters=[4]", *steps)
    convolution, last = 2 * 6 * 6 * 4 * 9, 2 * (3 * 3 * 4) * 10  # 8x8 -> 6x6 -> 3x3
    assert folder.rows("SELECT DISTINCT train_samples FROM node WHERE role = 'client'") == [(75,)]
    samples = 7 * 75 + 16  # 36 steps; a pass takes five, and the fifth is short
    assert flops(folder, "gradient") == [samples * (3 * last + 2 * convolution)] * 3
    assert flops(folder, "maps") == [0] * 3


def test_without_measuring_a_run_learns_the_same_and_records_its_rounds_alone(run_in_processes, run_in_threads):
    alone = run_in_processes(CONFIG, *MAPS, "measuring.enabled=false")
    for table in ("traffic", "resource", "edge", "work", "kernel"):
        assert alone.rows(f"SELECT count(*) FROM {table}") == [(0,)]
    assert alone.rows("SELECT count(*) FROM round") == [(3 * (ROUNDS + 1),)]
    assert alone.rows("SELECT kind FROM event ORDER BY wall_s") == [("start",), ("finish",)]
    assert_same_states(alone, run_in_threads(CONFIG, *MAPS), ROUNDS)
