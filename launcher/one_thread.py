"""One thread for the libraries: another number of them adds in another order, and gives other bits."""

import os

VARIABLES = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "VECLIB_MAXIMUM")}


def choose() -> None:
    """In this process. To be called before NumPy and PyTorch are loaded: they look only then."""
    os.environ.update(VARIABLES)


def is_chosen() -> bool:
    return VARIABLES.items() <= os.environ.items()
