import math

import networkx
import pytest

from sheafgossip.launcher.config.sections import ConfigError, PlacementSection
from sheafgossip.launcher.prepare.assignments import Host, chosen_hosts, place
from sheafgossip.topology import Graph

pytest.importorskip("pymetis", reason="needs pymetis, of the extra ray")

THREE = [Host(f"host-{number}") for number in range(3)]


def small_world(clients: int) -> Graph:
    return Graph.of(clients, networkx.connected_watts_strogatz_graph(clients, 4, 0.1, seed=1).edges)


def placed(by: str, graph: Graph, hosts=THREE, seed: int = 0, **limits: float) -> list[int]:
    return place(PlacementSection(by=by, **limits), graph, hosts, [10e6] * graph.clients, seed)


def cut(graph: Graph, host_of: list[int]) -> int:
    return sum(host_of[i] != host_of[j] for i, j in graph.edges)


@pytest.mark.parametrize("by", ["partition", "round-robin", "random"])
def test_each_host_gets_its_share_and_again_the_same(by):
    graph = small_world(61)
    host_of = placed(by, graph)
    assert sorted(map(host_of.count, range(3))) == [20, 20, 21]
    assert placed(by, graph) == host_of


def test_in_turn_or_at_random_by_the_seed():
    graph = small_world(60)
    assert placed("random", graph, seed=1) != placed("random", graph, seed=2)
    assert placed("round-robin", small_world(7)) == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("clients", [1, 2])
def test_a_partition_leaves_hosts_empty_where_there_are_more_than_clients(clients):
    host_of = placed("partition", Graph.of(clients, [(0, 1)] if clients > 1 else []))
    assert len(set(host_of)) == clients


def test_a_partition_cuts_few_edges():
    halves = Graph.of(16, networkx.barbell_graph(8, 0).edges)
    assert cut(halves, placed("partition", halves, THREE[:2])) == 1
    graph = small_world(200)
    assert cut(graph, placed("partition", graph)) <= cut(graph, placed("random", graph)) / 2


def test_hosts_with_more_cores_get_more_clients():
    host_of = placed("partition", small_world(40), [Host("large", cores=6), Host("small", cores=2)])
    assert [host_of.count(0), host_of.count(1)] == [30, 10]


def test_memory_and_cores_limit_what_a_host_gets():
    hosts = [Host("small", cores=4, memory=105e6), Host("large", cores=4, memory=math.inf)]
    assert placed("round-robin", small_world(40), hosts).count(0) == 10
    assert placed("round-robin", small_world(40), hosts, clients_a_core=9).count(1) == 30
    with pytest.raises(ConfigError, match=r"clients = 40.*small 10, large 20"):
        placed("round-robin", small_world(40), hosts, clients_a_core=5)
    with pytest.raises(ConfigError, match=r"small 10, large 10.*10 MB each.*placement.memory_gb"):
        placed("partition", small_world(40), hosts, memory_gb=0.1)


def test_one_machine_stands_for_several_hosts_and_several_are_cut_to_so_many():
    whole = Host("here", cores=4)
    parts = chosen_hosts(PlacementSection(hosts=2), [whole])
    assert parts == [Host("here-1", cores=2), Host("here-2", cores=2)]
    assert chosen_hosts(PlacementSection(), [whole]) == [whole]
    assert chosen_hosts(PlacementSection(hosts=2), THREE) == THREE[:2]
    assert chosen_hosts(PlacementSection(), THREE) == THREE
