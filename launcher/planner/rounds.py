"""What a client does in a round, and a server: where it computes, sends and waits. Who meets whom by time is another
file, meetings.py."""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from ...transport.schedule import deadlines_left
from .clients import Client
from .scenario import Star

if TYPE_CHECKING:
    from .simulation import Simulation


def gossip(simulation: "Simulation", client: Client) -> Iterator[None]:
    to = of = None
    if simulation.scenario.graph_of:
        graph = simulation.scenario.graph_of[client.round - 1]
        to, of = graph.successors(client.number), graph.predecessors(client.number)
    learns_first = simulation.scenario.learns_first or not simulation.scenario.phases
    if learns_first:
        yield from simulation.work(client)
    for phase in range(simulation.scenario.phases):
        simulation.send(client, phase, to)
        yield from simulation.receive(client, phase, of)
        if phase == 0 and not learns_first:
            yield from simulation.work(client)


def serve(simulation: "Simulation", client: Client, star: Star) -> Iterator[None]:
    round, (*before, last) = client.round, star.phases(client.round)
    for phase in range(star.opening if round == 1 else 0):
        simulation.send(client, phase)
        yield from simulation.receive(client, phase)
    heard: Collection[int] = star.participants[round - 1]
    for phase in before:
        heard = yield from simulation.receive(client, phase, heard)
        if len(heard) < star.least:
            break
        simulation.send(client, phase, heard)
    else:
        yield from simulation.receive(client, last, heard)
    simulation.send(client, last, star.receivers[round - 1])


def take_part(simulation: "Simulation", client: Client, star: Star) -> Iterator[None]:
    """The deadline bounds the wait of a client that has just sent; one that has only to be called waits until it
    is. A client that comes back takes no part in its first round, it only gets the answer; one that has an answer
    of a later round before it begins to work leaves out the rounds up to there, as their results have been made
    without it; and one without an answer goes on with what it has. In the exchanges before the last answer a client
    sends as long as it is answered."""
    round, (*before, last) = client.round, star.phases(client.round)
    answered = reached = 0
    for phase in range(star.opening if round == 1 else 0):
        yield from simulation.receive(client, phase)
        simulation.send(client, phase)
    if round > 1:
        answers = client.incoming[0].mail[star.phases(2)[-1]]
        answers.take_in(simulation.now)
        answered = answers.freshest
    takes_part = client.number in star.participants[round - 1] and answered < round != client.listens_in
    if takes_part:
        yield from simulation.work(client)
        for phase in before:
            simulation.send(client, phase)
            if not (yield from simulation.receive(client, phase, bounded=2)):
                break
            reached += 1
        else:
            simulation.send(client, last)
    if client.number in star.receivers[round - 1] and answered <= round:
        bounded = deadlines_left(star.exchanges, reached) if takes_part else 0
        yield from simulation.receive(client, last, bounded=bounded)
