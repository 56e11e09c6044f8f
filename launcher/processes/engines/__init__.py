"""Engines: what starts the processes of a run, on this machine or on several, and passes the launcher's words on."""

from collections.abc import Iterable
from typing import Literal

from .base import Engine, EngineError
from .local import LocalEngine

__all__ = ["Engine", "EngineError", "EngineName", "LocalEngine", "open_engine"]

EngineName = Literal["local", "threads", "ray"]


def open_engine(name: EngineName = "local", address: str | None = None, libraries: Iterable[str] = ()) -> Engine:
    """To be left as a context manager: that ends every process it has started. ``libraries`` are modules that clients
    will need; others are loaded when they turn out to be needed. Raises EngineError."""
    if name == "local":
        return LocalEngine(libraries)
    if name == "threads":
        from .threads import ThreadsEngine

        return ThreadsEngine()
    from .ray import RayEngine

    return RayEngine(address or "auto")
