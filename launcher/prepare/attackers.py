"""Who attacks in a run, and whether [attack] fits it."""

from collections.abc import Sequence
from dataclasses import replace

from ...node.assignment import Assignment
from ...node.attacks import FROM_OTHERS, ON_VECTORS
from ...topology import GraphSequence, mixing_row
from ...topology.randomness import generator
from ..config.sections import ConfigError, RunConfig


def attackers_of(config: RunConfig) -> tuple[int, ...]:
    """Raises ConfigError."""
    section, clients = config.attack, config.clients
    found = tuple(sorted({*section.clients}))
    if section.fraction:
        count = int(section.fraction * clients + 0.5)
        found = tuple(sorted(generator(config.seed, "attackers").permutation(clients)[:count].tolist()))
        if not found:
            why = f"of {clients} clients that is none"
            raise ConfigError.of("attack.fraction", section.fraction, why, f"0 for none, or from {0.5 / clients:g}")
    if found and found[-1] >= clients:
        raise ConfigError(f"attack.clients: there is no client {found[-1]}; they are 0 to {clients - 1}")
    if len(found) == clients:
        key = "fraction" if section.fraction else "clients"
        raise ConfigError.of(f"attack.{key}", getattr(section, key), "nobody is left to be attacked", "fewer")
    return found


def with_attackers(config: RunConfig, graphs: GraphSequence, assignments: Sequence[Assignment]) -> Sequence[Assignment]:
    """Tells attackers what they know beforehand. Raises ConfigError where the attack does not fit the run."""
    attack, attackers, traits = config.attack, assignments[0].run.attackers, config.algorithm.traits
    if not attackers:
        return assignments
    lack, kind, name = "", attack.kind, f"algorithm.name = {config.algorithm.name!r}"
    if kind in ON_VECTORS and not assignments[0].run.largest_vector:
        lack = "sends no vectors"
    elif traits.is_masked:
        allowed = "algorithm.secure = false"
        raise ConfigError.of("attack.kind", kind, "with algorithm.secure = true vectors travel masked", allowed)
    elif kind in FROM_OTHERS and (traits.server != "none" or traits.has_maps):
        lack = "gives no client vectors that compare with those of several others"
    elif kind == "dissensus" and (not traits.mixes or graphs.changes or graphs.directed):
        lack = "does not average by one matrix W on this graph, in every round"
    if lack:
        others = [each for each in ON_VECTORS if each not in FROM_OTHERS]
        allowed = "an algorithm that exchanges models" if lack.startswith("sends") else ", ".join(map(repr, others))
        raise ConfigError.of("attack.kind", kind, f"{name} {lack}", allowed)
    if kind != "dissensus":
        return assignments
    rows = [mixing_row(graphs.graphs[0], node, config.topology.weights) for node in range(config.clients)]
    return [
        replace(own, weights_of={peer.node: rows[peer.node] for peer in own.neighbours})
        if own.node in attackers
        else own
        for own in assignments
    ]
