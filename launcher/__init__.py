"""The user's side: command line, configuration, and the processes of a run from start to end."""

ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "VECLIB_MAXIMUM")}
"""Environment variables for libraries, which look at them only when they are loaded: another number of threads adds in
another order, and gives other bits."""
