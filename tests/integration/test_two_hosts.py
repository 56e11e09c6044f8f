"""A run over two hosts with addresses of their own, and a third that has no keys: network namespaces at one bridge."""

import contextlib
import os
import socket
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

from runs import CLI, assert_same_states, until
from sheafgossip.metrics.verification import compare_with_kernel
from sheafgossip.transport.keys import KeyPair

from .test_keys import dial, enter, forger, meanwhile, network, within

pytest.importorskip("ray", reason="needs ray, of the extra ray")
pytest.importorskip("pymetis", reason="needs pymetis, of the extra ray")

FIRST, SECOND, THIRD = "10.77.14.1", "10.77.14.2", "10.77.14.3"
BIN = Path(sys.executable).parent
CONFIG = """
clients = 8
rounds = 300
[topology]
kind = "ring"
[data]
samples = 400
[training]
work = "steps"
steps = 5
[algorithm]
name = "d-psgd"
[evaluation]
every = 0
[transport]
protocol = "tcp"
[measuring]
kernel = true
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[str, str]]:
    """{address: network namespace} of three hosts, and under "" the namespace of the bridge between them."""
    prefix = f"sg{os.getpid()}"
    names = dict(zip((FIRST, SECOND, THIRD, ""), (f"{prefix}{end}" for end in "abcs"), strict=True))
    commands = [f"ip netns add {name}" for name in names.values()]
    commands += [f"ip -n {names['']} link add bridge type bridge", f"ip -n {names['']} link set bridge up"]
    for port, (address, name) in enumerate(list(names.items())[:3]):
        commands += [
            f"ip link add eth0 netns {name} type veth peer name port{port} netns {names['']}",
            f"ip -n {names['']} link set port{port} master bridge up",
            f"ip -n {name} address add {address}/24 dev eth0",
            f"ip -n {name} link set lo up",
            f"ip -n {name} link set eth0 up",
        ]
    with network(names.values(), commands):
        yield names


def on(namespace: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, *command]


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
            family = psutil.Process(node.pid).children(recursive=True)
            for process in (*family, node):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            node.wait()


HOW_MANY = (
    f"import ray; ray.init('{FIRST}:6379', log_to_driver=False, logging_level='ERROR', _node_ip_address='{FIRST}');"
    "print(sum(node['Alive'] for node in ray.nodes()))"
)


def answers(address: str) -> bool:
    with contextlib.suppress(OSError):
        dial(address).close()
        return True
    return False


class Wiretap:
    """Keeps what crosses a namespace's bridge: {(source, destination): the bytes of that way of a TCP connection}."""

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
        enter(f"/run/netns/{self.namespace}")
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


def collector_of(launcher: int) -> str | None:
    """Where the collector below a process listens."""
    for process in psutil.Process(launcher).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "sheafgossip.metrics.collector" in process.cmdline():
                return listening(Path(f"/proc/{process.pid}"))
    return None


def listening(process: Path) -> str | None:
    """In the process's own network namespace."""
    inodes = {str(file.readlink()) for file in (process / "fd").iterdir()}
    for line in (process / "net" / "tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            address, port = fields[1].split(":")
            return f"tcp://{socket.inet_ntoa(bytes.fromhex(address)[::-1])}:{int(port, 16)}"
    return None


def test_a_run_spans_two_hosts_and_a_third_one_without_keys_changes_nothing(run_in_threads, hosts, cluster, tmp_path):
    quiet = run_in_threads(CONFIG, "measuring.kernel=false")
    config, folder = tmp_path / "config.toml", tmp_path / "attacked"
    config.write_text(CONFIG)
    attacked = type(quiet)(folder)
    words = [*CLI, "run", str(config), "--out", str(folder), "--quiet", "--engine", "ray", "--address", cluster]
    process = subprocess.Popen(on(hosts[FIRST], *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    attacker = Attacker(hosts[THIRD], Wiretap(hosts[""]))
    with meanwhile(attacker):
        while process.poll() is None:
            with contextlib.suppress(Exception):
                rows = attacked.rows("SELECT node, address FROM node WHERE node >= 0 AND address <> ''")
                attacker.addresses |= dict(rows)
            with contextlib.suppress(psutil.Error, OSError):
                if (collector := collector_of(process.pid)) is not None:
                    attacker.addresses[-2] = collector
            time.sleep(0.05)
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    assert len(attacker.addresses) == 9
    assert attacker.replayed > 9
    where = dict(attacked.rows("SELECT node, address FROM node WHERE node >= 0"))
    at_hosts = [sum(address.startswith(f"tcp://{host}:") for address in where.values()) for host in (FIRST, SECOND)]
    assert at_hosts == [4, 4]
    assert_same_states(attacked, quiet, 300)
    assert attacked.payload() == quiet.payload()
    rounds = "SELECT node, round, theta_norm, train_loss FROM round ORDER BY 1, 2"
    assert attacked.rows(rounds) == quiet.rows(rounds)
    comparison = compare_with_kernel(folder)
    assert comparison.connections == 8
    counted = [way for way in comparison.directions if way.sent is not None]  # a flood may hide a connection's opening
    assert counted
    assert [way for way in counted if not way.agrees] == []
    told = attacked.rows("SELECT node, detail FROM event WHERE kind = 'drop'")
    assert {node for node, _ in told} == {-2, *range(8)}
    assert all("without the right key" in detail for _, detail in told), told
