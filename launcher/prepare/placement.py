"""Which client runs on which host: in turn, at random, or so that few edges lead from one host to another."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...topology import Graph
from ...topology.errors import install
from ...topology.randomness import generator
from ..config.sections import ConfigError, PlacementSection


@dataclass(frozen=True)
class Host:
    """A machine that runs clients. ``memory`` are the bytes that it has free, ``address`` is where its clients' data
    sockets are bound; "": at ``transport.host``.
    """

    name: str
    address: str = ""
    cores: float = 1
    memory: float = math.inf


def chosen_hosts(section: PlacementSection, hosts: Sequence[Host]) -> Sequence[Host]:
    """As many as the section says: of several the first, of a single one as many parts."""
    if len(hosts) > 1 or section.hosts < 2:
        return hosts[: section.hosts or None]
    (whole,) = hosts
    parts = range(1, section.hosts + 1)
    return [replace(whole, name=f"{whole.name}-{part}", cores=whole.cores / section.hosts) for part in parts]


def place(
    section: PlacementSection, graph: Graph, hosts: Sequence[Host], needs: Sequence[float], seed: int
) -> list[int]:
    """The index of each client's host. ``needs`` are the bytes of memory that each client takes.

    Hosts get clients in proportion to their cores, no more than their memory holds. Raises ConfigError where it does
    not hold all.
    """
    shares = _shares(section, hosts, needs)
    if len(hosts) == 1:
        return [0] * graph.clients
    if section.by == "partition":
        return _within(shares, _partition(graph, shares, seed), graph)
    turns = [(turn, host) for host, share in enumerate(shares) for turn in range(share)]
    dealt = [host for _, host in sorted(turns)]
    return dealt if section.by == "round-robin" else generator(seed, "placement").permutation(dealt).tolist()


def _shares(section: PlacementSection, hosts: Sequence[Host], needs: Sequence[float]) -> list[int]:
    """How many clients each host gets."""
    clients, largest, most = len(needs), max(needs), []
    for host in hosts:
        memory = min(host.memory, section.memory_gb * 1e9 or math.inf)
        limit = min(memory / largest, section.clients_a_core * host.cores or math.inf, clients)
        most.append(math.floor(limit))
    if sum(most) < clients:
        held = ", ".join(f"{host.name} {count}" for host, count in zip(hosts, most, strict=True))
        raise ConfigError(
            f"clients = {clients}: the hosts hold fewer ({held}), at about {largest / 1e6:.0f} MB each; "
            "use more hosts or fewer clients, or raise placement.clients_a_core and placement.memory_gb"
        )
    shares = [0] * len(hosts)
    for _ in range(clients):  # to the host that is then the least busy
        open_ = [index for index, count in enumerate(shares) if count < most[index]]
        shares[min(open_, key=lambda index: ((shares[index] + 1) / max(hosts[index].cores, 1e-9), index))] += 1
    return shares


def _partition(graph: Graph, shares: Sequence[int], seed: int) -> list[int]:
    """A partition by METIS, whose parts have about these sizes and few edges between them; hosts without a share get
    none, which METIS itself does not tolerate."""
    try:
        import pymetis
    except ImportError:
        raise ConfigError(f"placement.by = 'partition' needs pymetis: {install('ray')}, or use 'round-robin'") from None
    neighbours = [list(graph.neighbours(node)) for node in range(graph.clients)]
    used = [host for host, share in enumerate(shares) if share]
    weights = [shares[host] / sum(shares) for host in used]
    options = pymetis.Options(seed=int(generator(seed, "placement").integers(1 << 31)))
    parts = pymetis.part_graph(len(used), adjacency=neighbours, tpwgts=weights, options=options)[1]
    return [used[part] for part in parts]


def _within(shares: Sequence[int], placed: list[int], graph: Graph) -> list[int]:
    """Moves clients from hosts with too many to those that hold more, each time the one that costs the fewest edges."""
    left = [share - placed.count(host) for host, share in enumerate(shares)]

    def cost(move: tuple[int, int]) -> tuple[int, int, int]:
        around = [placed[peer] for peer in graph.neighbours(move[0])]
        return around.count(placed[move[0]]) - around.count(move[1]), *move

    while min(left) < 0:
        crowded = [node for node, host in enumerate(placed) if left[host] < 0]
        node, to = min(((node, to) for node in crowded for to, free in enumerate(left) if free > 0), key=cost)
        left[placed[node]] += 1
        left[to] -= 1
        placed[node] = to
    return placed
