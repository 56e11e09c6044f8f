"""The same work in other simulators, in turns with ours: CPU seconds and wall time of the whole command, and memory.

The work is 20 clients with a network of 64, 32 and 10 units on scikit-learn's digits, 50 rounds of ten steps, no
evaluation: FedAvg beside Flower's simulation (mini-batches of 32), gossip beside gossipy, where ours is D-PSGD on a
ring, so that a client hears two neighbours a round and not one (an epoch of ten mini-batches).

Each of the others is installed with pip into an environment of its own below build/peers, with the torch that we use,
and skipped with the reason where that fails. CPU time is the kernel's for all processes of a command, those too whose
parent has gone; memory is PSS of all of them together, the most of samples taken every half a second."""

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from common import HERE, new_folder, options, run_command, spread, table, write
from sklearn.datasets import load_digits

CLIENTS, ROUNDS, STEPS = 20, 50, 10
OURS = """
clients = {clients}
rounds = {rounds}
data = {{ test_fraction = 0.25 }}
model = {{ kind = "mlp", hidden = [32] }}
training = {{ {work}, alpha = 0.1 }}
evaluation = {{ every = 0 }}
algorithm = {{ name = "{algorithm}" }}
{more}
"""
NOTE = """Medians (smallest to largest) of whole commands, all their processes, in turns: 20 clients with a network of
64, 32 and 10 units, 50 rounds of ten steps, no evaluation. gossipy is one process; a client hears one neighbour a round
there, two with our D-PSGD."""
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
SAMPLE_S = 0.5
PR_SET_CHILD_SUBREAPER = 36
LIBC = ctypes.CDLL(None, use_errno=True)


class Peer(NamedTuple):
    script: str
    packages: tuple[str, ...]
    algorithm: str
    work: str
    more: str = ""

    @property
    def ours(self) -> str:
        return OURS.format(clients=CLIENTS, rounds=ROUNDS, work=self.work, algorithm=self.algorithm, more=self.more)


PEERS = {
    "Flower": Peer("flower.py", ("flwr[simulation]",), "fedavg", f'work = "steps", steps = {STEPS}, batch_size = 32'),
    "gossipy": Peer(
        "gossip.py",
        ("gossipy-dfl", "scikit-learn", "pandas", "rich", "dill", "matplotlib", "networkx"),
        "d-psgd",
        'work = "epochs", batch_size = 7',
        'topology = { kind = "ring" }',
    ),
}


class Cost(NamedTuple):
    cpu_s: float
    wall_s: float
    pss_gb: float


def environment(name: str, packages: Sequence[str]) -> Path | str:
    """The Python with these packages and our torch; or why there is none."""
    folder = HERE.parent / "build" / "peers" / name
    python, done = folder / "bin" / "python", folder / "complete"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        torch = f"torch=={version('torch').partition('+')[0]}"
        pip = [str(python), "-m", "pip", "install", "--quiet", torch, *packages]
        ended = subprocess.run(pip, capture_output=True, text=True)
        if ended.returncode:
            return next((line for line in ended.stderr.splitlines() if line.startswith("ERROR")), "pip has failed")
        done.touch()
    return python


def measure(command: Sequence[str], folder: Path) -> Cost:
    """Raises SystemExit where it fails. All that it starts ends up as a child of this process, which waits for it; what
    others keep of a run goes into the folder."""
    before, started, most, ended = os.times(), time.monotonic(), 0.0, threading.Event()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | QUIET | {"FLWR_HOME": str(folder / "flwr"), "RAY_TMPDIR": str(folder)},
        start_new_session=True,
    )

    def look() -> None:
        nonlocal most
        while not ended.wait(SAMPLE_S):
            most = max(most, sum(map(pss, psutil.Process().children(recursive=True))))

    looking = threading.Thread(target=look)
    looking.start()
    text, _ = process.communicate()
    wall = time.monotonic() - started
    ended.set()
    looking.join()
    for left in psutil.Process().children(recursive=True):  # a simulation may leave processes of its cluster
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(command)}\n{text[-2000:]}")
    after = os.times()
    return Cost(
        after.children_user + after.children_system - before.children_user - before.children_system, wall, most / 1e9
    )


def pss(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def shards(path: Path) -> None:
    """x and y of the test samples, and x0, y0, x1, ... of the clients'."""
    digits = load_digits()
    x, y = (digits.data / 16).astype(np.float32), digits.target
    order = np.random.default_rng(0).permutation(len(x))
    found = {"x": x[order[:450]], "y": y[order[:450]]}
    for node, rows in enumerate(np.array_split(order[450:], CLIENTS)):
        found |= {f"x{node}": x[rows], f"y{node}": y[rows]}
    np.savez(path, **found)


def rows(repeats: int) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for name, peer in PEERS.items():
        python = environment(name.lower(), peer.packages)
        if isinstance(python, str):
            found.append((name, f"skipped: {python}", *[""] * 4))
            continue
        costs: dict[str, list[Cost]] = {"sheafgossip": [], name: []}
        with new_folder() as folder:
            shards(folder / "data.npz")
            words = (str(folder / "data.npz"), *map(str, (CLIENTS, ROUNDS, STEPS)))
            for repeat in range(repeats):
                ours, _ = run_command(folder, peer.ours, out=f"{repeat}")
                costs["sheafgossip"].append(measure(ours, folder))
                costs[name].append(measure([str(python), str(HERE / "peers" / peer.script), *words], folder))
        own, others = (np.array(each) for each in costs.values())
        cpu, _, memory = (others / own).T
        title = f"{name} {installed(python, peer)}"
        found.append((f"sheafgossip: {peer.algorithm}", *map(spread, own.T), "", ""))
        found.append((title, *map(spread, others.T), spread(cpu), spread(memory)))
    return found


def installed(python: Path, peer: Peer) -> str:
    name = peer.packages[0].partition("[")[0]
    asked = [str(python), "-c", f"from importlib.metadata import version; print(version('{name}'))"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    given = options(__doc__, repeats=5).parse_args()
    if LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise SystemExit("processes whose parents have gone cannot be followed here: this needs Linux")
    header = "what|CPU s|wall s|memory (PSS), GB|CPU s / ours|memory / ours"
    text = f"{table(header, rows(given.repeats))}\n\n{NOTE}"
    write("peers", f"`python benchmarks/peers.py --repeats {given.repeats}`", text)


if __name__ == "__main__":
    main()
