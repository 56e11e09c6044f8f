"""CPU seconds of whole runs against those of the same gradient steps alone.

    .venv/bin/python benchmarks/efficiency.py [--data-root FOLDER_WITH_MNIST_FILES] [--repeats 3]

A run is the whole command: launcher, fork server, collector and every client, from start to end, as the kernel counts
them. "Steps alone" are the same steps on the same shards in one plain loop of one process, its imports not counted:
forward, backward() and an update in place, as in any PyTorch script; "our steps alone" are the same loop on this
project's own learner, which takes shorter ways where there are any.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the loop's process alone loads torch
    from torch.nn import Module

    from sheafgossip.node.architecture import Architecture
    from sheafgossip.node.learner import Learner

CNN = """
clients = 40
rounds = 10
[topology]
p = 0.15
[data]
{images}
rotations = [0, 90, 180, 270]
[model]
kind = "cnn"
filters = {filters}
[training]
work = "epochs"
batch_size = 32
alpha = 0.05
[evaluation]
every = 10
[algorithm]
name = "sheaf-fmtl"
gamma = 0.01
storage = "factored"
start = "orthogonal"
"""
LOGISTIC = """
clients = 40
rounds = 1000
[topology]
p = 0.15
[data]
rotations = [0, 90, 180, 270]
[training]
work = "steps"
steps = 1
batch_size = 32
[evaluation]
every = 100
[algorithm]
{algorithm}
"""


CLI = (sys.executable, "-m", "sheafgossip.launcher.cli")
HEADER = ["run", "CPU s of the run", "steps alone", "our steps alone", "run / steps", "run / our steps", "aim"]


@dataclass(frozen=True)
class Case:
    name: str
    config: str
    limit: float
    """Times the steps alone: what the run may take at most."""


def measure(case: Case, repeats: int) -> list[str]:
    """A row of the table."""
    runs, plain, own = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.toml"
        config.write_text(case.config)
        for repeat in range(repeats):
            out = Path(folder) / str(repeat)
            runs.append(cpu_of([*CLI, "run", str(config), "--out", str(out), "-q"]))
            for kind, times in (("plain", plain), ("own", own)):
                command = [sys.executable, __file__, "--loop", kind, str(config)]
                times.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    to_plain, to_own = ([run / alone for run, alone in zip(runs, times, strict=True)] for times in (plain, own))
    return [case.name, *map(spread, (runs, plain, own, to_plain, to_own)), f"{case.limit:g}"]


def cpu_of(command: Sequence[str]) -> float:
    """CPU seconds of a command and all its descendants."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


def loop(kind: str, config: Path) -> float:
    """CPU seconds of the gradient steps of a run, in one plain loop."""
    import torch

    from sheafgossip.launcher.config import load
    from sheafgossip.launcher.preparation import prepare_run
    from sheafgossip.node.learner import Learner

    torch.set_num_threads(1)
    (resolved,) = load(config, [])
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        prepared = prepare_run(resolved, place, sockets=place, records="ipc:///nowhere")
        rounds = [
            learner.learn if kind == "own" else plain_round(learner, assignment.architecture, assignment.training.alpha)
            for assignment in prepared.assignments
            for learner in [Learner(assignment)]
        ]
        rounds[0]()  # what is set up once
        start = time.process_time()
        for _ in range(resolved.rounds):
            for learn in rounds:
                learn()
        return time.process_time() - start


def modules(architecture: Architecture) -> Module:
    """Logistic regression, or the paper's CNN, of torch's own modules."""
    from torch import nn

    layers, channels = [], architecture.input_shape[0]
    for filters in architecture.filters if architecture.kind == "cnn" else ():
        layers += [nn.Conv2d(channels, filters, 3), nn.ReLU(), nn.MaxPool2d(2)]
        channels = filters
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(architecture.features, architecture.outputs))


def plain_round(learner: Learner, architecture: Architecture, alpha: float) -> Callable[[], None]:
    """One round's local work of a classifier, as a script would write it."""
    import torch

    network = modules(architecture)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(learner.theta.copy()), network.parameters())
    parameters = list(network.parameters())

    def learn() -> None:
        for batch in learner.batches():
            x, y = map(torch.as_tensor, batch)
            torch.nn.functional.cross_entropy(network(x), y).backward()
            with torch.no_grad():
                for parameter in parameters:
                    parameter -= alpha * parameter.grad
                    parameter.grad = None

    return learn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-root", type=Path, help="folder with the MNIST files; without it, the CNN learns digits")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--loop", choices=("plain", "own"), help=argparse.SUPPRESS)
    parser.add_argument("config", type=Path, nargs="?", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.loop:
        print(loop(arguments.loop, arguments.config))
        return
    root = arguments.data_root
    images = f'dataset = "mnist"\nroot = "{root.resolve()}"\nsamples = 16000' if root else 'dataset = "digits"'
    filters = "[32, 64]" if root else "[32]"
    rows = [
        measure(case, arguments.repeats)
        for case in (
            Case("CNN, an epoch a round, Sheaf-FMTL", CNN.format(images=images, filters=filters), limit=1.25),
            Case("logistic, a step a round, D-PSGD", LOGISTIC.format(algorithm='name = "d-psgd"'), limit=4),
            Case("logistic, a step a round, Sheaf-FMTL", LOGISTIC.format(algorithm='name = "sheaf-fmtl"'), limit=4),
        )
    ]
    text = "\n".join("| " + " | ".join(row) + " |" for row in (HEADER, ["---"] * len(HEADER), *rows))
    print(text)
    target = Path(__file__).parent / "results" / "efficiency.md"
    command = f"make bench-efficiency{' DATA_ROOT=FOLDER' if root else ''}"
    target.write_text(f"Made by `{command}`: medians of {arguments.repeats} (smallest to largest).\n\n{text}\n")


if __name__ == "__main__":
    main()
