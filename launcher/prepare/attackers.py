"""Who attacks in a run, and whether [attack] fits it."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ...node.algorithms import link
from ...node.assignment import Assignment
from ...node.attacks import FROM_OTHERS, ON_VECTORS
from ...node.model.poison import ON_DATA, places_of
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
    if attack.kind in ON_DATA:
        _require_classes(config, [own for own in assignments if own.role == "client"])
        return assignments
    if attack.kind == "silence":
        if not config.has_scenario or (config.time.deadline_s is None and config.time.staleness != "inf"):
            why = "the others would wait for ever without a scenario in which they go on"
            raise ConfigError.of("attack.kind", attack.kind, why, "'zeros', or a time.deadline_s")
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
    elif kind == "copy" and not (traits.has_maps and config.time.staleness == 0):
        lack = "has no exchange in which all send and hear the projections of one edge, in the same round"
    elif kind == "forged-norm" and not _tell_numbers(config, assignments):
        lack = "sends no norm beside its vectors"
    if lack:
        others = [each for each in ON_VECTORS if each not in (*FROM_OTHERS, "copy", "forged-norm")]
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


def silent_of(config: RunConfig, assignments: Sequence[Assignment]) -> dict[int, int]:
    """Returns {attacker: the round from which it sends nothing}"""
    attack = config.attack
    return dict.fromkeys(assignments[0].run.attackers, attack.from_round) if attack.kind == "silence" else {}


def _tell_numbers(config: RunConfig, assignments: Sequence[Assignment]) -> bool:
    """Returns whether some message ends with exact numbers, as a norm is."""
    links = (link(config.algorithm, own, peer) for own in assignments for peer in own.neighbours)
    return any(0 < exact < length for each in links for exact, length in zip(each.exact, each.sends, strict=False))


def _require_classes(config: RunConfig, clients: Sequence[Assignment]) -> None:
    """Raises ConfigError unless there are the classes that a lie in the data is about, and the features."""
    attack = config.attack
    if clients[0].run.task != "classification":
        raise ConfigError.of("attack.kind", attack.kind, "the data is a regression task", "an attack on vectors")
    liars = [own.architecture.outputs for own in clients if own.attacks]
    fewest = min(own.architecture.outputs for own in clients)
    if attack.labels and ({len(attack.labels)} != set(liars) or max(attack.labels) >= min(liars)):
        allowed = f"one for each class, from 0 to {min(liars) - 1}"
        raise ConfigError.of("attack.labels", list(attack.labels), f"attackers have {min(liars)} classes", allowed)
    if attack.kind == "backdoor":
        if attack.target >= fewest:
            raise ConfigError.of("attack.target", attack.target, "there is no such class", f"0 to {fewest - 1}")
        shapes = {own.architecture.input_shape for own in clients}
        size = min(map(prod, shapes))
        if max(map(max, (places_of(attack, shape) for shape in shapes))) >= size:
            raise ConfigError.of("attack.trigger", list(attack.trigger), "there is no such feature", f"0 to {size - 1}")
