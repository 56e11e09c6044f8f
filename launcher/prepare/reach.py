"""Whether clients on this machine will reach each other over TCP, tried before anything starts."""

import ipaddress
import socket
from pathlib import Path

import psutil

from ...topology import Graph
from ..config.sections import ConfigError

_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def check_reach(host: str, graph: Graph) -> None:
    """Raises ConfigError where nobody can listen at ``host``, or be reached there, or ports do not suffice."""
    interfaces = psutil.net_if_stats()
    try:  # without a packet, for all that goes over the network is counted
        with socket.create_server((host, 0)) as listening, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as calling:
            calling.connect(listening.getsockname())
        if (loopback := interfaces.get("lo")) is not None and not loopback.isup:
            raise OSError("a machine's link to itself")
    except OSError as error:
        own = {
            address.address
            for name, addresses in psutil.net_if_addrs().items()
            for address in addresses
            if address.family == socket.AF_INET and name in interfaces and interfaces[name].isup
        }
        remedy = f"this machine has no such address; allowed are {', '.join(sorted(own)) or 'none, without a network'}"
        if host in own:
            remedy = "this machine cannot reach itself there; see that its loopback interface is up"
        elif ipaddress.IPv4Address(host).is_loopback:
            remedy = "the loopback interface is down; set it up (ip link set lo up), or use transport.protocol = 'ipc'"
        raise ConfigError(f"transport.host = {host!r}: {remedy} ({error.strerror or error})") from None
    if not _PORTS.exists():
        return
    first, last = map(int, _PORTS.read_text().split())
    # A client listens at one port; connections to the same client leave from different ones.
    arriving = max((sum(j < i for j in graph.neighbours(i)) for i in range(graph.clients)), default=0)
    needed, there = graph.clients + arriving, last - first + 1
    if needed > there:
        raise ConfigError(
            f"transport.protocol = 'tcp': {graph.clients} processes need {needed} ports, and this system gives out "
            f"{there} ({first} to {last}); widen net.ipv4.ip_local_port_range, or use 'ipc'"
        )
