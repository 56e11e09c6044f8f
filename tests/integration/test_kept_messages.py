"""A checkpoint holds every message that a neighbour uses after it, whichever life of its sender has sent it."""

from __future__ import annotations

from safetensors.numpy import load_file

CONFIG = """
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


def test_messages_of_an_earlier_life_are_in_the_checkpoints_of_the_later_ones(run):
    folder = run(CONFIG, "--quiet")
    lives = folder.rows("SELECT count(*) FROM event WHERE node = 1 AND kind = 'restart'")
    assert lives == [(2,)]
    of_earlier = 0
    for path in sorted((folder.path / "state").glob("round-*/node-*.safetensors")):
        round, node = int(path.parent.name.removeprefix("round-")), int(path.stem.removeprefix("node-"))
        plan = load_file(folder.path / "plan" / path.name)
        needed, neighbours = plan["needed"], plan["neighbours"].tolist()
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
