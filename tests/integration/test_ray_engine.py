"""Runs on a Ray cluster of three nodes, which this machine plays, and on one of two hosts with addresses of their own:
what is left of a run there, and that it is the same run as on one machine."""

import contextlib
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import own
from foreign import sheafgossip
from runs import CLI, RunFolder, alive, assert_same_states, command, small, until
from sheafgossip import run
from sheafgossip.launcher.processes.engine import open_engine
from sheafgossip.metrics.verification import compare_with_kernel
from sheafgossip.transport.keys import KeyPair

STEPS = 'training.work = "steps"', 'transport.protocol = "tcp"'
SMALL_WORLD = small(
    *STEPS, "data.rotations = [0, 90, 180, 270]", "algorithm.gamma = 0.05",
    clients=30, rounds=4, samples=1200, topology="watts-strogatz", algorithm="sheaf-fmtl",
)  # fmt: skip
RING = small(*STEPS, "training.steps = 5", "evaluation.every = 0", clients=8, rounds=20, samples=400)
LONG = small("checkpoints.every = 50", clients=9, rounds=100_000, samples=300, algorithm="dfedu")


@pytest.fixture(autouse=True, scope="module")
def ray_imported():
    global ray, cluster_utils  # half a second, which only who runs these tests needs
    pytest.importorskip("pymetis", reason="needs pymetis, of the extra ray")
    ray = pytest.importorskip("ray", reason="needs ray, of the extra ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="needs ray, of the extra ray")


@pytest.fixture(scope="module")
def cluster(ray_folder, ray_imported):
    """The address of a cluster whose three nodes have a fork server's and ten clients' memory each."""
    head = {"num_cpus": 1, "memory": 10**9, "include_dashboard": False}
    nodes = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
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
        engine.begin(Path(engine.sockets), [])
        assert [host.cores for host in engine.hosts()] == [1, 1, 1]
        assert engine.bring_home() == []
        told = {record.src: record.messages for record in engine.overhead() if record.src in (-3, -5, -7)}
    assert told == {-3: 0, -5: 0, -7: 0}  # no client ran
    assert len(made) == 1  # the launcher's own
    assert len(carried) == 2 * 3
    assert not [told for told in carried if made[0].secret.encode() in told or b"KeyPair" in told]


def assert_same_run(there: RunFolder, here: RunFolder, *, connections: int) -> None:
    assert_same_states(there, here)
    assert there.payload() == here.payload() != {}
    rounds = "SELECT node, round, theta_norm, train_loss FROM round ORDER BY 1, 2"
    assert there.rows(rounds) == here.rows(rounds)
    comparison = compare_with_kernel(there.path)
    assert comparison.connections == connections
    assert comparison.differing == comparison.loose_ends == ()
    assert there.rows("SELECT * FROM event WHERE kind = 'drop'") == []


def test_three_hosts_give_the_bits_and_bytes_of_one(run_in_threads, begun):
    going = begun(SMALL_WORLD, "--set", "measuring.kernel=true")
    assert going.end(150)[0] == 0
    hosts = going.folder.rows("SELECT host, count(*) FROM node WHERE node >= 0 GROUP BY host")
    assert [count for _, count in hosts] == [10, 10, 10]
    assert_same_run(going.folder, run_in_threads(SMALL_WORLD), connections=60)


def test_a_calibration_measures_clients_on_all_hosts_and_the_link_between_two(cluster, tmp_path):
    (tmp_path / "mine.toml").write_text(small(clients=3))
    command("calibrate", "mine.toml", "--engine", "ray", "--address", cluster, cwd=tmp_path)
    text = (tmp_path / "calibrated.toml").read_text()
    name = socket.gethostname()
    assert f"latency, tcp from {name}-1 to {name}-2" in text
    assert re.search(rf"local step on \d+ samples, logistic \(650 parameters\) on {name}-[123]\n", text)
    assert tomllib.loads(text)["links"]["latency_s"] < 0.1


def test_the_users_own_files_travel_to_the_hosts(begun, tmp_path, monkeypatch):
    monkeypatch.chdir(own.write(tmp_path / "project"))
    here = run("mine.toml", out=tmp_path / "here", quiet=True)
    going = begun(own.CONFIG.replace('use = "', f'use = "{Path.cwd()}/'))
    assert going.end(150)[0] == 0
    assert len(going.folder.rows("SELECT DISTINCT host FROM node WHERE node >= 0")) > 1
    for round in here.state_rounds:
        for node, theta in going.folder.theta(round).items():
            assert theta.tobytes() == here.theta(round)[node].tobytes()


def test_a_killed_agent_ends_the_run_and_its_checkpoints_are_here(begun):
    going = begun(LONG)
    going.until_round(120)
    going.until(lambda: len(list((going.folder.path / "state/round-000100").glob("*.safetensors"))) == 9)
    everything, agent = processes(going), going.pid(-6)  # the second host's
    printed = going.ends(1, lambda: os.kill(agent, signal.SIGKILL))
    ((host,),) = going.folder.rows("SELECT host FROM node WHERE node = -6")
    assert f"host {host} was lost, and with it client " in printed
    assert alive(everything) == []
    assert len(going.folder.rows("SELECT * FROM round WHERE round = 120")) == 9


def test_survivors_go_on_without_a_lost_host(begun):
    ending = ("rounds=300", "checkpoints.every=0", "time.deaths=continue", "compute.step_s=0.01")
    going = begun(LONG, *(word for key in ending for word in ("--set", key)))
    going.until_round(1)
    there = "SELECT a.node FROM node a JOIN node b USING (host) WHERE b.node = -6 AND a.node >= 0"
    lost = {node for (node,) in going.folder.rows(there)}
    theirs, awaited = [psutil.Process(going.pid(node)) for node in lost], going.pid(min({*range(9)} - lost))
    os.kill(awaited, signal.SIGSTOP)  # or all could end before the host is lost
    os.kill(going.pid(-6), signal.SIGKILL)
    until(lambda: not alive(theirs))
    os.kill(awaited, signal.SIGCONT)
    code, printed = going.end(seconds=60)
    assert code == 0, printed
    assert len(lost) == 3
    for survivors, query in (({*range(9)} - lost, "round WHERE round = 300"), (lost, "event WHERE kind = 'death'")):
        assert {node for (node,) in going.folder.rows(f"SELECT node FROM {query}")} == survivors


def test_hosts_have_the_shards_of_their_own_clients_and_nothing_once_the_launcher_was_killed(begun):
    going = begun(LONG)
    going.until_round(50)
    there, expected = {}, {}
    servers = going.folder.rows("SELECT host, pid FROM node WHERE role = 'fork server'")
    folders = {host: Path(psutil.Process(pid).cmdline()[-1]) for host, pid in servers}
    for host, folder in folders.items():
        assert folder.stat().st_mode & 0o777 == 0o700
        there[host] = sorted(file.name for file in (folder / "0" / "shards").iterdir())
    for node, host in going.folder.rows("SELECT node, host FROM node WHERE node >= 0 ORDER BY node"):
        expected.setdefault(host, []).append(f"node-{node:04d}.safetensors")
    assert there == expected
    everything = processes(going)
    assert len(everything) == 1 + 3 + 3 + 9  # launcher, agents, fork servers, clients
    going.kill()
    until(lambda: not alive(everything) and not any(map(Path.exists, folders.values())), seconds=30)
    assert len(going.folder.rows("SELECT * FROM round WHERE round = 50")) == 9


def test_no_cluster_is_told_in_a_line(tmp_path):
    (tmp_path / "config.toml").write_text(LONG)
    words = ("--out", tmp_path / "run", "--engine", "ray", "--address", "127.0.0.1:1")
    code, _, said = sheafgossip("run", tmp_path / "config.toml", *words)
    assert (code, said.count("\n")) == (2, 1)
    assert "error: --engine ray --address 127.0.0.1:1: no Ray cluster there; start one with `ray start" in said
    assert not (tmp_path / "run").exists()


# -- two hosts with addresses of their own: network namespaces with a cable between them -------------------------------

FIRST, SECOND = "10.77.14.1", "10.77.14.2"


def on(namespace: str, *command: object) -> list[str]:
    return ["ip", "netns", "exec", namespace, *map(str, command)]


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[str, str]]:
    """{address: network namespace}"""
    names = {FIRST: f"sg-test-{os.getpid()}a", SECOND: f"sg-test-{os.getpid()}b"}
    commands = [f"netns add {name}" for name in names.values()]
    commands += [f"link add eth0 netns {names[FIRST]} type veth peer name eth0 netns {names[SECOND]}"]
    for address, name in names.items():
        commands += [f"-n {name} address add {address}/24 dev eth0"]
        commands += [f"-n {name} link set {device} up" for device in ("lo", "eth0")]
    try:
        for command in commands:
            subprocess.run(["ip", *command.split()], capture_output=True, check=True)
        yield names
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    finally:
        for name in names.values():
            with contextlib.suppress(OSError):
                inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout
                for pid in inside.split():
                    os.kill(int(pid), signal.SIGKILL)
                subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@pytest.fixture(scope="module")
def far_cluster(hosts, ray_folder) -> str:
    """The address of a Ray cluster of the two."""
    head = ["--head", "--port", "6379", "--include-dashboard", "false"]
    for address, options in ((FIRST, head), (SECOND, ["--address", f"{FIRST}:6379"])):
        ray = [Path(sys.executable).parent / "ray", "start", "--num-cpus", "2", "--memory", "2000000000"]
        command = on(hosts[address], *ray, "--disable-usage-stats", "--node-ip-address", address, *options)
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=90)
    return f"{FIRST}:6379"


def test_a_run_spans_two_hosts_with_the_bits_and_bytes_of_one(run_in_threads, hosts, far_cluster, tmp_path):
    there = RunFolder(tmp_path / "run")
    (tmp_path / "config.toml").write_text(RING)
    words = ["run", tmp_path / "config.toml", "--out", there.path, "--engine", "ray", "--address", far_cluster]
    command = on(hosts[FIRST], *CLI, *words, "--set", "measuring.kernel=true")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    where = [address for (address,) in there.rows("SELECT address FROM node WHERE node >= 0")]
    assert [sum(f"//{host}:" in address for address in where) for host in (FIRST, SECOND)] == [4, 4]
    assert_same_run(there, run_in_threads(RING), connections=8)
