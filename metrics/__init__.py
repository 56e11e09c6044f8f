"""What a run records, and reading it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # every client imports this package: it must cost nothing
    from .reader import open_run
    from .summary import bytes_to_reach, virtual_time_to_reach

__all__ = ["bytes_to_reach", "open_run", "virtual_time_to_reach"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".reader" if name == "open_run" else ".summary", __name__), name)
