"""Commands and their options. What one does is here or in ``commands``; what it needs is imported when it is called."""

if __name__ == "__main__":  # before what is heavy is imported; this module is, too, under its own name
    from . import entry

    entry.main()

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..metrics.text import say
from ..topology.errors import UserError
from .cli_studies import studies
from .options import (
    Address,
    ConfigFile,
    Engines,
    Overrides,
    OwnCode,
    Plain,
    Quiet,
    RunFolders,
    RunOrRuns,
    Target,
    command,
    epilog,
    new_group,
)

app = new_group()
app.add_typer(studies)
app.add_typer(config_app := typer.Typer(help="Look at configurations."), name="config")
app.add_typer(topology_app := typer.Typer(help="Look at graphs."), name="topology")
app.add_typer(files_app := typer.Typer(help="Files to begin with."), name="new")
app.add_typer(encoder_app := typer.Typer(help="Encoders for FLT."), name="encoder")

_UsageError: Any = typer.BadParameter.__mro__[1]
"""A command line that cannot be understood; the name of the error depends on the version of typer."""


@app.callback(invoke_without_command=True)
def about(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Decentralized federated learning in which every client is a real process."""
    if version:
        from importlib.metadata import version as of

        typer.echo(f"sheafgossip {of('sheafgossip')}")
        raise typer.Exit()
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


@command(app, "runs", example="run config.toml --set rounds=50")
def run(
    file: ConfigFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default runs/NAME, numbered.")] = None,
    quiet: Quiet = False,
    plain: Plain = False,
    force: Annotated[bool, typer.Option(help="Start even where memory seems too small.")] = False,
    engine: Engines = "local",
    address: Address = None,
) -> None:
    """Start the clients, let them learn, and show what it came to.

    A file with compare tables describes several runs; they go one after the other and end in one table. The same
    command with the same --out goes on where it was: finished runs are kept."""


@command(app, "runs", example="demo --out runs/first-look")
def demo(
    out: Annotated[Path | None, typer.Option(help="Folder of the runs; by default runs/demo, numbered.")] = None,
    quiet: Quiet = False,
    plain: Plain = False,
) -> None:
    """Run twenty client processes, and compare seven methods."""


@command(app, "runs", example="plan config.toml --picture plan.svg")
def plan(
    file: ConfigFile,
    overrides: Overrides = None,
    picture: Annotated[Path | None, typer.Option(help="Save all clients' timeline: .svg, .png or .pdf.")] = None,
    lines: Annotated[int, typer.Option(min=1, help="How many clients the timeline here shows.")] = 20,
) -> None:
    """Show the timeline of a scenario before anything is run.

    A file with compare tables describes several runs; they are shown one after the other."""


@command(app, "runs", example="resume runs/config")
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that was interrupted.")],
    rounds: Annotated[int | None, typer.Option(min=1, help="So many in all; then a finished run goes on, too.")] = None,
    own_code: OwnCode = False,
    quiet: Quiet = False,
    plain: Plain = False,
    engine: Engines = "local",
    address: Address = None,
) -> None:
    """Take up an interrupted run after its last complete checkpoint."""


@command(app, "replay", example="replay runs/config")
def replay(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that has ended, however.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the replay; by default runs/RUN-replay.")] = None,
    own_code: OwnCode = False,
    quiet: Quiet = False,
    plain: Plain = False,
    engine: Engines = "local",
    address: Address = None,
) -> None:
    """Make a run again, to the bit, with the messages that it used.

    That holds on the wall clock, too, with all that came late, was lost or died. It tells whether both are the same."""


@command(app, "runs", example="watch runs/config --web")
def watch(
    folder: RunOrRuns,
    plain: Plain = False,
    web: Annotated[
        bool, typer.Option("--web", help="Serve the page of `report`, up to date, to browsers here.")
    ] = False,
    port: Annotated[int | None, typer.Option(help="--web: the port; by default one that is free.")] = None,
) -> None:
    """Look at a run that goes on in another terminal, until it ends.

    The run takes no notice of it. The exit code is that of the run. Ctrl-C ends the looking, and leaves the run alone.
    With --web the run may begin later, and Ctrl-C is what ends it, with 0.
    """


@command(app, "results", example="summary runs/config --target 0.9")
def summary(
    folders: RunFolders,
    target: Target = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every figure as JSON.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Show every figure of a single run.")] = False,
) -> None:
    """Show what finished (or running) runs came to. A folder of several runs stands for all of them.

    Finished runs that differ only in seed and name are one line: means, with standard errors over runs."""


@command(app, "results", example="compare runs/one runs/other --csv figures.csv")
def compare(
    folders: RunFolders,
    target: Target = None,
    to_csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write every figure there too.")] = None,
) -> None:
    """Show runs side by side: what differs, who is best in what.

    A folder of several runs stands for all of them. Finished runs that differ only in seed and name are one."""


@command(app, "results", example="report runs/config --figures figures")
def report(
    folders: RunFolders,
    out: Annotated[Path | None, typer.Option(help="The page; by default report.html in the first folder.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for figures, as SVG, PNG, PDF and CSV, too.")] = None,
) -> None:
    """Write one HTML page of what runs came to.

    It shows curves, costs, graphs, maps, waiting, events and the configuration. A folder of several runs stands for
    all of them; runs that differ only in their seed are one method."""


@command(app, "results", example="export runs/config --to parquet")
def export(
    folder: RunOrRuns,
    to: Annotated[
        str, typer.Option(metavar="FORMAT", help="csv, parquet, json, tensorboard, mlflow, wandb or trackio.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder of the files; by default RUN/export.")] = None,
) -> None:
    """Write the tables of a run as files, for other programs.

    Of a folder of several runs each file holds all of them, with a column for each key in which they differ. A tracker
    (tensorboard, mlflow, wandb, trackio) gets the scalars of every round; wandb offline."""


@command(app, "trace", example="trace capacity.pickle --from fedscale-capacity --out trace.csv")
def trace(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of somebody else's trace.")],
    source: Annotated[
        Literal["fedscale-capacity", "fedscale-availability", "flgo-pings"],
        typer.Option("--from", help="What kind of file it is."),
    ],
    out: Annotated[Path, typer.Option(help="CSV file to write, for trace.path.")],
    clients: Annotated[int, typer.Option(min=1, help="So many of its clients at most, the first ones.")] = 10_000,
) -> None:
    """Turn a published trace of clients into a file for [trace].

    FedScale's pickles are read without being unpickled: nothing that they hold is executed."""


@config_app.command("show", epilog=epilog("config show config.toml --set clients=10"))
def show_configuration(file: ConfigFile, overrides: Overrides = None) -> None:
    """Print the resolved configuration, every key included."""
    from .config.files import load

    for config in load(file, overrides or ()):
        print(config.to_toml())


@config_app.command("schema", epilog=epilog("config schema > configuration.md"))
def config_schema() -> None:
    """Describe every key, its default and what is allowed, as Markdown."""
    from .config.reference import describe

    typer.echo(describe())


@files_app.command("experiment", epilog=epilog("new experiment mine"))
def new_experiment(
    name: Annotated[str, typer.Argument(help="What it is called.")] = "experiment",
    out: Annotated[Path, typer.Option(help="Folder of the file.")] = Path(),
) -> None:
    """Write a configuration with comments, that runs as it is."""
    from .commands.new import experiment

    experiment(name, out)


@files_app.command("algorithm", epilog=epilog("new algorithm half-way"))
def new_algorithm(
    name: Annotated[str, typer.Argument(help="What it is called, such as half-way.")],
    out: Annotated[Path, typer.Option(help="Folder of the files.")] = Path(),
) -> None:
    """Write an algorithm of your own that runs, with its test and a configuration."""
    from .commands.new import algorithm

    algorithm(name, out)


@encoder_app.command("train", epilog=epilog("encoder train config.toml --out encoder.safetensors"))
def train_encoder(
    file: ConfigFile,
    out: Annotated[Path, typer.Option(help="File of the encoder, such as encoder.safetensors.")],
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the images.")] = 20,
    embedding: Annotated[int | None, typer.Option(min=1, help="By default algorithm.embedding, or 128.")] = None,
    overrides: Overrides = None,
) -> None:
    """Train an encoder on the images of [data], and save it for algorithm.encoder of FLT.

    With --set data.dataset=... it learns from another data set than that of the run."""
    from .config.files import load
    from .prepare import preparation

    for epoch, error in preparation.train_encoder(load(file, overrides or ())[0], epochs, embedding, out):
        say(f"epoch {epoch}: mean squared error {error:.5f}")
    say(f"encoder: {out}")


@command(topology_app, "topology", "show", example="topology show config.toml --picture graph.svg")
def show_topology(
    file: ConfigFile,
    overrides: Overrides = None,
    picture: Annotated[Path | None, typer.Option(help="Save a picture of the graph: .png, .svg or .pdf.")] = None,
) -> None:
    """Print figures of the configuration's graph, and save a picture of it if asked."""


def main() -> None:
    """Exit codes: 0 done, 1 the run failed, 2 a mistake in what was asked for, 130 interrupted."""
    try:
        sys.exit(app(prog_name="sheafgossip", standalone_mode=False) or 0)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("interrupted", err=True)
        sys.exit(130)
    except UserError as error:
        text = str(error)
    except OSError as error:
        if error.filename is None:  # else the system refuses what the user named, such as a name that is too long
            raise
        text = " ".join(f"{error.filename}: {error.strerror}".splitlines())
    except _UsageError as error:
        text = " ".join(error.format_message().split()).rstrip(".")
        text = text.replace("Value error, ", "").replace("Input should be", "must be")
        text = f"{text[0].lower()}{text[1:]}; see {error.ctx.command_path if error.ctx else 'sheafgossip'} --help"
    except Exception as error:
        from ..node.own_code import blamed

        if not (text := blamed(error)):
            raise
    say(f"error: {text}", err=True)
    sys.exit(2)
