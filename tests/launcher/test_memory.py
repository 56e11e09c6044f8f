"""What a run will take, and what is said where that is not there."""

from dataclasses import replace
from pathlib import Path

import pytest

from sheafgossip.launcher.config.sections import ConfigError, validate
from sheafgossip.launcher.prepare.assignments import Site
from sheafgossip.launcher.prepare.memory import Need, check_resources, need_of
from sheafgossip.launcher.prepare.preparation import prepare_run

SMALL = Need(memory=1e9, seconds=10, files=340, clients=40)


def need(folder: Path, **settings: object) -> Need:
    config = validate({"clients": 4, "rounds": 10, "topology": {"kind": "complete"}, **settings})
    return need_of(prepare_run(config, folder, Site(sockets=folder, records="ipc:///nowhere")))


def test_dense_maps_are_counted_with_all_their_numbers(tmp_path):
    """4 clients of 3 neighbours, d = 650: 650 x 650 numbers of 4 bytes a map, against next to nothing without."""
    sheaf = {"name": "sheaf-fmtl", "gamma": 1.0, "storage": "dense"}
    without = need(tmp_path / "a", algorithm={"name": "d-psgd"})
    dense = need(tmp_path / "b", algorithm=sheaf)
    assert dense.memory - without.memory == pytest.approx(4 * 3 * 650 * 650 * 4, rel=0.01)


def test_the_history_of_factored_maps_grows_with_the_rounds(tmp_path):
    """A row of history is theta (650 numbers) and r of three edges (65 each)."""
    sheaf = {"name": "sheaf-fmtl", "gamma": 0.1, "storage": "factored", "start": "orthogonal"}
    short, long = (need(tmp_path / str(rounds), algorithm=sheaf, rounds=rounds) for rounds in (10, 1010))
    assert long.memory - short.memory == pytest.approx(4 * 1000 * (650 + 3 * 65) * 4, rel=0.01)
    assert long.seconds > 20 * short.seconds / 10


def test_more_local_work_takes_longer(tmp_path):
    steps, epochs = (
        need(tmp_path / work, rounds=200, training={"work": work, "epochs": 5}) for work in ("steps", "epochs")
    )
    assert epochs.seconds > steps.seconds


def test_what_flt_does_before_the_first_round_is_counted(tmp_path):
    """Each client encodes its images by torch, and trains the encoder if asked to."""
    plain = need(tmp_path / "a", algorithm={"name": "fedavg"})
    tuned = need(tmp_path / "b", algorithm={"name": "flt", "fine_tune_epochs": 500})
    assert tuned.clients_memory - plain.clients_memory > 4 * 10e6
    assert tuned.seconds > 10 * plain.seconds


def test_a_run_that_needs_more_memory_than_is_free_is_refused_in_one_line():
    huge = replace(SMALL, memory=1e15, clients=900)
    with pytest.raises(ConfigError, match=r"^900 clients need about 1000000\.0 GB of memory, .* GB are free;.*--force"):
        check_resources([SMALL, huge], force=False)
    check_resources([SMALL, huge], force=True)
    check_resources([SMALL], force=False)


def test_a_run_that_needs_more_open_files_than_the_system_allows_is_refused_even_by_force(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 4096))
    check_resources([SMALL], force=False)
    with pytest.raises(ConfigError, match=r"about 5300 open files .* allows 4096; .*ulimit -Hn 5300.* at most 3796"):
        check_resources([replace(SMALL, files=5300, clients=5000)], force=True)
