"""Who owns the samples of each client, where the data set says so."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from .plain import label
from .reader import open_records

KEY = "owners"
"""Kept in ``meta``: the name of each client's owner, as a list in JSON; views read it, too."""


def packed(owners: Sequence[str]) -> dict[str, str]:
    """For table ``meta``; nothing where nobody has a name."""
    return {KEY: json.dumps(list(owners), ensure_ascii=False)} if any(owners) else {}


def owners_of(records: sqlite3.Connection) -> dict[int, str]:
    """{client: its owner}, fit to be shown."""
    return {node: label(str(owner)) for node, owner in records.execute("SELECT node, owner FROM owner ORDER BY node")}


def read_owners(run_folder: Path | str) -> dict[int, str]:
    """Raises RunFolderError."""
    with open_records(run_folder) as records:
        return owners_of(records)


def client_name(node: int, owners: Mapping[int, str]) -> str:
    return f"client {node} ({owners[node]})" if node in owners else f"client {node}"
