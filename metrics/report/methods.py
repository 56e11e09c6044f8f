"""The runs of a report: those that differ only in their seed are one method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from .. import open_run
from ..comparison import Group, summarize_all
from ..reader import RunReader, read_owners
from ..summary import RunSummary
from ..text import label

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Method:
    """``number`` decides on its colour."""

    number: int
    name: str
    group: Group
    folders: tuple[Path, ...]

    @property
    def run(self) -> RunSummary:
        return self.group.runs[0]

    @cached_property
    def reader(self) -> RunReader:
        """Reads the first seed's run: what is shown of one run alone is of this one."""
        return open_run(self.folders[0])

    @cached_property
    def clients(self) -> list[int]:
        nodes = self.reader.nodes
        return nodes.node[nodes.role == "client"].tolist()

    @property
    def metric_label(self) -> str:
        return "test accuracy, %" if self.run.metric == "accuracy" else "test MSE"

    @property
    def unit(self) -> float:
        """What a test metric is multiplied by to be shown."""
        return 100.0 if self.run.metric == "accuracy" else 1.0

    def latest_metric(self) -> DataFrame:
        """seed, client, owner ("" where it has no name), test_metric: the last evaluation of each client of each seed.
        The client of a number has other data in another seed, so nothing is averaged."""
        import pandas

        frames = []
        for run, folder in zip(self.group.runs, self.folders, strict=True):
            latest = open_run(folder).last_test_metric
            latest = latest[latest.node.isin(self.clients)]
            owners = latest.node.map(read_owners(folder)).astype(object).fillna("")
            frames.append(latest.rename(columns={"node": "client"}).assign(seed=run.seed, owner=owners))
        return pandas.concat(frames)[["seed", "client", "owner", "test_metric"]].reset_index(drop=True)


def methods_of(folders: Sequence[Path]) -> list[Method]:
    """Raises RunFolderError."""
    return [
        Method(number, group.name, group, tuple(Path(run.folder) for run in group.runs))
        for number, group in enumerate(summarize_all(folders))
    ]


def named(nodes: DataFrame) -> list[str]:
    """Names processes that are not clients: by their role, and where several have it, their host's name too."""
    shared = nodes.role.duplicated(keep=False)
    return [
        label(f"{role} on {host}" if several else role)
        for role, host, several in zip(nodes.role, nodes.host, shared, strict=True)
    ]
