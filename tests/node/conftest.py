"""A client's assignment and shard, as the launcher would give them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from sheafgossip.node.algorithms.base import RunFacts
from sheafgossip.node.assignment import Assignment, Deployment, Neighbour, Run
from sheafgossip.node.model.architecture import Architecture
from sheafgossip.node.settings import ModelSettings, Transport
from sheafgossip.topology import Graph

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
def run_facts() -> Callable[..., RunFacts]:
    """Of a run with these models, or with linear models of so many parameters, between which these edges are."""

    def build(models: Sequence[Architecture | int], edges: Sequence[tuple[int, int]] = (), **changes) -> RunFacts:
        models = [Architecture("linear", (each - 1,), 1) if isinstance(each, int) else each for each in models]
        graph = Graph.of(len(models), edges)
        told = {"task": "classification", "same_start": True, "classes": (), "features": (), "topology": None}
        return RunFacts(graph, models, **(told | changes))

    return build


@pytest.fixture
def with_shard(assignment: Assignment) -> Callable[..., Assignment]:
    """Writes ``train`` and ``test`` random samples for an architecture and returns the changed assignment.

    ``training``, ``model`` and ``run`` name changed fields of these.
    """

    def write(
        architecture: Architecture,
        train: int,
        test: int = 5,
        *,
        training: Mapping[str, Any] = {},
        model: Mapping[str, Any] = {},
        run: Mapping[str, Any] = {},
    ) -> Assignment:
        rng, arrays = np.random.default_rng(5), {}
        task = "regression" if architecture.kind == "linear" else "classification"
        for part, n in (("train", train), ("test", test)):
            arrays[f"x_{part}"] = rng.normal(size=(n, *architecture.input_shape)).astype(np.float32)
            arrays[f"y_{part}"] = rng.integers(architecture.outputs, size=n)
            if task == "regression":
                arrays[f"y_{part}"] = rng.normal(size=(n, architecture.outputs)).astype(np.float32)
        changed = replace(
            assignment,
            architecture=architecture,
            run=replace(assignment.run, task=task, **run),
            training=replace(assignment.training, **training),
            model=replace(assignment.model, **model),
        )
        save_file(arrays, changed.shard)
        return changed

    return write
