"""A small run folder, written through the store as the collector writes it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from made import done, event, node, write
from sheafgossip.metrics.records import COLLECTOR, LAUNCHER, OverheadRecord, ResourceRecord, TrafficRecord, WorkRecord


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
        records = []
        for client in (0, 1):
            records.append(node(client, pid=100 + client))
            for number, values in enumerate(metrics):
                wall_s = number + client / 2
                records.append(done(client, number, values[client], wall_s))
                if number:
                    sent = (1, payload, payload + 20, payload + 30)
                    records.append(TrafficRecord(client, 1 - client, number, *sent))
                    records.append(WorkRecord(client, wall_s, "gradient", 0.1, 0.2, number * 1_000_000))
                    records.append(WorkRecord(client, wall_s, "maps", 0.1, 0.2, number * 10_000))
            records.append(ResourceRecord(client, 2.0, 300, 200, 100, 400, 1.5, 60, 10, 20, 25, 5))
        records += [OverheadRecord(0, COLLECTOR, "records", 2, 500), event(LAUNCHER, status)]
        return write(path, *records, metric=metric)

    return make
