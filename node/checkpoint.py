"""State files: a client after a round, complete or absent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ..transport.failpoints import failpoint


def write_state(path: Path, round: int, arrays: Mapping[str, np.ndarray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, unfinished, {"round": str(round)})
    failpoint("state written")
    unfinished.replace(path)
    failpoint("state renamed")


def read_state(path: Path) -> dict[str, np.ndarray]:
    return load_file(path)


def sent_to(node: int, paths: Iterable[Path]) -> Iterator[tuple[int, int, np.ndarray]]:
    """(round, phase, vector) of the messages to ``node`` that a neighbour's files hold; absent files hold none."""
    start = f"sent.{node}."
    for path in paths:
        if not path.exists():
            continue
        with safe_open(path, framework="numpy") as state:
            for name in state.keys():  # noqa: SIM118  (it is no mapping)
                if name.startswith(start):
                    round, phase = name.removeprefix(start).split(".")
                    yield int(round), int(phase), state.get_tensor(name)
