"""Latency and staleness of many rounds: whatever is under way meanwhile, on both clocks the run comes to its end; and
checkpoints hold every message that a neighbour uses after them."""

import pytest
from safetensors.numpy import load_file

TALK = """
clients = 4
rounds = {rounds}
[topology]
kind = "{graph}"
[data]
samples = 200
[evaluation]
every = 0
[algorithm]
name = "d-psgd"
[time]
staleness = {staleness}
[compute]
step_s = {step_s}
[links]
latency_s = {latency_s}
[transport]
timeout = 30
{more}
"""
LARGE = '[model]\nkind = "mlp"\nhidden = [900]\ndtype = "float64"'
"""Vectors of 540 kB: two fit into 1 MiB."""


@pytest.mark.parametrize("clock", ["virtual", "wall"])
@pytest.mark.parametrize(
    ("rounds", "graph", "more", "staleness", "step_s", "latency_s"),
    [
        (10, "complete", LARGE, 4, 0.01, 0.03),
        (250, "ring", "", '"inf"', 0.001, 0.2),
        (10, "ring", LARGE, 8, 0.1, 0.6),
    ],
    ids=["staleness 4", "200 rounds under way", "staleness 8"],
)
def test_messages_that_are_under_way_for_many_rounds_stop_no_run(
    run, clock, rounds, graph, more, staleness, step_s, latency_s
):
    settings = {"rounds": rounds, "graph": graph, "more": more, "staleness": staleness}
    folder = run(TALK.format(**settings, step_s=step_s, latency_s=latency_s), f"time.clock={clock}")
    assert folder.rows("SELECT max(round), count(*) FROM round") == [(rounds, 4 * (rounds + 1))]
    assert folder.rows("SELECT count(*) FROM event WHERE kind = 'lost-records'") == [(0,)]


JOINS_AND_CRASHES = """
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
"""


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_a_client_that_came_late_and_crashes_before_a_checkpoint_starts_again_from_the_start(run, clock):
    text = TALK.format(rounds=12, graph="complete", staleness=1, step_s=0.01, latency_s=0.001, more=JOINS_AND_CRASHES)
    folder = run(text, f"time.clock={clock}", "time.silence=skip", "time.deadline_s=1.0")
    kinds = [kind for (kind,) in folder.rows("SELECT kind FROM event WHERE node = 2 ORDER BY wall_s")]
    assert [kind for kind in kinds if kind in ("join", "crash", "restart")] == ["join", "crash", "restart"]
    assert folder.rows("SELECT max(round) FROM round WHERE node = 2") == [(12,)]


CRASHES_TWICE = """
clients = 6
rounds = 24
[topology]
kind = "complete"
[data]
samples = 120
[algorithm]
name = "d-psgd"
[checkpoints]
every = 2
[time]
clock = "virtual"
staleness = "inf"
silence = "stale"
[compute]
step_s = 0.1
slowdown = [1.0, 1.0, 1.0, 1.0, 1.0, 9.0]
[links]
latency_s = 0.7
[[faults]]
kind = "crash"
clients = [1]
at_round = 7
restart_after = 2
[[faults]]
kind = "crash"
clients = [1]
at_round = 14
restart_after = 1
[[faults]]
kind = "cut"
edges = [[1, 5], [1, 2]]
rounds = [5, 22]
"""


def test_messages_of_an_earlier_incarnation_are_in_the_checkpoints_of_the_later_ones(run_in_threads):
    folder = run_in_threads(CRASHES_TWICE)
    assert folder.rows("SELECT count(*) FROM event WHERE node = 1 AND kind = 'restart'") == [(2,)]
    of_earlier = 0
    for path in sorted((folder.path / "state").glob("round-*/node-*.safetensors")):
        round, node = int(path.parent.name.removeprefix("round-")), int(path.stem.removeprefix("node-"))
        needed, neighbours = folder.plan[node]["needed"], folder.plan[node]["neighbours"].tolist()
        expected = {
            f"sent.{neighbour}.{row + 1}.{phase}"
            for row in range(round)
            for phase in range(needed.shape[1])
            for place, neighbour in enumerate(neighbours)
            if needed[row, phase, place] > round and round % 2 == 0
        }
        found = {name for name in load_file(path) if name.startswith("sent.")}
        assert found == expected, path
        of_earlier += sum(node == 1 and round > 8 and int(name.split(".")[2]) < 7 for name in found)
    assert of_earlier
