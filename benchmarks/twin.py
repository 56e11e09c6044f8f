"""How far planned seconds are from measured ones: thirty configurations, over links that the kernel shapes.

Needs root and pyroute2. Writes a Markdown table to benchmarks/results/ and docs/pictures/twin.svg.
"""

from common import HERE, options, table, write
from drawing import keep, kept, plt, save

import sheafgossip as sg
from sheafgossip.metrics.twins import verdict


def draw() -> None:
    """Draws what is kept."""
    planned, measured = zip(*kept("twin")["runs"]["total"], strict=True)
    figure, axis = plt.subplots(figsize=(4.5, 4.5), layout="constrained")
    ends = [min(planned) / 1.3, max(measured) * 1.3]
    axis.plot(ends, ends, color="0.6", linewidth=1)
    axis.scatter(planned, measured, s=18)
    axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="planned seconds", ylabel="measured seconds")
    save(figure, "twin")


def main() -> None:
    arguments = options(__doc__, out="twin").parse_args()
    twins = sg.twin(HERE / "twin.toml", out=arguments.out)
    rows = [
        (run.name, f"{run.total.planned:.2f}", f"{run.total.measured:.2f}", f"{100 * run.total.error:+.1f}")
        for run in twins.runs
    ]
    told = verdict(twins)
    text = f"{table('run|planned s|measured s|error %', rows)}\n\n{told[0].upper()}{told[1:]}."
    write("twin", "`make bench-twin`", text)
    keep("twin", {"runs": {"total": [(run.total.planned, run.total.measured) for run in twins.runs]}})
    draw()


if __name__ == "__main__":
    main()
