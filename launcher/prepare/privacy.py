"""Whether [privacy] fits a run, the noise that it asks for, and each client's epsilon after all rounds."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...metrics.records import PrivacyRecord
from ...node.algorithms import ALGORITHMS
from ...node.assignment import Assignment
from ...node.privacy import releases_of
from ..config.sections import ConfigError, RunConfig
from ..planner.scenario import Fault
from .accountant import Release, epsilon

_LEAST, _MOST = 0.05, 1e5  # noise that is looked for
_MOST_PAIRED = 500  # clients, for each of which a matrix of all others is inverted


def check_privacy(config: RunConfig) -> None:
    """Raises ConfigError where the algorithm tells more of samples than noised gradients do."""
    if config.privacy.clip and config.algorithm.traits.reads_samples:
        why = f"algorithm.name = {config.algorithm.name!r} with these settings uses samples otherwise than by gradients"
        able = ", ".join(repr(name) for name, other in ALGORITHMS.items() if not other().traits.reads_samples)
        raise ConfigError.of("privacy.clip", config.privacy.clip, why, f"0; or one of {able}")


def with_privacy(
    config: RunConfig, assignments: tuple[Assignment, ...], samples: Sequence[int], faults: Sequence[Fault]
) -> tuple[tuple[Assignment, ...], tuple[PrivacyRecord, ...]]:
    """Tells clients the noise that keeps epsilon; returns what each client's samples have of it, nothing where nothing
    holds. Raises ConfigError where that is not to be had, or does not hold."""
    section, clients = config.privacy, assignments[: len(samples)]
    if not section.clip:
        return assignments, ()
    for own, n in zip(clients, samples, strict=True):
        if section.delta >= 1 / n:
            why = f"client {own.node} has {n} training samples, and all about one of them may be told at such a delta"
            raise ConfigError.of("privacy.delta", section.delta, why, f"below 1/{n} = {1 / n:.3g}")
    _check_models(clients)
    taken = _taken(config, clients, samples, faults)
    noise = section.noise
    if section.epsilon is not None:
        noise = _noise_for(section.epsilon, section.delta, taken)
    assert noise is not None
    told = replace(section, noise=noise, epsilon=None)
    assignments = tuple(replace(own, privacy=told) for own in assignments)
    if not noise:
        return assignments, ()
    seen = [noise] * len(clients)
    if section.correlated:
        _check_pairs(config, clients, faults)
        edges = [(own.node, peer.node) for own in clients for peer in own.neighbours if own.node < peer.node]
        seen = seen_by_one(edges, [config.training.expected(n) for n in samples], noise, section.correlated)
    records = [
        PrivacyRecord(own.node, epsilon(_noised(each, s), section.delta), section.delta, s, *_about(each))
        for own, each, s in zip(clients, taken, seen, strict=True)
    ]
    return assignments, tuple(records)


Taken = Counter[tuple[float, int]]
"""{(q, gradients on one draw): how many draws} of a client in the run; draws with the same q and number are alike."""


def _taken(
    config: RunConfig, clients: Sequence[Assignment], samples: Sequence[int], faults: Sequence[Fault]
) -> list[Taken]:
    """An upper bound: a crash may break off one more round, which another incarnation of the client does again."""
    crashes = Counter(i for fault in faults if fault.kind == "crash" for i in fault.clients)
    found = []
    for own, n in zip(clients, samples, strict=True):
        training, taken = config.training, Taken()
        q = training.expected(n) / n
        rounds = [releases_of(config.algorithm, own, n, round, config) for round in range(1, config.rounds + 1)]
        rounds += [max(rounds, key=lambda each: each.batches * each.on_each + each.full)] * crashes[own.node]
        for releases, times in Counter(rounds).items():
            taken[q, releases.on_each] += times * releases.batches
            taken[1.0, 1] += times * releases.full
        found.append(+taken)
    return found


def _noised(taken: Taken, noise: float) -> dict[Release, int]:
    """k gradients on one draw, each with noise s, tell what one does with noise s / sqrt(k)."""
    return {(q, noise / math.sqrt(gradients)): draws for (q, gradients), draws in taken.items()}


def _about(taken: Taken) -> tuple[float, int]:
    """Returns the largest q, 0 of a client that takes nothing, and how many gradients there are."""
    return max((q for q, _ in taken), default=0.0), sum(draws * gradients for (_, gradients), draws in taken.items())


def _check_pairs(config: RunConfig, clients: Sequence[Assignment], faults: Sequence[Fault]) -> None:
    """Raises ConfigError where neighbours would not add the same noise."""
    why, traits = "", config.algorithm.traits
    if traits.server != "none" or any(own.periods for own in clients):
        why = "needs neighbours that stay the same"
    elif len({own.architecture.size for own in clients}) > 1:
        why = "needs models of one size"
    elif any(fault.kind == "crash" for fault in faults):
        why = "is drawn by the round, and a client that crashes does rounds again"
    elif len(clients) > _MOST_PAIRED:
        why = f"is accounted for {_MOST_PAIRED} clients at most"
    if why:
        raise ConfigError.of("privacy.correlated", config.privacy.correlated, f"noise of pairs {why}", "0")


def seen_by_one(edges: Sequence[tuple[int, int]], b: Sequence[int], noise: float, correlated: float) -> list[float]:
    """Returns, for each client i, the noise without ``correlated`` that tells as much of its samples as the gradients
    of all tell the other client that sees most. In units of C, gradients have noise of covariance, by coordinate,

    Sigma = diag((noise / b_i)^2) + L,    L the Laplacian of the edges, with weights (correlated / max(b_i, b_j))^2,

    for client j that without j and its edges, whose noise it knows. A sample of i moves them by at most e_i / b_i,
    which is told by e_i^T Sigma^-1 e_i / b_i^2 = 1 / s^2 as by a Gaussian of standard deviation s."""
    clients, expected = len(b), np.array(b, float)
    W = np.zeros((clients, clients))
    for i, j in edges:
        W[i, j] = W[j, i] = (correlated / max(b[i], b[j])) ** 2
    least = np.full(clients, math.inf if clients > 1 else noise)
    for j in range(clients):
        others = np.delete(np.arange(clients), j)
        weights = W[np.ix_(others, others)]
        precision = np.diag(np.linalg.inv(np.diag((noise / expected[others]) ** 2 + weights.sum(axis=1)) - weights))
        least[others] = np.minimum(least[others], expected[others] / np.sqrt(precision))
    return least.tolist()


def _noise_for(target: float, delta: float, taken: Sequence[Taken]) -> float:
    """Returns about the least noise, of four digits, with which no client has an epsilon above ``target``."""
    alike = {tuple(sorted(each.items())): each for each in taken}.values()

    def holds(noise: float) -> bool:
        return all(epsilon(_noised(each, noise), delta) <= target for each in alike)

    low, high = _LEAST, _LEAST
    while not holds(high):
        low, high = high, 2 * high
        if high > _MOST:
            why = f"noise of {_MOST:g} times privacy.clip does not do for that"
            raise ConfigError.of("privacy.epsilon", target, why, "a larger one, or fewer rounds or steps")
    while high > low * (1 + 1e-5):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    digit = 10.0 ** (math.floor(math.log10(high)) - 3)
    return float(np.round(math.ceil(high / digit) * digit, 12))


def _check_models(clients: Sequence[Assignment]) -> None:
    """Raises ConfigError where a module of the user's own keeps something of samples, or mixes them."""
    for own in {each.architecture: each for each in clients if each.architecture.own}.values():
        assert own.architecture.own
        from ...node.model.own import unlike_alone  # loads torch

        if why := unlike_alone(own.architecture, own.run, own.dtype):
            allowed = "a module without batch normalization, such as with torch.nn.GroupNorm"
            raise ConfigError.of(
                "model.use", own.architecture.own.use, f"{why}, and [privacy] noises gradients", allowed
            )
