"""What a process must pay for: the launcher knows models and algorithms without loading torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "torchvision", "pydantic", "typer", "matplotlib", "sklearn", "networkx")


def loaded_by(module: str, watched: tuple[str, ...]) -> set[str]:
    code = f"import sys, {module}; print(*[name for name in {watched} if name in sys.modules])"
    return set(subprocess.check_output([sys.executable, "-c", code], text=True).split())


@pytest.mark.parametrize("module", ["algorithms", "architecture", "assignment", "client"])
def test_knowing_algorithms_and_models_does_not_load_torch(module):
    assert loaded_by(f"sheafgossip.node.{module}", ("torch", "sheafgossip.node.learner")) == set()


def test_a_client_process_loads_torch_but_no_other_heavy_library_and_nothing_of_the_launcher():
    ours = ("sheafgossip.launcher", "sheafgossip.metrics.collector")
    assert loaded_by("sheafgossip.node.process", (*HEAVY, *ours)) == {"torch"}
