"""One round of each simple algorithm against its equation, with neighbours that say what the test wants."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from sheafgossip.node.algorithms import ALGORITHMS, check, link
from sheafgossip.node.algorithms.base import Algorithm, Edge, SettingsError, State
from sheafgossip.node.assignment import AssignedIncarnation, Period
from sheafgossip.node.client import Client
from sheafgossip.node.model.architecture import Architecture
from sheafgossip.node.settings import Transport

ALPHA = 0.1
START = np.array([1.0, -2.0, 0.5, 3.0])
TARGET = np.array([0.0, 1.0, 2.0, -1.0])
THEIRS = {1: np.array([2.0, 2.0, 2.0, 2.0]), 5: np.array([-1.0, 0.0, 1.0, 0.5])}
WEIGHTS = {1: 0.25, 5: 0.5}
MATCHINGS = {1: 0, 5: 2}


class Quadratic:
    """A learner whose loss is 1/2 ||theta - TARGET||^2: its gradient is theta - TARGET."""

    train_samples = 1

    def __init__(self):
        self.theta = START.copy()

    def learn(self, pull: np.ndarray | float = 0.0, lam: float = 1.0) -> float:
        loss = 0.5 * float(((self.theta - TARGET) ** 2).sum())
        self.theta -= ALPHA * (self.theta - TARGET + lam * pull)
        return loss


@dataclass
class FakePeers:
    """Answers every exchange with THEIRS, and keeps a copy of what was sent."""

    round: int = 1
    answers: dict[int, np.ndarray] = field(default_factory=lambda: THEIRS)
    sent: list[dict[int, np.ndarray]] = field(default_factory=list)

    def exchange(self, vectors, senders=None):
        self.sent.append({node: vector.copy() for node, vector in vectors.items()})
        return {node: self.answers[node] for node in (vectors if senders is None else senders)}

    def as_heard(self, vectors):
        return vectors


@pytest.fixture
def client(assignment) -> Client:
    neighbours = tuple(
        replace(peer, parameters=4, weight=WEIGHTS[peer.node], facts=MATCHINGS[peer.node])
        for peer in assignment.neighbours
    )
    return Client(replace(assignment, neighbours=neighbours, facts=3), Quadratic())


def begun(client: Client, name: str, **settings) -> Algorithm:
    algorithm = ALGORITHMS[name](**settings)
    client.state = algorithm.begin(client)
    return algorithm


def one_round(client: Client, name: str, *, answers: dict = THEIRS, **settings) -> FakePeers:
    peers = FakePeers(answers=answers)
    begun(client, name, **settings).round(client, peers)
    return peers


FOUR = Architecture("linear", (3,), 1)


def announced(name: str, **settings) -> list[int]:
    edge = Edge(3, 1, 4, 4, FOUR, from_server=False, facts=None)
    return [vector.length for vector in ALGORITHMS[name](**settings).messages(edge)]


def test_local_training_takes_its_own_gradient_step_and_says_nothing(client):
    peers = one_round(client, "local")
    np.testing.assert_allclose(client.theta, START - ALPHA * (START - TARGET), rtol=1e-15)
    assert peers.sent == []
    assert announced("local") == []


@pytest.mark.parametrize(
    ("name", "settings", "theta"),
    [
        ("d-psgd", {}, 0.25 * START + 0.25 * THEIRS[1] + 0.5 * THEIRS[5] - ALPHA * (START - TARGET)),
        ("dfedu", {"lam": 0.3}, START - ALPHA * (START - TARGET + 0.3 * (2 * START - THEIRS[1] - THEIRS[5]))),
    ],
)
def test_neighbours_hear_theta_and_their_mixture_or_pull_joins_the_own_gradient(client, name, settings, theta):
    peers = one_round(client, name, **settings)
    np.testing.assert_allclose(client.theta, theta, rtol=1e-14)
    assert announced(name, **settings) == [4]
    assert [set(sent) for sent in peers.sent] == [{1, 5}]
    np.testing.assert_array_equal(list(peers.sent[0].values()), [START, START])


@pytest.fixture
def directed(client, assignment) -> Client:
    """Client 3 sends to 1 and hears from 5, a round later the other way, then it goes on as at first."""
    periods = Period((1,), {5: 0.5}), Period((5,), {1: 0.25})
    neighbours = tuple(client.neighbours.values())
    run = replace(assignment.run, rounds_a_period=2)
    return Client(replace(assignment, neighbours=neighbours, periods=periods, run=run), Quadratic())


def test_each_round_has_the_graph_of_its_turn(directed):
    for round, sends, hears in (1, 1, 5), (2, 1, 5), (3, 5, 1), (4, 5, 1), (5, 1, 5):
        directed.enter(round)
        assert (list(directed.successors), list(directed.predecessors)) == ([sends], [hears])
        assert {j: peer.weight for j, peer in directed.neighbours.items()} == {hears: WEIGHTS[hears], sends: 0}
        assert directed.neighbours[hears].parameters == 4


def test_a_client_that_is_started_again_begins_with_the_graph_of_its_first_round(assignment):
    periods = Period((1,), {5: 0.5}), Period((5,), {1: 0.25})
    later = Client(replace(assignment, periods=periods, incarnation=AssignedIncarnation(first_round=4)), Quadratic())
    assert list(later.successors) == [5]


def test_on_an_undirected_graph_those_sent_to_and_those_heard_are_the_neighbours(client):
    assert client.successors == client.predecessors == client.neighbours


def test_d_psgd_on_a_directed_graph_averages_with_those_it_hears(directed):
    peers = one_round(directed, "d-psgd")
    np.testing.assert_allclose(directed.theta, (START + THEIRS[5]) / 2 - ALPHA * (START - TARGET), rtol=1e-14)
    assert [list(sent) for sent in peers.sent] == [[1]]


def test_push_sum_on_a_directed_graph_gives_away_half_and_takes_what_comes(directed):
    answers = {5: np.array([-1.0, 0.0, 1.0, 0.0, 0.25])}
    peers = one_round(directed, "push-sum", answers=answers)
    half = np.append(START - ALPHA * (START - TARGET), 1) / 2
    x, w = (half + answers[5])[:-1], (half + answers[5])[-1]
    np.testing.assert_allclose(directed.theta, x / w, rtol=1e-13)
    np.testing.assert_allclose(peers.sent[0][1], half, rtol=1e-13)
    assert list(peers.sent[0]) == [1]


def mixed(own: np.ndarray, theirs: dict[int, np.ndarray]) -> np.ndarray:
    return 0.25 * own + 0.25 * theirs[1] + 0.5 * theirs[5]


def test_gradient_tracking_steps_along_the_mixed_tracker_and_what_is_new_of_its_own_gradient(client):
    their_trackers = {1: np.array([1.0, 0.0, 0.0, -1.0]), 5: np.array([0.0, 2.0, 0.0, 0.0])}
    answers = {j: np.concatenate([THEIRS[j], their_trackers[j]]) for j in THEIRS}
    peers, algorithm = FakePeers(answers=answers), begun(client, "gradient-tracking")

    algorithm.round(client, peers)  # nobody tracks anything before the first round; these neighbours do all the same
    y = mixed(np.zeros(4), their_trackers) + (START - TARGET)
    theta = mixed(START, THEIRS) - ALPHA * y
    np.testing.assert_allclose(client.theta, theta, rtol=1e-13)

    algorithm.round(client, peers)
    new_y = mixed(y, their_trackers) + (theta - TARGET) - (START - TARGET)
    np.testing.assert_allclose(client.theta, mixed(theta, THEIRS) - ALPHA * new_y, rtol=1e-13)

    assert announced("gradient-tracking") == [8]
    np.testing.assert_array_equal(peers.sent[0][1], [*START, 0, 0, 0, 0])
    np.testing.assert_allclose(peers.sent[1][5], np.concatenate([theta, y]), rtol=1e-13)


@pytest.mark.parametrize("lazy", [True, False])
def test_d2_begins_like_d_psgd_after_the_step_and_goes_on_with_its_two_step_recursion(client, lazy):
    def mix(own: np.ndarray) -> np.ndarray:
        return (own + mixed(own, THEIRS)) / 2 if lazy else mixed(own, THEIRS)

    peers, algorithm = FakePeers(), begun(client, "d2", lazy=lazy)
    algorithm.round(client, peers)
    first = START - ALPHA * (START - TARGET)
    theta = mix(first)
    np.testing.assert_allclose(client.theta, theta, rtol=1e-13)

    algorithm.round(client, peers)
    second = 2 * theta - START - ALPHA * (theta - TARGET) + ALPHA * (START - TARGET)
    np.testing.assert_allclose(client.theta, mix(second), rtol=1e-13)

    assert announced("d2") == [4]
    np.testing.assert_allclose([sent[1] for sent in peers.sent], [first, second], rtol=1e-13)


def test_push_sum_keeps_a_third_of_its_model_and_weight_and_divides_what_it_gets_by_the_weights(client):
    answers = {1: np.array([1.0, 2.0, 3.0, 4.0, 0.5]), 5: np.array([-1.0, 0.0, 1.0, 0.0, 0.25])}
    peers, algorithm = FakePeers(answers=answers), begun(client, "push-sum")

    algorithm.round(client, peers)
    x = START - ALPHA * (START - TARGET)  # w = 1: x is the model
    np.testing.assert_allclose(peers.sent[0][1], np.append(x, 1) / 3, rtol=1e-14)
    x, w = x / 3 + answers[1][:-1] + answers[5][:-1], 1 / 3 + 0.5 + 0.25
    z = x / w
    np.testing.assert_allclose(client.theta, z, rtol=1e-13)

    algorithm.round(client, peers)
    x = x - ALPHA * (z - TARGET)
    np.testing.assert_allclose(peers.sent[1][5], np.append(x, w) / 3, rtol=1e-13)
    assert announced("push-sum") == [5]


def test_pairwise_gossip_goes_half_way_to_the_one_neighbour_of_the_rounds_matching(client):
    peers, algorithm, theta = FakePeers(), begun(client, "pairwise", order="cyclic"), START
    for peers.round, partner in (1, 1), (2, None), (3, 5), (4, 1):
        pull = (THEIRS[partner] - theta) / 2 if partner else 0
        theta = theta - ALPHA * (theta - TARGET) + pull
        algorithm.round(client, peers)
        np.testing.assert_allclose(client.theta, theta, rtol=1e-13)
        assert list(peers.sent[-1]) == ([partner] if partner else [])
    assert announced("pairwise") == [4]


def test_pairwise_gossip_draws_its_matchings_evenly_and_the_same_at_every_client(client, assignment):
    met = []
    for round in range(1, 301):
        sent = []
        for node in (3, 0):
            own = replace(assignment, node=node, neighbours=tuple(client.neighbours.values()), facts=3)
            peers = FakePeers(round=round)
            one = Client(own, Quadratic())
            begun(one, "pairwise").round(one, peers)
            sent.append(list(peers.sent[0]))
        assert sent[0] == sent[1]
        met.append(sum(sent[0]))
    assert min(met.count(0), met.count(1), met.count(5)) > 70


def test_pairwise_gossip_is_told_a_matching_of_each_edge_the_same_at_both_ends(run_facts):
    facts = ALGORITHMS["pairwise"]().facts(run_facts([4] * 4, [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2)]))
    assert all(facts.edges[i, j] == facts.edges[j, i] for i, j in facts.edges)
    for i in range(4):
        numbers = [number for (node, _), number in facts.edges.items() if node == i]
        assert len(set(numbers)) == len(numbers)
        assert max(numbers) < facts.nodes[i] == 3


@pytest.mark.parametrize("name", ["gradient-tracking", "d2", "push-sum"])
def test_what_an_algorithm_remembers_can_be_taken_over_by_a_later_process(client, assignment, name):
    answers = {j: np.resize(vector, announced(name)) for j, vector in THEIRS.items()}
    peers, algorithm = FakePeers(answers=answers), begun(client, name)
    algorithm.round(client, peers)
    state = {key: array.copy() for key, array in client.state.arrays().items()}
    assert client.state.nbytes() == sum(array.nbytes for array in state.values())

    later = Client(replace(assignment, neighbours=tuple(client.neighbours.values())), Quadratic())
    later.theta[:] = client.theta
    taken_over = begun(later, name)
    later.state.load(state)
    for _ in range(2):
        algorithm.round(client, peers)
        taken_over.round(later, peers)
    np.testing.assert_array_equal(later.theta, client.theta)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_who_keeps_a_sum_loses_nothing_and_who_takes_over_what_it_hears_no_entries(name):
    traits = ALGORITHMS[name]().traits
    assert traits.codec_may_drop == next((what for what, names in MAY_DROP.items() if name in names), "digits")
    if name in MAY_DROP["nothing"]:  # and no setting changes that
        assert (traits.tolerates, traits.more_tolerant) == ("nothing", "")


@pytest.mark.parametrize("settings", [{"eta": 0, "start": "shared", "rotate_every": 1}, {"exchange": "fused"}], ids=str)
def test_maps_that_change_tolerate_rounding_but_no_entries_that_come_later(settings):
    assert ALGORITHMS["sheaf-fmtl"](**settings).traits.codec_may_drop == "digits"


def test_the_gradient_is_what_the_local_work_amounts_to_and_theta_stays(client):
    np.testing.assert_allclose(client.gradient(), START - TARGET, rtol=1e-14)
    np.testing.assert_array_equal(client.theta, START)


@pytest.mark.parametrize("name", ["local", "d-psgd", "dfedu", "d2", "gradient-tracking", "push-sum", "pairwise"])
def test_theta_is_changed_in_place_and_the_training_loss_is_that_before_the_step(client, name):
    theta = client.theta
    one_round(client, name, answers={j: np.resize(vector, announced(name)) for j, vector in THEIRS.items()})
    assert client.theta is theta
    assert not np.array_equal(theta, START)
    assert client.train_loss == 0.5 * ((START - TARGET) ** 2).sum()


def test_theta_cannot_be_bound_anew_and_the_error_says_what_to_write(client):
    with pytest.raises(AttributeError, match=r"write client\.theta\[:\] = \.\.\."):
        client.theta = client.theta + 1
    client.theta += 1  # which is an assignment, too, of the array itself
    client.theta[:] = client.theta / 2
    np.testing.assert_allclose(client.theta, (START + 1) / 2)


def test_a_state_keeps_arrays_and_dicts_of_them_and_refuses_what_it_would_lose():
    state = State(psi=np.ones(2), reply={1: np.zeros(3)}, _told="text")
    saved = state.arrays() | {"theta": np.ones(9)}
    assert list(state.arrays()) == ["psi", "reply.1"]
    later = State(psi=np.zeros(2), reply={}, _told="")
    later.load(saved)
    assert (later.psi.tolist(), later.reply[1].tolist(), later._told) == ([1, 1], [0, 0, 0], "")
    with pytest.raises(TypeError, match=r"client\.state\.count is a int"):
        State(count=3).arrays()


@pytest.mark.parametrize("name", ["d-psgd", "dfedu", "d2", "gradient-tracking", "push-sum", "pairwise"])
def test_algorithms_that_compare_whole_models_refuse_neighbours_of_different_sizes(name, run_facts):
    check(ALGORITHMS[name](), run_facts([4, 4, 7, 7], [(0, 1), (2, 3)]))
    with pytest.raises(SettingsError, match=rf"^algorithm\.name = '{name}': .* 4 and 5 parameters"):
        check(ALGORITHMS[name](), run_facts([4, 4, 5], [(0, 1), (1, 2)]))
    check(ALGORITHMS["local"](), run_facts([4, 5], [(0, 1)]))


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_an_algorithm_is_listed_under_the_name_of_its_settings(name):
    assert ALGORITHMS[name]().name == name


# -- codecs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("remote", "expected"), [(False, "float16"), (True, "int8")])
def test_edges_within_a_host_and_between_two_have_each_their_codec(assignment, remote, expected):
    peer = replace(assignment.neighbours[0], remote=remote)
    own = replace(assignment, transport=Transport(codec="float16", codec_between="int8"))
    codec = link(ALGORITHMS["dfedu"](), own, peer).codec
    assert codec is not None
    assert (codec.name, codec.dtype) == (expected, np.dtype(own.dtype))


EXACT = {
    "sheaf-fmtl": [({}, ()), ({"exchange": "fused"}, (1,)), ({"exchange": "fused", "eta": 0}, ())],
    "selective-sheaf": [({}, (1,)), ({"blocks": "head"}, (2,)), ({"seek": True}, (1, 2))],
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_numbers_that_tell_something_are_announced_as_exact(name):
    model = Architecture("cnn", (1, 8, 8), 10, filters=(4,))
    edge = Edge(0, 1, model.size, model.size, model, from_server=False, facts=())
    for settings, expected in EXACT.get(name, [({}, ())]):
        assert tuple(vector.exact for vector in ALGORITHMS[name](**settings).messages(edge) if vector.exact) == expected


MAY_DROP = {
    "entries": {"local", "dfedu", "sheaf-fmtl"},
    "nothing": {"d2", "gradient-tracking", "push-sum"},
}
