"""The random parts of a scenario, each drawn from (seed, purpose, client or edge): no order of events matters."""

import math
from bisect import bisect_right

import numpy as np

from ...topology.randomness import generator
from .plan import PlanError
from .scenario import Latency, Scenario, Stragglers

_MOST_SPELLS = 50_000


class ComputeTimes:
    """Seconds that the local work of a client takes in a round."""

    def __init__(self, scenario: Scenario):
        compute, clients = scenario.compute, scenario.clients
        self._stragglers = compute.stragglers
        self._seed = scenario.seed
        slow = stragglers_of(self._stragglers, scenario.learners, scenario.seed)
        self.stragglers = frozenset(slow)
        steps = compute.steps or (1,) * clients
        slowdown = compute.slowdown or (1.0,) * clients
        base = compute.step_s * np.array(steps, float) * np.array(slowdown, float)
        factors = np.ones((clients, scenario.rounds))
        for i in slow:
            factors[i] = _factors(self._stragglers, scenario.rounds, scenario.seed, i)
        for (i, round), factor in compute.trace.items():
            if i < scenario.learners and 1 <= round <= scenario.rounds:
                factors[i, round - 1] = factor
        self._seconds = base[:, None] * factors
        self._faults = [fault for fault in scenario.faults if fault.kind == "slow"]
        self._switches: dict[int, list[float]] = {}

    def __call__(self, client: int, round: int, now: float) -> float:
        seconds = float(self._seconds[client, round - 1])
        if self._stragglers.kind == "on-off" and client in self.stragglers and self._is_on(client, now):
            seconds *= self._stragglers.factor
        for fault in self._faults:
            if client in fault.clients and fault.active(round, now):
                seconds *= fault.factor
        return seconds

    def _is_on(self, client: int, now: float) -> bool:
        """Periods off and on follow each other, with exponentially distributed lengths; the first is off."""
        switches = self._switches.setdefault(client, [0.0])
        while switches[-1] <= now:
            number = len(switches)
            if number > _MOST_SPELLS:
                raise PlanError(
                    f"stragglers.on_s = {self._stragglers.on_s:g} and off_s = {self._stragglers.off_s:g}: more than "
                    f"{_MOST_SPELLS:,} spells of one client; they must be longer for rounds of this length"
                )
            mean = self._stragglers.off_s if number % 2 else self._stragglers.on_s
            rng = generator(self._seed, "on-off straggler", client, number)
            switches.append(switches[-1] + float(rng.exponential(mean)))
        return bisect_right(switches, now) % 2 == 0


def stragglers_of(stragglers: Stragglers, clients: int, seed: int) -> list[int]:
    """The clients that straggle: the given fraction, rounded, drawn at random."""
    if stragglers.kind in ("none", "trace"):
        return []
    count = math.floor(stragglers.fraction * clients + 0.5)
    return sorted(generator(seed, "stragglers").permutation(clients)[:count].tolist())


def _factors(stragglers: Stragglers, rounds: int, seed: int, client: int) -> np.ndarray:
    rng = generator(seed, "straggler factors", client)
    match stragglers.kind:
        case "fixed":
            return np.full(rounds, stragglers.factor)
        case "lognormal":
            return np.exp(stragglers.sigma * rng.standard_normal(rounds))
        case "exponential":
            return 1 + rng.exponential(stragglers.mean, rounds)
        case "pareto":
            return 1 + rng.pareto(stragglers.shape, rounds)
    return np.ones(rounds)


Shape = tuple[int, int]  # (rounds, phases)


def latencies(latency: Latency, shape: Shape, seed: int, src: int, dst: int) -> np.ndarray:
    """Seconds of each message of a directed edge."""
    if latency.kind == "fixed":
        return np.full(shape, latency.seconds)
    rng = generator(seed, "latency", src, dst)
    if latency.kind == "uniform":
        return rng.uniform(latency.seconds, latency.high_s, shape)
    return latency.seconds * np.exp(latency.sigma * rng.standard_normal(shape))


def strikes(probability: float, shape: Shape, seed: int, purpose: str, *key: int) -> np.ndarray:
    """Which messages of a directed edge are lost, or hit by a fault, bool; ``key`` ends with the edge."""
    if probability in (0, 1):
        return np.full(shape, probability == 1)
    return generator(seed, purpose, *key).random(shape) < probability
