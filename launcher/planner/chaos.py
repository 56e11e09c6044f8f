"""Faults drawn at random: how often is given, where and when follows from a seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import numpy as np

from ...topology.randomness import generator
from ...topology.section import Fraction, Index, Needs, Section
from .scenario import Edge, Fault


@dataclass(frozen=True)
class Rates(Section):
    """Faults drawn at random, beside those that are written down. The rates are shares of clients or of edges."""

    crash: Fraction = 0.0
    """Clients that crash, at a random round."""
    restart: Annotated[Fraction, Needs("crash")] = 0.5
    """Of those, the share that comes back after a tenth of the rounds."""
    leave: Fraction = 0.0
    """Clients that leave for good."""
    join: Fraction = 0.0
    """Clients that join late."""
    slow: Fraction = 0.0
    """Clients that are slow for a while."""
    cut: Fraction = 0.0
    """Edges that are cut for a while."""
    partition: Fraction = 0.0
    """Probability that the clients are split into two halves for a while."""
    loss: Fraction = 0.0
    """Share of all messages that is lost."""
    duplicate: Fraction = 0.0
    """Share of all messages that is sent twice."""
    delay: Fraction = 0.0
    """Share of all messages that is delayed by a second."""
    reorder: Fraction = 0.0
    """Share of all messages that others overtake."""
    seed: Index | None = None
    """Of these draws; the run's seed by default."""


def draw_faults(rates: Rates, seed: int, clients: int, edges: Sequence[Edge], rounds: int) -> tuple[Fault, ...]:
    """What strikes a client may come together, in this order: it joins late, crashes, perhaps comes back, leaves. Each
    lasting fault takes a fifth of the rounds, from a random one on."""
    faults: list[Fault] = []

    def span(rng: np.random.Generator) -> tuple[int, int]:
        first = int(rng.integers(1, rounds + 1))
        return first, min(rounds, first + max(1, rounds // 5) - 1)

    for client in range(clients):
        rng = generator(seed, "chaos: clients", client)
        joins, crashes, leaves, is_slow = (rng.random(4) < [rates.join, rates.crash, rates.leave, rates.slow]).tolist()
        first, then, last = sorted(rng.integers(1, rounds + 1, 3).tolist())
        back = max(1, rounds // 10) if rng.random() < rates.restart else None
        if joins:
            faults.append(Fault("join", (client,), at_round=first))
        if crashes:
            faults.append(Fault("crash", (client,), at_round=then, restart_after=back))
        if leaves:
            faults.append(Fault("leave", (client,), at_round=last))
        if is_slow:
            faults.append(Fault("slow", (client,), rounds=span(rng)))
    for number, edge in enumerate(edges):
        rng = generator(seed, "chaos: edges", number)
        if rng.random() < rates.cut:
            faults.append(Fault("cut", edges=(edge,), rounds=span(rng)))
    rng = generator(seed, "chaos: partition")
    if rng.random() < rates.partition and clients > 1:
        order = rng.permutation(clients).tolist()
        halves = tuple(sorted(order[: clients // 2])), tuple(sorted(order[clients // 2 :]))
        faults.append(Fault("partition", groups=halves, rounds=span(rng)))
    for kind in get_args(Literal["loss", "duplicate", "delay", "reorder"]):
        if rate := getattr(rates, kind):
            faults.append(Fault(kind, probability=rate))
    return tuple(faults)
