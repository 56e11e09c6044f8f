"""A short run of two pretend clients, played in the fork server before it forks: what a process loads and compiles for
its first round is then in the memory that all clients share."""

import contextlib
import io
import logging
import shutil
import socket
import sys
import threading
import time
from pathlib import Path

import numpy as np
import zmq
from safetensors.numpy import save_file

from ...transport.control import FROM_LAUNCHER, TO_LAUNCHER, Bound, Connect, Control, Done, Exit, Go, Place, Ready
from ..assignment import Assignment, Deployment, Neighbour, Run
from ..model.architecture import Architecture
from ..settings import Measuring, Training, Transport
from .main import live

_MODEL = Architecture(kind="logistic", input_shape=(16,), outputs=4)


def warm_up(folder: Path, *, rounds: int = 8) -> None:
    """In a new ``folder``. After eight rounds the interpreter has specialized its code. Raises RuntimeError if a thread
    is left: this process could not fork safely any more."""
    before = _threads()  # those of libraries that look after their own when a process forks
    with contextlib.redirect_stdout(io.StringIO()):
        _play(folder, rounds)
    shutil.rmtree(folder)
    for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()  # those of libraries: every forked process would set up their locks anew
    deadline = time.monotonic() + 1
    while (threads := _threads()) > before:  # one that has been joined may still be on its last instructions
        if time.monotonic() > deadline:
            raise RuntimeError(f"{threads - before} threads are left over from the warm-up")
        time.sleep(0.001)


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir())) if sys.platform == "linux" else threading.active_count()


def _play(folder: Path, rounds: int) -> None:
    (folder / "shards").mkdir(parents=True)
    assignments = [_assignment(folder, node, rounds) for node in (0, 1)]
    context = zmq.Context()
    records = context.socket(zmq.PULL)
    records.bind(assignments[0].deployment.records)
    with contextlib.ExitStack() as sockets:
        lines, threads = [], []
        for assignment in assignments:
            ours, theirs = map(sockets.enter_context, socket.socketpair())
            told = Assignment.from_json(assignment.to_json()), Control(theirs, FROM_LAUNCHER)
            lines.append(Control(ours, TO_LAUNCHER))
            threads.append(threading.Thread(target=live, args=told, daemon=True))
            threads[-1].start()
        connects = [Connect([Place(other.node, other.deployment.address, 1, "")]) for other in reversed(assignments)]
        for heard, answers in ((Bound, connects), (Ready, [Go(0.0)] * 2), (Done, [Exit()] * 2)):
            for line in lines:
                while not any(isinstance(message, heard) for message in line.receive_some()):
                    pass
            for line, answer in zip(lines, answers, strict=True):
                line.send(answer)
        for thread in threads:
            thread.join()
    context.destroy(linger=0)


def _assignment(folder: Path, node: int, rounds: int) -> Assignment:
    images, labels = np.zeros((16, *_MODEL.input_shape), np.float32), np.arange(16) % _MODEL.outputs
    assignment = Assignment(
        node=node,
        role="client",
        run=Run(0, folder, seed=0, clients=2, rounds=rounds, largest_vector=_MODEL.size),
        deployment=Deployment(f"ipc://{folder}/{node}", f"ipc://{folder}/records"),
        architecture=_MODEL,
        algorithm={"name": "sheaf-fmtl", "storage": "factored"},  # dense maps need scipy
        neighbours=(Neighbour(1 - node, _MODEL.size, 0.5),),
        training=Training(work="steps", batch_size=8),
        transport=Transport(timeout=10.0),
        measuring=Measuring(every=1e-9),
    )
    save_file({"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}, assignment.shard)
    return assignment
