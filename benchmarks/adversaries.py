"""What attackers do to gossip, with and without robust mixing, and to selective sheaf, with and without its guard.

Digits, three seeds, logistic regression with full gradients. All figures are of honest clients. With names of parts,
only those are made; tables of the others stay as they are. The results go to benchmarks/results/adversaries.md."""

import re
import shutil
import statistics
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, options, table, write

import sheafgossip as sg

Tree = dict[str, Any]
PARTS = {
    "dissensus": "One dissensus attacker that a ring of 16 clients hears",
    "alie": "A Little Is Enough against 25 clients that all hear each other",
    "noisy": "The same on mini-batches of 4 samples, with a hidden layer of 32",
    "bound": "The trimmed mean with b = 2 and more attackers than that",
    "data": "Lies in the data: 4 of 20 attackers, Erdős–Rényi graph (p = 0.5)",
    "sheaf": "Selective sheaf: attackers that want in",
}
MIXING = ("average", "clipped", "trimmed", "median", "krum", "geometric-median")


class Made:
    """Runs of a configuration for each seed, kept in a folder."""

    def __init__(self, out: Path, seeds: int):
        self.out, self.seeds = out, seeds

    def __call__(self, name: str, tree: Tree) -> list[sg.Run]:
        """Those whose models stayed finite."""
        runs = [self._run(self.out / f"{name}-{seed}", tree | {"seed": seed}) for seed in range(self.seeds)]
        return [run for run in runs if run is not None]

    def _run(self, folder: Path, tree: Tree) -> sg.Run | None:
        if (folder / "run.sqlite").exists() and (run := sg.open_run(folder)).summary.status == "finished":
            return run
        print(folder.name, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            return sg.run(tree, out=folder, engine="threads", quiet=True)
        except sg.RunError as error:
            if "is not finite" not in str(error):
                raise
            return None


def told(values: Sequence[float], digits: int = 1) -> str:
    """mean ± standard error over seeds"""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f} ± {error:.{digits}f}"


def accuracy(runs: Sequence[sg.Run]) -> list[float]:
    return [100 * run.summary.final.mean for run in runs]


def honest(run: sg.Run) -> list[int]:
    clients = run.nodes.query("role == 'client'").node
    return sorted(set(clients) - set(run.attacker.node))


def spread(runs: Sequence[sg.Run]) -> list[float]:
    """By how much honest models differ, relative to how long their mean is."""
    found = []
    for run in runs:
        thetas = np.stack([run.theta()[i] for i in honest(run)])
        mean = thetas.mean(axis=0)
        found.append(float(np.linalg.norm(thetas - mean) / np.linalg.norm(mean) / len(thetas) ** 0.5))
    return found


def problem(clients: int, rounds: int, **more: Any) -> Tree:
    return {
        "clients": clients,
        "rounds": rounds,
        "data": {"dataset": "digits"},
        "training": {"work": "full", "alpha": 0.5},
        "evaluation": {"every": 0},
        "measuring": {"enabled": False},
        **more,
    }


def dissensus(made: Made) -> str:
    """He, Karimireddy, Jaggi (2022) have the attack tear honest workers apart; the last client is a hub of all."""
    made.out.mkdir(parents=True, exist_ok=True)
    graph = made.out / "ring-and-hub.txt"
    edges = [(i, (i + 1) % 16) for i in range(16)] + [(i, 16) for i in range(16)]
    graph.write_text("\n".join(f"{i} {j}" for i, j in edges))
    rows = []
    for mixing in ("average", "clipped", "median"):
        cells = []
        for strength in (None, 1.0, 1.5):
            tree = problem(17, 100, topology={"kind": "file", "path": str(graph)})
            tree["data"] |= {"partition": "dirichlet"}
            tree["algorithm"] = {"name": "d-psgd", "mixing": mixing}
            if strength:
                tree["attack"] = {"clients": [16], "kind": "dissensus", "strength": strength}
            runs = made(f"dissensus-{mixing}-{strength}", tree)
            cells += [told(accuracy(runs)), told(spread(runs), 2)]
        rows.append((f"`{mixing}`", *cells))
    return table("mixing|no attack: accuracy %|spread|epsilon = 1: accuracy %|spread|1.5: accuracy %|spread", rows)


def alie(made: Made) -> str:
    """The attackers know all that is sent, as every client of a complete graph does."""
    rows = []
    for split, data in {"alike": {}, "Dirichlet 0.1": {"partition": "dirichlet", "beta": 0.1}}.items():
        for mixing in MIXING:
            cells = []
            for attackers in (0, 5, 6):
                tree = problem(25, 60, topology={"kind": "complete"})
                tree["data"] |= data
                tree["algorithm"] = {"name": "d-psgd", "mixing": mixing}
                tree["algorithm"] |= {"byzantine": attackers or 6} if mixing in ("clipped", "trimmed", "krum") else {}
                if attackers:
                    tree["attack"] = {"clients": list(range(attackers)), "kind": "alie", "strength": 1.5}
                cells.append(told(accuracy(made(f"alie-{split}-{mixing}-{attackers}".replace(" ", "-"), tree))))
            rows.append((split, f"`{mixing}`", *cells))
    return table("data|mixing|no attack|5 of 25 (20 %), z = 1.5|6 of 25 (24 %), z = 1.5", rows)


def noisy(made: Made) -> str:
    """The same where gradients differ as those of the paper do: mini-batches, and a network."""
    rows = []
    for mixing in ("average", "clipped", "trimmed", "median"):
        cells = []
        for attackers in (0, 6):
            tree = problem(25, 150, topology={"kind": "complete"}, model={"kind": "mlp", "hidden": [32]})
            tree["training"] = {"work": "steps", "steps": 1, "batch_size": 4, "alpha": 0.5}
            tree["algorithm"] = {"name": "d-psgd", "mixing": mixing}
            tree["algorithm"] |= {"byzantine": 6} if mixing in ("clipped", "trimmed") else {}
            if attackers:
                tree["attack"] = {"clients": list(range(attackers)), "kind": "alie", "strength": 1.5}
            cells.append(told(accuracy(made(f"noisy-{mixing}-{attackers}", tree))))
        rows.append((f"`{mixing}`", *cells))
    return table("mixing|no attack|6 of 25 (24 %), z = 1.5", rows)


def bound(made: Made) -> str:
    rows = []
    for attackers in range(6):
        tree = problem(12, 60, topology={"kind": "complete"})
        tree["algorithm"] = {"name": "d-psgd", "mixing": "trimmed", "byzantine": 2}
        if attackers:
            tree["attack"] = {"clients": list(range(attackers)), "kind": "sign-flip", "strength": 5.0}
        rows.append((attackers, told(accuracy(made(f"bound-{attackers}", tree)))))
    return table("attackers of 12, that send −5 times their model|accuracy %", rows)


def data(made: Made) -> str:
    rows = []
    for mixing in MIXING:
        cells = []
        for kind in ("label-flip", "backdoor"):
            tree = problem(20, 100, topology={"kind": "erdos-renyi", "p": 0.5})
            tree["algorithm"] = {"name": "d-psgd", "mixing": mixing}
            tree["attack"] = {"clients": [0, 1, 2, 3], "kind": kind}
            runs = made(f"data-{mixing}-{kind}", tree)
            cells.append(told(accuracy(runs)))
            if kind == "backdoor":
                cells.append(told([100 * run.summary.metrics["backdoor_success"].mean for run in runs]))
        rows.append((f"`{mixing}`", *cells))
    return table("mixing|label flip: accuracy %|backdoor: accuracy %|backdoor found open %", rows)


KINDS = {  # what attackers do, and from when
    "sign flip, at once": {"kind": "sign-flip"},
    "let in, then sign flip": {"kind": "sign-flip", "from_round": 60},
    "let in, then noise": {"kind": "noise", "from_round": 60},
    "let in, then zeros": {"kind": "zeros", "from_round": 60},
    "inflated": {"kind": "inflate"},
    "copied sketch": {"kind": "copy"},
    "forged norm": {"kind": "forged-norm"},
}


def sheaf(made: Made) -> str:
    """The run of examples/selective-sheaf.toml."""
    rows = []
    for share in (0.0, 0.1, 0.3):
        for name, attack in KINDS.items() if share else [("nobody attacks", {})]:
            cells = []
            for guard in (False, True):
                tree = problem(20, 200, topology={"kind": "erdos-renyi", "p": 0.5})
                tree["data"] |= {"rotations": [0, 90, 180, 270], "reduced_clients": 0.5, "reduced_to": 0.2}
                tree["algorithm"] = {"name": "selective-sheaf", "gamma": 0.1, "guard": guard}
                tree["measuring"] = {"enabled": True}
                if share:
                    tree["attack"] = attack | {"fraction": share}
                runs = made(f"sheaf-{share}-{name}-{guard}".replace(" ", "-").replace(",", ""), tree)
                if len(runs) < made.seeds:
                    cells += [f"infinite in {made.seeds - len(runs)} of {made.seeds} runs", "", "", ""]
                    continue
                right, ins = zip(*map(chosen, runs), strict=True)
                sent = [run.summary.traffic.payload_bytes / 1e6 for run in runs]
                cells += [told(accuracy(runs)), told([100 * each for each in right], 0)]
                cells += [told([100 * each for each in ins], 0) if share else "", told(sent, 2)]
            rows.append((f"{100 * share:g} %", name, *cells))
    what = "accuracy %|right %|let in %|MB"
    return table(f"attackers|what they do|{what}|guard: {what}", rows)


def chosen(run: sg.Run) -> tuple[float, float]:
    """Of the edges that honest clients have on at the end, the share that leads to an honest client of the same group;
    and of those to attackers, the share that was on in some round since round 60."""
    return _chosen(run.folder)


@cache
def _chosen(folder: Path) -> tuple[float, float]:
    run = sg.open_run(folder)
    group = run.sql("SELECT value FROM meta WHERE key = 'groups'").value[0].split(",")
    attackers = set(run.attacker.node)
    edges = run.edges[~run.edges.node.isin(attackers)]
    last = edges.sort_values("round").groupby(["node", "neighbour"]).last().reset_index()
    on = last[last.weight > 0]
    right = [j not in attackers and group[i] == group[j] for i, j in zip(on.node, on.neighbour, strict=True)]
    late = edges[edges.neighbour.isin(attackers) & (edges["round"] >= 60)]
    ever = late.groupby(["node", "neighbour"]).weight.max() > 0
    return float(np.mean(right)) if right else float("nan"), float(ever.mean()) if len(ever) else 0.0


MAKERS = {"dissensus": dissensus, "alie": alie, "noisy": noisy, "bound": bound, "data": data, "sheaf": sheaf}


def there() -> dict[str, str]:
    """The tables as they are, by title."""
    path = RESULTS / "adversaries.md"
    parts: Iterator[str] = iter(re.split(r"^## (.*)$", path.read_text() if path.exists() else "", flags=re.M)[1:])
    return {title: text.strip() for title, text in zip(parts, parts, strict=True)}


def main() -> None:
    parser = options(__doc__, seeds=3, out="bench-adversaries")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    given = parser.parse_args()
    made = Made(given.out, given.seeds)
    new = {PARTS[part]: MAKERS[part](made) for part in given.parts or PARTS}
    found = there() | new
    text = "\n\n".join(f"## {title}\n\n{found[title]}" for title in PARTS.values() if title in found)
    write("adversaries", f"`make bench-adversaries`: mean ± standard error over {given.seeds} seeds", text)


if __name__ == "__main__":
    main()
