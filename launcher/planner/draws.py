"""The random parts of a scenario, each drawn from (seed, purpose, client or edge): no order of events matters."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import numpy as np

from ...topology.randomness import generator
from ...topology.section import Fraction, Index, Needs, Section
from .plan import PlanError
from .scenario import Edge, Fault, Links, Scenario

_MOST_SPELLS = 50_000
Shape = tuple[int, int]  # (rounds, phases)


def latencies(link: Links, shape: Shape, seed: int, src: int, dst: int) -> np.ndarray:
    """Returns the seconds of each message of a directed edge."""
    if link.latency == "fixed":
        return np.full(shape, link.latency_s)
    rng = generator(seed, "latency", src, dst)
    if link.latency == "uniform":
        return rng.uniform(link.latency_s, link.latency_high_s, shape)
    return link.latency_s * np.exp(link.latency_sigma * rng.standard_normal(shape))


def strikes(probability: float, shape: Shape, seed: int, purpose: str, *key: int) -> np.ndarray:
    """Returns which messages of a directed edge are lost, or hit by a fault; ``key`` ends with the edge."""
    if probability in (0, 1):
        return np.full(shape, probability == 1)
    return generator(seed, purpose, *key).random(shape) < probability


class ComputeTimes:
    """Seconds that the local work of a client takes in a round."""

    def __init__(self, scenario: Scenario):
        self._section, self._seed = section, seed = scenario.stragglers, scenario.seed
        share = 0.0 if section.kind in ("none", "trace") else section.fraction
        count = math.floor(share * scenario.learners + 0.5)
        self.stragglers = frozenset(generator(seed, "stragglers").permutation(scenario.learners)[:count].tolist())
        factors = np.ones((scenario.clients, scenario.rounds))
        for i in self.stragglers:
            rng = generator(seed, "straggler factors", i)
            match section.kind:
                case "fixed":
                    factors[i] = section.factor
                case "lognormal":
                    factors[i] = np.exp(section.sigma * rng.standard_normal(scenario.rounds))
                case "exponential":
                    factors[i] = 1 + rng.exponential(section.mean, scenario.rounds)
                case "pareto":
                    factors[i] = 1 + rng.pareto(section.shape, scenario.rounds)
        for (i, round), factor in scenario.trace.items():
            if i < scenario.learners and 1 <= round <= scenario.rounds:
                factors[i, round - 1] = factor
        steps, slowdown = (np.array(each or 1, float) for each in (scenario.steps, scenario.slowdown))
        steps = steps if steps.ndim > 1 else steps[..., None]  # of all rounds alike
        self._seconds = np.broadcast_to(scenario.step_s * steps * slowdown[..., None], factors.shape) * factors
        if scenario.message_s or scenario.evaluation_s:
            more = _beside_steps(scenario) * np.broadcast_to(slowdown, scenario.clients)[:, None]
            self._seconds = self._seconds + more * factors
        self._faults, self._traces = scenario.of_kind("slow"), scenario.traces
        self._switches: dict[int, list[float]] = {}

    def __call__(self, client: int, round: int, now: float) -> float:
        seconds = float(self._seconds[client, round - 1])
        if self._section.kind == "on-off" and client in self.stragglers and self._is_on(client, now):
            seconds *= self._section.factor
        for fault in self._faults:
            if client in fault.clients and fault.active(round, now):
                seconds *= fault.factor
        if client in self._traces:
            seconds /= self._traces[client].speed.at(now)[0]
        return seconds

    def _is_on(self, client: int, now: float) -> bool:
        """Periods off and on follow each other, with exponentially distributed lengths; the first is off."""
        switches, on_s, off_s = self._switches.setdefault(client, [0.0]), self._section.on_s, self._section.off_s
        while switches[-1] <= now:
            number = len(switches)
            if number > _MOST_SPELLS:
                raise PlanError(
                    f"stragglers.on_s = {on_s:g} and off_s = {off_s:g}: more than {_MOST_SPELLS:,} spells of one "
                    "client; they must be longer for rounds of this length"
                )
            rng = generator(self._seed, "on-off straggler", client, number)
            switches.append(switches[-1] + float(rng.exponential(off_s if number % 2 else on_s)))
        return bisect_right(switches, now) % 2 == 0


def _beside_steps(scenario: Scenario) -> np.ndarray:
    """(clients, rounds): seconds for messages and evaluations."""
    phases, everyone = scenario.phases - (scenario.star.opening if scenario.star else 0), range(scenario.clients)
    sent_to = [[len(scenario.neighbours[i])] * scenario.rounds for i in everyone]
    if scenario.graph_of:
        sent_to = [[len(graph.successors(i)) for graph in scenario.graph_of] for i in everyone]
    seconds = scenario.message_s * phases * np.array(sent_to)
    seconds[:, np.array(scenario.evaluated, int) - 1] += scenario.evaluation_s
    return seconds


@dataclass(frozen=True)
class Rates(Section):
    """Faults drawn at random, beside those that are written down. The rates are shares of clients or of edges."""

    crash: Annotated[Fraction, "Clients that crash, at a random round."] = 0.0
    restart: Annotated[Fraction, Needs("crash")] = 0.5
    """Of those, the share that comes back after a tenth of the rounds."""
    leave: Annotated[Fraction, "Clients that leave for good."] = 0.0
    join: Annotated[Fraction, "Clients that join late."] = 0.0
    slow: Annotated[Fraction, "Clients that are slow for a while."] = 0.0
    cut: Annotated[Fraction, "Edges that are cut for a while."] = 0.0
    partition: Annotated[Fraction, "Probability that the clients are split into two halves for a while."] = 0.0
    loss: Annotated[Fraction, "Share of all messages that is lost."] = 0.0
    duplicate: Annotated[Fraction, "Share of all messages that is sent twice."] = 0.0
    delay: Annotated[Fraction, "Share of all messages that is delayed by a second."] = 0.0
    reorder: Annotated[Fraction, "Share of all messages that others overtake."] = 0.0
    seed: Annotated[Index | None, "Of these draws; the run's seed by default."] = None


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
        faults += [Fault("join", (client,), at_round=first)] if joins else []
        faults += [Fault("crash", (client,), at_round=then, restart_after=back)] if crashes else []
        faults += [Fault("leave", (client,), at_round=last)] if leaves else []
        faults += [Fault("slow", (client,), rounds=span(rng))] if is_slow else []
    for number, edge in enumerate(edges):
        rng = generator(seed, "chaos: edges", number)
        if rng.random() < rates.cut:
            faults.append(Fault("cut", edges=(edge,), rounds=span(rng)))
    rng = generator(seed, "chaos: partition")
    if rng.random() < rates.partition and clients > 1:
        order = rng.permutation(clients).tolist()
        halves = tuple(sorted(order[: clients // 2])), tuple(sorted(order[clients // 2 :]))
        faults.append(Fault("partition", groups=halves, rounds=span(rng)))
    kinds = get_args(Literal["loss", "duplicate", "delay", "reorder"])
    return *faults, *(Fault(kind, probability=rate) for kind in kinds if (rate := getattr(rates, kind)))
