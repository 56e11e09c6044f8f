"""Engines: what starts the processes of a run, on this machine or on several, and passes the launcher's words on."""

from __future__ import annotations

from typing import Literal

from .base import Engine, EngineError
from .local import LocalEngine

__all__ = ["Engine", "EngineError", "EngineName", "LocalEngine", "open_engine"]


EngineName = Literal["local", "ray"]


def open_engine(name: EngineName = "local", address: str | None = None) -> Engine:
    """To be left as a context manager: that ends every process it has started. Raises EngineError."""
    if name == "local":
        return LocalEngine()
    from .ray import RayEngine

    return RayEngine(address or "auto")
