"""What a run will take and what is said where that is not there, where its clients are placed, and FLT's encoders."""

import math
from dataclasses import replace
from pathlib import Path

import networkx
import numpy as np
import pytest

from sheafgossip.launcher.config.sections import ConfigError, PlacementSection, validate
from sheafgossip.launcher.prepare.assignments import Host, Site, chosen_hosts, place
from sheafgossip.launcher.prepare.memory import Need, check_resources, need_of
from sheafgossip.launcher.prepare.preparation import prepare_run, train_encoder
from sheafgossip.node.algorithms.flt import Autoencoder
from sheafgossip.topology import Graph

# -- memory, time and open files ---------------------------------------------------------------------------------------

SMALL = Need(memory=1e9, seconds=10, files=340, clients=40)


def need(folder: Path, **settings: object) -> Need:
    config = validate({"clients": 4, "rounds": 10, "topology": {"kind": "complete"}, **settings})
    return need_of(prepare_run(config, folder, Site(sockets=folder, records="ipc:///nowhere")))


def test_dense_maps_are_counted_with_all_their_numbers(tmp_path):
    """4 clients of 3 neighbours, d = 650: 650 x 650 numbers of 4 bytes a map, against next to nothing without."""
    without = need(tmp_path / "a", algorithm={"name": "d-psgd"})
    dense = need(tmp_path / "b", algorithm={"name": "sheaf-fmtl", "gamma": 1.0, "storage": "dense"})
    assert dense.memory - without.memory == pytest.approx(4 * 3 * 650 * 650 * 4, rel=0.01)


def test_the_history_of_factored_maps_grows_with_the_rounds(tmp_path):
    """A row of history is theta (650 numbers) and r of three edges (65 each)."""
    sheaf = {"name": "sheaf-fmtl", "gamma": 0.1, "storage": "factored", "start": "orthogonal"}
    short, long = (need(tmp_path / str(rounds), algorithm=sheaf, rounds=rounds) for rounds in (10, 1010))
    assert long.memory - short.memory == pytest.approx(4 * 1000 * (650 + 3 * 65) * 4, rel=0.01)
    assert long.seconds > 20 * short.seconds / 10


def test_more_local_work_and_what_flt_does_before_the_first_round_are_counted(tmp_path):
    """Each client of FLT encodes its images by torch, and trains the encoder if asked to."""
    steps, epochs = (
        need(tmp_path / work, rounds=200, training={"work": work, "epochs": 5}) for work in ("steps", "epochs")
    )
    assert epochs.seconds > steps.seconds
    plain = need(tmp_path / "a", algorithm={"name": "fedavg"})
    tuned = need(tmp_path / "b", algorithm={"name": "flt", "fine_tune_epochs": 500})
    assert tuned.memory - plain.memory > 4 * 10e6
    assert tuned.seconds > 10 * plain.seconds


def test_a_run_that_needs_more_memory_than_is_free_is_refused_in_one_line():
    huge = replace(SMALL, memory=1e15, clients=900)
    with pytest.raises(ConfigError, match=r"^900 clients need about 1000000\.0 GB of memory, .* GB are free;.*--force"):
        check_resources([SMALL, huge], force=False)
    check_resources([SMALL, huge], force=True)
    check_resources([SMALL], force=False)


def test_a_run_that_needs_more_open_files_than_the_system_allows_is_refused_even_by_force(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 4096))
    check_resources([SMALL], force=False)
    with pytest.raises(ConfigError, match=r"about 5300 open files .* allows 4096; .*ulimit -Hn 5300.* at most 3796"):
        check_resources([replace(SMALL, files=5300, clients=5000)], force=True)


# -- places ------------------------------------------------------------------------------------------------------------

THREE = [Host(f"host-{number}") for number in range(3)]


def small_world(clients: int) -> Graph:
    return Graph.of(clients, networkx.connected_watts_strogatz_graph(clients, 4, 0.1, seed=1).edges)


def placed(by: str, graph: Graph, hosts=THREE, seed: int = 0, **limits: float) -> list[int]:
    if by == "partition":
        pytest.importorskip("pymetis", reason="needs pymetis, of the extra ray")
    return place(PlacementSection(by=by, **limits), graph, hosts, [10e6] * graph.clients, seed)


def cut(graph: Graph, host_of: list[int]) -> int:
    return sum(host_of[i] != host_of[j] for i, j in graph.edges)


@pytest.mark.parametrize("by", ["partition", "round-robin", "random"])
def test_each_host_gets_its_share_and_again_the_same(by):
    graph = small_world(61)
    host_of = placed(by, graph)
    assert sorted(map(host_of.count, range(3))) == [20, 20, 21]
    assert placed(by, graph) == host_of
    assert by != "random" or placed(by, graph, seed=1) != host_of
    assert by != "round-robin" or host_of[:7] == [0, 1, 2, 0, 1, 2, 0]


def test_a_partition_cuts_few_edges_and_leaves_hosts_empty_where_there_are_more_than_clients():
    halves, graph = Graph.of(16, networkx.barbell_graph(8, 0).edges), small_world(200)
    assert cut(halves, placed("partition", halves, THREE[:2])) == 1
    assert cut(graph, placed("partition", graph)) <= cut(graph, placed("random", graph)) / 2
    for clients in (1, 2):
        assert len(set(placed("partition", Graph.of(clients, [(0, 1)][: clients - 1])))) == clients


def test_cores_and_memory_decide_and_limit_what_a_host_gets():
    host_of = placed("partition", small_world(40), [Host("large", cores=6), Host("small", cores=2)])
    assert [host_of.count(0), host_of.count(1)] == [30, 10]
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


# -- encoders ----------------------------------------------------------------------------------------------------------


def test_an_encoder_fits_the_data_has_the_embedding_of_the_algorithm_and_repeats_by_its_seed(tmp_path):
    vectors = []
    for number, seed in enumerate((0, 0, 1)):
        path = tmp_path / "new" / f"{number}.safetensors"
        tree = {"data": {"samples": 100}, "algorithm": {"name": "flt", "embedding": 5}, "seed": seed}
        errors = dict(train_encoder(validate(tree), 4, None, path))
        assert list(errors) == [1, 2, 3, 4]
        assert errors[4] < errors[1]
        vectors.append(Autoencoder((1, 8, 8), 5).load(path))
    assert np.array_equal(vectors[0], vectors[1])
    assert not np.array_equal(vectors[0], vectors[2])
