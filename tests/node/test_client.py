"""What algorithms are given and may rely on, and what is said of them; what goes in and out of a client process, what
it uses, and what it must load."""

import json
import mmap
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from sheafgossip.node.algorithms import ALGORITHMS, libraries_of, link
from sheafgossip.node.algorithms.base import Edge, Setup, State
from sheafgossip.node.assignment import AssignedIncarnation, Assignment, Period
from sheafgossip.node.client import Client
from sheafgossip.node.model.architecture import Architecture
from sheafgossip.node.process.reporting import Pace, sample
from sheafgossip.node.settings import Transport
from sheafgossip.topology import Graph, GraphSequence
from sheafgossip.topology.errors import UserError

PERIODS = Period((1,), {5: 0.5}), Period((5,), {1: 0.25})
"""Client 3 sends to 1 and hears from 5, then the other way round."""


class Learner:
    """Its loss is 1/2 ||theta||^2, and it takes steps of 0.1."""

    def __init__(self):
        self.theta, self.train_samples = np.array([1.0, -2.0, 0.5, 3.0]), 9

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
    own = replace(assignment, periods=PERIODS, run=replace(assignment.run, rounds_a_period=2))
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
    state = State(psi=np.ones(2), reply={1: np.zeros(3)}, _told="text", _seen={7: np.ones(1)})
    assert list(state.arrays()) == ["psi", "reply.1"]
    assert state.nbytes() == 5 * 8
    later = State(psi=np.zeros(2), reply={}, _told="", _seen={5: "stays"})
    later.load(state.arrays() | {"theta": np.ones(9)})
    assert (later.psi.tolist(), later.reply[1].tolist(), later._told) == ([1, 1], [0, 0, 0], "")
    assert later._seen == {5: "stays"}
    with pytest.raises(UserError, match=r"client\.state\.count: int; arrays of numbers are kept"):
        State(count=3).arrays()
    with pytest.raises(UserError, match=r"client\.state\.phi is not in the checkpoint: the algorithm was another one"):
        State(phi=np.zeros(2)).load(state.arrays())


# -- algorithms --------------------------------------------------------------------------------------------------------


def test_pairwise_gossip_draws_its_matchings_evenly_and_the_same_at_every_client(assignment):
    star = Graph.of(4, [(3, 0), (3, 1), (3, 2)])
    setup = Setup(clients=4, rounds=300, seed=7, topology=lambda: GraphSequence((star,)))
    pattern = ALGORITHMS["pairwise"]().pattern(setup)
    run = replace(assignment.run, seed=7, rounds_a_period=pattern.rounds_each, period_seed=pattern.seed)
    met = []
    for round in range(1, 301):
        told = []
        for node in range(4):
            periods = tuple(Period(each.successors(node), {}) for each in pattern.graphs)
            told.append(replace(assignment, periods=periods, run=run).period(round).successors)
        assert told == [pattern.of(round).successors(node) for node in range(4)]
        met += told[3]
    assert min(Counter(met)[j] for j in range(3)) > 70


ANY_SIZE = {"local", "sheaf-fmtl", "fedavg-c", "fedsak", "fedproto", "fedgh", "fedper", "fedrep", "fedbn", "dfedpgp"}
KEEP_A_SUM = {"d2", "gradient-tracking", "push-sum", "dfedpgp", "choco-sgd", "beer"}  # or copies
SMALL_STEPS = {"local", "dfedu"}
NEED_SCIPY = {"sheaf-fmtl", "selective-sheaf", "prototype-sheaf"}  # restriction maps that change
FACTS = {"dac": 5}  # clients
SETTINGS = {  # and with these, the exact numbers at the end of each vector, and what a codec may drop
    "sheaf-fmtl": [
        ({}, (), "entries"),
        ({"eta": 0, "start": "shared", "rotate_every": 1}, (), "digits"),
        ({"exchange": "fused"}, (1,), "digits"),
        ({"exchange": "fused", "eta": 0}, (), "entries"),
    ],
    "dac": [({}, (1, 5), "digits")],
    "dpfl": [({}, (1,), "digits")],
    "pens": [({}, (1,), "digits")],
    "dfca": [({}, (1,), "digits")],
    "facade": [({}, (1,), "digits")],
    "ifca": [({}, (1,), "digits")],
    "dispfl": [({}, (18,), "digits")],
    "divshare": [({}, (1,), "digits")],
    "prototype-sheaf": [
        ({}, (662,), "digits"),
        ({"compare": "features"}, (382,), "digits"),
        ({"sketch": 3, "seek": 1}, (52, 2), "digits"),
    ],
    "selective-sheaf": [({}, (1,), "digits"), ({"blocks": "head"}, (2,), "digits"), ({"seek": True}, (1, 2), "digits")],
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_who_keeps_a_sum_loses_nothing_who_takes_over_what_it_hears_no_entries_and_some_numbers_are_exact(name):
    traits = ALGORITHMS[name]().traits
    assert (ALGORITHMS[name]().name, traits.same_size) == (name, name not in ANY_SIZE)
    if name in KEEP_A_SUM:  # and no setting changes that
        assert (traits.tolerates, traits.more_tolerant) == ("nothing", "")
    assert ("scipy.fft" in libraries_of(ALGORITHMS[name](), ["linear"])) == (name in NEED_SCIPY)
    model = Architecture("cnn", (1, 8, 8), 10, filters=(4,))
    edge = Edge(0, 1, model.size, model.size, model, from_server=False, facts=FACTS.get(name, ()))
    by_default = "nothing" if name in KEEP_A_SUM else "entries" if name in SMALL_STEPS else "digits"
    for settings, exact, may_drop in SETTINGS.get(name, [({}, (), by_default)]):
        algorithm = ALGORITHMS[name](**settings)
        assert tuple(vector.exact for vector in algorithm.messages(edge) if vector.exact) == exact
        assert algorithm.traits.codec_may_drop == may_drop


@pytest.mark.parametrize(("remote", "expected"), [(False, "float16"), (True, "int8")])
def test_edges_within_a_host_and_between_two_have_each_their_codec(assignment, remote, expected):
    peer = replace(assignment.neighbours[0], remote=remote)
    own = replace(assignment, transport=Transport(codec="float16", codec_between="int8"))
    codec = link(ALGORITHMS["dfedu"](), own, peer).codec
    assert (codec.name, codec.dtype) == (expected, np.dtype(own.dtype))


# -- files -------------------------------------------------------------------------------------------------------------


def test_an_assignment_survives_its_journey_as_json_but_for_what_is_no_plain_value(assignment):
    cnn = Architecture("cnn", (1, 28, 28), 10, filters=(32, 64), hidden=(120,))
    for sent in (assignment, replace(assignment, architecture=cnn, neighbours=(), periods=PERIODS)):
        assert Assignment.from_json(json.loads(json.dumps(sent.to_json()))) == sent
    with pytest.raises(TypeError):
        replace(assignment, facts=object()).to_json()


# -- what a process uses -----------------------------------------------------------------------------------------------


def test_a_sample_tells_the_memory_and_cpu_time_of_this_process_or_of_another_until_it_is_gone():
    cpu = time.process_time()
    before = sample(3, 1.5, (1, 20, 300, 4000))
    assert (before.node, before.wall_s) == (3, 1.5)
    assert 0 < before.uss <= before.pss <= before.rss
    assert before.peak_rss > before.uss
    assert cpu <= before.cpu_s <= time.process_time()
    assert before[-5:] == (4321, 1, 20, 300, 4000)
    held = mmap.mmap(-1, 32_000_000)  # new pages, and not what earlier tests have freed
    held[:: mmap.PAGESIZE] = b"x" * -(-len(held) // mmap.PAGESIZE)
    assert sample(3, 0.0).uss - before.uss == pytest.approx(len(held), rel=0.1)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert sample(-3, 0.0, pid=child.pid).rss > 0
    child.communicate(b"\n")
    with pytest.raises(psutil.NoSuchProcess):
        sample(-3, 0.0, pid=child.pid)


@pytest.mark.parametrize("every", [0.0, 100.0])
def test_samples_take_half_a_percent_of_the_cpu_time_and_none_is_due_before_its_time(monkeypatch, every):
    now, taken = [5.0], []
    monkeypatch.setattr(time, "thread_time", lambda: now[0])  # which passes only when this test says so
    pace = Pace(every)
    for wall in range(10_000):
        now[0] += 0.01
        if pace.due(wall):
            with pace.sampling(wall):
                now[0] += 0.004
            taken.append(wall)
    if every:
        assert taken == list(range(100, 10_000, 100))
    else:
        assert 0.004 * len(taken) / (now[0] - 5.0) == pytest.approx(0.005, rel=0.02)


# -- what a process loads: the launcher knows models and algorithms without torch --------------------------------------

HEAVY = ("torch", "torchvision", "pydantic", "typer", "matplotlib", "sklearn", "networkx")
WARMED_UP = (
    "pathlib, tempfile, sheafgossip.node.process.warm_up as r; folder = tempfile.TemporaryDirectory(); "
    "r.warm_up(pathlib.Path(folder.name) / 'r')"
)
OWN = (
    "numpy, sheafgossip.node.model.own as r; "
    f"r.measured('{Path(__file__).parents[1]}/methods/normalized.py:make', '', {{}}, "
    "((4,), 3, 'classification'), numpy.dtype('f4'))"
)
KNOWN = [f"sheafgossip.node.{name}" for name in ("algorithms", "model.architecture", "assignment", "client")]
(TORCH,) = libraries_of(ALGORITHMS["d-psgd"](), ["logistic", "cnn"])
ONE_EACH = tuple(f"sheafgossip.node.algorithms.{name}" for name in ("beer", "dac", "fedgh", "scaffold"))
FROM_A_FILE = (
    "sheafgossip.launcher.config.sections as sections; "
    "assert sections.validate({'algorithm': {'name': 'beer'}}).algorithm.name == 'beer'"
)


@pytest.mark.parametrize(
    ("modules", "watched", "loaded"),
    [
        (", ".join(KNOWN), ("torch", "sheafgossip.node.model.learner"), set()),
        ("sheafgossip.node.algorithms, sheafgossip.launcher.processes.engine", ONE_EACH, set()),
        (FROM_A_FILE, ONE_EACH, {"sheafgossip.node.algorithms.beer"}),
        ("sheafgossip.node.process.main", (*HEAVY, "sheafgossip.launcher", "sheafgossip.metrics.collector"), set()),
        (WARMED_UP, (*HEAVY, "scipy"), set()),
        (TORCH, HEAVY, {"torch"}),
        (OWN, (*HEAVY, "torch._dynamo"), {"torch"}),
        ("sheafgossip.metrics, sheafgossip.metrics.collector", (*HEAVY, "pandas", "numpy", "pyarrow"), set()),
        ("sheafgossip.launcher.data.shards", (*HEAVY, "safetensors"), set()),
    ],
    ids=[
        "knowing algorithms",
        "the table of algorithms",
        "one algorithm of a file",
        "a client process",
        "linear models",
        "other models",
        "own models",
        "a collector",
        "preparing data",
    ],
)
def test_nothing_heavy_is_loaded_that_is_not_needed(modules, watched, loaded):
    code = f"import sys, {modules}; print(*[name for name in {watched} if name in sys.modules])"
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # as the fork server, which has no second thread
    found = subprocess.check_output([sys.executable, "-c", code], text=True, env=environment)
    assert set(found.split()) == loaded
