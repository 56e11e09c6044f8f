"""CPU seconds of whole runs against those of the same gradient steps alone.

A run is the whole command: launcher, fork server, collector and every client, from start to end, as the kernel counts
them. "Steps alone" are the same steps on the same shards in one plain loop of one process, its imports not counted:
forward, backward() and an update in place, as in any PyTorch script; "our steps alone" are the same loop on this
project's own learner, which takes shorter ways where there are any. The "bare floor" is what real processes cost with
nothing of this project's in them: a process a client takes the plain steps and exchanges vectors of the same lengths
with its neighbours over bare ROUTER sockets, without headers, checks, counts or records; its start is not counted.

With --parts, only where the CPU seconds of these runs go, as the runs' own records tell: a client's thread by parts,
ZeroMQ's thread, and the other processes.

With --ring, only a small run with its memory: eight clients on a ring, D-PSGD, 80 rounds of three steps of GN-LeNet
(89,834 parameters) on mini-batches of 8 images of 32x32x3 pixels, which are noise: time does not depend on them.
decentralizepy takes 64 CPU seconds and about 400 MB a client for this work.
"""

import argparse
import multiprocessing
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from common import LAST_SAMPLES, cpu_of, new_folder, options, reading, run_command, spread, table, write
from exchange import bare, together

if TYPE_CHECKING:  # the loop's process alone loads torch
    from torch.nn import Module

    from sheafgossip.node.model.architecture import Architecture
    from sheafgossip.node.model.learner import Learner

CNN = """
clients = 40
rounds = 10
topology = {{ p = 0.15 }}
data = {{ {images}, rotations = [0, 90, 180, 270] }}
model = {{ kind = "cnn", filters = {filters} }}
training = {{ work = "epochs", batch_size = 32, alpha = 0.05 }}
evaluation = {{ every = 10 }}
algorithm = {{ name = "sheaf-fmtl", gamma = 0.01, storage = "factored", start = "orthogonal" }}
"""
LOGISTIC = """
clients = 40
rounds = 1000
topology = {{ p = 0.15 }}
data = {{ rotations = [0, 90, 180, 270] }}
training = {{ work = "steps", steps = 1, batch_size = 32 }}
evaluation = {{ every = 100 }}
algorithm = {{ name = "{algorithm}" }}
"""
RING = """
clients = 8
rounds = 80
topology = {{ kind = "ring" }}
data = {{ dataset = "npz", root = "{data}" }}
model = {{ kind = "cnn", filters = [32, 32, 64], kernel = 5, padding = true, norm_groups = 2 }}
training = {{ work = "steps", steps = 3, batch_size = 8, alpha = 0.01 }}
evaluation = {{ every = 20 }}
algorithm = {{ name = "d-psgd" }}
"""
MODULE = """
from torch import nn


def make(shape, outputs):
    layers, channels, side = [], shape[0], shape[1]
    for filters in (32, 32, 64):
        layers += [nn.Conv2d(channels, filters, 5, padding=2), nn.GroupNorm(2, filters), nn.MaxPool2d(2), nn.ReLU()]
        channels, side = filters, side // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * side * side, outputs))
"""
WORK = {part: part for part in ("gradient", "maps", "exchange", "records", "evaluation", "start")}
WORK["io"] = "ZeroMQ's threads"
OF_WORK = "SELECT part, total(cpu_s) FROM work_total WHERE node >= 0 GROUP BY part"
LAST_CPU = f"SELECT sum(cpu_s) FROM resource WHERE node >= 0 AND rowid IN {LAST_SAMPLES}"
LAST_PSS = f"SELECT sum(pss) FROM resource WHERE node >= 0 AND rowid IN {LAST_SAMPLES}"
OF_THE_REST = """All columns but the last two are of the 40 clients together. Records are what measuring takes of them:
to count, to pack, to send. All else is the launcher, the fork server with its warm-up, the collector, and clients'
ends."""
HEADER = (
    "run|CPU s of the run|steps alone|our steps alone|bare floor|run / steps|run / our steps|bare floor / steps|aim"
)


def measure(name: str, config: str, exchange: str, limit: float, repeats: int) -> list[str]:
    """A row of the table. ``exchange`` says how many vectors each neighbour is sent in a round, and of how many
    numbers: "2x348"; ``limit`` is how many times the steps alone the run may take at most."""
    runs, plain, own, floor = [], [], [], []
    with new_folder() as folder:
        for repeat in range(repeats):
            command, _ = run_command(folder, config, out=f"{repeat}")
            runs.append(cpu_of(command))
            for kind, times in (("plain", plain), ("own", own), ("floor", floor)):
                times.append(cpu_of_steps(kind, folder / "config.toml", exchange))
    ratios = (over(runs, plain), over(runs, own), over(floor, plain))
    return [name, *map(spread, (runs, plain, own, floor, *ratios)), f"{limit:g}"]


def measure_parts(name: str, config: str, repeats: int) -> list[str]:
    """A row of the table of WORK: CPU seconds of all clients together, of the other processes, of the whole run."""
    found: list[list[float]] = []
    with new_folder() as folder:
        for repeat in range(repeats):
            command, out = run_command(folder, config, out=f"{repeat}")
            whole = cpu_of(command)
            with reading(out / "run.sqlite") as records:
                spent = dict(records.execute(OF_WORK))
            found.append([*(spent[part] for part in WORK), whole - sum(spent.values()), whole])
    return [name, *(spread(values) for values in zip(*found, strict=True))]


def measure_ring(repeats: int) -> list[tuple[object, ...]]:
    cpu, alone, memory = [], [], []
    with new_folder() as folder:
        noise(folder)
        for repeat in range(repeats):
            command, out = run_command(folder, RING.format(data=folder / "noise.npz"), out=f"{repeat}")
            cpu.append(cpu_of(command))
            alone.append(cpu_of_steps("plain", folder / "config.toml"))
            with reading(out / "run.sqlite") as records:
                memory.append(records.execute(LAST_PSS).fetchone()[0] / 1e6)
    return [
        ("CPU seconds of everything, start to end", spread(cpu), 20),
        ("of the steps alone", spread(alone), ""),
        ("everything / steps alone", spread(over(cpu, alone)), ""),
        ("memory (PSS) of the 8 clients together, MB", spread(memory), 600),
    ]


def measure_module(repeats: int) -> list[tuple[object, ...]]:
    """The small run with its model built in, and as a module of the user's, in turns."""
    found: dict[str, list[list[float]]] = {"built-in": [], "own": []}
    with new_folder() as folder:
        noise(folder)
        (folder / "model.py").write_text(MODULE)
        ring = RING.format(data=folder / "noise.npz")
        own = re.sub("model = .*", f'model.use = "{folder}/model.py:make"', ring)
        for repeat in range(repeats):
            for kind, config in (("built-in", ring), ("own", own)):
                command, out = run_command(folder, config, out=f"{kind}-{repeat}")
                cpu_of(command)
                with reading(out / "run.sqlite") as records:
                    found[kind].append([records.execute(query).fetchone()[0] for query in (LAST_CPU, LAST_PSS)])
    rows = []
    for name, *both in zip(
        ("CPU s", "memory (PSS), GB"), *(zip(*found[kind], strict=True) for kind in found), strict=True
    ):
        built_in, own = ([value / (1e9 if "GB" in name else 1) for value in values] for values in both)
        rows.append((name, spread(built_in), spread(own), spread(over(own, built_in)), 1.05))
    return rows


def noise(folder: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(folder / "noise.npz", x=rng.random((800, 3, 32, 32), dtype=np.float32), y=np.arange(800) % 10)


def over(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(ones, others, strict=True)]


def cpu_of_steps(kind: str, config: Path, exchange: str = "0x0") -> float:
    """CPU seconds of the gradient steps of a run, in a process of their own: see ``loop``."""
    command = [sys.executable, __file__, "--loop", kind, "--exchange", exchange, str(config)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def loop(kind: str, config: Path, exchange: str) -> float:
    """CPU seconds of the gradient steps of a run, in one plain loop; or of processes that take and exchange them."""
    import torch

    from sheafgossip.launcher.config.files import load
    from sheafgossip.launcher.prepare.assignments import Site
    from sheafgossip.launcher.prepare.preparation import prepare_run
    from sheafgossip.node.model.learner import Learner

    torch.set_num_threads(1)
    (resolved,) = load(config, [])
    with new_folder() as place:
        prepared = prepare_run(resolved, place, Site(sockets=place, records="ipc:///nowhere"))
        rounds = [
            learner.learn if kind == "own" else plain_round(learner, assignment.architecture, assignment.training.alpha)
            for assignment in prepared.assignments
            for learner in [Learner(assignment)]
        ]
        if kind == "floor":
            neighbours = [[peer.node for peer in assignment.neighbours] for assignment in prepared.assignments]
            return processes(rounds, neighbours, exchange, resolved.rounds, place)
        rounds[0]()  # what is set up once
        start = time.process_time()
        for _ in range(resolved.rounds):
            for learn in rounds:
                learn()
        return time.process_time() - start


def processes(
    learn: Sequence[Callable[[], None]], neighbours: Sequence[Sequence[int]], exchange: str, rounds: int, folder: Path
) -> float:
    """CPU seconds of one process a client, after its first round."""
    times, numbers = map(int, exchange.split("x"))
    told = multiprocessing.get_context("fork").SimpleQueue()

    def live(node: int) -> None:
        talk = bare(node, neighbours[node], numbers, folder)
        for round in range(rounds + 1):
            if round == 1:
                start = time.process_time()
            for _ in range(times):
                talk()
            learn[node]()
        told.put(time.process_time() - start)

    with together(live, len(learn)):
        return sum(told.get() for _ in learn)


def modules(architecture: "Architecture") -> "Module":
    """Logistic regression, or a CNN, of torch's own modules."""
    from torch import nn

    layers, channels = [], architecture.input_shape[0]
    for filters, kernel, stride, padding, pool in architecture.convolutions if architecture.kind == "cnn" else ():
        layers.append(nn.Conv2d(channels, filters, kernel, stride, padding))
        if architecture.norm_groups:
            layers.append(nn.GroupNorm(architecture.norm_groups, filters))
        layers += [nn.ReLU(), nn.MaxPool2d(pool)]
        channels = filters
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(architecture.features, architecture.outputs))


def plain_round(learner: "Learner", architecture: "Architecture", alpha: float) -> Callable[[], None]:
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
    parser = options(__doc__, repeats=3)
    parser.add_argument("--data-root", type=Path, help="folder with the MNIST files; without it, the CNN learns digits")
    parser.add_argument("--parts", action="store_true", help="only where the CPU seconds of the runs go")
    parser.add_argument("--ring", action="store_true", help="only the small run on a ring")
    parser.add_argument("--own", action="store_true", help="only that run's model as a module of the user's")
    parser.add_argument("--loop", choices=("plain", "own", "floor"), help=argparse.SUPPRESS)
    parser.add_argument("--exchange", help=argparse.SUPPRESS)
    parser.add_argument("config", type=Path, nargs="?", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.loop:
        print(loop(arguments.loop, arguments.config, arguments.exchange))
        return
    medians = f"medians of {arguments.repeats} (smallest to largest)"
    if arguments.ring:
        write("ring", f"`make bench-ring`: {medians}", table("|measured|aim", measure_ring(arguments.repeats)))
        return
    if arguments.own:
        rows = measure_module(arguments.repeats)
        write("own", f"`make bench-own`: {medians}", table("8 clients|built-in|own module|own / built-in|aim", rows))
        return
    root = arguments.data_root
    images = f'dataset = "mnist", root = "{root.resolve()}", samples = 16000' if root else 'dataset = "digits"'
    cnn = CNN.format(images=images, filters="[32, 64]" if root else "[32]")
    dpsgd, sheaf = (LOGISTIC.format(algorithm=name) for name in ("d-psgd", "sheaf-fmtl"))
    cases = (
        ("CNN, an epoch a round, Sheaf-FMTL", cnn, "2x348", 1.1),
        ("logistic, a step a round, D-PSGD", dpsgd, "1x650", 3.2),
        ("logistic, a step a round, Sheaf-FMTL", sheaf, "2x6", 5),
    )
    given = " DATA_ROOT=FOLDER" if root else ""
    if arguments.parts:
        rows = [measure_parts(name, config, arguments.repeats) for name, config, *_ in cases]
        titles = "|".join(["run", *WORK.values(), "all else", "together"])
        write("parts", f"`make bench-parts{given}`: CPU seconds, {medians}", f"{table(titles, rows)}\n\n{OF_THE_REST}")
        return
    rows = [measure(*case, arguments.repeats) for case in cases]
    write("efficiency", f"`make bench-efficiency{given}`: {medians}", table(HEADER, rows))


if __name__ == "__main__":
    main()
