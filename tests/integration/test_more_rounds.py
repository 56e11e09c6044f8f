"""A run that is given more rounds: it ends as one that had them from the start, or is refused and left as it was."""

import re
import tomllib
from collections.abc import Callable

import pytest

from runs import RunFolder, command, run_here_again
from sheafgossip.metrics.schema import RunFolderError
from sheafgossip.metrics.summary import summarize

CONFIG = """
clients = 4
rounds = {rounds}
[topology]
kind = "ring"
[data]
samples = 80
[checkpoints]
every = {every}
"""
PLAIN = '[algorithm]\nname = "d-psgd"\n'
STALE = """
[algorithm]
name = "d-psgd"
[compute]
step_s = 0.01
slowdown = [1.0, 1.0, 1.0, 2.0]
[time]
clock = "virtual"
staleness = 2
silence = "stale"
deadline_s = 0.1
[links]
latency = "lognormal"
latency_s = 0.02
[[faults]]
kind = "crash"
clients = [1]
at_round = 3
restart_after = 2
"""
AHEAD = STALE.replace("staleness = 2", 'staleness = "inf"').replace("2.0]", "4.0]")
SKIPPING = """
[algorithm]
name = "d-psgd"
[compute]
step_s = 0.01
slowdown = [1.0, 1.0, 1.0, 8.0]
[time]
clock = "virtual"
silence = "skip"
deadline_s = 0.02
"""
DRAWN_FAULTS = SKIPPING + "[chaos]\ncut = 0.9\n"
REDRAWN = CONFIG.replace('kind = "ring"', 'kind = "erdos-renyi"\np = 0.6\nredraw_every = 2')
FEDAVG = (
    CONFIG.replace('[topology]\nkind = "ring"\n', "")
    + '[algorithm]\nname = "fedavg"\nfraction = 0.5\n[training]\nwork = "epochs"\n'
)
CODED = '[algorithm]\nname = "sheaf-fmtl"\n[transport]\ncodec = "float16"\n'


@pytest.fixture
def run(run_in_threads, tmp_path) -> Callable[..., RunFolder]:
    """A run of so many rounds, of one's own."""

    def run(text: str, *, rounds: int, every: int = 0) -> RunFolder:
        return run_in_threads(text.format(rounds=rounds, every=every)).copy(tmp_path / f"{rounds}-rounds")

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


def edit(folder: RunFolder, old: str, new: str) -> None:
    file = folder.path / "config.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("text", "every", "after"),
    [
        (CONFIG + PLAIN, 0, 10),
        (CONFIG + CODED, 4, 10),
        (REDRAWN + PLAIN, 0, 10),
        (CONFIG + STALE, 4, 8),
        (CONFIG + SKIPPING, 0, 10),
        (FEDAVG, 4, 8),
    ],
    ids=[
        "synchronous",
        "with a codec",
        "graphs that take turns",
        "stale, with a crash",
        "who is late is left out",
        "half of the clients a round",
    ],
)
def test_a_finished_run_that_is_given_more_rounds_ends_as_if_it_had_had_them_from_the_start(run, text, every, after):
    folder, whole = (run(text, rounds=rounds, every=every) for rounds in (10, 13))
    assert resume(folder, 13) == after
    require_the_same(folder, whole, 13)
    assert folder.rows("SELECT node, detail FROM event WHERE kind = 'extend'") == [
        (-1, f"from 10 to 13 rounds, going on after round {after}")
    ]
    assert tomllib.loads((folder.path / "config.toml").read_text())["rounds"] == 13
    assert summarize(folder.path).status == "finished"


def test_an_interrupted_run_can_be_given_more_rounds_too(run):
    folder, whole = (run(CONFIG + PLAIN, rounds=rounds, every=4) for rounds in (10, 13))
    folder.cut_after(9)
    assert resume(folder, 13) == 8
    require_the_same(folder, whole, 13)


def test_a_run_that_was_given_more_rounds_and_interrupted_goes_on_from_its_former_end(run):
    folder, whole = (run(CONFIG + PLAIN, rounds=rounds) for rounds in (6, 9))
    resume(folder, 9)
    folder.cut_after(7)
    assert resume(folder) == 6
    require_the_same(folder, whole, 9)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (FEDAVG, "in round 6 all clients download"),
        (CONFIG + AHEAD, "clients would have used other messages"),
        (CONFIG + DRAWN_FAULTS, "faults are drawn for the number"),
    ],
)
def test_a_run_whose_beginning_would_have_been_another_is_refused_in_one_line_and_left_as_it_was(run, text, why):
    folder = run(text, rounds=6)
    before = {name: path.read_bytes() for name, path in folder.files("").items()}
    with pytest.raises(RunFolderError, match=f"cannot be extended to 90 rounds: .*{why}") as refused:
        resume(folder, 90)
    assert "\n" not in str(refused.value)
    assert {name: path.read_bytes() for name, path in folder.files("").items()} == before


def test_fewer_rounds_than_a_run_has_are_refused_in_one_line(run):
    folder = run(CONFIG + PLAIN, rounds=6)
    with pytest.raises(RunFolderError, match="--rounds 6: the run has 6; allowed is 7 or more"):
        resume(folder, 6)


def test_an_edited_configuration_is_refused_and_the_keys_are_named(run):
    folder = run(CONFIG + PLAIN, rounds=6)
    folder.cut_after(4)
    edit(folder, "clients = 4", "clients = 3")
    edit(folder, "alpha = 0.1", "alpha = 0.05")
    with pytest.raises(RunFolderError, match=r"clients = 3, was 4; training\.alpha = 0\.05, was 0\.1"):
        resume(folder)


def test_rounds_that_were_raised_in_the_file_are_refused_with_the_way_to_have_them(run):
    folder = run(CONFIG + PLAIN, rounds=6)
    folder.cut_after(4)
    edit(folder, "rounds = 6", "rounds = 8")
    with pytest.raises(RunFolderError, match=r"rounds = 8, was 6; .*\(sheafgossip resume --rounds 8 extends it\)"):
        resume(folder)
    resume(folder, 8)
    assert len(folder.theta(8)) == 4


def test_a_configuration_that_says_the_same_in_other_words_is_taken(run):
    folder = run(CONFIG + PLAIN, rounds=6)
    folder.cut_after(4)
    edit(folder, "clients = 4", "# mine\nclients = 4")
    resume(folder)


def test_a_run_tells_what_computes_it_and_where_and_a_later_resume_what_is_otherwise_now(run):
    folder = run(CONFIG + PLAIN, rounds=2)
    facts = dict(folder.rows("SELECT key, value FROM meta"))
    assert {"sheafgossip", "python", "torch", "numpy", "zmq", "host", "cpu", "command"} <= facts.keys()
    folder.alter("DELETE FROM event WHERE kind = 'finish'; UPDATE meta SET value = '1.0' WHERE key = 'torch'")
    resume(folder)
    first, second = (d for (d,) in folder.rows("SELECT detail FROM event WHERE kind = 'start' ORDER BY rowid"))
    assert "now with" not in first
    assert second.endswith(f"now with torch {facts['torch']} (was 1.0)")


def test_the_command_line_is_on_record_and_more_rounds_can_be_asked_for_there(start):
    going = start((CONFIG + PLAIN).format(rounds=2, every=0), "--set", "training.alpha=0.2")
    assert going.end()[0] == 0
    (line,) = going.folder.rows("SELECT value FROM meta WHERE key = 'command'")[0]
    assert re.fullmatch(r"sheafgossip run \S+ --out \S+ --set training.alpha=0.2", line)
    assert "going on after round 2 of 3" in command("resume", going.folder.path, "--rounds", 3).stderr
