"""A run over two hosts with addresses of their own, and a third that has no keys: network namespaces at one bridge."""

import contextlib
import ctypes
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgpack
import numpy as np
import psutil
import pytest
import zmq

from runs import CLI, RunFolder, assert_same_states, until
from sheafgossip.metrics.verification import compare_with_kernel
from sheafgossip.transport.keys import KeyPair

from .test_keys import dial, forger, meanwhile

pytest.importorskip("ray", reason="needs ray, of the extra ray")
pytest.importorskip("pymetis", reason="needs pymetis, of the extra ray")

FIRST, SECOND, THIRD = "10.77.14.1", "10.77.14.2", "10.77.14.3"
BIN = Path(sys.executable).parent
CONFIG = """
clients = 8
rounds = 300
topology.kind = "ring"
data.samples = 400
training = {work = "steps", steps = 5}
algorithm.name = "d-psgd"
evaluation.every = 0
transport.protocol = "tcp"
measuring.kernel = true
"""


def enter(namespace: str) -> None:
    """Takes this thread, and what it starts, into a network namespace."""
    with Path(namespace).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), namespace)


@contextlib.contextmanager
def within(namespace: str) -> Iterator[None]:
    with Path("/proc/thread-self/ns/net").open() as before:
        enter(namespace)
        try:
            yield
        finally:
            ctypes.CDLL(None).setns(before.fileno(), 0)


def on(namespace: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", Path(namespace).name, *command]


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[str, str]]:
    """{address: network namespace} of three hosts, and under "" the namespace of the bridge between them."""
    names = {address: f"sg{os.getpid()}{number}" for number, address in enumerate((FIRST, SECOND, THIRD, ""))}
    between = names[""]
    commands = [f"netns add {name}" for name in names.values()]
    commands += [f"-n {between} link add bridge type bridge", f"-n {between} link set bridge up"]
    for port, (address, name) in enumerate(list(names.items())[:3]):
        commands += [
            f"link add eth0 netns {name} type veth peer name port{port} netns {between}",
            f"-n {between} link set port{port} master bridge up",
            f"-n {name} address add {address}/24 dev eth0",
            f"-n {name} link set lo up",
            f"-n {name} link set eth0 up",
        ]
    try:
        for command in commands:
            try:
                subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"no network namespaces here: {error}")
        yield {address: f"/run/netns/{name}" for address, name in names.items()}
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
        with within(hosts[FIRST]):
            until(lambda: answers(f"tcp://{FIRST}:6379"), seconds=60)
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


def answers(address: str) -> bool:
    with contextlib.suppress(OSError):
        dial(address).close()
        return True
    return False


class Wiretap:
    """Keeps what crosses a bridge: {(source, destination): the bytes of a TCP connection in that direction}."""

    def __init__(self, namespace: str):
        with within(namespace):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        self._socket.settimeout(0.05)
        self._pieces: defaultdict[tuple, dict[int, bytes]] = defaultdict(dict)
        self._starts: dict[tuple, int] = {}

    def listen(self) -> None:
        """To what has come by now."""
        with contextlib.suppress(TimeoutError):
            for _ in range(500):  # what the attacker does itself crosses the bridge, too
                frame = self._socket.recv(1 << 17)
                if frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
                    continue
                ip = frame[14 : 14 + int.from_bytes(frame[16:18], "big")]
                tcp = ip[4 * (ip[0] & 15) :]
                ends = tuple(
                    f"{socket.inet_ntoa(ip[at : at + 4])}:{int.from_bytes(tcp[port : port + 2], 'big')}"
                    for at, port in ((12, 0), (16, 2))
                )
                sequence, data = int.from_bytes(tcp[4:8], "big"), tcp[4 * (tcp[12] >> 4) :]
                if tcp[13] & 2:  # SYN
                    self._starts[ends] = sequence + 1
                elif data:
                    self._pieces[ends][sequence] = data

    def heard(self, at: str) -> list[bytes]:
        """What was said to this address, one text a connection, as far as it was heard without a gap."""
        texts = []
        for (_, to), pieces in self._pieces.items():
            if to == at and (start := self._starts.get((_, to))) is not None:
                text = b""
                while (piece := pieces.get((start + len(text)) % (1 << 32))) is not None:
                    text += piece
                texts.append(text)
        return [text for text in texts if text.startswith(b"\xff")]  # a greeting of ZMTP


@dataclass
class Attacker:
    """On a host of its own, at all ports of a run: floods them, forges messages, and says again what others said."""

    namespace: str
    tap: Wiretap
    addresses: dict[int, str] = field(default_factory=dict)
    """{client, or -2 for the collector: its address}"""
    replayed: int = 0

    def __call__(self, over: threading.Event) -> None:
        enter(self.namespace)
        known: set[int] = set()
        with zmq.Context() as context:
            sockets = []
            while not over.wait(0.01):
                self.tap.listen()
                for node, address in tuple(self.addresses.items()):
                    if node not in known:
                        known.add(node)
                        sockets += forgers(context, node, address)
                    with contextlib.suppress(OSError), dial(address) as flood:
                        flood.sendall(os.urandom(2000))
                    for text in self.tap.heard(address.removeprefix("tcp://"))[:3]:
                        with contextlib.suppress(OSError), dial(address) as again:
                            again.sendall(text)
                            self.replayed += 1
            for each in sockets:
                each.close()


def forgers(context: zmq.Context, node: int, address: str) -> list[zmq.Socket]:
    sender, kind = (node + 1) % 8, zmq.PUSH if node < 0 else zmq.DEALER
    headers = [[1, 1 << 62, sender, node, round, 0, [[0, 650]]] for round in range(1, 50)]
    messages = [[msgpack.packb(header), np.full(650, 1e6, "f4").tobytes()] for header in headers]
    all_keys = (None, (KeyPair.make(), KeyPair.make().public))
    return [forger(context, kind, address, keys, messages, b"node-%04d" % sender) for keys in all_keys]


def collector_of(launcher: int) -> dict[int, str]:
    """Where the collector below a process listens, in its own network namespace."""
    for process in psutil.Process(launcher).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "sheafgossip.metrics.collector" not in process.cmdline():
                continue
            place = Path(f"/proc/{process.pid}")
            inodes = {str(file.readlink()) for file in (place / "fd").iterdir()}
            for fields in map(str.split, (place / "net" / "tcp").read_text().splitlines()[1:]):
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                    address, port = fields[1].split(":")
                    return {-2: f"tcp://{socket.inet_ntoa(bytes.fromhex(address)[::-1])}:{int(port, 16)}"}
    return {}


def test_a_run_spans_two_hosts_and_a_third_one_without_keys_changes_nothing(run_in_threads, hosts, cluster, tmp_path):
    quiet = run_in_threads(CONFIG, "measuring.kernel=false")
    config, attacked = tmp_path / "config.toml", RunFolder(tmp_path / "attacked")
    config.write_text(CONFIG)
    words = [*CLI, "run", str(config), "--out", str(attacked.path), "--quiet", "--engine", "ray", "--address", cluster]
    process = subprocess.Popen(on(hosts[FIRST], *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    attacker = Attacker(hosts[THIRD], Wiretap(hosts[""]))
    with meanwhile(attacker):
        while process.poll() is None:
            with contextlib.suppress(sqlite3.Error, psutil.Error, OSError):
                attacker.addresses |= collector_of(process.pid)
                attacker.addresses |= attacked.rows("SELECT node, address FROM node WHERE node >= 0 AND address <> ''")
            time.sleep(0.05)
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    assert len(attacker.addresses) == 9
    assert attacker.replayed > 9
    where = [address for (address,) in attacked.rows("SELECT address FROM node WHERE node >= 0")]
    assert [sum(f"//{host}:" in address for address in where) for host in (FIRST, SECOND)] == [4, 4]
    assert_same_states(attacked, quiet, 300)
    assert attacked.payload() == quiet.payload()
    rounds = "SELECT node, round, theta_norm, train_loss FROM round ORDER BY 1, 2"
    assert attacked.rows(rounds) == quiet.rows(rounds)
    comparison = compare_with_kernel(attacked.path)
    assert comparison.connections == 8
    counted = [way for way in comparison.directions if way.sent is not None]  # a flood may hide a connection's opening
    assert counted
    assert [way for way in counted if not way.agrees] == []
    told = attacked.rows("SELECT node, detail FROM event WHERE kind = 'drop'")
    assert {node for node, _ in told} == {-2, *range(8)}
    assert all("without the right key" in detail for _, detail in told), told
