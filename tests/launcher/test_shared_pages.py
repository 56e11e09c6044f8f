"""Code that clients run lies together, and their memory begins behind it; what it computes stays the same."""

import gc
import platform
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from sheafgossip.launcher.processes import shared_pages
from sheafgossip.launcher.processes.engine import shares_for


def outer(scale: float, *, shift: float = 1.0):
    def inner(x: float) -> float:
        return scale * x + shift

    return inner


def never_called() -> int:
    return 0


def played(*calls) -> dict:
    with shared_pages.code_run() as codes:
        for call in calls:
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
    return codes


@pytest.fixture
def unfrozen():
    yield
    gc.unfreeze()


def test_what_was_called_gets_a_copy_of_its_code_and_computes_the_same(unfrozen):
    made_before, before, uncalled = outer(2.0), outer.__code__, never_called.__code__
    codes = played(lambda: outer(2.0)(3.0))
    assert {"outer", "outer.<locals>.inner"} <= {code.co_qualname for code in codes.values()}
    shared_pages.move_together(codes)
    assert outer.__code__ is not before
    assert outer.__code__.co_firstlineno == before.co_firstlineno
    assert never_called.__code__ is uncalled
    made_after = outer(2.0, shift=0.5)
    assert made_after.__code__ is made_before.__code__  # what is called later is the copy, too
    assert (made_before(3.0), made_after(3.0)) == (7.0, 6.5)


def test_code_that_threads_run_which_began_before_is_not_noted():
    with shared_pages.code_run() as codes:
        never_called()
    assert codes == {}
    assert id(never_called.__code__) in played(never_called)


LAYOUT = """
import argparse, calendar, difflib, email.message, gc, json, pprint, statistics, textwrap, threading
from types import FunctionType
from sheafgossip.launcher.processes import shared_pages

def work():
    json.dumps(json.loads('{"a": [1, 2]}'), indent=1)
    textwrap.fill("a b c " * 9), pprint.pformat([1]), statistics.stdev([1, 2, 4]), calendar.month(2026, 11)
    list(difflib.unified_diff(["a"], ["b"])), email.message.Message().as_string()
    argparse.ArgumentParser().format_help()

def pages(codes):
    return len({id(code) >> 12 for code in codes})

with shared_pages.code_run() as codes:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
functions = [each for each in gc.get_objects() if isinstance(each, FunctionType) and id(each.__code__) in codes]
before = pages(each.__code__ for each in functions)
shared_pages.move_together(codes)
print(before, pages(each.__code__ for each in functions))

usage = shared_pages.ctypes.CDLL(None).mallinfo2
usage.restype = shared_pages._Usage
before = usage()
shared_pages.fill_gaps()
after = usage()
print(before.ordblks + before.smblks, after.ordblks + after.smblks, after.uordblks - before.uordblks)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="how memory is handed out is that of glibc")
def test_copies_lie_on_fewer_pages_and_gaps_are_filled():
    done = subprocess.run([sys.executable, "-c", LAYOUT], check=True, capture_output=True, text=True)
    (pages_before, pages_after), (gaps_before, gaps_after, taken) = (
        map(int, line.split()) for line in done.stdout.splitlines()
    )
    assert pages_after < 0.7 * pages_before, done.stdout
    assert gaps_after < 0.7 * gaps_before, done.stdout
    assert 0 < taken < 4 << 20, done.stdout


IMMORTAL = """
import gc, sys
from sheafgossip.launcher.processes import shared_pages

class Kept:
    names = ["a name", {"of": (1.5, "what is in a tuple")}]

def used():
    return Kept.names

shared_pages.make_immortal()
there = [Kept, Kept.names, Kept.names[0], Kept.names[1], Kept.names[1]["of"], used, used.__code__]
print([sys.getrefcount(each) == sys.getrefcount(None) for each in there])
later = object()
held = [later] * 100
print(100 <= sys.getrefcount(later) < 110)
Kept.names.append(later)
Kept.names.remove(later)
del Kept.names[:], used, there, held
gc.collect()
shared_pages.make_immortal()
print(sys.getrefcount(later) == sys.getrefcount(None))
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="objects are immortal from Python 3.12 on")
def test_what_is_there_becomes_immortal_and_what_comes_later_does_not():
    done = subprocess.run([sys.executable, "-c", IMMORTAL], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [str([True] * 7), "True", "True"]
    assert done.stderr == ""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="objects are immortal from Python 3.12 on")
def test_an_older_interpreter_counts_on(unfrozen):
    held = [probe := object()] * 100
    shared_pages.make_immortal()
    assert len(held) < sys.getrefcount(probe) < 110


@pytest.mark.parametrize("has_memory", [True, False])
def test_another_malloc_than_glibcs_is_left_alone(has_memory):
    """As with LD_PRELOAD: the usage that glibc tells never changes."""
    held: set[int | None] = set()

    def malloc(size: int) -> int | None:
        address = size * (1 + len(held)) if has_memory else None
        held.add(address)
        return address

    unchanged = SimpleNamespace(keepcost=0, arena=0)
    assert shared_pages._end_of_heap(lambda: unchanged, malloc, held.discard) is None
    assert held == set()


def test_it_is_done_for_many_clients_only():
    assert shares_for(shared_pages.PAYS_FROM - 1) == []
    assert shares_for(shared_pages.PAYS_FROM) == [shared_pages.__name__]
