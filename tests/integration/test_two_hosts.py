"""A run over two hosts with addresses of their own, which are network namespaces with a cable between them."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from runs import CLI, RunFolder, assert_same_states, until
from sheafgossip.metrics.verification import compare_with_kernel

pytest.importorskip("ray", reason="needs ray, of the extra ray")
pytest.importorskip("pymetis", reason="needs pymetis, of the extra ray")

FIRST, SECOND = "10.77.14.1", "10.77.14.2"
BIN = Path(sys.executable).parent
CONFIG = """
clients = 8
rounds = 20
topology.kind = "ring"
data.samples = 400
training = {work = "steps", steps = 5}
algorithm.name = "d-psgd"
evaluation.every = 0
transport.protocol = "tcp"
"""


def on(namespace: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, *command]


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[str, str]]:
    """{address: network namespace}"""
    names = {FIRST: f"sg{os.getpid()}a", SECOND: f"sg{os.getpid()}b"}
    commands = [f"netns add {name}" for name in names.values()]
    commands += [f"link add eth0 netns {names[FIRST]} type veth peer name eth0 netns {names[SECOND]}"]
    for address, name in names.items():
        commands += [f"-n {name} address add {address}/24 dev eth0"]
        commands += [f"-n {name} link set {device} up" for device in ("lo", "eth0")]
    try:
        for command in commands:
            try:
                subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"no network namespaces here: {error}")
        yield names
    finally:
        for name in names.values():
            with contextlib.suppress(OSError):
                subprocess.run(["ip", "netns", "delete", name], capture_output=True)


HOW_MANY = (
    f"import ray; ray.init('{FIRST}:6379', log_to_driver=False, logging_level='ERROR', _node_ip_address='{FIRST}');"
    "print(sum(node['Alive'] for node in ray.nodes()))"
)


@pytest.fixture(scope="module")
def cluster(hosts, ray_folder) -> Iterator[str]:
    """The address of a Ray cluster of the first two."""
    ray = [str(BIN / "ray"), "start", "--num-cpus", "2", "--memory", "2000000000", "--disable-usage-stats", "--block"]
    head = [*ray, "--head", "--port", "6379", "--node-ip-address", FIRST, "--include-dashboard", "false"]
    second = [*ray, "--address", f"{FIRST}:6379", "--node-ip-address", SECOND]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    nodes = [subprocess.Popen(on(hosts[FIRST], *head), **quiet)]
    try:
        dial = f"import socket; socket.create_connection(('{FIRST}', 6379))"
        listening = on(hosts[FIRST], sys.executable, "-c", dial)
        until(lambda: subprocess.run(listening, capture_output=True).returncode == 0, seconds=60)
        nodes.append(subprocess.Popen(on(hosts[SECOND], *second), **quiet))
        status = on(hosts[FIRST], sys.executable, "-c", HOW_MANY)
        until(lambda: subprocess.run(status, capture_output=True, text=True).stdout.strip() == "2", seconds=90)
        yield f"{FIRST}:6379"
    finally:
        for node in nodes:
            for process in (*psutil.Process(node.pid).children(recursive=True), node):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            node.wait()


def test_a_run_spans_two_hosts_with_the_bits_and_bytes_of_one(run_in_threads, hosts, cluster, tmp_path):
    here, there = run_in_threads(CONFIG), RunFolder(tmp_path / "run")
    (tmp_path / "config.toml").write_text(CONFIG)
    words = ["run", tmp_path / "config.toml", "--out", there.path, "--engine", "ray", "--address", cluster]
    words += ["--set", "measuring.kernel=true"]
    done = subprocess.run(on(hosts[FIRST], *CLI, *map(str, words)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    where = [address for (address,) in there.rows("SELECT address FROM node WHERE node >= 0")]
    assert [sum(f"//{host}:" in address for address in where) for host in (FIRST, SECOND)] == [4, 4]
    assert_same_states(there, here, 20)
    assert there.payload() == here.payload()
    rounds = "SELECT node, round, theta_norm, train_loss FROM round ORDER BY 1, 2"
    assert there.rows(rounds) == here.rows(rounds)
    comparison = compare_with_kernel(there.path)
    assert comparison.connections == 8
    assert comparison.differing == comparison.loose_ends == ()
    assert there.rows("SELECT * FROM event WHERE kind = 'drop'") == []
