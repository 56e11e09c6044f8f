"""Runs on a Ray cluster of three nodes, which this machine plays: what is left of a run there, and that it is the same
run as on one machine."""

import os
import pickle
import signal
import time
from pathlib import Path

import psutil
import pytest

from foreign import sheafgossip
from runs import alive, assert_same_states, until
from sheafgossip.launcher.processes.engine import open_engine
from sheafgossip.metrics.verification import compare_with_kernel
from sheafgossip.transport.keys import KeyPair

pytest.importorskip("pymetis", reason="needs pymetis, of the extra ray")
ray = pytest.importorskip("ray", reason="needs ray, of the extra ray")
cluster_utils = pytest.importorskip("ray.cluster_utils", reason="needs ray, of the extra ray")

SMALL_WORLD = """
clients = 30
rounds = 4
topology.kind = "watts-strogatz"
data = {samples = 1200, rotations = [0, 90, 180, 270]}
training.work = "steps"
algorithm = {name = "sheaf-fmtl", gamma = 0.05}
transport.protocol = "tcp"
"""
LONG = """
clients = 9
rounds = 100000
topology.kind = "ring"
data.samples = 300
algorithm.name = "dfedu"
checkpoints.every = 50
"""


@pytest.fixture(scope="module")
def cluster(ray_folder):
    """The address of a cluster whose three nodes have a fork server's and ten clients' memory each."""
    nodes = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "memory": 10**9, "include_dashboard": False}
    )
    for _ in range(2):
        nodes.add_node(num_cpus=1, memory=10**9)
    yield nodes.address
    nodes.shutdown()


@pytest.fixture
def begun(start, cluster):
    """Starts a run there."""
    return lambda text, *options: start(text, "--engine", "ray", "--address", cluster, *options)


def processes(going) -> list[psutil.Process]:
    """All of a run, on all of its hosts."""
    return [psutil.Process(pid) for (pid,) in going.folder.rows("SELECT pid FROM node")]


def test_agents_wait_for_a_launcher_that_has_much_to_prepare_and_ray_carries_no_secret_key(cluster, monkeypatch):
    carried, made, remote, make = [], [], ray.actor.ActorMethod.remote, KeyPair.make

    def listen(method, *args, **kwargs):
        carried.append(pickle.dumps((args, kwargs)))
        return remote(method, *args, **kwargs)

    monkeypatch.setattr("ray.actor.ActorMethod.remote", listen)
    monkeypatch.setattr(KeyPair, "make", classmethod(lambda _: made.append(make()) or made[-1]))
    with open_engine("ray", cluster) as engine:
        time.sleep(6)  # longer than a launcher may be away later
        engine.begin(Path(engine.sockets))
        assert [host.cores for host in engine.hosts()] == [1, 1, 1]
        assert engine.bring_home() == []
        told = {record.src: record.messages for record in engine.overhead() if record.src in (-3, -5, -7)}
    assert told == {-3: 0, -5: 0, -7: 0}  # no client ran
    assert len(made) == 1  # the launcher's own
    assert len(carried) == 2 * 3
    assert not [told for told in carried if made[0].secret.encode() in told or b"KeyPair" in told]


def test_three_hosts_give_the_bits_and_bytes_of_one(run_in_threads, begun):
    here, going = run_in_threads(SMALL_WORLD), begun(SMALL_WORLD, "--set", "measuring.kernel=true")
    assert going.end(150)[0] == 0
    there = going.folder
    hosts = there.rows("SELECT host, count(*) FROM node WHERE node >= 0 GROUP BY host")
    assert [count for _, count in hosts] == [10, 10, 10]
    for round in (0, 4):
        assert_same_states(there, here, round)
    assert there.payload() == here.payload()
    assert len(there.payload()) == 30 * 4 * 4
    comparison = compare_with_kernel(there.path)
    assert comparison.connections == 60
    assert comparison.differing == comparison.loose_ends == ()


def test_a_killed_agent_ends_the_run_and_its_checkpoints_are_here(begun):
    going = begun(LONG)
    going.until_round(120)
    going.until(lambda: len(list((going.folder.path / "state/round-000100").glob("*.safetensors"))) == 9)
    everything, agent = processes(going), going.pid(-6)  # the second host's
    printed = going.ends(1, lambda: os.kill(agent, signal.SIGKILL), seconds=5)
    ((host,),) = going.folder.rows("SELECT host FROM node WHERE node = -6")
    assert f"host {host} was lost, and with it client " in printed
    assert alive(everything) == []
    assert len(going.folder.rows("SELECT * FROM round WHERE round = 120")) == 9


def test_survivors_go_on_without_a_lost_host(begun):
    ending = ("rounds=150", "checkpoints.every=0", "time.deaths=continue", "compute.step_s=0.01")
    going = begun(LONG, *(word for key in ending for word in ("--set", key)))
    going.until_round(20)
    lost = set(
        going.folder.rows("SELECT a.node FROM node a JOIN node b USING (host) WHERE b.node = -6 AND a.node >= 0")
    )
    os.kill(going.pid(-6), signal.SIGKILL)
    code, printed = going.end(seconds=60)
    assert code == 0, printed
    done = set(going.folder.rows("SELECT node FROM round WHERE round = 150"))
    assert done == {(node,) for node in range(9)} - lost
    assert len(done) == 6
    assert set(going.folder.rows("SELECT node FROM event WHERE kind = 'death'")) == lost


def test_hosts_have_the_shards_of_their_own_clients_and_nothing_once_the_launcher_was_killed(begun):
    going = begun(LONG)
    going.until_round(50)
    there, expected = {}, {}
    servers = going.folder.rows("SELECT host, pid FROM node WHERE role = 'fork server'")
    folders = {host: Path(psutil.Process(pid).cmdline()[-1]) for host, pid in servers}
    for host, folder in folders.items():
        assert folder.stat().st_mode & 0o777 == 0o700
        there[host] = sorted(file.name for file in (folder / "run-1" / "shards").iterdir())
    for node, host in going.folder.rows("SELECT node, host FROM node WHERE node >= 0 ORDER BY node"):
        expected.setdefault(host, []).append(f"node-{node:04d}.safetensors")
    assert there == expected
    everything = processes(going)
    assert len(everything) == 1 + 3 + 3 + 9  # launcher, agents, fork servers, clients
    going.kill()
    until(lambda: not alive(everything) and not any(map(Path.exists, folders.values())), seconds=5)
    assert len(going.folder.rows("SELECT * FROM round WHERE round = 50")) == 9


def test_no_cluster_is_told_in_a_line(tmp_path):
    (tmp_path / "config.toml").write_text(LONG)
    words = ("--out", tmp_path / "run", "--engine", "ray", "--address", "127.0.0.1:1")
    code, _, said = sheafgossip("run", tmp_path / "config.toml", *words)
    assert (code, said.count("\n")) == (2, 1)
    assert "error: --engine ray --address 127.0.0.1:1: no Ray cluster there; start one with `ray start" in said
    assert not (tmp_path / "run").exists()
