"""Runs whose vectors travel encoded: their bytes, their bits, and what both ends of an edge must find alike."""

from __future__ import annotations

import math
import re

import msgpack
import pytest

D = 650
CONFIG = """
clients = 6
rounds = {rounds}
[topology]
p = 0.5
[data]
samples = 300
rotations = [0, 90]
[evaluation]
every = 0
[transport]
codec = "{codec}"
[algorithm]
"""
FLOAT32, INT32, INT8 = 0, 3, 6
K = math.ceil(0.05 * D)
TENSORS = {
    "int8": [(FLOAT32, 1, 4), (INT8, D, 1)],
    "top-k": [(INT32, K, 4), (FLOAT32, K, 4)],
}
"""Of a whole model: code, length, bytes of a number."""


def zmtp(length: int) -> int:
    return length + (2 if length <= 255 else 9)


@pytest.mark.parametrize("codec", TENSORS)
def test_every_row_of_traffic_follows_from_the_sizes(run, codec):
    keep = "transport.keep=0.05" if codec == "top-k" else "transport.codec=int8"
    folder = run(CONFIG.format(codec=codec, rounds=3) + 'name = "dfedu"', "--set", keep)
    frames = [length * size for _, length, size in TENSORS[codec]]
    shapes = [[code, length] for code, length, _ in TENSORS[codec]]
    payload = folder.payload()
    assert len(payload) == 2 * 3 * len(folder.edges())
    for (src, dst, round), row in payload.items():
        header = len(msgpack.packb([1, 1 << 62, src, dst, round, 0, shapes]))
        assert row == (1, sum(frames), sum(frames) + header, sum(map(zmtp, [*frames, header])))


def test_planned_time_is_that_of_the_bytes_really_sent(run):
    """Two clients, a second a step, 1,000 bytes a second each way: int8 takes a third of the time of float32."""
    timed = """
clients = 2
rounds = 4
topology.kind = "ring"
data.samples = 100
evaluation.every = 0
algorithm.name = "dfedu"
time.clock = "virtual"
compute.step_s = 1.0
links.bandwidth = 1000.0
"""
    ends = {}
    for codec in ("none", "int8"):
        folder = run(timed + f'transport.codec = "{codec}"\n')
        (wire,) = {row[3] for row in folder.payload().values()}
        ends[codec] = folder.rows("SELECT max(virtual_s) FROM round")[0][0]
        assert ends[codec] == pytest.approx(4 * (1 + wire / 1000), rel=1e-6)
    assert ends["none"] - 4 > 3.5 * (ends["int8"] - 4)


def test_both_ends_of_a_selective_edge_decide_alike(run):
    """Edges become quiet, and each end knows without a word when the other one is: or they would wait for ever."""
    settings = 'name = "selective-sheaf"\nlisten = 4\nprobe_every = 5\nsure = 0.5'
    folder = run(CONFIG.format(codec="int8", rounds=30) + settings)
    found = {(i, j, k): row for i, j, k, *row in folder.rows("SELECT node, neighbour, round, weight, cosine FROM edge")}
    assert all(row == found[j, i, k] for (i, j, k), row in found.items())
    assert len({weight for weight, _ in found.values()}) == 2
    full = 2 * 30 * len(folder.edges())
    assert 0 < len(folder.payload()) < full


def test_both_ends_of_a_fused_edge_follow_the_same_disagreement(run):
    settings = 'name = "sheaf-fmtl"\nexchange = "fused"\ngamma = 0.1\nstart_scale = 0.1'
    folder = run(CONFIG.format(codec="int8", rounds=10) + settings)
    found = {(i, j, k): r for i, j, k, r in folder.rows("SELECT node, neighbour, round, disagreement FROM edge")}
    assert found
    for (i, j, k), r in found.items():
        assert r == pytest.approx(found[j, i, k], rel=1e-5)


def test_a_number_that_does_not_fit_ends_the_run_with_a_line_that_says_so(start):
    settings = 'name = "sheaf-fmtl"\ngamma = 0.1\nstart_scale = 1e6\neta = 0.0'
    code, said = start(CONFIG.format(codec="float16", rounds=10) + settings).end(60)
    assert code == 1
    assert "too large for float16; choose another transport.codec" in said
    assert "Traceback" not in said
    assert re.search(
        r"client \d failed in round \d+: a vector of client \d cannot be sent in round \d+: a number is", said
    )


@pytest.mark.parametrize("codec", ["bfloat16", "int8"])
def test_divergence_under_a_codec_is_told_as_without_one(start, codec):
    settings = 'name = "fedavg"\n[training]\nalpha = 1e38\n[model]\nkind = "mlp"\nhidden = [8]'
    config = CONFIG.format(codec=codec, rounds=50).replace("[topology]\np = 0.5\n", "")
    code, said = start(config + settings).end(60)
    assert code == 1
    assert "Traceback" not in said
    assert re.search(r"theta of client \d is not finite after round \d+: .*lower training.alpha", said)
