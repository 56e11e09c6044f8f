"""How commands are declared, and what several of them take."""

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Configuration of the run.")]
RunOrRuns = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, or the folder of several runs.")]
RunFolders = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. --set algorithm.gamma=0.03."),
]
Grid = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUES", help="Values to try, e.g. algorithm.gamma=0.01,0.03; may be repeated."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]
Engines = Annotated[
    Literal["local", "threads", "ray"],
    typer.Option(help="local: each client a process; threads: all in one, to debug; ray: on a Ray cluster's hosts."),
]
Address = Annotated[str | None, typer.Option(help="--engine ray: address of the cluster; by default it is looked for.")]
Plain = Annotated[bool, typer.Option("--plain", help="Progress as a line now and then, not as a picture that moves.")]
OwnCode = Annotated[bool, typer.Option("--own-code", help="Execute the files of yours that the run uses.")]
Target = Annotated[float | None, typer.Option(help="Also what it took to reach this accuracy, 0 to 1, or mse.")]


def new_group() -> typer.Typer:
    no_markup = None  # it would take words in brackets for markup
    return typer.Typer(rich_markup_mode=no_markup, pretty_exceptions_enable=False)


def epilog(words: str) -> str:
    return f"\b\nExample:\n  sheafgossip {words}"  # \b: its lines stay as they are


def command(
    of: typer.Typer, module: str, name: str | None = None, *, example: str
) -> Callable[..., Callable[..., Any]]:
    """Declares a command by its options and its help; the function of the same name in ``module`` does it."""

    def declare(options: Callable[..., None]) -> Callable[..., Any]:
        @wraps(options)
        def call(**given: Any) -> Any:
            return getattr(import_module(f".commands.{module}", __package__), options.__name__)(**given)

        return of.command(name, epilog=epilog(example))(call)

    return declare
