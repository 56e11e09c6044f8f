"""What a run is about to do, in a few lines before it starts: what was chosen for the user is told here."""

import math
from collections import Counter
from collections.abc import Callable, Iterator

from ..config.data import DataSection
from ..config.sections import RunConfig, without_effect
from ..data.pool import some
from ..data.shards import DataSummary
from ..prepare.prepared import Prepared
from .folder import relative

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
    yield "clients", _clients(config, data)
    yield "split", _split(config.data, data)
    yield "local work", _local_work(config)
    yield "model", _models(prepared)
    for key, why in without_effect(config).items():
        yield f"note: {key}", why


def _data(section: DataSection, data: DataSummary) -> str:
    name = section.dataset if section.root is None else f"{section.dataset} {section.root.name}"
    match data.input_shape:
        case (features,):
            shape = _several(features, "feature")
        case (steps, features):
            shape = f"series of {steps} steps of {features} features"
        case (channels, height, width):
            shape = f"images of {height}x{width}" + (f" in {channels} colours" if channels > 1 else "")
        case other:
            shape = f"of shape {other}"
    return f"{name}: {data.samples:,} samples, {shape}, {data.task}"


def _clients(config: RunConfig, data: DataSummary) -> str:
    if not data.owners:
        return f"{config.clients}"
    everyone = config.clients == data.owners
    text = f"all {data.owners} owners" if everyone else f"{config.clients} of {data.owners} owners, drawn by the seed"
    names = [client.owner for client in data.clients if client.owner]
    return text + (f": {some(names)}" if names else "")


def _split(section: DataSection, data: DataSummary) -> str:
    text = _SPLIT[data.partition](section)
    if data.partition == "even" and section.partition == "auto":
        text += ", as nobody owns them" + (" (data.client names owners)" if section.dataset in ("npz", "table") else "")
    if data.left_out:
        text += f"; left out, with fewer than {section.min_samples}: {some(data.left_out)}"
    spans = []
    for sizes in ([each.train_samples for each in data.clients], [each.test_samples for each in data.clients]):
        least, most = min(sizes), max(sizes)
        spans.append(f"{least:,}" if least == most else f"{least:,} to {most:,}")
    return "{}; a client has {} for training, {} for testing".format(text, *spans)


def _several(count: int, name: str) -> str:
    return f"{count:,} {name}{'s' if count > 1 else ''}"


def _local_work(config: RunConfig) -> str:
    training = config.training
    steps, epochs = ("es" if count > 1 else "" for count in (training.steps, training.epochs))
    work = {
        "full": "one step on all training samples",
        "steps": f"{training.steps} mini-batch{steps} of {training.batch_size} samples",
        "epochs": f"{training.epochs} pass{epochs} over the training samples in mini-batches of {training.batch_size}",
    }[training.work]
    more = [f"momentum {training.momentum:g}"] if training.momentum else []
    more += [f"l2 {training.l2:g}"] if training.l2 else []
    return ", ".join([f"{work} a round", f"alpha {training.alpha:g}", *more])


def _models(prepared: Prepared) -> str:
    models = [each.architecture for each in prepared.assignments if each.role == "client"]
    kinds = Counter(
        f"{model.label}, {math.prod(model.input_shape):,} inputs, {_several(model.outputs, 'output')}, "
        f"{model.size:,} parameters"
        for model in models
    )
    if len(kinds) == 1:
        return next(iter(kinds))
    return some([f"{count} clients: {text}" for text, count in kinds.items()], 4)
