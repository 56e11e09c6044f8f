"""Teleportation: a few clients, drawn anew for each round, do the work; models go from them to the next ones."""

from dataclasses import dataclass
from typing import Literal

from ...topology import Graph, GraphSequence
from ...topology.randomness import generator
from ...topology.section import Count
from .base import Algorithm, Client, Peers, SettingsError, Setup, Traits


@dataclass(frozen=True)
class Teleportation(Algorithm):
    """Teleportation (Takezawa, Stich 2025). [topology] has no effect.

    x_a         <- theta_{s_a} - alpha grad f_{s_a}(theta_{s_a})      for a = 1 .. m, at the active clients s of a round
    theta_{t_a} <- 1/|N_a| sum_{b in N_a} x_b                        at those of the next round, t

    N_a is place a with its neighbours in the graph of the m places. The paper averages at the s, which then send to the
    t; here whom s_b would average with sends to t_b itself: the same models by as many messages, in one exchange. All
    others rest, and keep the models that they had when they were active."""

    name: Literal["teleportation"] = "teleportation"
    active: Count = 4
    """m: how many clients learn in a round."""
    graph: Literal["ring", "complete"] = "ring"
    """Who averages with whom, of the m."""

    # a message of another round is a model of the past: its place has moved on since
    traits = Traits(
        same_size=True,
        tolerates="missing",
        more_tolerant="time.clock = 'virtual' with time.silence = 'skip'",
        learns_first=True,
        mixes=False,
    )

    def participants(self, run: Setup | Client, round: int) -> list[int]:
        return generator(run.seed, "teleportation", round).permutation(run.clients)[: self.active].tolist()

    def _near(self, place: int) -> set[int]:
        if self.graph == "complete":
            return set(range(self.active))
        return {(place + hop) % self.active for hop in (-1, 0, 1)}

    def pattern(self, run: Setup) -> GraphSequence:
        if self.active > run.clients:
            raise SettingsError("algorithm.active", f"is {self.active}; allowed are 1 to {run.clients}, all clients")
        return GraphSequence(tuple(self._graph(run, round) for round in range(1, run.rounds + 1)))

    def _graph(self, run: Setup, round: int) -> Graph:
        s, t = self.participants(run, round), self.participants(run, round + 1)
        arcs = {(s[b], t[a]) for a in range(self.active) for b in self._near(a)}
        return Graph.of(run.clients, (arc for arc in arcs if arc[0] != arc[1]), directed=True)

    def round(self, client: Client, peers: Peers) -> None:
        s, t = (self.participants(client, round) for round in (peers.round, peers.round + 1))
        if client.node in s:
            client.learn()
        found = [*peers.exchange(dict.fromkeys(client.successors, client.theta), client.predecessors).values()]
        if client.node in s and client.node in t and s.index(client.node) in self._near(t.index(client.node)):
            found.append(client.theta)
        if found:
            client.theta[:] = sum(found) / len(found)
