"""What TensorBoard reads of a run."""

import importlib.util

import pytest

from sheafgossip.metrics.export import export
from sheafgossip.metrics.records import ResourceRecord, RoundRecord
from sheafgossip.metrics.schema import ExportError
from sheafgossip.metrics.store import Store


def scalars(path):
    """{tag: [(step, wall seconds, value), ...]}, as tensorboard itself reads them."""
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.wall_time, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_every_round_is_there_with_its_wall_time(make_run):
    folder = make_run()
    store = Store(folder / "run.sqlite")
    store.write([RoundRecord(client, 3, 0.25, None, None, 1.0, 3.0 + client, disagreement=2.0) for client in (0, 1)])
    store.write([ResourceRecord(0, 3.5, 300, 150, 100, 400, 2.0, 60)])
    store.close()
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    (path,) = export(folder, "tensorboard")
    found = scalars(path)
    assert found["mean/test_metric"] == [
        (0, 0.5, pytest.approx(0.2)), (1, 1.5, pytest.approx(0.6)), (2, 2.5, pytest.approx(0.9)),
    ]  # fmt: skip
    assert [value for *_, value in found["worst_10/test_metric"]] == [pytest.approx(x) for x in (0.1, 0.5, 0.8)]
    assert found["sum/payload_bytes"] == [(1, 1.5, 2000.0), (2, 2.5, 2000.0)]
    assert found["sum/pss"] == [(2, 2.5, 400.0), (3, 4.0, 350.0)]
    assert found["mean/disagreement"] == [(3, 4.0, 2.0)]
    assert found["mean/train_loss"][-1] == (3, 4.0, 0.25)
    assert found["client_0001/test_metric"][1:] == [(1, 1.5, pytest.approx(0.7)), (2, 2.5, 1.0)]
    assert found["client_0000/train_loss"][-1] == (3, 3.0, 0.25)


def test_the_worst_clients_are_those_with_the_largest_error(make_run):
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    (path,) = export(make_run(metric="mse"), "tensorboard")
    assert [value for *_, value in scalars(path)["worst_10/test_metric"]] == [pytest.approx(x) for x in (0.3, 0.7, 1.0)]


def test_without_tensorboard_the_command_that_installs_it_is_told(make_run, monkeypatch):
    folder = make_run()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExportError, match=r"needs tensorboard: .venv/bin/pip install -e '.\[tensorboard\]'"):
        export(folder, "tensorboard")
    assert not (folder / "export").exists()
