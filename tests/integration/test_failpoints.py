"""A process is killed, or held up, at each named point: the run ends or can be resumed, and nothing is left of it. A
few of the points by default; ``make failpoints`` takes them all."""

import os
import re
import tomllib

import pytest

from chaos.checker import Checker
from chaos.generator import Case
from chaos.records import Records, differences
from chaos.trial import Going, place_for
from runs import ROOT, small
from sheafgossip.transport.environment import parse_failures

ENDS_S = 90
POINTS = {
    "launcher": ("plan written", "configuration written", "collector started", "go", "exit", "note"),
    "fork server": ("loaded", "fork", "forked"),
    "collector": ("open", "commit", "committed", "last words", "closed"),
    "node-0001": ("born", "bound", "ready", "file written", "state renamed", "done", "left"),
    "node-0002": ("left",),  # of its first life, before its crash
}
_OF_RESUME = ("rows kept", "rows forgotten")  # the launcher's
_EVERY = bool(os.environ.get("SHEAFGOSSIP_EVERY_FAILPOINT"))
_SHORT = ("go@launcher", "forked@fork server", "commit@collector", "state renamed@node-0001")
_TRIED = [f"{point}@{process}" for process, points in POINTS.items() for point in points] if _EVERY else _SHORT

TEXT = small(
    'data = {dataset = "synthetic", synthetic = {samples = 12, groups = 1}}',
    "checkpoints.every = 2",
    "transport.timeout = 30.0",
    'time = {clock = "virtual", staleness = 1}',
    "compute.step_s = 0.1",
    'faults = [{kind = "crash", clients = [2], at_round = 4, restart_after = 2}]',
    rounds=8,
    samples=0,
)
CASE = Case(tomllib.loads(TEXT))


@pytest.fixture(scope="module")
def unbroken(run_in_processes):
    return run_in_processes(CASE.toml)


@pytest.fixture
def place():
    with place_for(CASE) as place:
        yield place


@pytest.mark.parametrize("where", _TRIED)
def test_a_run_of_which_a_process_is_killed_can_be_resumed_to_the_same_bits(unbroken, place, where):
    records = Records(place.path / "run")
    going = Going(place, records.path, failpoints=f"{where}:1=kill")
    code = going.end(ENDS_S)
    assert code == (-9 if where.endswith("launcher") else 1), going.said
    assert "Traceback" not in going.said
    assert place.left() == []
    going = Going(place, records.path, again=True)
    if not (records.path / "run.sqlite").exists():  # killed before there was a run: resume says so, and another begins
        assert going.end(ENDS_S) == 2
        assert len(going.said.splitlines()) == 1
        records = Records(place.path / "anew")
        going = Going(place, records.path)
    assert going.end(ENDS_S) == 0, going.said
    assert_all_is_as_if_nothing_had_happened(unbroken, records, place)


@pytest.mark.parametrize("where", _TRIED if _EVERY else _SHORT[-1:])
def test_a_run_of_which_a_process_is_held_up_takes_longer_and_that_is_all(unbroken, place, where):
    records = Records(place.path / "run")
    going = Going(place, records.path, failpoints=f"{where}=delay 0.7")
    assert going.end(ENDS_S) == 0, going.said
    assert_all_is_as_if_nothing_had_happened(unbroken, records, place)


@pytest.mark.parametrize("point", _OF_RESUME if _EVERY else _OF_RESUME[-1:])
def test_a_resume_that_is_killed_can_be_resumed(unbroken, place, point):
    records = Records(place.path / "run")
    assert Going(place, records.path, failpoints="state renamed@node-0001:3=kill").end(ENDS_S) == 1
    assert Going(place, records.path, again=True, failpoints=f"{point}@launcher=kill").end(ENDS_S) == -9
    assert place.left() == []
    assert Going(place, records.path, again=True).end(ENDS_S) == 0
    assert_all_is_as_if_nothing_had_happened(unbroken, records, place)


def assert_all_is_as_if_nothing_had_happened(unbroken, records, place) -> None:
    assert list(Checker(records, failed=True).differences()) == []
    assert list(differences(unbroken, records, interrupted=True)) == []
    assert place.left() == []


def test_every_point_of_the_product_is_killed_at():
    packages = ("launcher", "metrics", "node", "transport", "topology")
    sources = [path.read_text() for package in packages for path in (ROOT / package).rglob("*.py")]
    named = {name for source in sources for name in re.findall(r'^ +failpoint\("([a-z ]+)"\)', source, re.MULTILINE)}
    assert named == {point for points in POINTS.values() for point in points} | set(_OF_RESUME)


@pytest.mark.parametrize("text", ["go", "go@launcher", "go@launcher=stop", "go@launcher:x=kill", "go@launcher=delay"])
def test_a_failpoint_that_is_misspelt_is_refused(text):
    with pytest.raises(ValueError, match="write POINT@PROCESS=kill"):
        parse_failures(text)
