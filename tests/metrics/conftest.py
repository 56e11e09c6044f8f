"""A small run folder, written through the store as the collector writes it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sheafgossip.metrics.records import (
    COLLECTOR,
    LAUNCHER,
    EventRecord,
    NodeRecord,
    OverheadRecord,
    ResourceRecord,
    RoundRecord,
    TrafficRecord,
    WorkRecord,
)
from sheafgossip.metrics.store import Store


@pytest.fixture
def make_run(tmp_path) -> Callable[..., Path]:
    """Two clients that exchange a vector a round; ``metrics`` are their test metrics after rounds 0, 1, 2..."""

    def make(
        folder: str = "run",
        metrics: tuple[tuple[float | None, float | None], ...] = ((0.1, 0.3), (0.5, 0.7), (0.8, 1.0)),
        *,
        config: str = "",
        metric: str = "accuracy",
        payload: int = 1_000,
        status: str = "finish",
    ) -> Path:
        path = tmp_path / folder
        path.mkdir()
        if config:
            (path / "config.toml").write_text(config)
        store = Store(path / "run.sqlite")
        store.describe(metric=metric)
        for client in (0, 1):
            store.write([NodeRecord(client, "client", "logistic", 650, 30, 10, 1, "host", 100 + client, "")])
            for number, values in enumerate(metrics):
                wall_s = number + client / 2
                store.write([RoundRecord(client, number, 0.5, None, values[client], 1.0, wall_s)])
                if number:
                    sent = (1, payload, payload + 20, payload + 30)
                    store.write([TrafficRecord(client, 1 - client, number, *sent)])
                    store.write([WorkRecord(client, wall_s, "gradient", 0.1, 0.2, number * 1_000_000)])
                    store.write([WorkRecord(client, wall_s, "maps", 0.1, 0.2, number * 10_000)])
            store.write([ResourceRecord(client, 2.0, 300, 200, 100, 400, 1.5, 60, 10, 20, 25, 5)])
        store.write([OverheadRecord(0, COLLECTOR, "records", 2, 500), EventRecord(0.0, None, LAUNCHER, status, "")])
        store.close()
        return path

    return make
