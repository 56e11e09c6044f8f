"""The public names, and what it costs to import them."""

import inspect
import json
import subprocess
import sys

import pytest

import sheafgossip as sg

NAMES = """
    Algorithm Config Error Facts NEEDS_NEW_UPLOADS Run RunError ServerAlgorithm SettingsError State Sweep
    TAKES_OLD_UPLOADS Table Traits Vector compare open_run plan resume run sweep testing verify weighted_mean
"""
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
