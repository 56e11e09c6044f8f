"""How the launcher waits until all records are stored, on disks that are slow or worse."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaos.records import Records
from sheafgossip.launcher.processes import collector as collector_module
from sheafgossip.metrics.records import LAUNCHER, EventRecord
from sheafgossip.transport.keys import KeyPair

SLOW = """
import time
from sheafgossip.metrics import collector
from sheafgossip.metrics.store import Store

commit = Store.commit
Store.commit = lambda store: (time.sleep(0.3), commit(store))
collector._BURST, collector._COMMIT_EVERY_S, collector._WAIT_FOR_MISSING_S = 1, 0.0, 0.2
collector.main()
"""


def prepared(folder: Path, records: str) -> SimpleNamespace:
    (folder / "log").mkdir()
    assignment = SimpleNamespace(deployment=SimpleNamespace(records=records))
    config = SimpleNamespace(measuring=SimpleNamespace(enabled=False), transport=SimpleNamespace(keys=True))
    return SimpleNamespace(assignments=[assignment], folder=folder, config=config)


@pytest.fixture
def slow(tmp_path, monkeypatch) -> Iterator[collector_module.CollectorProcess]:
    """A collector that takes 0.3 s to store a batch, whom nobody waits for when it does nothing for 1 s."""
    (tmp_path / "slow.py").write_text(SLOW)
    for name, value in {
        "_COLLECTOR": (sys.executable, f"{tmp_path}/slow.py"),
        "_STANDSTILL_S": 1.0,
        "_GRACE_S": 0.3,
    }.items():
        monkeypatch.setattr(collector_module, name, value)
    with collector_module.CollectorProcess(prepared(tmp_path, f"ipc://{tmp_path}/records")) as collector:
        write(collector, 1)
        while collector.stored() < 1:  # it may take its time to start
            time.sleep(0.05)
        yield collector


def write(collector: collector_module.CollectorProcess, batches: int) -> None:
    for number in range(batches):
        collector.write(EventRecord(float(number), None, LAUNCHER, "test", ""))


def stored(folder: Path) -> int:
    return Records(folder).rows("SELECT count(*) FROM event WHERE kind = 'test'")[0][0]


def test_a_slow_disk_is_waited_for_as_long_as_it_gets_on(slow, tmp_path):
    write(slow, 9)
    told: list[str] = []
    began = time.monotonic()
    assert slow.end({}, told.append, lambda: False) is None
    assert time.monotonic() - began > 2 * collector_module._STANDSTILL_S
    assert stored(tmp_path) == 10
    assert len(set(told)) > 3
    assert all(text.startswith("storing records: ") and text.endswith(" of 10 batches") for text in told)


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_collector_that_gets_nowhere_or_is_not_waited_for_has_ended_before_the_launcher_goes_on(
    slow, tmp_path, interrupted
):
    write(slow, 29)
    if not interrupted:
        while slow.stored() < 2:
            time.sleep(0.05)
        os.kill(slow._process.pid, signal.SIGSTOP)
    why = slow.end({}, lambda _: None, lambda: interrupted and slow.stored() > 2)
    assert not slow.alive
    cause = "interrupted" if interrupted else "the collector got nowhere for 1 s"
    assert why.endswith(f" of 30 batches are stored; {cause}")
    assert 2 <= int(why.split()[0]) <= stored(tmp_path) < 30


def test_a_key_may_begin_with_a_dash(tmp_path, monkeypatch):
    """One in 85 does."""
    while not (pair := KeyPair.make()).public.startswith("-"):
        continue
    monkeypatch.setattr(collector_module.KeyPair, "make", lambda: pair)
    with collector_module.CollectorProcess(prepared(tmp_path, "tcp://127.0.0.1:*")) as collector:
        write(collector, 3)
        assert collector.end({}, lambda _: None, lambda: False) is None
    assert stored(tmp_path) == 3
