"""The public names, and what it costs to import them."""

import inspect
import json
import re
import subprocess
import sys

import pytest

import sheafgossip as sg
from runs import ROOT
from sheafgossip.reference import GROUPS, describe

NAMES = """
    Algorithm Architecture Client Config Cost Edge Error Facts Graph GraphSequence NEEDS_NEW_UPLOADS Neighbour Peers
    RoundReport Run RunError RunFacts SecureSum ServerAlgorithm SettingsError Setup State Sweep TAKES_OLD_UPLOADS Table
    Traits Vector Work calibrate compare open_run plan replay resume run sweep testing tune twin verify weighted_mean
"""
INTERNAL = {"show", "shown", "lacks_answer", "skip_to"}  # what ServerAlgorithm does for its subclasses
TELL = """
import json, sys, time
start = time.process_time()
import sheafgossip
print(json.dumps([time.process_time() - start, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def test_these_names_are_public():
    assert sorted(sg.__all__) == sorted(dir(sg)) == sorted(NAMES.split())


@pytest.mark.parametrize("name", NAMES.split())
def test_each_is_there_and_described(name):
    thing = getattr(sg, name)
    assert not (inspect.isclass(thing) or inspect.isroutine(thing)) or inspect.getdoc(thing)
    with pytest.raises(AttributeError, match=f"has no attribute 'x_{name}'; it has .*run, sweep"):
        getattr(sg, f"x_{name}")


def test_the_import_costs_nothing():
    seconds, modules = json.loads(subprocess.check_output([sys.executable, "-c", TELL]))
    assert not {"numpy", "torch", "pydantic", "pandas", "zmq", "rich", "typer"} & set(modules)
    assert seconds < 0.1


def test_the_reference_is_up_to_date_and_has_every_public_name():
    assert (ROOT / "docs" / "api.md").read_text() == describe() + "\n", "docs/api.md is stale: run `make docs`"
    names = {name.partition(".")[0] for group in GROUPS.values() for name in group.split()}
    assert names - {"launcher", "metrics"} == set(sg.__all__)


def test_the_contract_of_an_algorithm_is_described():
    """Whatever built-in algorithms use of a client and its peers can be looked up."""
    page = describe()
    files = [path.read_text() for path in (ROOT / "node" / "algorithms").glob("*.py")]
    for name, section in (("client", "Client"), ("peers", "Peers")):
        used = {word for text in files for word in re.findall(rf"\b{name}\.([a-z]\w*)", text)}
        there = page.partition(f"### {section}\n")[2].partition("\n### ")[0]
        assert used - set(re.findall(r"^- \*\*`(\w+)", there, re.M)) <= INTERNAL
