"""A run over tcp whose every socket asks for keys: it does what it does without them, whoever knocks meanwhile."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from sheafgossip.launcher.config import validate
from sheafgossip.launcher.forkserver import ForkServer
from sheafgossip.launcher.preparation import Prepared, prepare_run
from sheafgossip.launcher.run import Run

ROUNDS = 40


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


@dataclass
class Over:
    """A run that has ended, and its secrets."""

    prepared: Prepared

    def rows(self, query: str) -> list[tuple]:
        with contextlib.closing(sqlite3.connect(self.prepared.folder / "run.sqlite", timeout=10)) as records:
            return records.execute(query).fetchall()

    def thetas(self) -> list[np.ndarray]:
        files = sorted((self.prepared.folder / "state" / f"round-{ROUNDS:06d}").glob("node-*.safetensors"))
        return [load_file(file)["theta"] for file in files]

    @property
    def secrets(self) -> list[str]:
        own = [each.keys.secret for each in self.prepared.assignments if each.keys]
        keys = self.prepared.record_keys
        return own + ([keys.collector.secret, keys.launcher.secret] if keys else [])


@pytest.fixture
def run(server, tmp_path) -> Callable[..., Over]:
    count = 0

    def run(
        records: str = "tcp://127.0.0.1:*", meanwhile: Callable[[Path], None] = lambda _: None, **transport
    ) -> Over:
        nonlocal count
        count += 1
        config = validate(
            {
                "clients": 5,
                "rounds": ROUNDS,
                "data": {"samples": 100},
                "topology": {"kind": "ring"},
                "algorithm": {"name": "d-psgd"},
                "transport": {"protocol": "tcp", "timeout": 30.0} | transport,
                "evaluation": {"every": 0},
            }
        )
        sockets = server.sockets / f"{tmp_path.name[-20:]}-{count}"
        sockets.mkdir(mode=0o700)
        address = records or f"ipc://{sockets}/records"
        prepared = prepare_run(config, tmp_path / f"run-{count}", sockets=sockets, records=address)
        over = threading.Event()

        def disturb() -> None:
            while not over.is_set():
                with contextlib.suppress(OSError, sqlite3.Error):
                    meanwhile(prepared.folder)
                time.sleep(0.002)

        disturber = threading.Thread(target=disturb)
        disturber.start()
        try:
            outcome = Run(prepared, server, lambda: None)()
        finally:
            over.set()
            disturber.join()
        assert outcome.status == "finish", outcome
        return Over(prepared)

    return run


def same_bits(one: Over, other: Over) -> bool:
    pairs = list(zip(one.thetas(), other.thetas(), strict=True))
    return len(pairs) == 5 and all(np.array_equal(a, b) for a, b in pairs)


def test_records_go_over_tcp_to_a_port_that_the_collector_picks(run):
    keyed, plain, unix = run(), run(keys=False), run(records="")
    assert keyed.prepared.record_keys is not None
    assert plain.prepared.record_keys is None
    for one in (keyed, plain, unix):
        assert one.rows("SELECT count(*) FROM round") == [(5 * (ROUNDS + 1),)]
        assert one.rows("SELECT count(*) FROM event WHERE kind IN ('drop', 'lost-records')") == [(0,)]
    [(address,)] = keyed.rows("SELECT address FROM node WHERE role = 'collector'")
    assert address.startswith("tcp://127.0.0.1:")
    assert same_bits(keyed, plain)
    assert same_bits(keyed, unix)


def test_no_secret_key_is_in_any_file_of_the_run(run):
    over = run()
    assert len(set(over.secrets)) == 5 + 2
    files = [path for path in over.prepared.folder.rglob("*") if path.is_file()]
    assert {"run.sqlite", "config.toml", "collector.log", "node-0000.log"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        assert not [secret for secret in over.secrets if secret.encode() in content], path
    assert not [secret for secret in over.secrets if secret in repr(over.prepared)]
