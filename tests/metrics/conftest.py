"""A small run folder, written through the store as the collector writes it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from made import done, event, node, sent, write
from sheafgossip.metrics.records import COLLECTOR, LAUNCHER, OverheadRecord, ResourceRecord, WorkRecord

METRICS = ((0.1, 0.3), (0.5, 0.7), (0.8, 1.0))


@pytest.fixture
def make_run(tmp_path) -> Callable[..., Path]:
    """Two clients that exchange a vector a round; ``metrics`` are their test metrics after rounds 0, 1, 2..."""

    def make(folder="run", metrics=METRICS, *, config="", metric="accuracy", payload=1_000, status="finish") -> Path:
        path = tmp_path / folder
        path.mkdir()
        if config:
            (path / "config.toml").write_text(config)
        records = [OverheadRecord(0, COLLECTOR, "records", 2, 500), event(LAUNCHER, status)]
        for client in (0, 1):
            records += [node(client, pid=100 + client)]
            records += [ResourceRecord(client, 2.0, 300, 200, 100, 400, 1.5, 60, 10, 20, 25, 5)]
            for number, values in enumerate(metrics):
                wall_s = number + client / 2
                records += [done(client, number, values[client], wall_s)]
                if number:
                    records += [sent(client, 1 - client, number, payload)]
                    records += [WorkRecord(client, wall_s, "gradient", 0.1, 0.2, number * 1_000_000)]
                    records += [WorkRecord(client, wall_s, "maps", 0.1, 0.2, number * 10_000)]
        return write(path, *records, metric=metric)

    return make
