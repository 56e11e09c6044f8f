"""Commands that make several runs to learn one thing, and their options."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from .options import Address, ConfigFile, Engines, Grid, Overrides, Plain, Quiet, command, new_group

studies = new_group()
_OF_OURS = "Only this one of ours, or none; may be repeated."


@command(studies, "runs", example="sweep config.toml --grid algorithm.gamma=0.01,0.03 --seeds 3")
def sweep(
    file: ConfigFile,
    grid: Grid = None,
    seeds: Annotated[int, typer.Option(min=1, max=10_000, help="How many seeds, from the file's seed on.")] = 1,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="How many runs, or jobs, go on at once; 1, with slurm all.")
    ] = None,
    executor: Annotated[str | None, typer.Option(help="slurm, or local: runs are jobs of submitit.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Runs of a job.")] = 1,
    request: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Of a job: slurm_partition=..., mem_gb=8, ...")
    ] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs; by default runs/NAME, numbered.")] = None,
    quiet: Quiet = False,
) -> None:
    """Run all combinations of values, each with a number of seeds.

    What is shown are means with standard errors over seeds. The same command with the same --out goes on
    where it was: finished runs are kept."""


@command(studies, "tune", example="tune config.toml --search training.alpha=log:0.01..1 --trials 12")
def tune(
    file: ConfigFile,
    search: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=DISTRIBUTION",
            help="log:0.001..10, 0.1..1, int:1..10, int:log:1..64, or a,b,c; may be repeated.",
        ),
    ],
    trials: Annotated[int, typer.Option(min=1, max=10_000, help="How many values are tried of each method.")] = 30,
    seeds: Annotated[int, typer.Option(min=1, max=1_000, help="How many a trial has, from the file's seed on.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="How many runs go on at once, up to 4.")] = 1,
    max_payload: Annotated[
        float | None, typer.Option(min=0, metavar="MB", help="What would send more is not tried.")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(min=0, metavar="VIRTUAL_S", help="What would last longer by its plan is not tried.")
    ] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the trials and the best configuration.")] = None,
    quiet: Quiet = False,
) -> None:
    """Find the best values of keys on validation samples.

    The methods of [[compare]] tables are searched one by one, each with the same number of trials and the same seeds.
    The same command with the same --out goes on where it was; a larger --trials goes further."""


@command(studies, "shrink", example='shrink config.toml --until "accuracy < 0.7"')
def shrink(
    file: ConfigFile,
    until: Annotated[
        str,
        typer.Option(
            metavar="CONDITION", help='"accuracy < 0.7", or any figure of a sweep; or diverged, failed, refused, hung.'
        ),
    ],
    without_faults: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help='What has to hold without faults and conditions: "accuracy > 0.9".'),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="How many runs at most.")] = 200,
    jobs: Annotated[int, typer.Option(min=1, help="How many runs go on at once.")] = 1,
    timeout: Annotated[float | None, typer.Option(min=0.1, metavar="SECONDS", help="A longer run has hung.")] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the steps and smallest.toml.")] = None,
    quiet: Quiet = False,
) -> None:
    """Find the smallest configuration that still fails.

    Faults, conditions, rounds, clients and samples are left out as long as the condition holds. The same command with
    the same --out goes on where it was."""


@command(studies, "calibrate", example="calibrate config.toml")
def calibrate(
    file: ConfigFile,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="TOML file to write.")] = Path("calibrated.toml"),
    quiet: Quiet = False,
    force: Annotated[bool, typer.Option(help="Start even where memory seems too small.")] = False,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="local: here; ray: on a Ray cluster's hosts.")
    ] = "local",
    address: Address = None,
) -> None:
    """Measure the seconds that [compute] and [links] need here."""


@command(studies, "twin", example="twin config.toml")
def twin(
    files: Annotated[list[Path], typer.Argument(metavar="CONFIG.toml...", help="Configurations with a scenario.")],
    grid: Grid = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs; by default runs/NAME, numbered.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every figure as JSON.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Show every run, client and link.")] = False,
    quiet: Quiet = False,
    plain: Plain = False,
    engine: Engines = "local",
    address: Address = None,
) -> None:
    """Hold planned seconds against those of a run on the wall clock.

    Several configurations also tell how alike the rankings by planned and by measured time are. The same command with
    the same --out goes on where it was: finished runs are kept."""


@command(studies, "runs", example="reproduce table4 --small")
def reproduce(
    what: Annotated[str | None, typer.Argument(metavar="WHAT", help="table4, figure2, all, all-papers, ...")] = None,
    small: Annotated[bool, typer.Option("--small", help="A small size on data that needs no files.")] = False,
    data_root: Annotated[Path | None, typer.Option(help="Folder with the files of the data sets.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many; by default 1, with `all` 3.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds, instead of the configuration's.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs and pictures.")] = Path("runs/paper"),
    overrides: Overrides = None,
    listed: Annotated[bool, typer.Option("--list", help="Show parts, their files, and what has been run.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run a published table or figure again, beside the paper's.

    Our figures are printed beside those of the paper. Interrupted, it goes on where it was: the same
    command takes finished runs as they are."""


@command(studies, "verify", example="verify --floats 1000")
def verify(
    floats: Annotated[
        list[int] | None,
        typer.Option(min=1, max=1_000_000, help="Lengths of the vectors, by default 10, 1000 and 100000."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show every connection, not only those that differ.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder to keep the runs in; by default none are kept.")] = None,
) -> None:
    """Hold recorded bytes against the kernel's own counters."""


@command(studies, "leak", example="leak runs/config --attack membership --attack lira")
def leak(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run with measuring.vectors.")],
    attack: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="model, membership, lira, inputs, matching or property; repeatable. By default all but lira and "
            "matching, which take longest.",
        ),
    ] = None,
    shadows: Annotated[int, typer.Option(min=2, max=1000, help="lira: models to train for each edge.")] = 16,
    looks: Annotated[int, typer.Option(min=2, max=10_000, help="At so many rounds of each edge.")] = 8,
    edges: Annotated[int, typer.Option(min=1, help="So many edges at most, drawn at random.")] = 50,
    fpr: Annotated[float, typer.Option(min=0, max=0.5, help="False alarms that a TPR may have.")] = 0.05,
    every: Annotated[bool, typer.Option("--all", help="Show every edge, not only the ten that leak most.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every figure as JSON.")] = False,
) -> None:
    """Attack a run's messages as a curious neighbour would.

    It tells how well a receiver knows the sender's model, who was in its training data, what its inputs and its
    property are: by edge and by round, beside the bytes."""


@command(studies, "theory", example="theory runs/config")
def theory(folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]) -> None:
    """Hold a run of a convex problem against Theorem 1 of Sheaf-FMTL."""


@command(studies, "board", example="board --problem rotated --trials 5 --seeds 3")
def board(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE.toml...]", help="Methods or problems of your own, beside ours."),
    ] = None,
    methods: Annotated[
        list[str] | None, typer.Option("--method", help="Only this one of ours, or none; repeatable.")
    ] = None,
    problems: Annotated[
        list[str] | None, typer.Option("--problem", help="Only this one of ours, or none; repeatable.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs of each entry, on test samples.")] = 5,
    trials: Annotated[int, typer.Option(min=1, max=1000, help="Trials of each search, on validation samples.")] = 12,
    tuning_seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs of each trial.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="How many runs go on at once.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder of the page and its data.")] = Path("runs/board"),
    check: Annotated[
        str | None, typer.Option(metavar="PROBLEM/METHOD", help="Make this entry again, and compare.")
    ] = None,
    of: Annotated[Path | None, typer.Option(help="--check: the board.json; by default the one of --out.")] = None,
    quiet: Quiet = False,
) -> None:
    """Tune methods alike on several problems, and show them together.

    Accuracy, the worst clients, bytes and planned seconds to 90% of the best, CPU and memory. The same command with
    the same --out goes on where it was; each entry can be made again to the bit."""
