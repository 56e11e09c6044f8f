"""What processes are called: a client by its number, and whose samples it has, where the data set says so."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from .reader import open_records
from .records import COLLECTOR, FORK_SERVER, LAUNCHER
from .text import label

KEY = "owners"
"""Kept in ``meta``: the name of each client's owner, as a list in JSON; views read it, too."""


def packed(owners: Sequence[str]) -> dict[str, str]:
    """Returns what table ``meta`` keeps; nothing where nobody has a name."""
    return {KEY: json.dumps(list(owners), ensure_ascii=False)} if any(owners) else {}


def read_owners(run_folder: Path | str) -> dict[int, str]:
    """Returns {client: its owner}, fit to be shown. Raises RunFolderError."""
    with open_records(run_folder) as records:
        owners = records.execute("SELECT node, owner FROM owner ORDER BY node")
        return {node: label(str(owner)) for node, owner in owners}


def client_name(node: int, owners: Mapping[int, str]) -> str:
    return f"client {node} ({owners[node]})" if node in owners else f"client {node}"


_OTHERS = {LAUNCHER: "the launcher", COLLECTOR: "the collector", FORK_SERVER: "the fork server"}
SERVER_NAME = "the server"


def name_of(node: int, records: sqlite3.Connection) -> str:
    """Names any process of a run."""
    if node in _OTHERS:
        return _OTHERS[node]
    if records.execute("SELECT 1 FROM node WHERE node = ? AND role = 'server'", [node]).fetchone():
        return SERVER_NAME
    owner = records.execute("SELECT owner FROM owner WHERE node = ?", [node]).fetchone()
    return client_name(node, {node: label(str(owner[0]))} if owner else {})
