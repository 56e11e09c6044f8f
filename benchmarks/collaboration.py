"""Where collaboration should help: related tasks, and half of the clients with a fifth of the data. Does it?

The upright problem of benchmarks/digits.py, with one difference: the lambda of each method is the one of its six
candidates that does best on the validation samples of two seeds that are not reported. Writes a Markdown table and a
CSV file of all runs to benchmarks/results/.
"""

from functools import partial

from common import options, table, write
from digits import problem
from study import Method, Study, against, over_seeds, payload, percent, write_runs

PAPER = {"name": "sheaf-fmtl", "gamma": 0.1, "eta": 0.03}
ROTATING = {"name": "sheaf-fmtl", "gamma": 0.1, "eta": 0.0, "start": "shared", "rotate_every": 1}
METHODS = {
    "local": Method({"name": "local"}),
    "D-PSGD": Method({"name": "d-psgd"}),
    "dFedU": Method({"name": "dfedu"}, (0.003, 0.01, 0.03, 0.1, 0.2, 0.3)),
    "Sheaf-FMTL, gaussian (paper)": Method(PAPER | {"start": "gaussian"}, (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)),
    "Sheaf-FMTL, orthogonal (paper)": Method(PAPER | {"start": "orthogonal"}, (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)),
    "shared + rotating (ours)": Method(ROTATING, (0.03, 0.1, 0.3, 1.0, 2.0, 3.0)),
}


def main() -> None:
    arguments = options(__doc__, seeds=5, out="bench-collaboration").parse_args()
    study = Study(arguments.out, partial(problem, "upright"), METHODS, max)
    found = study.results(arguments.seeds)
    rows = [
        (
            name,
            "" if lam is None else f"{lam:g}",
            percent(results),
            against(found["local"][1], results, scale=100),
            over_seeds(100 * result.mean_of_reduced for result in results),
            f"{payload(results):.2f}",
        )
        for name, (lam, results) in found.items()
    ]
    accuracy = f"accuracy %, mean ± s.e. over {arguments.seeds} seeds"
    header = f"method|lambda|{accuracy}|against local|clients with little data|payload MB"
    write_runs(study.runs, "collaboration")
    write("collaboration", f"`python benchmarks/collaboration.py --seeds {arguments.seeds}`", table(header, rows))


if __name__ == "__main__":
    main()
