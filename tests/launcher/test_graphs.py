"""Which algorithm takes which graph: what does not fit is refused, naming the key and what is allowed."""

import pytest

from sheafgossip.launcher.config.sections import ConfigError, validate
from sheafgossip.launcher.prepare.assignments import Site
from sheafgossip.launcher.prepare.preparation import check_graphs, draw_graphs, prepare_run
from sheafgossip.node.algorithms import ALGORITHMS
from sheafgossip.node.algorithms.base import SettingsError
from sheafgossip.node.algorithms.server import ServerAlgorithm

CHANGING = {"p": 0.5, "redraw_every": 10}
ONE_WAY = {"p": 0.5, "directed": True}
ONE_PEER = {"kind": "one-peer-exponential"}
REGULAR = {"kind": "ring", "directed": True}
ALLOWED = {  # with what a refusal begins
    "changing": (CHANGING, "topology.redraw_every = 10", {"local", "d-psgd", "gradient-tracking", "push-sum"}),
    "changing and directed": (CHANGING | ONE_WAY, "topology.directed = true", {"local", "push-sum"}),
    "directed": (ONE_WAY, "topology.directed = true", {"local", "push-sum"}),
    "directed and regular": (REGULAR, "topology.directed = true", {"local", "d-psgd", "push-sum"}),
    "exponential": ({"kind": "exponential"}, "topology.kind = 'exponential'", {"local", "d-psgd", "push-sum"}),
    "one peer": (ONE_PEER, "topology.kind = 'one-peer-exponential'", {"local", "d-psgd", "push-sum"}),
    "changing, were there more rounds": (CHANGING | {"redraw_every": 100}, "", set(ALGORITHMS)),
}
WITH_A_SERVER = {name for name, algorithm in ALGORITHMS.items() if issubclass(algorithm, ServerAlgorithm)}


def configured(topology: dict, name: str, **more):
    return validate({"clients": 8, "topology": topology, "algorithm": {"name": name} | more})


@pytest.mark.parametrize("name", sorted(WITH_A_SERVER))
def test_an_algorithm_with_a_server_has_a_star_of_its_own(name):
    config = configured(CHANGING | ONE_WAY, name)
    graphs = draw_graphs(config)
    check_graphs(config, graphs)
    assert not graphs.changes
    assert graphs.union.edges == tuple((client, 8) for client in range(8))


@pytest.mark.parametrize("name", ["ghn", "shn"])
def test_a_server_that_is_told_relations_is_told_the_edges_of_the_topology(tmp_path, name):
    site = Site(tmp_path, "ipc:///nowhere")
    prepared = prepare_run(configured({"kind": "ring"}, name, graph="topology"), tmp_path, site)
    assert sorted(prepared.assignments[8].facts) == sorted([*((i, i + 1) for i in range(7)), (0, 7)])
    assert prepared.assignments[0].facts is None
    for topology in (CHANGING, ONE_WAY):
        with pytest.raises(SettingsError, match=r"^algorithm\.graph = 'topology': .*topology\.redraw_every = 0"):
            prepare_run(configured(topology, name, graph="topology"), tmp_path, site)


@pytest.mark.parametrize("graph", ALLOWED)
@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - WITH_A_SERVER))
def test_an_algorithm_runs_on_the_graphs_it_is_made_for_and_on_no_others(graph, name):
    topology, key, able = ALLOWED[graph]
    config = configured(topology, name)
    graphs = draw_graphs(config)
    if name in able:
        check_graphs(config, graphs)
        return
    with pytest.raises(ConfigError, match=rf"^{key}: algorithm\.name = {name!r} needs .*$") as refused:
        check_graphs(config, graphs)
    assert all(repr(other) in str(refused.value) for other in able)


@pytest.mark.parametrize("topology", [CHANGING, ONE_WAY, ONE_PEER])
def test_a_scenario_is_planned_for_one_undirected_graph(topology):
    config = configured(topology, "push-sum").but(time={"clock": "virtual"})
    with pytest.raises(ConfigError, match="a scenario is planned for one undirected graph"):
        check_graphs(config, draw_graphs(config))
