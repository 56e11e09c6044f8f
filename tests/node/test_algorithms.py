"""What algorithms are given and may rely on: a client, its state, the graph of the round, and what is said of them."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sheafgossip.node.algorithms import ALGORITHMS, check, link
from sheafgossip.node.algorithms.base import Edge, SettingsError, State
from sheafgossip.node.assignment import AssignedIncarnation, Period
from sheafgossip.node.client import Client
from sheafgossip.node.model.architecture import Architecture
from sheafgossip.node.settings import Transport


class Learner:
    """Its loss is 1/2 ||theta||^2, and it takes steps of 0.1."""

    def __init__(self):
        self.theta = np.array([1.0, -2.0, 0.5, 3.0])

    def learn(self, pull: None, lam: float) -> float:
        self.theta *= 0.9
        return 0.0


# -- a client ----------------------------------------------------------------------------------------------------------


def test_the_gradient_is_what_the_local_work_amounts_to_and_theta_stays_and_cannot_be_bound_anew(assignment):
    client = Client(assignment, Learner())
    start = client.theta.copy()
    np.testing.assert_allclose(client.gradient(), start, rtol=1e-14)
    np.testing.assert_array_equal(client.theta, start)
    with pytest.raises(AttributeError, match=r"write client\.theta\[:\] = \.\.\."):
        client.theta = client.theta + 1
    client.theta += 1  # which is an assignment, too, of the array itself
    client.theta[:] = client.theta / 2
    np.testing.assert_allclose(client.theta, (start + 1) / 2)


def test_each_round_has_the_graph_of_its_period_also_where_a_client_is_started_again(assignment):
    """Client 3 sends to 1 and hears from 5, two rounds later the other way round, then it goes on as at first."""
    periods = Period((1,), {5: 0.5}), Period((5,), {1: 0.25})
    own = replace(assignment, periods=periods, run=replace(assignment.run, rounds_a_period=2))
    client = Client(own, Learner())
    for round, sends, hears, weight in (1, 1, 5, 0.5), (2, 1, 5, 0.5), (3, 5, 1, 0.25), (4, 5, 1, 0.25), (5, 1, 5, 0.5):
        client.enter(round)
        again = Client(replace(own, incarnation=AssignedIncarnation(first_round=round)), Learner())
        for each in (client, again):
            assert (list(each.successors), list(each.predecessors)) == ([sends], [hears])
            assert {j: peer.weight for j, peer in each.neighbours.items()} == {hears: weight, sends: 0}
    undirected = Client(assignment, Learner())
    assert undirected.successors == undirected.predecessors == undirected.neighbours


def test_a_state_keeps_arrays_and_dicts_of_them_and_refuses_what_it_would_lose():
    state = State(psi=np.ones(2), reply={1: np.zeros(3)}, _told="text")
    saved = state.arrays() | {"theta": np.ones(9)}
    assert list(state.arrays()) == ["psi", "reply.1"]
    assert state.nbytes() == 5 * 8
    later = State(psi=np.zeros(2), reply={}, _told="")
    later.load(saved)
    assert (later.psi.tolist(), later.reply[1].tolist(), later._told) == ([1, 1], [0, 0, 0], "")
    with pytest.raises(TypeError, match=r"client\.state\.count is a int"):
        State(count=3).arrays()


# -- pairwise gossip ---------------------------------------------------------------------------------------------------


def test_pairwise_gossip_draws_its_matchings_evenly_and_the_same_at_every_client(assignment):
    pairwise, met = ALGORITHMS["pairwise"](), []
    neighbours = tuple(replace(peer, facts={1: 0, 5: 2}[peer.node]) for peer in assignment.neighbours)
    clients = [Client(replace(assignment, node=node, neighbours=neighbours, facts=3), Learner()) for node in (3, 0)]
    for round in range(1, 301):
        sent: list[list[int]] = []
        peers = SimpleNamespace(round=round, exchange=lambda vectors, sent=sent: sent.append(list(vectors)) or {})
        for client in clients:
            pairwise.round(client, peers)
        assert sent[0] == sent[1]
        met.append(sum(sent[0]))
    assert min(Counter(met)[j] for j in (0, 1, 5)) > 70


def test_pairwise_gossip_is_told_a_matching_of_each_edge_the_same_at_both_ends(run_facts):
    facts = ALGORITHMS["pairwise"]().facts(run_facts([4] * 4, [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2)]))
    assert all(facts.edges[i, j] == facts.edges[j, i] for i, j in facts.edges)
    for i in range(4):
        numbers = [number for (node, _), number in facts.edges.items() if node == i]
        assert len(set(numbers)) == len(numbers)
        assert max(numbers) < facts.nodes[i] == 3


# -- what is said of algorithms ----------------------------------------------------------------------------------------

MAY_DROP = {
    "entries": {"local", "dfedu", "sheaf-fmtl"},
    "nothing": {"d2", "gradient-tracking", "push-sum"},
}
EXACT = {
    "sheaf-fmtl": [({}, ()), ({"exchange": "fused"}, (1,)), ({"exchange": "fused", "eta": 0}, ())],
    "selective-sheaf": [({}, (1,)), ({"blocks": "head"}, (2,)), ({"seek": True}, (1, 2))],
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_who_keeps_a_sum_loses_nothing_who_takes_over_what_it_hears_no_entries_and_some_numbers_are_exact(name):
    algorithm = ALGORITHMS[name]()
    assert algorithm.name == name
    assert algorithm.traits.codec_may_drop == next(
        (what for what, names in MAY_DROP.items() if name in names), "digits"
    )
    if name in MAY_DROP["nothing"]:  # and no setting changes that
        assert (algorithm.traits.tolerates, algorithm.traits.more_tolerant) == ("nothing", "")
    model = Architecture("cnn", (1, 8, 8), 10, filters=(4,))
    edge = Edge(0, 1, model.size, model.size, model, from_server=False, facts=())
    for settings, expected in EXACT.get(name, [({}, ())]):
        vectors = ALGORITHMS[name](**settings).messages(edge)
        assert tuple(vector.exact for vector in vectors if vector.exact) == expected


@pytest.mark.parametrize("settings", [{"eta": 0, "start": "shared", "rotate_every": 1}, {"exchange": "fused"}], ids=str)
def test_maps_that_change_tolerate_rounding_but_no_entries_that_come_later(settings):
    assert ALGORITHMS["sheaf-fmtl"](**settings).traits.codec_may_drop == "digits"


@pytest.mark.parametrize("name", ["d-psgd", "dfedu", "d2", "gradient-tracking", "push-sum", "pairwise", "fedavg"])
def test_algorithms_that_compare_whole_models_refuse_neighbours_of_different_sizes(name, run_facts):
    check(ALGORITHMS[name](), run_facts([4, 4, 7, 7], [(0, 1), (2, 3)]))
    with pytest.raises(SettingsError, match=rf"^algorithm\.name = '{name}': .* 4 and 5 parameters.*data\.tasks"):
        check(ALGORITHMS[name](), run_facts([4, 4, 5], [(0, 1), (1, 2)]))
    check(ALGORITHMS["local"](), run_facts([4, 5], [(0, 1)]))


@pytest.mark.parametrize(("remote", "expected"), [(False, "float16"), (True, "int8")])
def test_edges_within_a_host_and_between_two_have_each_their_codec(assignment, remote, expected):
    peer = replace(assignment.neighbours[0], remote=remote)
    own = replace(assignment, transport=Transport(codec="float16", codec_between="int8"))
    codec = link(ALGORITHMS["dfedu"](), own, peer).codec
    assert codec is not None
    assert (codec.name, codec.dtype) == (expected, np.dtype(own.dtype))
