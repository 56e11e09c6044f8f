"""Decentralized federated learning in which every client is a real process: ``import sheafgossip as sg``.

What stands in ``__all__`` is public, and is imported when it is first used: this import alone costs nothing. Folders of
the program are imported by name, such as sheafgossip.metrics; what is in them and not here may change."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import testing
    from .launcher.config.sections import RunConfig as Config
    from .node.algorithms.base import Algorithm, Facts, SettingsError, State, Traits, Vector
    from .node.algorithms.server import NEEDS_NEW_UPLOADS, TAKES_OLD_UPLOADS, ServerAlgorithm, weighted_mean
    from .runs import Run, RunError, Sweep, Table, compare, open_run, plan, resume, run, sweep, verify
    from .topology.errors import UserError as Error

__all__ = [
    "NEEDS_NEW_UPLOADS",
    "TAKES_OLD_UPLOADS",
    "Algorithm",
    "Config",
    "Error",
    "Facts",
    "Run",
    "RunError",
    "ServerAlgorithm",
    "SettingsError",
    "State",
    "Sweep",
    "Table",
    "Traits",
    "Vector",
    "compare",
    "open_run",
    "plan",
    "resume",
    "run",
    "sweep",
    "testing",
    "verify",
    "weighted_mean",
]
_PLACES = {  # where names come from that are not of ``runs``, and what they are called there
    "Config": ("launcher.config.sections", "RunConfig"),
    "Error": ("topology.errors", "UserError"),
    **{
        name: ("node.algorithms.base", name)
        for name in ("Algorithm", "Facts", "SettingsError", "State", "Traits", "Vector")
    },
    **{
        name: ("node.algorithms.server", name)
        for name in ("NEEDS_NEW_UPLOADS", "TAKES_OLD_UPLOADS", "ServerAlgorithm", "weighted_mean")
    },
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    if name == "testing":
        return import_module(".testing", __name__)
    module, own = _PLACES.get(name, ("runs", name))
    return getattr(import_module(f".{module}", __name__), own)


def __dir__() -> list[str]:
    return __all__
