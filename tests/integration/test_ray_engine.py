"""Runs on a Ray cluster of three nodes, which this machine plays: what is left of a run there, and that it is the same
run as on one machine."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from runs import alive, assert_same_states, command, until
from sheafgossip.launcher.processes.engines import open_engine
from sheafgossip.metrics.verification import compare_with_kernel
from sheafgossip.transport.keys import KeyPair

pytest.importorskip("pymetis", reason="needs pymetis, of the extra ray")
ray = pytest.importorskip("ray", reason="needs ray, of the extra ray")
cluster_utils = pytest.importorskip("ray.cluster_utils", reason="needs ray, of the extra ray")

make = KeyPair.make
SMALL_WORLD = """
clients = 60
rounds = 4
[topology]
kind = "watts-strogatz"
[data]
samples = 1200
rotations = [0, 90, 180, 270]
[training]
work = "steps"
[algorithm]
name = "sheaf-fmtl"
gamma = 0.05
[transport]
protocol = "tcp"
[measuring]
kernel = true
"""
LONG = """
clients = 9
rounds = 100000
[topology]
kind = "ring"
[data]
samples = 300
[algorithm]
name = "dfedu"
[checkpoints]
every = 50
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


def processes(going) -> list[psutil.Process]:
    """All of a run, on all of its hosts."""
    return [psutil.Process(pid) for (pid,) in going.folder.rows("SELECT pid FROM node")]


def test_a_users_own_ray_does_not_find_this_cluster(cluster, ray_folder):
    looks = "from ray._private.utils import read_ray_address; print(read_ray_address())"
    environment = {name: value for name, value in os.environ.items() if name != "RAY_TMPDIR"}
    found = subprocess.run([sys.executable, "-c", looks], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() != cluster
    assert (ray_folder / "ray" / "ray_current_cluster").read_text() == cluster


def test_no_argument_that_ray_carries_has_a_secret_key(cluster, monkeypatch):
    carried, remote = [], ray.actor.ActorMethod.remote

    def listen(method, *args, **kwargs):
        carried.append(pickle.dumps((args, kwargs)))
        return remote(method, *args, **kwargs)

    monkeypatch.setattr("ray.actor.ActorMethod.remote", listen)
    made = []
    monkeypatch.setattr(KeyPair, "make", classmethod(lambda _: made.append(make()) or made[-1]))
    with open_engine("ray", cluster) as engine:
        engine.begin(Path(engine.sockets))
    assert len(made) == 1  # the launcher's own
    assert len(carried) == 2 * 3
    assert not [told for told in carried if made[0].secret.encode() in told or b"KeyPair" in told]


def test_three_hosts_give_the_bits_and_bytes_of_one(run, start, cluster):
    here = run(SMALL_WORLD)
    going = start(SMALL_WORLD, "--engine", "ray", "--address", cluster)
    assert going.end(150)[0] == 0
    there = going.folder
    hosts = there.rows("SELECT host, count(*) FROM node WHERE node >= 0 GROUP BY host")
    assert [count for _, count in hosts] == [20, 20, 20]
    for round in (0, 4):
        assert_same_states(there, here, round)
    assert there.payload() == here.payload()
    assert len(there.payload()) == 60 * 4 * 4
    comparison = compare_with_kernel(there.path)
    assert comparison.connections == 120
    assert comparison.differing == comparison.loose_ends == ()


def test_a_killed_agent_ends_the_run_and_its_checkpoints_are_here(start, cluster):
    going = start(LONG, "--engine", "ray", "--address", cluster)
    going.until_round(120)
    time.sleep(1)
    everything = processes(going)
    os.kill(going.pid(-6), signal.SIGKILL)  # the second host's agent
    code, printed = going.end(seconds=5)
    assert code == 1
    host = going.folder.rows("SELECT host FROM node WHERE node = -6")[0][0]
    assert f"host {host} was lost, and with it client " in printed
    assert "Traceback" not in printed
    assert alive(everything) == []
    assert len(going.folder.rows("SELECT * FROM round WHERE round = 120")) == 9
    assert len(going.folder.states(100)) == 9


def test_survivors_go_on_without_a_lost_host(start, cluster):
    ending = LONG.replace("100000", "300").replace("every = 50", "every = 0")
    going = start(
        ending + '[time]\ndeaths = "continue"\n[compute]\nstep_s = 0.01', "--engine", "ray", "--address", cluster
    )
    going.until_round(20)
    lost = {
        node for (node,) in going.folder.rows("SELECT a.node FROM node a JOIN node b USING (host) WHERE b.node = -6")
    }
    os.kill(going.pid(-6), signal.SIGKILL)
    code, printed = going.end(seconds=60)
    assert code == 0, printed
    done = {node for (node,) in going.folder.rows("SELECT node FROM round WHERE round = 300")}
    assert done == set(range(9)) - lost
    assert len(done) == 6
    dead = {node for (node,) in going.folder.rows("SELECT node FROM event WHERE kind = 'death'")}
    assert dead == lost & set(range(9))


def test_hosts_have_the_shards_of_their_own_clients_and_nothing_once_the_launcher_was_killed(start, cluster):
    going = start(LONG, "--engine", "ray", "--address", cluster)
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


def test_agents_wait_for_a_launcher_that_has_much_to_prepare(cluster, tmp_path):
    with open_engine("ray", cluster) as engine:
        time.sleep(7)  # longer than a launcher may be away later
        engine.begin(tmp_path)
        assert [host.cores for host in engine.hosts()] == [1, 1, 1]
        assert engine.bring_home() == []
        told = {record.src: record.messages for record in engine.overhead() if record.src in (-3, -5, -7)}
    assert told == {-3: 0, -5: 0, -7: 0}  # no client ran


def test_no_cluster_is_told_in_a_line(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text(LONG)
    done = command("run", config, "--out", tmp_path / "run", "--engine", "ray", "--address", "127.0.0.1:1", code=2)
    assert "error: --engine ray --address 127.0.0.1:1: no Ray cluster there; start one with `ray start" in done.stderr
    assert not (tmp_path / "run").exists()
