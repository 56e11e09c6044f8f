"""State files: a client after a round, complete or absent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


def write_state(path: Path, round: int, arrays: Mapping[str, np.ndarray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, unfinished, {"round": str(round)})
    unfinished.replace(path)
