"""Latency and staleness of many rounds: whatever is under way meanwhile, on both clocks the run comes to its end."""

from __future__ import annotations

import pytest

TALK = """
clients = 4
rounds = {rounds}
[topology]
kind = "{graph}"
[data]
samples = 200
[model]
{model}
[evaluation]
every = 0
[algorithm]
name = "d-psgd"
[time]
clock = "{clock}"
staleness = {staleness}
[compute]
step_s = {step_s}
[links]
latency_s = {latency_s}
[transport]
timeout = 30
"""
LARGE = 'kind = "mlp"\nhidden = [900]\ndtype = "float64"'
"""Vectors of 540 kB: two fit into 1 MiB."""


@pytest.mark.parametrize("clock", ["virtual", "wall"])
@pytest.mark.parametrize(
    ("rounds", "graph", "model", "staleness", "step_s", "latency_s"),
    [
        (10, "complete", LARGE, "4", 0.01, 0.03),
        (400, "ring", "", '"inf"', 0.001, 0.2),
        (10, "ring", LARGE, "8", 0.1, 0.6),
    ],
    ids=["staleness 4", "200 rounds under way", "staleness 8"],
)
def test_messages_that_are_under_way_for_many_rounds_stop_no_run(
    run, clock, rounds, graph, model, staleness, step_s, latency_s
):
    folder = run(
        TALK.format(
            clock=clock,
            rounds=rounds,
            graph=graph,
            model=model,
            staleness=staleness,
            step_s=step_s,
            latency_s=latency_s,
        ),
        "--quiet",
    )
    assert folder.rows("SELECT max(round), count(*) FROM round") == [(rounds, 4 * (rounds + 1))]
    assert folder.rows("SELECT count(*) FROM event WHERE kind = 'lost-records'") == [(0,)]


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_a_client_that_came_late_and_crashes_before_a_checkpoint_starts_again_from_the_start(run, clock):
    folder = run(
        TALK.format(
            clock=clock, rounds=12, graph="complete", model="", staleness="1", step_s=0.01, latency_s=0.001
        ).replace("[time]", '[time]\nsilence = "skip"\ndeadline_s = 1.0')
        + """
[checkpoints]
every = 10
[[faults]]
kind = "join"
clients = [2]
at_round = 3
[[faults]]
kind = "crash"
clients = [2]
at_round = 5
restart_after = 2
""",
        "--quiet",
    )
    kinds = [kind for (kind,) in folder.rows("SELECT kind FROM event WHERE node = 2 ORDER BY wall_s")]
    assert [kind for kind in kinds if kind in ("join", "crash", "restart")] == ["join", "crash", "restart"]
    assert folder.rows("SELECT max(round) FROM round WHERE node = 2") == [(12,)]
