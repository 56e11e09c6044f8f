"""A few of the cases that ``make chaos`` tries: so that the generator and the checker stay alive."""

import pytest

from chaos.checker import Checker
from chaos.generator import case_of, simpler_case
from chaos.records import differences
from chaos.trial import trial


@pytest.mark.parametrize("seed", [238, 217, 236])
def test_a_random_run_ends_and_leaves_on_record_what_its_plan_says(seed):
    """A client is killed while the others go on; the launcher is killed twice; a run is repeated."""
    verdict = trial(case_of(seed))
    assert verdict.problems == ()
    assert verdict.verdict == "fine"


def test_a_case_that_is_wrong_is_made_simpler():
    found = simpler_case(50, lambda case: case.config["rounds"] > 4)
    assert found.config["rounds"] > 4
    assert len(found.toml) < len(case_of(50).toml) / 2
    assert simpler_case(50, lambda case: False) is None


_SMALL = """
clients = 4
rounds = 6
topology.kind = "ring"
data = {dataset = "synthetic", synthetic = {samples = 12, groups = 1}}
algorithm.name = "d-psgd"
time = {clock = "virtual", deadline_s = 0.05, silence = "stale", staleness = 1}
compute = {step_s = 0.1, slowdown = [1.0, 4.0]}
links.loss = 0.2
faults = [{kind = "crash", clients = [2], at_round = 3, restart_after = 1}]
"""


@pytest.mark.parametrize(
    ("check", "forgery"),
    [
        ("done", "DELETE FROM round WHERE node = 1 AND round = 2"),
        ("done", "UPDATE round SET theta_norm = 9e999 WHERE node = 1 AND round = 2"),
        ("moments", "UPDATE round SET idle_s = idle_s + 0.001 WHERE node = 0 AND round = 4"),
        ("traffic", "UPDATE traffic SET wire_bytes = wire_bytes + 1 WHERE src = 0 AND round = 1"),
        ("traffic", "INSERT INTO traffic VALUES (0, 1, 99, 1, 1, 1, 1)"),
        ("opened", "UPDATE overhead SET wire_bytes = 63 WHERE kind = 'greeting'"),
        ("used", "UPDATE used SET used_round = 3 WHERE node = 0 AND round = 6"),
        ("used", "DELETE FROM used WHERE node = 0 AND round = 6"),
        ("fates", "DELETE FROM event WHERE kind = 'restart'"),
        ("fates", "UPDATE event SET virtual_s = virtual_s + 1 WHERE kind = 'crash'"),
        ("fates", "INSERT INTO event SELECT * FROM event WHERE kind = 'crash'"),
        ("fates", "DELETE FROM event WHERE kind = 'timeout'"),
        ("end", "INSERT INTO event VALUES (1, NULL, -2, 'lost-records', '3 of 7')"),
        ("states", "UPDATE round SET theta_norm = 2 * theta_norm WHERE round = 6"),
        ("states", "UPDATE round SET test_metric = test_metric + 0.1 WHERE node = 0 AND round = 6"),
    ],
)
def test_the_checker_notices_what_is_not_as_planned(run_in_threads, tmp_path, check, forgery):
    finished = run_in_threads(_SMALL)
    copy = finished.copy(tmp_path / "run")
    copy.alter(forgery)
    assert any(line.startswith(f"{check}: ") for line in Checker(copy).differences())
    assert check == "opened" or any(differences(finished, copy, interrupted=False))


def test_a_run_is_as_planned_and_a_copy_differs_that_has_one_other_bit_in_a_state(run_in_threads, tmp_path):
    finished = run_in_threads(_SMALL)
    assert list(Checker(finished).differences()) == []
    copy = finished.copy(tmp_path / "run")
    assert list(differences(finished, copy, interrupted=False)) == []
    state = copy.path / "state" / "round-000006" / "node-0000.safetensors"
    bits = bytearray(state.read_bytes())
    bits[-1] ^= 1
    state.write_bytes(bits)
    (line,) = differences(finished, copy, interrupted=False)
    assert line == "state/round-000006/node-0000.safetensors differs"


def test_the_checker_knows_who_crashes_and_leaves_by_chance_and_who_joins_and_leaves_at_once(run_in_threads):
    chances = "chaos = { crash = 0.6, leave = 0.6, restart = 1.0 }"
    joins = 'faults = [{ kind = "join", clients = [3], at_round = 1 }, { kind = "leave", clients = [3], at_round = 1 }]'
    finished = run_in_threads(f"{_SMALL[: _SMALL.index('faults')]}{chances}\n{joins}", "seed=5", "rounds=10")
    assert finished.rows("SELECT count(*) FROM event WHERE kind IN ('crash', 'leave') AND node < 3") == [(6,)]
    assert finished.rows("SELECT detail FROM event WHERE kind = 'leave' AND node = 3") == [("before round 1",)]
    assert list(Checker(finished).differences()) == []
