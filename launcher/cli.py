"""The command line. Everything heavy is imported inside the command that needs it."""

from __future__ import annotations

if __name__ == "__main__":  # before what is heavy is imported; this module is, too, under its own name
    from . import entry

    entry.main()

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..metrics.terminal import say, show, width
from ..topology.errors import UserError

if TYPE_CHECKING:
    from ..metrics.comparison import Comparison
    from ..metrics.seeds import Group
    from .studies.session import Finished

app = typer.Typer(
    rich_markup_mode=None,  # it would take words in brackets for markup
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="Look at configurations.")
topology_app = typer.Typer(help="Look at graphs.")
app.add_typer(config_app, name="config")
app.add_typer(topology_app, name="topology")
encoder_app = typer.Typer(help="Encoders for FLT.")
app.add_typer(encoder_app, name="encoder")

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Of a command line that cannot be understood; what it is called depends on the version of typer."""

_EXIT_CODES = {"finish": 0, "failure": 1, "interrupt": 130}
_CAUSES_SHOWN = 3

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Configuration of the run.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. --set algorithm.gamma=0.03."),
]


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]
Engines = Annotated[
    Literal["local", "threads", "ray"],
    typer.Option(
        help="local: each client a process; threads: all in one, for debugging; ray: on the hosts of a Ray cluster."
    ),
]
Address = Annotated[str | None, typer.Option(help="--engine ray: address of the cluster; by default it is looked for.")]
Plain = Annotated[bool, typer.Option("--plain", help="Progress as a line now and then, not as a picture that moves.")]


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


@app.command()
def run(
    config: ConfigFile,
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default runs/NAME, numbered.")] = None,
    quiet: Quiet = False,
    plain: Plain = False,
    force: Annotated[bool, typer.Option(help="Start even where memory seems too small.")] = False,
    engine: Engines = "local",
    address: Address = None,
) -> None:
    """Start the clients, let them learn, and show what it came to.

    A file with compare tables describes several runs; they go one after the other and end in one table. The same
    command with the same --out goes on where it was: finished runs are kept.
    """
    from contextlib import nullcontext

    from ..metrics.seeds import summarize_all
    from ..metrics.summary_table import render
    from ..metrics.watch.progress import Place
    from .config.sections import load
    from .prepare.memory import need_of
    from .run.banner import Banner
    from .run.display import Display, manner
    from .run.earlier import Left, left_of
    from .studies.session import Prepared, begun_folder, folders_of, new_folder, run_each

    if address is not None and engine != "ray":
        raise UserError(f"--address {address}: is where a Ray cluster is; add --engine ray, or leave it out")
    configs = load(config, set_ or [])
    plain |= engine == "threads"  # what clients print comes between
    banner = Banner()
    before = begun_folder(out, configs)
    there = nullcontext(before) if before else new_folder(out, config)
    with there as root, Display(manner(quiet=quiet, plain=plain)) as display:
        folders = folders_of(configs, root)
        left = left_of(configs, folders) if before else list(map(Left, configs, folders))
        if before:
            display.tell(f"{len(folders) - len(left)} of {len(folders)} runs finished before")

        def watch(prepared: Prepared) -> Display:
            display.tell("\n".join(banner.lines(prepared)))
            if (need := need_of(prepared)).worth_telling:
                display.tell(need.text)
            if prepared.resumed_at:
                display.tell(f"{prepared.folder.name}: going on after round {prepared.resumed_at}")
            place = Place(1 + folders.index(prepared.folder), len(folders))
            display.follow(prepared.folder, place, anew=bool(prepared.resumed_at))
            return display

        results = run_each(
            [run.config for run in left],
            [run.folder for run in left],
            watch,
            lambda _: display.end(),
            [run.folder for run in left if run.begun],
            force=force,
            engine=engine,
            address=address,
        )
    not_begun = {run.folder for run in left} - {result.prepared.folder for result in results}
    show(render(summarize_all([folder for folder in folders if folder not in not_begun]), width=width()))
    show(f"{'run folder' if len(configs) == 1 else 'run folders in'}: {_relative(root)}")
    for result in results:
        _tell(result, of_several=len(configs) > 1)
    worst = max((result.outcome.status for result in results), key=list(_EXIT_CODES).index, default="finish")
    if worst == "interrupt" and len(configs) > 1:
        say(f"the same command with --out {_relative(root)} goes on with what is missing", err=True)
    raise typer.Exit(_EXIT_CODES[worst])


@app.command()
def sweep(
    config: ConfigFile,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUES", help="Values to try, e.g. algorithm.gamma=0.01,0.03; may be repeated."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=10_000, help="How many seeds, from the file's seed on.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="How many runs go on at once.")] = 1,
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs; by default runs/NAME, numbered.")] = None,
    quiet: Quiet = False,
) -> None:
    """Run all combinations of values, each with a number of seeds.

    What is shown are means with standard errors over seeds.
    The same command with the same --out goes on where it was: finished runs are kept.
    """
    from contextlib import ExitStack

    from ..metrics.comparison import Comparison
    from ..metrics.comparison_csv import write_groups, write_runs
    from ..metrics.notices import notices
    from ..metrics.seeds import summarize_all
    from .run.banner import Banner
    from .run.earlier import is_finished
    from .studies.session import new_folder
    from .studies.sweep.grid import parse_grids
    from .studies.sweep.plan import plan as plan_sweep
    from .studies.sweep.progress import Lines
    from .studies.sweep.runs import Crew, alone_in, prepare

    with ExitStack() as stack:
        root = stack.enter_context(new_folder(None, config)) if out is None else out.resolve()
        planned = plan_sweep(config, set_ or [], parse_grids(grid or []), seeds, root)
        claim = stack.enter_context(alone_in(root))
        stages = zip(planned.runs, planned.stages(), strict=True)
        missing = [run for run, stage in stages if stage != "finished"]
        for prepared in prepare(missing)[:1]:  # what is told of the first holds for all, but for what is swept
            if not quiet:
                say("\n".join(Banner().lines(prepared)), err=True)
        lines = Lines(len(planned.runs), len(missing), jobs, silent=quiet)
        with Crew(jobs, claim.descriptor) as crew:
            ended = crew.run_all(missing, lines)
        folders = [run.folder for run in planned.runs]
        there = Comparison.of(summarize_all([folder for folder in folders if is_finished(folder)]), planned.keys)
        write_groups(root / "sweep.csv", there)
        write_runs(root / "runs.csv", folders, planned.keys)
    for each in ended:
        for line in notices(each.run.folder):
            say(f"{each.run.name}: {line}", err=True)
        for cause in each.causes[:_CAUSES_SHOWN]:
            say(f"error: {each.run.name}: {cause}", err=True)
        if len(each.causes) > _CAUSES_SHOWN:
            say(f"error: {each.run.name}: and {len(each.causes) - _CAUSES_SHOWN} more", err=True)
    if there.groups:
        _show(there)
    show(f"run folders, sweep.csv and runs.csv in: {_relative(root)}")
    worst = max((each.status for each in ended), key=list(_EXIT_CODES).index, default="finish")
    if worst != "finish":
        say(f"the same command with --out {_relative(root)} goes on with what is missing", err=True)
    raise typer.Exit(_EXIT_CODES[worst])


@app.command()
def plan(
    config: ConfigFile,
    set_: Overrides = None,
    picture: Annotated[
        Path | None, typer.Option(help="Save the timeline of all clients as a picture: .svg, .png or .pdf.")
    ] = None,
    lines: Annotated[int, typer.Option(min=1, help="How many clients the timeline here shows.")] = 20,
) -> None:
    """Show the timeline of a scenario before anything is run.

    Also how long it takes in all. A file with compare tables describes several runs; they are shown one after the
    other.
    """
    from .commands.plan import picture_paths, plans_of
    from .config.sections import load
    from .planner.timeline import stretches_of, timeline_of
    from .planner.timeline_picture import check_format, draw
    from .planner.timeline_text import report

    configs = load(config, set_ or [])
    if picture is not None:
        check_format(picture)
    paths = [None] * len(configs) if picture is None else picture_paths(picture, configs)
    for path, (resolved, planned, need) in zip(paths, plans_of(configs), strict=True):
        if len(configs) > 1:
            say(f"== {resolved.label} ==")
        if planned is None:
            typer.echo("no scenario, nothing to plan\n")
            continue
        timeline, stretches = timeline_of(planned), stretches_of(planned)
        if path is not None:
            draw(timeline, stretches, path, f"{resolved.label}, {timeline.clients} clients")
        say("\n".join([*report(resolved, timeline, stretches, min(100, width()), lines), f"{need} on this machine"]))
        if path is not None:
            typer.echo(f"picture: {path}")
        if len(configs) > 1:
            typer.echo()


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that was interrupted.")],
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Give the run so many rounds in all; a finished one goes on then, too.")
    ] = None,
    quiet: Quiet = False,
    plain: Plain = False,
    engine: Engines = "local",
    address: Address = None,
) -> None:
    """Take up an interrupted run after its last complete checkpoint.

    It ends as if nothing had happened.
    """
    from ..metrics.seeds import summarize_all
    from ..metrics.summary_table import render
    from .run.banner import Banner
    from .run.display import Display, manner
    from .studies.session import Prepared
    from .studies.session import resume as take_up

    with Display(manner(quiet=quiet, plain=plain or engine == "threads")) as display:

        def watch(prepared: Prepared) -> Display:
            if not quiet:
                say(f"going on after round {prepared.resumed_at} of {prepared.config.rounds}", err=True)
            display.tell("\n".join(Banner().lines(prepared)))
            display.follow(prepared.folder, anew=True)
            return display

        result = take_up(folder.resolve(), watch, engine, address, rounds=rounds)
        display.end()
    show(render(summarize_all([result.prepared.folder]), width=width()))
    show(f"run folder: {_relative(result.prepared.folder)}")
    _tell(result, of_several=False)
    raise typer.Exit(_EXIT_CODES[result.outcome.status])


@app.command("watch")
def watch_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, or the folder of several runs.")],
    plain: Plain = False,
) -> None:
    """Look at a run that goes on in another terminal, until it ends.

    The run takes no notice of it. The exit code is that of the run. Ctrl-C ends the looking, and leaves the run alone.
    """
    from ..metrics.reader import runs_in
    from .commands.watch import watch
    from .run.display import Display, manner

    try:
        with Display(manner(plain=plain)) as display:
            state, cause = watch(runs_in(folder), display)
    except KeyboardInterrupt:
        typer.echo("no longer watching; the run goes on", err=True)
        raise typer.Exit(130) from None
    if cause:
        say(f"error: {cause}", err=True)
    raise typer.Exit({"finished": 0, "failed": 1}.get(state, 130))


@app.command()
def summary(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    target: Annotated[
        float | None, typer.Option(help="Also what it took to reach this test metric: accuracy 0 to 1, or mse.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every figure as JSON.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Show every figure of a single run.")] = False,
) -> None:
    """Show what finished (or running) runs came to. A folder of several runs stands for all of them.

    Finished runs that differ only in seed and name are one line: means, with standard errors over runs.
    """
    from ..metrics.summary_table import render

    groups = _summarized(folders, target)
    if as_json:
        runs = [run.as_dict() for group in groups for run in group.runs]
        seeds = [group.as_dict() for group in groups if len(group.runs) > 1]
        typer.echo(json.dumps({"target": target, "runs": runs, "seeds": seeds}, indent=2))
    else:
        show(render(groups, target, width(), every=every))


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    target: Annotated[
        float | None, typer.Option(help="Also what it took to reach this test metric: accuracy 0 to 1, or mse.")
    ] = None,
    to_csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write every figure there too.")] = None,
) -> None:
    """Show runs side by side: what differs, who is best in what.

    A folder of several runs stands for all of them. Finished runs that differ only in seed and name are one.
    """
    from ..metrics.comparison import Comparison
    from ..metrics.comparison_csv import write_groups
    from ..metrics.schema import ExportError

    if to_csv is not None and to_csv.exists():
        raise ExportError(f"--csv {to_csv}: exists; nothing is overwritten, choose another name")
    comparison = Comparison.of(_summarized(folders, target))
    if to_csv is not None:
        write_groups(to_csv, comparison)
    _show(comparison, target)
    if to_csv is not None:
        show(f"written: {_relative(to_csv.resolve())}")


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    out: Annotated[
        Path | None, typer.Option(help="The page; by default report.html in the first folder that is named.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also every figure as SVG, PNG and PDF, with its data as CSV, in this folder.")
    ] = None,
) -> None:
    """Write one HTML page of what runs came to.

    It shows curves, costs, graphs, maps, waiting, events and the configuration.

    A folder of several runs stands for all of them; runs that differ only in their seed are one method.
    """
    from ..metrics.reader import runs_in
    from ..metrics.report import write_report
    from ..metrics.terminal import news
    from .config.sections import ConfigError

    page = (folders[0] / "report.html") if out is None else out
    if page.is_dir() or (out is None and (page.is_symlink() or (page.exists() and not page.is_file()))):
        raise ConfigError(f"{page}: is there, and no plain file; remove it, or name another page with --out")
    try:
        with news() as tell:
            files = write_report([run for folder in folders for run in runs_in(folder)], page, figures, tell)
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written: {error.strerror}") from error
    show(f"report: {_relative(page.resolve())}")
    if figures is not None:
        show(f"{len(files) - 1} files in {_relative(figures.resolve())}")


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, or the folder of several runs.")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="csv, parquet, json, or tensorboard.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the files; by default export in the run's folder.")
    ] = None,
) -> None:
    """Write the tables of a run as files, for other programs.

    Of a folder of several runs each file holds all of them, with a column for each key in which they differ.
    """
    from ..metrics.export import export as write_files

    files = write_files(folder, to, out)
    show(f"{len(files)} file{'s' if len(files) > 1 else ''} in {_relative(files[0].parent.resolve())}")


@app.command()
def reproduce(
    what: Annotated[str | None, typer.Argument(metavar="WHAT", help="table4, figure2, fedsak1, all, ...")] = None,
    small: Annotated[bool, typer.Option("--small", help="A small size on data that needs no files.")] = False,
    data_root: Annotated[Path | None, typer.Option(help="Folder with the files of the data sets.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds; the paper has 5. By default 1, with `all` 3.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds, instead of the configuration's.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs and pictures.")] = Path("runs/paper"),
    set_: Overrides = None,
    listed: Annotated[bool, typer.Option("--list", help="Show what there is.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Run a published table or figure again, beside the paper's.

    Our figures are printed beside those of the paper.

    Interrupted, it goes on where it was: the same command takes finished runs as they are.
    """
    from .run.display import Display, manner
    from .studies.reproduction.parts import names, parts_of, titles, with_data
    from .studies.reproduction.pictures import draw
    from .studies.reproduction.runs import planned, results, run_missing
    from .studies.reproduction.table import remarks, render
    from .studies.session import Prepared

    if what is None or listed:
        for name in names():
            for title in titles(name):
                typer.echo(f"{name:<9}{title}")
        raise typer.Exit()
    overrides = [*(set_ or []), *([f"rounds={rounds}"] if rounds else [])]
    parts, left_out = with_data(what, parts_of(what, small=small, data_root=data_root, overrides=overrides))
    runs = planned(parts, seeds, out.resolve())
    with Display(manner(quiet=quiet)) as display:

        def watch(prepared: Prepared) -> Display:
            display.follow(prepared.folder)
            return display

        def done(finished: Finished) -> None:
            display.end()
            if not quiet and finished.outcome.status == "finish":
                say(f"{finished.prepared.folder.name}: finished", err=True)

        ended = run_missing(runs, watch, done)
    for result in ended:
        _tell(result, of_several=True)
    worst = max((result.outcome.status for result in ended), key=list(_EXIT_CODES).index, default="finish")
    if worst == "interrupt":
        typer.echo("the same command goes on with the runs that are left", err=True)
        raise typer.Exit(_EXIT_CODES[worst])
    for part in parts:
        found = results(part, runs)
        typer.echo(part.about.title)
        show(render(part, found))
        typer.echo(remarks(part, found, overrides))
        for path in draw(part, found, out.resolve()):
            typer.echo(f"written: {_relative(path)}")
        typer.echo()
    for line in left_out:
        typer.echo(line)
    show(f"run folders in: {_relative(out.resolve())}")
    raise typer.Exit(_EXIT_CODES[worst])


@app.command()
def verify(
    floats: Annotated[
        list[int] | None,
        typer.Option(
            min=1, max=1_000_000, help="Length of the vectors, by default 10, 1000 and 100000; may be repeated."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show every connection, not only those that differ.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder to keep the runs in; by default none are kept.")] = None,
) -> None:
    """Hold recorded bytes against the kernel's own counters.

    The runs are small, and each TCP connection of theirs is compared.
    """
    import tempfile

    from ..metrics.verification_table import render_directions, render_runs
    from .commands.verify import LENGTHS, verify
    from .studies.session import new_folder

    def done(finished: Finished) -> None:
        if finished.outcome.status == "finish":
            say(f"{finished.prepared.config.label}: finished", err=True)

    temporary = tempfile.TemporaryDirectory(prefix="sheafgossip-verify-")
    with temporary if out is None else new_folder(out, Path("verify")) as root:
        runs, verified = verify(floats or LENGTHS, Path(root), done)
        for run in runs:
            _tell(run, of_several=True)
    if verified:
        show(render_runs(verified))
    if (connections := render_directions(verified, every=every)) is not None:
        show(connections)
    complaints = [complaint for run in verified for complaint in run.complaints]
    for complaint in complaints:
        say(f"error: {complaint}", err=True)
    worst = max((run.outcome.status for run in runs), key=list(_EXIT_CODES).index)
    if worst != "finish" or complaints:
        raise typer.Exit(_EXIT_CODES[worst] or 1)
    total = sum(run.comparison.connections for run in verified)
    typer.echo(f"all {total} connections agree to the byte, in both directions")


@app.command()
def theory(folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]) -> None:
    """Hold a run against the convergence bound of Sheaf-FMTL.

    That is Theorem 1 of its paper, for convex problems.
    """
    from .commands.theory import check_theorem

    check = check_theorem(folder)
    met = f"{check.averaged_gradient:.6g}"
    bound = "none: a step size is above its limit" if check.bound is None else f"{check.bound:.6g}"
    rows = {
        "rounds K": f"{check.rounds}",
        "objective at the start": f"{check.start_objective:.6g}",
        "smoothness L of the losses": f"{check.smoothness:.6g}",
        "largest ||theta|| (D)": f"{check.radius:.6g}",
        "alpha (limit 2/(N L))": f"{check.alpha:g} ({check.alpha_limit:.6g})",
        "and 2/(L + lam sigma^2)": "unknown, no edges on record"
        if check.curved_limit is None
        else f"{check.curved_limit:.6g}, which the theorem leaves out",
        "eta (limit 2/(lam D^2))": f"{check.eta:g} ({check.eta_limit:.6g})"
        if check.eta
        else "0: the maps are fixed; the bound is that of the models' steps alone",
        "averaged ||gradient||^2": met,
        "bound of Theorem 1": bound,
    }
    for name, value in rows.items():
        typer.echo(f"{name:<30}{value}")
    if check.bound is not None:
        typer.echo(check.verdict)
        raise typer.Exit(0 if check.holds else 1)


@config_app.command("show")
def config_show(config: ConfigFile, set_: Overrides = None) -> None:
    """Print the resolved configuration, every key included."""
    from .config.sections import load

    for resolved in load(config, set_ or []):
        typer.echo(resolved.to_toml())


@config_app.command("schema")
def config_schema() -> None:
    """Describe every key, its default and what is allowed, as Markdown."""
    from .config.reference import describe

    typer.echo(describe())


@encoder_app.command("train")
def encoder_train(
    config: ConfigFile,
    out: Annotated[Path, typer.Option(help="File of the encoder, such as encoder.safetensors.")],
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the images.")] = 20,
    embedding: Annotated[
        int | None, typer.Option(min=1, help="Numbers it makes of an image; by default algorithm.embedding, or 128.")
    ] = None,
    set_: Overrides = None,
) -> None:
    """Train an encoder on the images of [data], and save it for algorithm.encoder of FLT.

    With --set data.dataset=... it learns from another data set than that of the run.
    """
    from .config.sections import load
    from .prepare.encoders import train_encoder

    for epoch, error in train_encoder(load(config, set_ or [])[0], epochs, embedding, out):
        typer.echo(f"epoch {epoch}: mean squared error {error:.5f}")
    typer.echo(f"encoder: {out}")


@topology_app.command("show")
def topology_show(
    config: ConfigFile,
    set_: Overrides = None,
    picture: Annotated[Path | None, typer.Option(help="Save a picture of the graph: .png, .svg or .pdf.")] = None,
) -> None:
    """Print figures of the configuration's graph, and save a picture of it if asked."""
    from .config.sections import ConfigError, load
    from .prepare.graphs import draw_graphs, figures_of

    resolved = load(config, set_ or [])[0]
    graphs = draw_graphs(resolved)
    figures = figures_of(resolved, graphs)
    if picture is not None:
        from ..topology.picture import draw_picture

        try:
            draw_picture(graphs, picture, title=f"{resolved.topology.kind}, {resolved.clients} clients")
        except OSError as error:
            raise ConfigError(f"--picture {picture}: cannot be written: {error.strerror}") from error
        figures["picture"] = f"{picture}"
    for name, value in figures.items():
        typer.echo(f"{name:<30}{value}")


def _tell(result: Finished, *, of_several: bool) -> None:
    """Warnings and the reason of a bad end, on stderr."""
    from ..metrics.notices import notices

    name = f"{result.prepared.config.label}: " if of_several else ""
    for line in notices(result.prepared.folder):
        say(f"{name}{line}", err=True)
    causes = result.outcome.causes
    for cause in causes[:_CAUSES_SHOWN]:
        say(f"error: {name}{cause}", err=True)
    if len(causes) > _CAUSES_SHOWN:
        say(f"error: {name}and {len(causes) - _CAUSES_SHOWN} more; see table event of run.sqlite", err=True)
    if result.outcome.status == "interrupt":
        say(f"{name}interrupted: the records so far are kept", err=True)


def _summarized(folders: list[Path], target: float | None) -> list[Group]:
    """What summary and compare show; a folder of several runs stands for all of them."""
    from ..metrics.reader import runs_in
    from ..metrics.seeds import summarize_all
    from .config.sections import ConfigError

    groups = summarize_all([run for folder in folders for run in runs_in(folder)], target)
    if target is not None and not 0 <= target <= 1 and any(run.metric == "accuracy" for g in groups for run in g.runs):
        raise ConfigError(f"--target {target:g}: accuracy goes from 0 to 1")
    return groups


def _show(comparison: Comparison, target: float | None = None) -> None:
    from ..metrics.comparison_table import render

    for part in render(comparison, target, width()):
        show(part)


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def main() -> None:
    """Exit codes: 0 done, 1 the run failed, 2 a mistake in what was asked for, 130 interrupted."""
    try:
        sys.exit(app(prog_name="sheafgossip", standalone_mode=False) or 0)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("interrupted", err=True)
        sys.exit(130)
    except UserError as error:
        say(f"error: {error}", err=True)
        sys.exit(2)
    except OSError as error:  # what the system refuses, such as a name that is too long
        if error.filename is None:
            raise
        say(f"error: {' '.join(f'{error.filename}: {error.strerror}'.splitlines())}", err=True)
        sys.exit(2)
    except _UsageError as error:
        say(f"error: {_in_our_words(error)}", err=True)
        sys.exit(2)


def _in_our_words(error: Any) -> str:
    """What typer says of a command line, in one line, and where to read on."""
    text = " ".join(error.format_message().split()).rstrip(".")
    for theirs, ours in (("Value error, ", ""), ("Input should be", "must be")):
        text = text.replace(theirs, ours)
    return f"{text[0].lower()}{text[1:]}; see {error.ctx.command_path if error.ctx else 'sheafgossip'} --help"
