"""How much of a client's model a neighbour learns from the projections P theta that it is sent anyway.

The neighbour knows the maps P (it must, or at least can: they follow from the run's seed and from what it has been
sent) and keeps an estimate of theta, at first 0. Each new projection y = P theta moves the estimate the shortest way
to what agrees with it: estimate + P^+ (y - P estimate). Printed is the share of ||theta||^2 that is right then,
1 - ||estimate - theta||^2 / ||theta||^2, for fixed maps and for maps that rotate each round.
"""

from pathlib import Path

import numpy as np
from common import new_folder, options, table
from safetensors.numpy import load_file
from study import algorithms, run_grid

ROUNDS = (1, 2, 5, 10, 20, 40)
FIXED = {"name": "sheaf-fmtl", "gamma": 0.1, "eta": 0.0}
MAPS = {"fixed maps": FIXED, "maps that rotate each round": FIXED | {"start": "shared", "rotate_every": 1}}


def recovered(folder: Path) -> dict[int, float]:
    """{round: share}, of client 0 by its first neighbour."""
    shares, estimate = {}, None
    for round in range(1, max(ROUNDS) + 1):
        state = load_file(folder / "state" / f"round-{round:06d}" / "node-0000.safetensors")
        name = min(key for key in state if key.startswith("P."))
        theta, P = state["theta"].astype(float), state[name].astype(float)
        estimate = np.zeros_like(theta) if estimate is None else estimate
        estimate += np.linalg.pinv(P) @ (P @ theta - P @ estimate)
        shares[round] = 1 - np.sum((estimate - theta) ** 2) / np.sum(theta**2)
    return shares


def main() -> None:
    options(__doc__).parse_args()
    tree = {
        "clients": 4,
        "rounds": max(ROUNDS),
        "topology": {"kind": "ring"},
        "evaluation": {"every": 0},
        "checkpoints": {"every": 1, "save_maps": True},
    }
    with new_folder() as folder:
        runs = run_grid(folder, 1, lambda _: tree, algorithms(MAPS))
        shares = [recovered(run) for (run,) in runs.values()]
    rows = ((round, *(f"{100 * share[round]:.0f}%" for share in shares)) for round in ROUNDS)
    print(table("|".join(["after round", *MAPS]), rows))


if __name__ == "__main__":
    main()
