"""What the user is told of a run on stderr: before it starts what it is about to do, then how it goes on, in a picture
that moves in a terminal, with a line now and then elsewhere."""

import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from ...metrics.events import Event
from ...metrics.store import RunFolderError
from ...metrics.text import Plain, duration, new_console, plain
from ...metrics.watch import notebook
from ...metrics.watch.screen import Place, draw, line
from ...metrics.watch.snapshot import Follower, Snapshot
from ...node.settings import Training
from ..config.data import DataSection
from ..config.effect import without_effect
from ..data.pool import some
from ..data.shards import DataSummary
from ..planner.simulation import watcher
from ..prepare.prepared import Prepared
from .folder import relative

_EVERY_S = {"picture": 0.4, "notebook": 1.0, "lines": 10.0, "silent": math.inf}
_SOME_S, _MORE_S, _ALL_S = 0.01, 0.1, 60.0
_QUICK_S = 2.0


class Display(AbstractContextManager["Display"]):
    """Call it often: it looks at the records only when something is to be shown, and never for long. Leaving it as a
    context gives the terminal back as it was, whatever happened."""

    def __init__(self, *, quiet: bool = False, plain: bool = False, live: bool = False):
        """Shows nothing if ``quiet``, and lines where those are asked for or stderr leads to no able terminal; in a
        notebook, with ``live``, a picture in the cell, also if ``quiet``."""
        encoding = (sys.stderr.encoding or "").lower().replace("-", "")
        able = sys.stderr.isatty() and encoding == "utf8" and os.environ.get("TERM", "dumb") != "dumb"
        self._style = "silent" if quiet else "picture" if able and not plain else "lines"
        if live and notebook.is_notebook():
            self._style = "notebook"
        self._quiet = quiet
        self._cell = notebook.Picture()
        self._follower: Follower | None = None
        self._place = Place()
        self._live: Any = None  # of rich
        self._due = 0.0
        self._behind = False
        self._news = ""
        self._told: set[Event] = set()
        self._began = 0.0  # of the plan

    def __enter__(self) -> "Display":
        self._watched = watcher.set(self.plans)
        return self

    def plans(self, share: float) -> None:
        """Which share of a run's plan there is: told in a terminal, if that takes more than two seconds."""
        now = time.monotonic()
        if share == 0:
            self._began = now
        elif share == 1:
            self._clear()
        elif self._style == "picture" and now >= max(self._due, self._began + _QUICK_S):
            self._due = now + _EVERY_S[self._style]
            left = duration((now - self._began) * (1 / share - 1))
            self._picture().update(Plain(f"planning: {share:.0%} of the rounds, about {left} left"), refresh=True)

    def follow(self, folder: Path, place: Place = Place(), *, anew: bool = False) -> None:
        """From here on it shows the run in ``folder``, the one at ``place``; ``anew`` as in Follower."""
        self._follower, self._place = Follower(folder, anew=anew), place
        self._told.clear()
        at_once = self._style in ("picture", "notebook")
        self._due = time.monotonic() + (0.0 if at_once else _EVERY_S[self._style])

    def __call__(self, news: str = "") -> None:
        """``news``: what the run is busy with, other than its rounds."""
        self._news = news
        if time.monotonic() >= self._due:
            with suppress(RunFolderError):  # not being able to look is no reason to end a run; the next may be luckier
                self.show(self.look(_MORE_S if self._behind else _SOME_S))

    def tell(self, text: str) -> None:
        """A line that stays, above what is shown of the run that begins."""
        if not self._quiet:
            print(plain(text), file=sys.stderr, flush=True)

    def show(self, snapshot: Snapshot, *, at_once: bool = False) -> None:
        """If it is time to, or ``at_once``."""
        if at_once or time.monotonic() >= self._due:
            self._due = time.monotonic() + _EVERY_S[self._style]
            if self._style == "notebook":
                self._cell.show(snapshot, self._place)
            else:
                (self._draw if self._style == "picture" else self._write)(snapshot)

    def look(self, seconds: float = _SOME_S) -> Snapshot:
        """Takes about so many seconds of CPU time. Raises RunFolderError."""
        assert self._follower
        snapshot = self._follower.look(seconds=seconds)
        self._behind = snapshot.behind
        return snapshot

    def end(self, *, stay: bool = False) -> None:
        """The run has ended. What remains of it: with ``stay`` the picture, where there are several runs a line."""
        if self._style == "silent" or self._follower is None:
            return
        self._news = ""
        with suppress(RunFolderError):
            snapshot = self.look(_ALL_S)
            if self._style == "notebook":
                self._cell.show(snapshot, self._place)
            elif self._style == "picture" and stay:
                self._draw(snapshot)
                self._live.transient = False
            elif self._style == "lines" or self._place.total > 1:
                self._clear()
                self._write(snapshot)
        self._clear()

    def __exit__(self, *_: object) -> None:
        watcher.reset(self._watched)
        self._clear()

    def _draw(self, snapshot: Snapshot) -> None:
        width, height = self._picture().console.size
        self._picture().update(Plain(draw(snapshot, self._place, width, height, self._news)), refresh=True)

    def _picture(self) -> Any:
        from rich.live import Live

        if self._live is None:
            as_is: Any = {"auto_refresh": False, "redirect_stdout": False, "redirect_stderr": False}
            self._live = Live(console=new_console(stderr=True), transient=True, **as_is)
            self._live.start()
        return self._live

    def _clear(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _write(self, snapshot: Snapshot) -> None:
        for event in snapshot.events:
            if event.kind == "waiting" and event not in self._told:
                self._told.add(event)
                self.tell(f"{snapshot.name}: {event.who} {event.detail}")
        self.tell(line(snapshot, self._place) + (f", {self._news}" if self._news else ""))


# -- before it starts: what was chosen for the user is told here -------------------------------------------------------

_SPLIT: dict[str, Callable[[DataSection], str]] = {
    "even": lambda section: "shuffled and split evenly",
    "classes": lambda section: f"{section.classes_per_client} classes a client",
    "clusters": lambda section: f"{section.clusters.count} clusters of clients with classes of their own",
    "dirichlet": lambda section: f"shares of each class drawn from Dirichlet({section.beta:g})",
    "quantity": lambda section: f"sizes by a power law of exponent {section.exponent:g}",
    "overlapping": lambda section: f"each client draws {section.samples_each} from all of them",
    "natural": lambda section: "each client has those of one owner",
}


class Banner:
    """Tells a line of a further run only where it differs from that of the run before."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def lines(self, prepared: Prepared) -> list[str]:
        news = {name: text for name, text in _lines(prepared) if self._told.get(name) != text}
        self._told |= news
        return [f"{'note:' if name.startswith('note') else name:<12}{text}" for name, text in news.items()]


def _lines(prepared: Prepared) -> Iterator[tuple[str, str]]:
    config, data = prepared.config, prepared.data
    yield "run folder", str(relative(prepared.folder))
    algorithm = "" if config.label == config.algorithm.name else f" ({config.algorithm.name})"
    yield "run", f"{config.label}{algorithm}, {config.rounds} rounds, seed {config.seed}"
    yield "data", "; ".join([_data(config.data, data), *data.told])
    chosen, owners = f"{config.clients}", [client.owner for client in data.clients if client.owner]
    if data.owners:
        everyone = config.clients == data.owners
        chosen = f"all {data.owners} owners" if everyone else f"{chosen} of {data.owners} owners, drawn by the seed"
    yield "clients", f"{chosen}: {some(owners)}" if owners else chosen
    yield "split", _split(config.data, data)
    yield "local work", _local_work(config.training)
    models = [each.architecture for each in prepared.assignments if each.role == "client"]
    kinds = Counter(
        f"{model.label}, {math.prod(model.input_shape):,} inputs, "
        f"{model.outputs:,} output{'s' if model.outputs > 1 else ''}, {model.size:,} parameters"
        for model in models
    )
    yield "model", some([f"{count} clients: {text}" if len(kinds) > 1 else text for text, count in kinds.items()], 4)
    for key, why in without_effect(config).items():
        yield f"note: {key}", why


def _data(section: DataSection, data: DataSummary) -> str:
    name = section.dataset if section.root is None else f"{section.dataset} {section.root.name}"
    match data.input_shape:
        case (features,):
            shape = f"{features:,} feature{'s' if features > 1 else ''}"
        case (steps, features):
            shape = f"series of {steps} steps of {features} features"
        case (channels, height, width):
            shape = f"images of {height}x{width}" + (f" in {channels} colours" if channels > 1 else "")
        case other:
            shape = f"of shape {other}"
    return f"{name}: {data.samples:,} samples, {shape}, {data.task}"


def _split(section: DataSection, data: DataSummary) -> str:
    text = _SPLIT[data.partition](section)
    if data.partition == "even" and section.partition == "auto":
        named = section.dataset in ("npz", "table", "huggingface")
        text += ", as nobody owns them" + (" (data.client names owners)" if named else "")
    if data.left_out:
        text += f"; left out, with fewer than {section.min_samples}: {some(data.left_out)}"
    spans = []
    for sizes in ([each.train_samples for each in data.clients], [each.test_samples for each in data.clients]):
        least, most = min(sizes), max(sizes)
        spans.append(f"{least:,}" if least == most else f"{least:,} to {most:,}")
    return "{}; a client has {} for training, {} for testing".format(text, *spans)


def _local_work(training: Training) -> str:
    steps, epochs = ("es" if count > 1 else "" for count in (training.steps, training.epochs))
    work = {
        "full": "one step on all training samples",
        "steps": f"{training.steps} mini-batch{steps} of {training.batch_size} samples",
        "epochs": f"{training.epochs} pass{epochs} over the training samples in mini-batches of {training.batch_size}",
    }[training.work]
    optimizer = training.optimizer_use.rpartition(":")[2] or str(training.optimizer)
    more = [optimizer] if optimizer != "sgd" else []
    more += [f"{training.schedule} schedule"] if training.schedule != "constant" else []
    more += [f"momentum {training.momentum:g}"] if training.momentum else []
    more += [f"gradients clipped at {training.clip:g}"] if training.clip else []
    more += [f"l2 {training.l2:g}"] if training.l2 else []
    return ", ".join([f"{work} a round", f"alpha {training.alpha:g}", *more])
