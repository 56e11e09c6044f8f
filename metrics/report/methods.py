"""The methods of a report: groups of runs that are alike but for their seeds."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pandas import DataFrame, concat

from ..comparison import Group, summarize_all
from ..reader import RunReader, read_attackers, read_owners
from ..store import RunFolderError
from ..text import label
from ..twin import Twin, is_planned, twin_of


class _Reader(RunReader):
    """Reads each table once: many charts are made of the same."""

    def __init__(self, folder: str | Path):
        super().__init__(folder)
        self._kept: dict[str, DataFrame] = {}

    def frame(self, relation: str) -> DataFrame:
        if relation not in self._kept:
            self._kept[relation] = super().frame(relation)
        return self._kept[relation].copy()


@dataclass(frozen=True)
class Method(Group):
    """A group that is shown. ``number`` decides on the colour; what is shown of one run alone is of the first."""

    number: int

    @cached_property
    def reader(self) -> RunReader:
        return _Reader(self.run.folder)

    @cached_property
    def clients(self) -> list[int]:
        nodes = self.reader.nodes
        return nodes.node[nodes.role == "client"].tolist()

    @cached_property
    def attackers(self) -> set[int]:
        return read_attackers(self.run.folder)

    @cached_property
    def others(self) -> dict[int, str]:
        """Names processes other than clients by their role, and where several have it by their host, too."""
        nodes = self.reader.nodes
        nodes = nodes[nodes.role != "client"].sort_values("node", ascending=False)
        places = zip(nodes.node, nodes.role, nodes.host, nodes.role.duplicated(keep=False), strict=True)
        return {node: label(f"{role} on {host}" if several else role) for node, role, host, several in places}

    @cached_property
    def twin(self) -> Twin | None:
        """The first run beside its plan, where it has finished on the wall clock."""
        folder = Path(self.run.folder)
        with suppress(RunFolderError):  # of a plan that is damaged there is nothing to tell
            return twin_of(folder) if self.run.status == "finished" and is_planned(folder) else None
        return None

    @property
    def scale(self) -> tuple[float, str]:
        """Returns a factor for test metrics that are shown, and their title."""
        return (100.0, "test accuracy, %") if self.run.metric == "accuracy" else (1.0, "test MSE")

    def latest_metric(self) -> DataFrame:
        """seed, client, owner ("" where it has no name), test_metric: the last evaluation of each client of each seed
        that does not attack.
        The client of a number has other data in another seed, so nothing is averaged."""
        frames = []
        for run in self.runs:
            latest = RunReader(run.folder).last_test_metric
            latest = latest[latest.node.isin(self.clients) & ~latest.node.isin(read_attackers(run.folder))]
            owners = latest.node.map(read_owners(run.folder)).astype(object).fillna("")
            frames.append(latest.rename(columns={"node": "client"}).assign(seed=run.seed, owner=owners))
        return concat(frames)[["seed", "client", "owner", "test_metric"]].reset_index(drop=True)


def methods_of(folders: Sequence[Path]) -> list[Method]:
    return [Method(group.name, group.runs, number) for number, group in enumerate(summarize_all(folders))]
