"""The user's side: command line, configuration, and the processes of a run from start to end."""

import os
import sys

ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "VECLIB_MAXIMUM")}
"""Environment variables for libraries, which look at them only when they are loaded: another number of threads adds in
another order, and gives other bits."""


def command(module: str) -> list[str]:
    """Starts a module of the program in a process of its own, whatever files lie in the working directory."""
    return [sys.executable, "-P", "-m", module]


def importing_as_here() -> dict[str, str]:
    """Returns the environment of a process that can import what this one can, as the user's code may."""
    paths = (path or os.getcwd() for path in sys.path)  # noqa: PTH109
    return os.environ | ONE_THREAD | {"PYTHONPATH": os.pathsep.join(paths)}
