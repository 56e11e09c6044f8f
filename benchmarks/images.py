"""Prototype sheaf beside its rivals on photographs and handwriting, all tuned alike: MNIST, Fashion-MNIST and CIFAR-10,
turned by four angles or with other labels from client to client, on the board's network, graph and rounds. Those whose
files are not given are left out."""

import subprocess
import sys
from pathlib import Path

from common import CLI, options, write

PROBLEMS = {  # {name: (data set, samples, data)}
    "rotated MNIST": ("mnist", 1200, "rotations = [0, 90, 180, 270]"),
    "rotated Fashion-MNIST": ("fashion", 1200, "rotations = [0, 90, 180, 270]"),
    "CIFAR-10, Dirichlet 0.1": ("cifar", 2400, 'partition = "dirichlet"\nbeta = 0.1'),
    "CIFAR-10, Dirichlet 0.3": ("cifar", 2400, 'partition = "dirichlet"\nbeta = 0.3'),
    "CIFAR-10, 2 classes": ("cifar", 2400, 'partition = "classes"\nclasses_per_client = 2'),
    "CIFAR-10, 5 classes": ("cifar", 2400, 'partition = "classes"\nclasses_per_client = 5'),
    "rotated CIFAR-10": ("cifar", 2400, "rotations = [0, 90, 180, 270]"),
}
DATASETS = {"mnist": "mnist", "fashion": "fashion-mnist", "cifar": "npz"}
RIVALS = "local dfedu sfmtl-graph ditto fedavg-ft ifca fedsem selective-sheaf prototype-sheaf"


def main() -> None:
    parser = options(__doc__, seeds=5, out="bench-images")
    parser.add_argument("--mnist", type=Path, help="folder with the files of MNIST")
    parser.add_argument("--fashion", type=Path, help="folder with those of Fashion-MNIST")
    parser.add_argument("--cifar", type=Path, help="CIFAR-10, or some of it, as an npz file of x and y")
    parser.add_argument("--trials", type=int, default=8)
    given = parser.parse_args()
    roots = {name: root.resolve() for name in DATASETS if (root := getattr(given, name))}
    if not roots:
        parser.error("give the files of one data set at least: --mnist, --fashion or --cifar")
    files = [problem(given.out, name, roots[data[0]], data) for name, data in PROBLEMS.items() if data[0] in roots]
    words = [word for rival in RIVALS.split() for word in ("--method", rival)]
    budget = ("--problem", "none", "--trials", str(given.trials), "--seeds", str(given.seeds))
    done = subprocess.run([*CLI, "board", *files, *words, *budget, "--out", str(given.out / "board")])
    if done.returncode:
        sys.exit(done.returncode)
    places = " ".join(f"--{name} PATH" for name in roots)
    command = f"python benchmarks/images.py {places} --seeds {given.seeds} --trials {given.trials}"
    lines = (given.out / "board/board.md").read_text().splitlines()
    write("images", f"`{command}`", "\n".join(line for line in lines if not line.startswith("- command:")))


def problem(out: Path, name: str, root: Path, data: tuple[str, int, str]) -> str:
    """Returns the file of a problem."""
    dataset, samples, dealt = data
    common = Path(__file__).parents[1] / "examples/board/common.toml"
    text = f'base = "{common}"\nname = "{name}"\n\n[data]\ndataset = "{DATASETS[dataset]}"\nroot = "{root}"\n'
    file = out / "problems" / f"{name.lower().replace(',', '').replace(' ', '-')}.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}samples = {samples}\n{dealt}\n\n[evaluation]\nevery = 10\n")
    return str(file)


if __name__ == "__main__":
    main()
