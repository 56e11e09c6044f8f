"""A run that is given more rounds: it ends as one that had them from the start, or is refused and left as it was."""

import re
from collections.abc import Callable

import pytest

from runs import RunFolder, command, run_here_again, small
from sheafgossip.metrics.store import RunFolderError
from sheafgossip.metrics.summary import summarize

PLAIN = 'topology.kind = "ring"\nalgorithm.name = "d-psgd"\n'
CODED = 'topology.kind = "ring"\nalgorithm.name = "sheaf-fmtl"\ntransport.codec = "float16"\n'
REDRAWN = 'algorithm.name = "d-psgd"\ntopology = {kind = "erdos-renyi", p = 0.6, redraw_every = 2}\n'
FEDAVG = 'algorithm = {name = "fedavg", fraction = 0.5}\ntraining.work = "epochs"\n'
LATE = f"""{PLAIN}
compute = {{step_s = 0.01, slowdown = [1.0, 1.0, 1.0, SLOW]}}
time = {{clock = "virtual", staleness = STALENESS, silence = "stale", deadline_s = 0.1}}
links = {{latency = "lognormal", latency_s = 0.02}}
faults = [{{kind = "crash", clients = [1], at_round = 3, restart_after = 2}}]
"""
STALE = LATE.replace("SLOW", "2.0").replace("STALENESS", "2")
AHEAD = LATE.replace("SLOW", "4.0").replace("STALENESS", '"inf"')
SKIPPING = f"""{PLAIN}
compute = {{step_s = 0.01, slowdown = [1.0, 1.0, 1.0, 8.0]}}
time = {{clock = "virtual", silence = "skip", deadline_s = 0.02}}
"""


@pytest.fixture
def run(run_in_threads, tmp_path) -> Callable[..., RunFolder]:
    """A run of so many rounds, of one's own."""

    def run(text: str, *, rounds: int, every: int = 0) -> RunFolder:
        text = small(f"checkpoints.every = {every}", text, rounds=rounds, samples=80, topology="", algorithm="")
        return run_in_threads(text).copy(tmp_path / f"{rounds}-rounds")

    return run


def resume(folder: RunFolder, rounds: int | None = None) -> int:
    """Takes a run up, perhaps with more rounds, and returns the round after which it went on."""
    return run_here_again(folder, "threads", rounds).prepared.resumed_at


def require_the_same(one: RunFolder, other: RunFolder, round: int) -> None:
    assert one.thetas(round)[:4].tobytes() == other.thetas(round)[:4].tobytes()
    assert one.theta(round).keys() == other.theta(round).keys()
    rows = "SELECT node, round, train_loss, theta_norm, virtual_s FROM round ORDER BY node, round"
    assert one.rows(rows) == other.rows(rows)
    assert one.payload() == other.payload()
    events = "SELECT node, kind, virtual_s, detail FROM event WHERE node >= 0 ORDER BY 1, 2, 3"
    assert one.rows(events) == other.rows(events)


@pytest.mark.parametrize(
    ("text", "every", "after"),
    [(PLAIN, 0, 10), (CODED, 4, 10), (REDRAWN, 0, 10), (STALE, 4, 8), (SKIPPING, 0, 10), (FEDAVG, 4, 8)],
    ids=["synchronous", "codec", "graphs that take turns", "stale, with a crash", "skips who is late", "half a round"],
)
def test_a_finished_run_that_is_given_more_rounds_ends_as_if_it_had_had_them_from_the_start(run, text, every, after):
    folder, whole = (run(text, rounds=rounds, every=every) for rounds in (10, 13))
    assert resume(folder, 13) == after
    require_the_same(folder, whole, 13)
    assert folder.rows("SELECT node, detail FROM event WHERE kind = 'extend'") == [
        (-1, f"from 10 to 13 rounds, going on after round {after}")
    ]
    assert folder.config["rounds"] == 13
    assert summarize(folder.path).status == "finished"


def test_an_interrupted_run_can_be_given_more_rounds_and_goes_on_from_its_former_end(run):
    interrupted, finished, whole = (run(PLAIN, rounds=rounds, every=4) for rounds in (7, 6, 9))
    interrupted.cut_after(6)
    assert resume(interrupted, 9) == 4
    require_the_same(interrupted, whole, 9)
    resume(finished, 9)
    finished.cut_after(7)
    assert resume(finished) == 6
    require_the_same(finished, whole, 9)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (FEDAVG, "in round 6 all clients download"),
        (AHEAD, "clients would have used other messages"),
        (SKIPPING + "chaos.cut = 0.9\n", "faults are drawn for the number"),
    ],
)
def test_a_run_whose_beginning_would_have_been_another_is_refused_in_one_line_and_left_as_it_was(run, text, why):
    folder = run(text, rounds=6)
    before = {name: path.read_bytes() for name, path in folder.files("").items()}
    with pytest.raises(RunFolderError, match=f"cannot be extended to 90 rounds: .*{why}") as refused:
        resume(folder, 90)
    assert "\n" not in str(refused.value)
    assert {name: path.read_bytes() for name, path in folder.files("").items()} == before


@pytest.mark.parametrize(
    ("edits", "rounds", "said"),
    [
        ({}, 5, "--rounds 5: the run has 6; allowed is 6 or more"),
        ({"clients = 4": "clients = 3", "alpha = 0.1": "alpha = 0.05"}, None, "clients = 3, was 4; .*0.05, was 0.1"),
        ({"rounds = 6": "rounds = 8"}, None, r"rounds = 8, was 6; .*\(sheafgossip resume --rounds 8 extends it\)"),
        ({"clients = 4": "# mine\nclients = 4"}, None, ""),
        ({"rounds = 6": "rounds = 8"}, 8, ""),
    ],
    ids=["fewer rounds", "other keys", "raised in the file", "the same in other words", "raised in both"],
)
def test_an_edited_configuration_is_refused_and_the_keys_are_named(run, edits, rounds, said):
    interrupted = run(PLAIN, rounds=6, every=2)
    interrupted.cut_after(5)
    file = interrupted.path / "config.toml"
    for old, new in edits.items():
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
    if said:
        with pytest.raises(RunFolderError, match=said):
            resume(interrupted, rounds)
    else:
        assert resume(interrupted, rounds) == 4
        assert len(interrupted.theta(rounds or 6)) == 4


def test_a_run_tells_what_computes_it_and_where_and_a_later_resume_what_is_otherwise_now(run):
    folder = run(PLAIN, rounds=2)
    facts = dict(folder.rows("SELECT key, value FROM meta"))
    assert {"sheafgossip", "python", "torch", "numpy", "zmq", "host", "cpu", "command"} <= facts.keys()
    folder.alter("DELETE FROM event WHERE kind = 'finish'; UPDATE meta SET value = '1.0' WHERE key = 'torch'")
    resume(folder)
    first, second = (d for (d,) in folder.rows("SELECT detail FROM event WHERE kind = 'start' ORDER BY rowid"))
    assert "now with" not in first
    assert second.endswith(f"now with torch {facts['torch']} (was 1.0)")


def test_the_command_line_is_on_record_and_more_rounds_can_be_asked_for_there(start):
    going = start(small(rounds=2), "--set", "training.alpha=0.2")
    assert going.end()[0] == 0
    ((line,),) = going.folder.rows("SELECT value FROM meta WHERE key = 'command'")
    assert re.fullmatch(r"sheafgossip run \S+ --out \S+ --set training.alpha=0.2", line)
    assert "going on after round 2 of 3" in command("resume", going.folder.path, "--rounds", 3).stderr
    assert "allowed is 4 or more" in command("resume", going.folder.path, "--rounds", 3, code=2).stderr
