"""A Ray cluster: how to join it, and the hosts that it consists of."""

import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ....topology.errors import install
from ...prepare.placement import Host
from .base import EngineError


def joined(address: str) -> Any:
    """The module ray, connected to a cluster. Raises EngineError."""
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise EngineError(f"--engine ray needs Ray: {install('ray')}") from None
    try:
        _require_listener(address)  # Ray itself would try for minutes
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EngineError(
            f"--engine ray --address {address}: no Ray cluster there; start one with `ray start --head` ({reason})"
        ) from None
    return ray


def _require_listener(address: str) -> None:
    """Raises OSError where nobody listens at HOST:PORT."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=5).close()


def nodes_of(ray: Any) -> list[dict[str, Any]]:
    alive = [node for node in ray.nodes() if node["Alive"]]
    return sorted(alive, key=lambda node: (ipaddress.ip_address(node["NodeManagerAddress"]), node["NodeManagerPort"]))


def hosts_of(nodes: list[dict[str, Any]], *, alone: bool) -> Iterator[Host]:
    """``alone``: all of them are this machine, which nobody else needs to reach."""
    names = Counter(node["NodeManagerHostname"] for node in nodes)
    seen: Counter[str] = Counter()
    for node in nodes:
        name, resources = node["NodeManagerHostname"], node["Resources"]
        seen[name] += 1
        unique = name if names[name] == 1 else f"{name}-{seen[name]}"
        address = "127.0.0.1" if alone else node["NodeManagerAddress"]
        yield Host(unique, address, resources.get("CPU", 0.0), resources.get("memory", 0.0))
