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
ALLOWED = {
    "changing": (CHANGING, {"local", "d-psgd", "gradient-tracking", "push-sum"}),
    "changing and directed": (CHANGING | ONE_WAY, {"local", "push-sum"}),
    "directed": (ONE_WAY, {"local", "push-sum"}),
    "directed and regular": (REGULAR, {"local", "d-psgd", "push-sum"}),
    "exponential": ({"kind": "exponential"}, {"local", "d-psgd", "push-sum"}),
    "one peer": (ONE_PEER, {"local", "d-psgd", "push-sum"}),
    "changing, were there more rounds": (CHANGING | {"redraw_every": 100}, set(ALGORITHMS)),
}


def check(topology: dict, name: str, **sections) -> None:
    config = validate({"clients": 8, "topology": topology, "algorithm": {"name": name}, **sections})
    check_graphs(config, draw_graphs(config))


def refusal(*arguments, **sections) -> str:
    with pytest.raises(ConfigError) as refused:
        check(*arguments, **sections)
    assert len(str(refused.value).splitlines()) == 1
    return str(refused.value)


WITH_A_SERVER = {name for name, algorithm in ALGORITHMS.items() if issubclass(algorithm, ServerAlgorithm)}


@pytest.mark.parametrize("name", sorted(WITH_A_SERVER))
def test_an_algorithm_with_a_server_has_a_star_of_its_own(name):
    config = validate({"clients": 8, "topology": CHANGING | ONE_WAY, "algorithm": {"name": name}})
    graphs = draw_graphs(config)
    check_graphs(config, graphs)
    assert not graphs.changes
    assert graphs.union.edges == tuple((client, 8) for client in range(8))


@pytest.mark.parametrize("name", ["ghn", "shn"])
def test_a_server_that_is_told_relations_is_told_the_edges_of_the_topology(tmp_path, name):
    config = validate({"clients": 8, "topology": {"kind": "ring"}, "algorithm": {"name": name, "graph": "topology"}})
    prepared = prepare_run(config, tmp_path, Site(tmp_path, "ipc:///nowhere"))
    assert sorted(prepared.assignments[8].facts) == sorted([*((i, i + 1) for i in range(7)), (0, 7)])
    assert prepared.assignments[0].facts is None


@pytest.mark.parametrize("topology", [CHANGING, ONE_WAY])
def test_relations_must_be_mutual_and_stay(tmp_path, topology):
    config = validate({"clients": 8, "topology": topology, "algorithm": {"name": "shn", "graph": "topology"}})
    with pytest.raises(SettingsError, match=r"^algorithm\.graph = 'topology': .*topology\.redraw_every = 0"):
        prepare_run(config, tmp_path, Site(tmp_path, "ipc:///nowhere"))


@pytest.mark.parametrize("graph", ALLOWED)
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in WITH_A_SERVER])
def test_an_algorithm_runs_on_the_graphs_it_is_made_for_and_on_no_others(graph, name):
    topology, able = ALLOWED[graph]
    if name in able:
        check(topology, name)
        return
    told = refusal(topology, name)
    assert f"algorithm.name = {name!r}" in told
    assert all(repr(other) in told for other in able)


@pytest.mark.parametrize(
    ("topology", "name", "key"),
    [
        (CHANGING, "d2", "topology.redraw_every = 10"),
        (ONE_WAY, "gradient-tracking", "topology.directed = true"),
        (CHANGING | ONE_WAY, "d-psgd", "topology.directed = true: algorithm.name = 'd-psgd' needs doubly stochastic"),
        (ONE_PEER, "sheaf-fmtl", "topology.kind = 'one-peer-exponential'"),
        ({"kind": "exponential"}, "pairwise", "topology.kind = 'exponential'"),
    ],
)
def test_a_refusal_begins_with_the_key_at_fault(topology, name, key):
    assert refusal(topology, name).startswith(key)


@pytest.mark.parametrize("topology", [CHANGING, ONE_WAY, ONE_PEER])
def test_a_scenario_is_planned_for_one_undirected_graph(topology):
    assert "a scenario is planned for one undirected graph" in refusal(topology, "push-sum", time={"clock": "virtual"})
