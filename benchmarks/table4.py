"""Table 4 of Sheaf-FMTL's paper on real MNIST, every method tuned with the same budget, with several seeds.

Each method of examples/paper/table4.toml searches its learning rates and weights on the validation samples of a seed
that is not reported. It can be stopped at any time and called again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import options, table, write
from study import TUNING, against, over_seeds, read, run_several

from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.config.sections import RunConfig
from sheafgossip.launcher.studies.folders import slug
from sheafgossip.launcher.studies.reproduction import PAPER, parts_of
from sheafgossip.launcher.studies.search import Budget
from sheafgossip.launcher.studies.space import parse_space
from sheafgossip.launcher.studies.sweep import Jobs, alone_in
from sheafgossip.launcher.studies.tuning import tune
from sheafgossip.metrics.comparison import summarize_all
from sheafgossip.metrics.config_file import short_names

ALPHA = {"training.alpha": "log:0.02..0.5"}
SEARCHED = {
    "sheaf-fmtl": {"algorithm.lam": "log:0.0001..0.03"},
    "dfedu": {"algorithm.lam": "log:0.001..0.3"},
    "ditto": {"algorithm.lam": "log:0.01..3"},
    "pfedme": {"algorithm.lam": "log:1..15", "algorithm.eta": "log:0.03..1"},
    "per-fedavg": {"algorithm.alpha": "log:0.01..0.5"},
    "selective-sheaf": {"algorithm.lam": "log:0.03..3"},
}
"""What is searched beside alpha, by the name of the algorithm."""
SEARCHED_OF = {"Rotating maps 0.1": {"algorithm.lam": "log:0.01..1"}}


def tuned(config: RunConfig, rounds: int, trials: int, out: Path) -> dict[str, Any]:
    """{key: value}, of runs of so many rounds."""
    space = parse_space(ALPHA | SEARCHED_OF.get(config.label, SEARCHED.get(config.algorithm.name, {})))
    shorter = config.but(seed=TUNING[0], rounds=rounds, measuring={"enabled": False})
    with alone_in(out) as claim, Jobs(2, claim.descriptor) as jobs:
        found = tune(shorter, space, Budget(trials), out, jobs)
    print(f"{config.label}: {found.values}, {found.value:.4f}", flush=True)
    return found.values


def with_values(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    changes: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, _, last = key.partition(".")
        changes.setdefault(section, {})[last] = value
    return config.but(**changes)


def main() -> None:
    parser = options(__doc__, seeds=5, out="bench-table4")
    parser.add_argument("--data-root", type=Path, required=True, help="folder with the files of MNIST")
    parser.add_argument("--steps", type=int, default=1, help="mini-batch gradients a round")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--tuning-rounds", type=int, default=100)
    parser.add_argument("--trials", type=int, default=8)
    given = parser.parse_args()
    root, out = given.data_root.resolve(), given.out / f"{given.steps}"
    work = [f"training.steps={given.steps}", f"training.batch_size={given.batch_size}", f"rounds={given.rounds}"]
    changed = [f"data.root={root}", *work, "evaluation.every=0"]
    configs = load(PAPER / "table4.toml", changed)
    values = {
        each.label: tuned(each, given.tuning_rounds, given.trials, out / f"tune-{slug(each.label)}") for each in configs
    }
    folders = {each.label: [out / f"{slug(each.label)}-{seed}" for seed in range(given.seeds)] for each in configs}
    for seed in range(given.seeds):  # seed by seed, so that a table can be made early
        run_several(
            {folders[each.label][seed]: with_values(each, values[each.label]).but(seed=seed) for each in configs}
        )
    published = parts_of("table4", small=False, data_root=None, overrides=())
    theirs = next(part.published for part in published if part.stem == "table4")
    alone, rows = list(map(read, folders["Local"])), []
    for name, runs in folders.items():
        results, (group,) = list(map(read, runs)), summarize_all(runs)
        worst, sent, work, memory = map(group.estimate, ("worst_10", "payload_bytes", "flops", "clients_pss"))
        paper = theirs.get(name, {})
        named = zip(short_names([*values[name]]), values[name].values(), strict=True)
        rows.append(
            [
                name,
                ", ".join(f"{key} {value:.3g}" for key, value in named),
                over_seeds(100 * result.mean for result in results),
                against(alone, results, 100) if name != "Local" else "",
                f"{100 * worst.mean:.1f}" if worst else "",
                f"{sent.mean / 1e6:.4g}" if sent else "",
                f"{work.mean / 1e12:.3g}" if work else "",
                f"{memory.mean / 1e6:,.0f}" if memory else "",
                f"{paper.get('accuracy', '')}",
                f"{paper.get('sent', '')}",
            ]
        )
    header = "method|tuned|accuracy %, mean ± s.e. over seeds|against Local|worst 10%|payload MB|TFLOP|clients' PSS MB"
    text = table(f"{header}|published: accuracy %|MB", rows)
    command = f"python benchmarks/table4.py --data-root FOLDER --steps {given.steps} --batch-size {given.batch_size}"
    more = (
        f" --rounds {given.rounds} --seeds {given.seeds} --trials {given.trials} --tuning-rounds {given.tuning_rounds}"
    )
    write(f"table4-{given.steps}" if given.steps > 1 else "table4", f"`{command}{more}`", text)


if __name__ == "__main__":
    main()
