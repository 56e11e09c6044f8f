"""Scenarios: small ones, and random ones, drawn by a number's random.Random, or by Hypothesis, which then finds the
simplest that fails."""

import math
import random
from collections.abc import Sequence

from sheafgossip.launcher.planner.scenario import Fault, Links, Scenario, SharedLink, Star, Stragglers
from sheafgossip.launcher.planner.traces import ClientTrace, PiecewiseConstant
from sheafgossip.topology import Graph, GraphSequence

STEP_S = 0.01
ONCE = ("crash", "leave", "join")
OF_LINKS = ("loss", "duplicate", "delay", "reorder", "cut", "partition")


PAIR = ((1,), (0,))


def edges_of(neighbours: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    return [(i, j) for i, others in enumerate(neighbours) for j in others]


def small(neighbours: tuple[tuple[int, ...], ...] = PAIR, nbytes=(1,), link: Links | None = None, **given) -> Scenario:
    """Ten rounds, unless told otherwise; all edges are alike."""
    edges = edges_of(neighbours)
    alike = {"message_bytes": dict.fromkeys(edges, nbytes), "links": dict.fromkeys(edges, link) if link else {}}
    return Scenario(neighbours=neighbours, **{"seed": 0, "rounds": 10} | alike | given)


def small_star(clients: int, **given) -> Scenario:
    """Seven rounds of clients 0, 1, ... and their server; all take part in all rounds."""
    everyone = (frozenset(range(clients)),) * 7
    star = (*[(clients,)] * clients, tuple(range(clients)))
    return small(star, (100,), rounds=7, star=Star(everyone, everyone), **given)


def scenario_of(rng: random.Random, *, calm: bool, server=False, deadlines=(0.5, 3, 100), rounds: int = 16) -> Scenario:
    """``calm``: nothing is lost, and no wait is bounded. ``deadlines`` to choose from, ``rounds`` at most."""
    clients, rounds = rng.randint(1 + server, 5), rng.randint(1, rounds)
    neighbours = (*[(clients,)] * clients, tuple(range(clients))) if server else _graph(rng, clients)
    edges = edges_of(neighbours)
    phases, opening = (rng.choice([1, 1, 1, 2, 4]), rng.randint(0, 2)) if server else (rng.randint(not calm, 3), 0)
    nbytes = {edge: tuple(rng.choice([100, 777, 2000]) for _ in range(opening + phases)) for edge in edges}
    alike = _link(rng, calm)
    return Scenario(
        seed=rng.randrange(1000),
        rounds=rounds,
        neighbours=neighbours,
        message_bytes=nbytes,
        staleness=0 if server else rng.choice([0, 0, 1, 2, 4, 8, 16, math.inf]),
        silence=rng.choice(["wait", "stale", "skip"]),
        deadline_s=math.inf if calm else STEP_S * rng.choice(deadlines),
        notice_s=STEP_S * rng.choice([0, 1, 5]),
        step_s=rng.choice([0.0, STEP_S, STEP_S, 1.37 * STEP_S]),
        steps=(*(rng.randint(1, 3) for _ in range(clients)), *[0] * server),
        slowdown=(*(rng.choice([1.0, 1.0, 3.0]) for _ in range(clients)), *[1.0] * server),
        stragglers=Stragglers(
            rng.choice(["none", "none", "fixed", "lognormal", "exponential", "pareto", "on-off"]),
            fraction=rng.choice([0.3, 0.5, 1.0]),
            on_s=10 * STEP_S,
            off_s=20 * STEP_S,
        ),
        trace={(rng.randrange(clients), rng.randint(1, rounds)): 5.0 for _ in range(rng.randint(0, 2))},
        traces={client: _trace(rng, calm) for client in range(clients) if rng.random() < 0.4},
        links={edge: alike if rng.random() < 0.5 else _link(rng, calm) for edge in edges if rng.random() < 0.9},
        uplink=rng.choice([math.inf, math.inf, 1e6, 1e5]),
        faults=() if calm else tuple(_fault(rng, edges, clients, rounds) for _ in range(rng.randint(0, 5))),
        checkpoint_every=rng.randint(0, 3),
        star=_star(rng, clients, rounds, (opening, phases)) if server else None,
        learns_first=rng.random() < 0.3,
        graphs=None if server or rng.random() < 0.5 else _pattern(rng, neighbours),
        **_shared(rng, clients + server, edges),
    )


def _shared(rng: random.Random, clients: int, edges: list[tuple[int, int]]) -> dict[str, object]:
    """In half of all scenarios messages do not hold each other up."""
    groups = [
        SharedLink(
            rng.choice([1e6, 1e5]),
            clients=(*{rng.randrange(clients) for _ in range(3)},)
            if (of_clients := not edges or rng.random() < 0.6)
            else (),
            edges=() if of_clients else tuple(rng.choices(edges, k=3)),
            direction=rng.choice(["in", "out", "both"]),
        )
        for _ in range(rng.choice([0, 0, 1, 2]))
    ]
    unlike = {
        name: {rng.randrange(clients): rng.choice([1e6, 1e5])}
        for name in ("uplinks", "downlinks")
        if rng.random() < 0.2
    }
    return {"downlink": rng.choice([math.inf, math.inf, 1e6, 1e5]), "groups": tuple(groups), **unlike}


def _graph(rng: random.Random, clients: int) -> tuple[tuple[int, ...], ...]:
    pairs = {(rng.randrange(i), i) for i in range(1, clients)}
    pairs |= {(i, j) for j in range(clients) for i in range(j) if rng.random() < 0.4}
    return tuple(tuple(sorted({a + b - i for a, b in pairs if i in (a, b)})) for i in range(clients))


def _pattern(rng: random.Random, neighbours: Sequence[Sequence[int]]) -> GraphSequence:
    """Parts of a graph."""
    directed, edges = rng.random() < 0.5, edges_of(neighbours)
    graphs = []
    for _ in range(rng.randint(1, 4)):
        pairs = [(i, j) for i, j in edges if (directed or i < j) and rng.random() < 0.6]
        graphs.append(Graph.of(len(neighbours), pairs, directed=directed))
    return GraphSequence(tuple(graphs), rng.randint(1, 3), rng.choice([None, 7]))


def _link(rng: random.Random, calm: bool) -> Links:
    """Latencies of up to a hundred rounds."""
    seconds = rng.choice([0.0, STEP_S, STEP_S * 10 ** rng.uniform(-1, 2)])
    latency = rng.choice(["fixed", "uniform", "lognormal"]), seconds, seconds * rng.uniform(1, 3), 0.5
    bandwidth, loss = rng.choice([0.0, 0.0, 1e6, 1e5]), 0.0 if calm else rng.choice([0.0, 0.0, 0.2])
    return Links(*latency, bandwidth, loss=loss)


def _trace(rng: random.Random, calm: bool) -> ClientTrace:
    """Rates are bytes a second."""

    def function(*values: float) -> PiecewiseConstant | None:
        if rng.random() < 0.4:
            return None
        moments = sorted({0, *(rng.choice([1, 2, 3.5, 8, 20]) for _ in range(rng.randint(0, 4)))})
        period = rng.choice([math.inf, moments[-1] + 2.5])
        drawn = tuple(rng.choice(values) for _ in moments)
        return PiecewiseConstant(tuple(STEP_S * moment for moment in moments), drawn, STEP_S * period)

    rates = {"up": function(1e6, 1e5, 0.0), "down": function(1e6, 1e5, 0.0) if rng.random() < 0.3 else None}
    found = {"available": None if calm else function(1.0, 1.0, 0.0), "speed": function(1.0, 0.5, 2.0)}
    return ClientTrace(**rates, **{name: each for name, each in found.items() if each})


def _fault(rng: random.Random, edges: list[tuple[int, int]], clients: int, rounds: int) -> Fault:
    kind = rng.choice((*ONCE, "crash", "slow", *OF_LINKS))
    first, since = rng.randint(1, rounds), STEP_S * rng.choice([0, 1, 3, 10, 30])
    spans = {"rounds": (first, first + rng.randint(0, 5))}, {"seconds": (since, since + STEP_S * rng.choice([1, 20]))}
    more = rng.choice([{"at_round": first}, {"at_round": first}, {"at_s": since}] if kind in ONCE else [{}, *spans])
    if kind == "crash":
        soon = STEP_S * rng.choice([0, 2, 9])
        more |= rng.choice([{}, {"restart_after": rng.randint(0, 3)}, {"restart_after_s": soon}])
    if kind == "partition":
        own = rng.randrange(clients)
        more |= {"groups": ((own,), tuple(j for j in range(clients) if j != own))}
    elif kind in (*ONCE, "slow") or rng.random() < 0.5:
        more |= {"clients": (rng.randrange(clients),)}
    elif edges and rng.random() < 0.5:
        more |= {"edges": (rng.choice(edges),)}
    if kind in OF_LINKS:
        more |= {"probability": rng.choice([0.3, 1.0])}
    return Fault(kind, factor=10.0, delay_s=rng.uniform(0, 20) * STEP_S, **more)


def _star(rng: random.Random, clients: int, rounds: int, phases: tuple[int, int]) -> Star:
    """``phases`` are the exchanges of an opening and of every round."""
    everyone = frozenset(range(clients))
    drawn = [frozenset(rng.sample(range(clients), rng.randint(1, clients))) for _ in range(rounds)]
    if rng.random() < 0.3:
        drawn = [everyone] * rounds
    least = 1 if phases[1] == 1 else rng.randint(1, 2)
    return Star(tuple(drawn), (*drawn[1:], everyone) if rng.random() < 0.7 else tuple(drawn), *phases, least)
