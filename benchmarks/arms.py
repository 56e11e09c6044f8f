"""All methods of the board on people who move: seven exercises of the shoulder, told from a watch at the wrist (Burns,
Leung, Hardisty, Whyne, Henry and McLachlin 2018, arxiv.org/abs/1802.01489; BSD, as data of the package seglearn). A
client is an arm: ten people, left and right, which mirror each other.

A sample is two seconds, none of which is in another sample: of each of the six channels mean, deviation, least, largest
and mean step, and how axes of acceleration and of rotation go together; 36 numbers. ``make bench-arms`` fetches the
package."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from common import CLI, options, write

ROOT = Path(__file__).parents[1]
WINDOW = 100  # readings, of 50 a second
PROBLEM = """
base = "{common}"
name = "arms"
clients = 20

[data]
dataset = "npz"
root = "{root}"
samples = 0

[evaluation]
every = 10
"""


def main() -> None:
    parser = options(__doc__, seeds=5, out="bench-arms")
    parser.add_argument("--package", type=Path, default=ROOT / "build/seglearn", help="where it is installed")
    parser.add_argument("--trials", type=int, default=8)
    given = parser.parse_args()
    sys.path.insert(0, str(given.package))
    try:
        from seglearn.datasets import load_watch
    except ImportError as error:
        print(f"left out: {error}; make bench-arms installs it")
        return
    given.out.mkdir(parents=True, exist_ok=True)
    data, problem = given.out / "arms.npz", given.out / "arms.toml"
    save(load_watch(), data)
    problem.write_text(PROBLEM.format(common=ROOT / "examples/board/common.toml", root=data.resolve()))
    budget = ("--problem", "none", "--trials", str(given.trials), "--seeds", str(given.seeds))
    done = subprocess.run([*CLI, "board", str(problem), *budget, "--out", str(given.out / "board")])
    if done.returncode:
        sys.exit(done.returncode)
    lines = (given.out / "board/board.md").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("- command:"))
    write("arms", f"`python benchmarks/arms.py --seeds {given.seeds} --trials {given.trials}`", text)


def save(recorded: dict, file: Path) -> None:
    samples = [
        (features(window), exercise, 2 * person + side)
        for readings, exercise, person, side in zip(
            recorded["X"], recorded["y"], recorded["subject"], recorded["side"].astype(int), strict=True
        )
        for window in windows(readings)
    ]
    x, y, arm = map(np.array, zip(*samples, strict=True))
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    np.savez(file, x=x.astype(np.float32), y=y, client=arm)


def windows(readings: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(readings) - WINDOW + 1, WINDOW):
        yield readings[start : start + WINDOW]


def features(window: np.ndarray) -> np.ndarray:
    """(readings, 6) -> (36)."""
    pairs = np.triu_indices(3, 1)
    together = [np.corrcoef(axes.T)[pairs] for axes in (window[:, :3], window[:, 3:])]
    steps = np.abs(np.diff(window, axis=0)).mean(axis=0)
    return np.concatenate([window.mean(0), window.std(0), window.min(0), window.max(0), steps, *together])


if __name__ == "__main__":
    main()
