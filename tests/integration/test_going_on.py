"""Several runs of one file go on where they were: the same command makes what is missing."""

import shutil

import pytest

import foreign
from runs import RunFolder, assert_same_states, small

ALGORITHMS = {"first": "local", "second": "d-psgd", "third": "dfedu"}
COMPARED = [f'{{name = "{name}", algorithm.name = "{algorithm}"}}' for name, algorithm in ALGORITHMS.items()]
COMPARE = f"checkpoints.every = 2\ncompare = [{', '.join(COMPARED)}]"
RUN = small(COMPARE, clients=3, rounds=8, samples=60, algorithm="")
TIMED = 'compute.slowdown = [1.0, 2.0, 1.0]\ntime.clock = "virtual"\n'


def sheafgossip(*words: object, code: int = 0) -> str:
    ended, out, err = foreign.sheafgossip(*words)
    assert ended == code, out + err
    return out + err


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The file, and the folder of its runs."""
    root = tmp_path_factory.mktemp("compare")
    (root / "c.toml").write_text(RUN + TIMED)
    sheafgossip("run", root / "c.toml", "--out", root / "out", "--engine", "threads")
    return root / "c.toml", root / "out"


@pytest.fixture
def out(finished, tmp_path):
    """A copy of that folder."""
    return shutil.copytree(finished[1], tmp_path / "out")


def test_the_same_command_makes_the_runs_that_are_missing_to_the_same_bits(finished, out):
    """The second one was interrupted after round 5, before the third had begun."""
    config, whole = finished
    RunFolder(out / "second").cut_after(5)
    RunFolder(out / "third").alter("DELETE FROM round; DELETE FROM event; DELETE FROM node")
    shutil.rmtree(out / "third" / "state")
    said = sheafgossip("run", config, "--out", out)
    assert "1 of 3 runs finished before" in said
    assert "second: going on after round 4" in said
    for name in ALGORITHMS:
        assert_same_states(RunFolder(out / name), RunFolder(whole / name), 8)
        assert name in said  # in one table
        assert (out / name / "config.toml").read_text() == (whole / name / "config.toml").read_text()
    starts = "SELECT count(*) FROM event WHERE kind = 'start'"
    assert [RunFolder(out / name).rows(starts)[0][0] for name in ALGORITHMS] == [1, 2, 1]
    assert "3 of 3 runs finished before" in sheafgossip("run", config, "--out", out)


def test_a_folder_that_holds_other_runs_is_refused_and_left_alone(finished, out):
    config, _ = finished
    said = sheafgossip("run", config, "--set", "training.alpha=0.3", "--out", out, code=2)
    assert "holds a run of another configuration" in said
    (out / "second").rename(out / "mine")
    assert "is not an empty folder" in sheafgossip("run", config, "--out", out, code=2)
    assert (out / "mine" / "run.sqlite").exists()


def test_ctrl_c_tells_how_to_go_on(start):
    going = start(RUN.replace("rounds = 8", "rounds = 1000000"))
    out, going.folder = going.folder.path, RunFolder(going.folder.path / "first")
    going.until_round(1)
    said = going.ends(130, going.signal, seconds=60)
    assert f"the same command with --out {out} goes on with what is missing" in said
