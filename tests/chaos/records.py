"""A run folder as another program finds it: TOML, safetensors and SQLite, nothing of ours."""

import contextlib
import sqlite3
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file


class Records:
    def __init__(self, path: Path):
        self.path = path

    @cached_property
    def config(self) -> dict[str, Any]:
        return tomllib.loads((self.path / "config.toml").read_text())

    @cached_property
    def plan(self) -> dict[int, dict[str, np.ndarray]]:
        """{process: its part}; nothing where the run has no scenario."""
        return {number_of(path): load_file(path) for path in sorted(self.path.glob("plan/node-*.safetensors"))}

    @property
    def begun(self) -> bool:
        with contextlib.suppress(sqlite3.Error):
            return bool(self.rows("SELECT 1 FROM event WHERE node = -1 AND kind = 'start'"))
        return False

    @property
    def can_be_resumed(self) -> bool:
        """Whether it was killed after its preparation: before, there is nothing to go on from."""
        with contextlib.suppress(sqlite3.Error):
            return (self.path / "config.toml").exists() and bool(self.rows("SELECT 1 FROM meta WHERE key = 'groups'"))
        return False

    @property
    def planned_end_s(self) -> float:
        """In planned seconds; 0 without a scenario."""
        ends = [part["end"][~np.isnan(part["end"])] for part in self.plan.values()]
        return max((float(end.max()) for end in ends if len(end)), default=0.0)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(f"file:{self.path}/run.sqlite?mode=ro", uri=True)) as records:
            return records.execute(query).fetchall()

    def columns(self, table: str) -> list[str]:
        return [row[1] for row in self.rows(f"PRAGMA table_info({table})")]

    def files(self, folder: str) -> dict[str, Path]:
        """{path below the folder: file}"""
        start = self.path / folder
        return {str(path.relative_to(start)): path for path in sorted(start.rglob("*")) if path.is_file()}


def number_of(path: Path) -> int:
    """node-0003.safetensors is client 3's."""
    return int(path.stem.partition("-")[2])


def same_arrays(one: Path, other: Path) -> bool:
    """To the bit."""
    ours, theirs = load_file(one), load_file(other)
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == theirs[name].dtype and ours[name].tobytes() == theirs[name].tobytes() for name in ours
    )
