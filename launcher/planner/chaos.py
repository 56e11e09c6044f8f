"""Faults drawn at random: how often is given, where and when follows from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...topology.randomness import generator
from .scenario import Edge, Fault


@dataclass(frozen=True)
class Rates:
    """Shares of the clients (crash, leave, join, slow), of the edges (cut) or of all messages (loss, duplicate, delay,
    reorder); ``restart``: of the crashed clients; ``partition``: the probability of one."""

    crash: float = 0.0
    restart: float = 0.5
    leave: float = 0.0
    join: float = 0.0
    slow: float = 0.0
    cut: float = 0.0
    partition: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    reorder: float = 0.0


def draw_faults(rates: Rates, seed: int, clients: int, edges: Sequence[Edge], rounds: int) -> tuple[Fault, ...]:
    """What strikes a client may come together, in this order: it joins late, crashes, perhaps comes back, leaves. Each
    lasting fault takes a fifth of the rounds, from a random one on."""
    faults: list[Fault] = []
    for client in range(clients):
        rng = generator(seed, "chaos: clients", client)
        joins, crashes, leaves, is_slow = (rng.random(4) < [rates.join, rates.crash, rates.leave, rates.slow]).tolist()
        first, then, last = sorted(rng.integers(1, rounds + 1, 3).tolist())
        back = max(1, rounds // 10) if rng.random() < rates.restart else None
        if joins:
            faults.append(Fault("join", (client,), rounds=(first, first)))
        if crashes:
            faults.append(Fault("crash", (client,), rounds=(then, then), restart_after=back))
        if leaves:
            faults.append(Fault("leave", (client,), rounds=(last, last)))
        if is_slow:
            faults.append(Fault("slow", (client,), rounds=_span(rng, rounds)))
    for number, edge in enumerate(edges):
        rng = generator(seed, "chaos: edges", number)
        if rng.random() < rates.cut:
            faults.append(Fault("cut", edges=(edge,), rounds=_span(rng, rounds)))
    rng = generator(seed, "chaos: partition")
    if rng.random() < rates.partition and clients > 1:
        order = rng.permutation(clients).tolist()
        halves = tuple(sorted(order[: clients // 2])), tuple(sorted(order[clients // 2 :]))
        faults.append(Fault("partition", groups=halves, rounds=_span(rng, rounds)))
    of_messages: tuple[tuple[Literal["loss", "duplicate", "delay", "reorder"], float], ...] = (
        ("loss", rates.loss),
        ("duplicate", rates.duplicate),
        ("delay", rates.delay),
        ("reorder", rates.reorder),
    )
    faults += [Fault(kind, probability=rate) for kind, rate in of_messages if rate]
    return tuple(faults)


def _span(rng: np.random.Generator, rounds: int) -> tuple[int, int]:
    first = int(rng.integers(1, rounds + 1))
    return first, min(rounds, first + max(1, rounds // 5) - 1)
