"""A client's assignment and shard, as the launcher would give them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from sheafgossip.node.assignment import Assignment, Deployment, Neighbour, Run
from sheafgossip.node.model.architecture import Architecture
from sheafgossip.node.settings import ModelSettings, Transport

torch.set_num_threads(1)  # as in a client process


@pytest.fixture
def assignment(tmp_path: Path) -> Assignment:
    """Client 3 between clients 1 and 5: double precision, logistic regression on 4 features and 3 classes."""
    architecture = Architecture("logistic", (4,), 3)
    (tmp_path / "shards").mkdir()
    return Assignment(
        node=3,
        role="client",
        run=Run(77, tmp_path, seed=11, clients=6, rounds=10, largest_vector=architecture.size),
        deployment=Deployment("tcp://127.0.0.1:*", "tcp://127.0.0.1:1"),
        architecture=architecture,
        algorithm={"name": "d-psgd"},
        neighbours=(Neighbour(1, architecture.size, 0.25), Neighbour(5, architecture.size, 0.5)),
        model=ModelSettings(dtype="float64"),
        transport=Transport(timeout=10.0),
    )


@pytest.fixture
def with_shard(assignment: Assignment) -> Callable[..., Assignment]:
    """Writes ``train`` and ``test`` random samples for an architecture and returns the changed assignment; ``changes``
    are fields of its training, model and run."""

    def write(architecture: Architecture, train: int, test: int = 5, **changes: dict[str, Any]) -> Assignment:
        task = "regression" if architecture.kind == "linear" else "classification"
        changes["run"] = {"task": task} | changes.get("run", {})
        parts = {name: replace(getattr(assignment, name), **fields) for name, fields in changes.items()}
        changed = replace(assignment, architecture=architecture, **parts)
        rng, arrays = np.random.default_rng(5), {}
        for part, n in (("train", train), ("test", test)):
            arrays[f"x_{part}"] = rng.normal(size=(n, *architecture.input_shape)).astype(np.float32)
            arrays[f"y_{part}"] = rng.integers(architecture.outputs, size=n)
            if task == "regression":
                arrays[f"y_{part}"] = rng.normal(size=(n, architecture.outputs)).astype(np.float32)
        save_file(arrays, changed.shard)
        return changed

    return write
