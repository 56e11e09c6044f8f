"""Traffic rows against closed forms that are worked out here, from the graph and the sizes alone."""

from __future__ import annotations

import math

import msgpack
import pytest

ROUNDS = 5
D = 650
CONFIG = f"""
clients = 10
rounds = {ROUNDS}
[topology]
p = 0.4
[data]
samples = 400
[algorithm]
"""
ALGORITHMS = {
    "sheaf-fmtl": ('name = "sheaf-fmtl"\ngamma = 0.1\nstart_scale = 0.1', 2, math.floor(0.1 * D)),
    "sheaf-fmtl, fixed maps": ('name = "sheaf-fmtl"\ngamma = 0.5\nstart_scale = 0.1\neta = 0', 1, math.floor(0.5 * D)),
    "dfedu": ('name = "dfedu"', 1, D),
    "d-psgd": ('name = "d-psgd"', 1, D),
}


def header(src: int, dst: int, round: int, phase: int, length: int) -> int:
    run = 1 << 62  # any run id is a number of this many bytes
    return len(msgpack.packb([1, run, src, dst, round, phase, [[0, length]]]))


def zmtp(length: int) -> int:
    return length + (2 if length <= 255 else 9)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_row_follows_from_the_sizes(run, name):
    settings, phases, length = ALGORITHMS[name]
    folder = run(CONFIG + settings)
    edges = folder.edges()
    assert edges
    expected = {}
    for i, j in [*edges, *((j, i) for i, j in edges)]:
        for round in range(1, ROUNDS + 1):
            headers = [header(i, j, round, phase, length) for phase in range(phases)]
            expected[i, j, round] = (
                phases,
                phases * 4 * length,
                phases * 4 * length + sum(headers),
                phases * zmtp(4 * length) + sum(map(zmtp, headers)),
            )
    assert folder.payload() == expected
    total = sum(row[1] for row in expected.values())
    assert total == phases * 2 * len(edges) * length * 4 * ROUNDS


def test_vectors_between_different_models_follow_the_smaller_one(run):
    settings = 'name = "sheaf-fmtl"\ngamma = 0.1\nstart_scale = 0.1\n[model]\nkind = "mlp"\nhidden = [12]\n'
    folder = run(CONFIG + settings + 'mix = [{ kind = "logistic" }]')
    sizes = dict(folder.rows("SELECT node, parameters FROM node WHERE role = 'client'"))
    assert set(sizes.values()) == {D, 64 * 12 + 12 + 12 * 10 + 10}
    for (i, j, _), row in folder.payload().items():
        assert row[1] == 2 * 4 * math.floor(0.1 * min(sizes[i], sizes[j]))


def test_local_training_sends_nothing_in_rounds(run):
    assert run(CONFIG + 'name = "local"').payload() == {}


def test_connections_hellos_and_records_are_rows_of_their_own(run):
    folder = run(CONFIG + 'name = "dfedu"')
    overhead = {
        (src, dst, kind): size
        for src, dst, kind, size in folder.rows("SELECT src, dst, kind, wire_bytes FROM overhead")
    }
    for i, j in folder.edges():
        for src, dst in ((i, j), (j, i)):
            assert overhead[src, dst, "greeting"] == 64
            assert overhead[src, dst, "ready"] == 43 + len(b"node-0000")
            hello = msgpack.packb([1, 1 << 62, src, dst, 0, 0, []])
            assert overhead[src, dst, "hello"] == zmtp(len(hello))
    assert {src for src, dst, kind in overhead if kind == "records" and dst == -2} == {-1, *range(10)}


def test_records_and_control_lines_are_counted_to_their_end(run):
    folder = run(CONFIG + 'name = "dfedu"')
    rows = folder.rows("SELECT src, dst, messages, wire_bytes FROM overhead WHERE kind = 'control'")
    control = {(src, dst): (messages, size) for src, dst, messages, size in rows}
    lines = [(-1, -3), *((-3, node) for node in range(10))]
    assert len(rows) == len(control)
    assert set(control) == {*lines, *((there, here) for here, there in lines)}
    for node in range(10):
        told = control[-3, node]  # where its neighbours are, go, exit
        assert told[0] == 3
        assert control[node, -3][0] == 4  # bound, ready, done, left
    assert control[-1, -3][0] == 1 + 10 + 1 + 1  # one fork of them all, each client's neighbours, go, exit
    assert control[-3, -1][0] == 10 * (4 + 1)  # what each client said, and its end
    relayed = sum(size for (src, dst), (_, size) in control.items() if src >= 0)
    assert control[-3, -1][1] > relayed
    batches = dict(folder.rows("SELECT src, messages FROM overhead WHERE kind = 'records' AND src >= 0"))
    assert set(batches) == set(range(10))
    # itself, its connections, every round; those that follow each other quickly leave together
    assert all(1 <= count <= 1 + 1 + (ROUNDS + 1) for count in batches.values())
    assert folder.rows("SELECT count(*) FROM event WHERE kind = 'lost-records'") == [(0,)]
