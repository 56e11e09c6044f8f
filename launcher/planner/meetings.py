"""Algorithms whose clients meet in pairs, by time: a client whose local work is done averages with one neighbour.

A client's round lasts until its next meeting, whoever has asked for it. Its local work begins with the run and after
each meeting that it has asked for itself; those of others it takes part in meanwhile, also while it works. When its
work is done it asks one of the neighbours that are in no other meeting, drawn at random; if there is none, the first
that becomes free. Both send their models at once, and each goes on when the other's has arrived. A client none of whose
neighbours is there goes on alone. When the first has done all its rounds the run is over, for all at the same time: the
others do nothing in the rounds that they have left."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...topology.randomness import generator
from .clients import STEP, Client, PendingWait

if TYPE_CHECKING:
    from .simulation import Simulation


class Meetings:
    """Who is working, who looks for a partner, and who is in a meeting, by client."""

    def __init__(self, simulation: "Simulation"):
        self._simulation, self._seed = simulation, simulation.scenario.seed
        self._work: dict[int, tuple[float, float]] = {}  # (seconds, end) of the local work that goes on or is done
        self._free: set[int] = set()  # who may be asked
        self._partner: dict[int, Client | None] = {}  # of those in a meeting; None: the client goes on alone
        self._is_over = False

    def round(self, client: Client) -> Iterator[None]:
        simulation, node = self._simulation, client.number
        if self._is_over:
            return
        if node not in self._work:
            seconds = simulation.compute_times(node, client.round, simulation.now)
            self._work[node] = seconds, simulation.now + seconds
            simulation.at(simulation.now + seconds, STEP, client, self._seek, client.incarnations[-1].number)
        self._free.add(node)
        if not self._match(client):
            self._look_again(client)
        yield
        if node not in self._partner:
            return
        partner, (seconds, done) = self._partner.pop(node), self._work[node]
        if done <= simulation.now:  # else another client has asked
            cell = (client.round - 1) * len(simulation.clients) + node
            simulation.tables.compute[cell], simulation.tables.idle[cell] = seconds, simulation.now - done
            del self._work[node]
        if partner is not None:
            yield from self._meet(client, partner)

    def _meet(self, client: Client, partner: Client) -> Iterator[None]:
        """One side of it: both send at once, each the message of its own round."""
        place, round = client.places[partner.number], partner.round
        self._simulation.send(client, 0, (partner.number,))
        ready = [-math.inf] * len(client.neighbours)
        yield from self._simulation.wait(client, PendingWait(0, {}, self._simulation.now, {place: round}, ready))
        mail, tables = client.incoming[place].mail[0], self._simulation.tables
        mail.take_in(self._simulation.now)
        cell = (client.round - 1) * tables.edges + client.incoming[place].back
        tables.uses[cell], tables.asked[cell] = round if round in mail.arrived else 0, True

    def _seek(self, client: Client, incarnation: int) -> None:
        """The local work of a client is done."""
        if client.here and client.incarnations[-1].number == incarnation:
            self._match(client)

    def _match(self, client: Client) -> bool:
        """Finds a partner for a client that is free and whose work is done; returns whether it need not wait."""
        node, simulation = client.number, self._simulation
        if node not in self._free or self._work[node][1] > simulation.now:
            return False
        there = [other for other in client.neighbours if other.here]
        free = [other for other in there if other.number in self._free]
        if there and not free:
            return False
        partner = free[int(generator(self._seed, "partner", node, client.round).integers(len(free)))] if free else None
        for one, other in ((client, partner), (partner, client)):
            if one is not None:
                self._free.remove(one.number)
                self._partner[one.number] = other
                simulation.at(simulation.now, STEP, one, simulation.go_on)
        return True

    def left(self, client: Client) -> None:
        """Local work that has been going on is lost."""
        self._work.pop(client.number, None)
        self._look_again(client)

    def finished(self) -> None:
        """A client has done all its rounds."""
        self._is_over = True
        for node in self._free:
            one = self._simulation.clients[node]
            self._simulation.at(self._simulation.now, STEP, one, self._simulation.go_on)
        self._free.clear()

    def _look_again(self, client: Client) -> None:
        """The client is free, or gone: those who look for a partner look again."""
        for other in client.neighbours:
            self._match(other)
