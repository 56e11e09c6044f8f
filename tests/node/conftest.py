"""A client's assignment and shard, as the launcher would give them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from sheafgossip.node.assignment import Assignment, LocalWork, Neighbour
from sheafgossip.node.model.architecture import Architecture

torch.set_num_threads(1)  # as in a client process


@pytest.fixture
def assignment(tmp_path: Path) -> Assignment:
    """Client 3 between clients 1 and 5: double precision, logistic regression on 4 features and 3 classes."""
    architecture = Architecture("logistic", (4,), 3)
    (tmp_path / "shards").mkdir()
    return Assignment(
        node=3,
        role="client",
        clients=6,
        run=77,
        seed=11,
        rounds=10,
        folder=tmp_path,
        address="tcp://127.0.0.1:*",
        records="tcp://127.0.0.1:1",
        architecture=architecture,
        task="classification",
        init="uniform",
        same_start=True,
        dtype="float64",
        training=LocalWork("full", alpha=0.1, steps=1, epochs=1, batch_size=32, momentum=0.0, l2=0.0),
        algorithm={"name": "d-psgd"},
        neighbours=(Neighbour(1, architecture.size, 0.25), Neighbour(5, architecture.size, 0.5)),
        largest_vector=architecture.size,
        timeout=10.0,
        evaluate_every=1,
        checkpoint_every=0,
        save_maps=False,
        measure=True,
        sample_every=1.0,
        kernel_counters=False,
    )


@pytest.fixture
def with_shard(assignment: Assignment) -> Callable[..., Assignment]:
    """Writes ``train`` and ``test`` random samples for an architecture and returns the changed assignment.

    ``training`` names changed fields of the local work, ``changes`` those of the assignment.
    """

    def write(
        architecture: Architecture, train: int, test: int = 5, *, training: dict | None = None, **changes
    ) -> Assignment:
        rng = np.random.default_rng(5)
        classes = architecture.kind != "linear"

        def targets(n: int) -> np.ndarray:
            if classes:
                return rng.integers(architecture.outputs, size=n)
            return rng.normal(size=(n, architecture.outputs)).astype(np.float32)

        def inputs(n: int) -> np.ndarray:
            return rng.normal(size=(n, *architecture.input_shape)).astype(np.float32)

        changed = replace(
            assignment,
            architecture=architecture,
            task="classification" if classes else "regression",
            training=replace(assignment.training, **(training or {})),
            **changes,
        )
        save_file(
            {"x_train": inputs(train), "y_train": targets(train), "x_test": inputs(test), "y_test": targets(test)},
            changed.shard,
        )
        return changed

    return write
