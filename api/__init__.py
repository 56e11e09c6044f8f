"""Decentralized federated learning in which every client is a real process: ``import sheafgossip as sg``.

What stands in ``__all__`` is public, and is imported when it is first used: this import alone costs nothing. Folders of
the program are imported by name, such as sheafgossip.metrics; what is in them and not here may change."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import testing
    from .launcher.config.sections import RunConfig as Config
    from .node.algorithms.base import (
        Algorithm,
        Cost,
        Edge,
        Facts,
        RunFacts,
        SettingsError,
        Setup,
        State,
        Traits,
        Vector,
        Work,
        weighted_mean,
    )
    from .node.algorithms.secure import SecureSum
    from .node.algorithms.server import NEEDS_NEW_UPLOADS, TAKES_OLD_UPLOADS, ServerAlgorithm
    from .node.assignment import Neighbour
    from .node.client import Client, RoundReport
    from .node.model.architecture import Architecture
    from .runs import (
        Run,
        RunError,
        Sweep,
        Table,
        calibrate,
        compare,
        open_run,
        plan,
        replay,
        resume,
        run,
        sweep,
        twin,
        verify,
    )
    from .topology import Graph, GraphSequence
    from .topology.errors import UserError as Error
    from .transport.peers import Peers
    from .tuning import tune

__all__ = [
    "NEEDS_NEW_UPLOADS",
    "TAKES_OLD_UPLOADS",
    "Algorithm",
    "Architecture",
    "Client",
    "Config",
    "Cost",
    "Edge",
    "Error",
    "Facts",
    "Graph",
    "GraphSequence",
    "Neighbour",
    "Peers",
    "RoundReport",
    "Run",
    "RunError",
    "RunFacts",
    "SecureSum",
    "ServerAlgorithm",
    "SettingsError",
    "Setup",
    "State",
    "Sweep",
    "Table",
    "Traits",
    "Vector",
    "Work",
    "calibrate",
    "compare",
    "open_run",
    "plan",
    "replay",
    "resume",
    "run",
    "sweep",
    "testing",
    "tune",
    "twin",
    "verify",
    "weighted_mean",
]
_PLACES = {  # {module: its names}, where it is not ``runs``
    "node.algorithms.base": "Algorithm Cost Edge Facts RunFacts SettingsError Setup State Traits Vector Work "
    "weighted_mean",
    "node.algorithms.secure": "SecureSum",
    "node.algorithms.server": "NEEDS_NEW_UPLOADS TAKES_OLD_UPLOADS ServerAlgorithm",
    "node.assignment": "Neighbour",
    "node.client": "Client RoundReport",
    "node.model.architecture": "Architecture",
    "transport.peers": "Peers",
    "launcher.config.sections": "RunConfig",
    "topology": "Graph GraphSequence",
    "topology.errors": "UserError",
    "tuning": "tune",
}
_OWN_NAMES = {"Config": "RunConfig", "Error": "UserError"}  # where they are called otherwise there


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version(__name__)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    if name == "testing":
        return import_module(".testing", __name__)
    own = _OWN_NAMES.get(name, name)
    place = next((module for module, names in _PLACES.items() if own in names.split()), "runs")
    return getattr(import_module(f".{place}", __name__), own)


def __dir__() -> list[str]:
    return __all__
