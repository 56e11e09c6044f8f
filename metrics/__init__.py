"""What a run records, and reading it.

from sheafgossip.metrics import bytes_to_reach, open_run, virtual_time_to_reach
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # every client imports this package: it must cost nothing
    from .run_reader import RunReader
    from .target import Reached, ReachedVirtually

__all__ = ["bytes_to_reach", "open_run", "virtual_time_to_reach"]


def open_run(run_folder: Path | str) -> RunReader:
    """The tables of a run as pandas frames, or of all runs in a folder: then with the keys in which they differ.

    Raises RunFolderError.
    """
    from .reader import runs_in
    from .run_reader import RunReader

    if runs_in(Path(run_folder)) == [Path(run_folder)]:
        return RunReader(run_folder)
    from .runs_reader import RunsReader

    return RunsReader(run_folder)


def bytes_to_reach(run_folder: Path | str, target: float) -> Reached | None:
    """What it took until the clients' mean test metric was as good as ``target``; None: it never was.

    Raises RunFolderError.
    """
    from .target import bytes_to_reach

    return bytes_to_reach(run_folder, target)


def virtual_time_to_reach(run_folder: Path | str, target: float) -> ReachedVirtually | None:
    """The same in virtual seconds, by what every client last evaluated; None also without virtual time.

    Raises RunFolderError.
    """
    from .target import virtual_time_to_reach

    return virtual_time_to_reach(run_folder, target)
