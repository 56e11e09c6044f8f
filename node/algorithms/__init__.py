"""The algorithms. To add one: write its file, and where its class is in this table."""

import importlib
import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from ...transport.channel import Channel
from ...transport.codecs import codec
from .. import own_code
from ..assignment import Assignment, Neighbour
from ..model.architecture import DENSE
from ..settings import Training
from .base import Algorithm, Edge, SettingsError, Vector


class _Table(Mapping[str, type[Algorithm]]):
    """{name: class}, of which only those that are asked for are loaded."""

    def __init__(self, places: dict[str, str]):
        self._places = places
        self._loaded: dict[str, type[Algorithm]] = {}

    def __getitem__(self, name: str) -> type[Algorithm]:
        if name not in self._loaded:
            file, _, kind = self._places[name].partition(".")
            self._loaded[name] = getattr(importlib.import_module(f".{file}", __name__), kind)
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


ALGORITHMS = _Table(
    {
        "local": "gossip.Local",
        "d-psgd": "gossip.DPSGD",
        "d2": "gossip.D2",
        "gradient-tracking": "gossip.GradientTracking",
        "push-sum": "gossip.PushSum",
        "pairwise": "gossip.Pairwise",
        "epidemic": "epidemic.Epidemic",
        "teleportation": "teleportation.Teleportation",
        "ad-psgd": "ad_psgd.ADPSGD",
        "choco-sgd": "choco.ChocoSGD",
        "beer": "beer.BEER",
        "divshare": "divshare.DivShare",
        "fedavg": "common_model.FedAvg",
        "ditto": "common_model.Ditto",
        "pfedme": "common_model.PFedMe",
        "per-fedavg": "common_model.PerFedAvg",
        "fedavg-c": "shared_layers.FedAvgC",
        "fedsak": "shared_layers.FedSAK",
        "flt": "flt.FLT",
        "sfmtl-graph": "sfmtl_graph.SFMTLGraph",
        "pfedhn": "hypernetworks.PFedHN",
        "ghn": "hypernetworks.GHN",
        "shn": "hypernetworks.SHN",
        "dac": "dac.DAC",
        "dfca": "dfca.DFCA",
        "dpfl": "dpfl.DPFL",
        "facade": "facade.Facade",
        "fedsem": "fedsem.FedSEM",
        "ifca": "ifca.IFCA",
        "pens": "pens.PENS",
        "fedproto": "fedproto.FedProto",
        "fedgh": "fedgh.FedGH",
        "dispfl": "dispfl.DisPFL",
        "sfl": "sfl.SFL",
        "fedper": "personal_layers.FedPer",
        "fedrep": "personal_layers.FedRep",
        "fedbn": "personal_layers.FedBN",
        "dfedpgp": "dfedpgp.DFedPGP",
        "apfl": "apfl.APFL",
        "fedavg-ft": "fine_tuning.FedAvgFT",
        "fedprox": "fedprox.FedProx",
        "scaffold": "scaffold.SCAFFOLD",
        "moon": "moon.MOON",
        "dfedavgm": "dfedavgm.DFedAvgM",
        "dfedsam": "dfedavgm.DFedSAM",
        "fedu": "fedu.FedU",
        "fedmtl": "fedu.FedMTL",
        "dfedu": "sheaf_fmtl.DFedU",
        "sheaf-fmtl": "sheaf_fmtl.SheafFMTL",
        "selective-sheaf": "selective_sheaf.SelectiveSheaf",
        "prototype-sheaf": "prototype_sheaf.PrototypeSheaf",
    }
)

_MODELS = "sheafgossip.node.model"

INPUT_FILES = ("encoder", "maps_from", "embeddings")
"""Keys of algorithms that name files for processes to read, relative to the configuration's folder; "" names none."""


@cache
def installed() -> dict[str, str]:
    """Returns {name: "package.module:CLASS"} of the algorithms that installed packages bring (their entry points)."""
    found = {point.name: point.value for point in entry_points(group="sheafgossip.algorithms")}
    return {name: use for name, use in sorted(found.items()) if name not in ALGORITHMS}


def own_kind(use: str) -> type[Algorithm]:
    """Returns the class that the user names. Raises CodeError, also where it is no algorithm."""
    kind = own_code.load(use, "algorithm.use")
    own = own_code.Use.of(use, "algorithm.use")
    if not isinstance(kind, type) or not issubclass(kind, Algorithm):
        raise own.error(f"{own.name} is no subclass of sheafgossip.Algorithm")
    if "__dataclass_fields__" not in vars(kind) or not vars(kind)["__dataclass_params__"].frozen:
        raise own.error(f"{own.name} needs @dataclass(frozen=True) above it: one object of it serves all clients")
    if kind.round is Algorithm.round:
        raise own.error(f"{own.name} has no method round(self, client, peers)")
    from .server import ServerAlgorithm

    base = ServerAlgorithm if issubclass(kind, ServerAlgorithm) else Algorithm
    for name, method in inspect.getmembers(base, inspect.isfunction):
        if not name.startswith("_"):
            _require_callable(own, name, getattr(kind, name), inspect.signature(method))
    return kind


def _require_callable(own: own_code.Use, name: str, method: Any, wanted: inspect.Signature) -> None:
    """Raises CodeError where a method cannot be called as that of the base class."""
    try:
        inspect.signature(method).bind(*wanted.parameters)
    except TypeError:
        called = f"{name}({', '.join(wanted.parameters)})"
        raise own.error(f"{own.name}.{name} cannot be called as {called}") from None


def algorithm_of(assignment: Assignment) -> Algorithm:
    settings, run = assignment.algorithm, assignment.run
    if use := settings.get("use"):
        told = {key: _frozen(value) for key, value in settings.items()}
        return own_code.load_copy(use, "algorithm.use", run.folder, run.code)(**told)
    return ALGORITHMS[settings["name"]](**settings)


def _frozen(value: Any) -> Any:
    """Tuples, which JSON has made lists."""
    if isinstance(value, dict):
        return {key: _frozen(each) for key, each in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def libraries_of(
    algorithm: Algorithm | None, kinds: Collection[str], training: Training = Training()
) -> tuple[str, ...]:
    """Returns the large modules that clients with these kinds of models need beyond what all do."""
    needed = {
        "networks": training.loss.use or not DENSE.issuperset(kinds),
        "own": "own" in kinds,
        "own_optimizer": training.optimizer_use,
    }
    own = algorithm.traits.libraries if algorithm else ()
    return own + tuple(f"{_MODELS}.{name}" for name, is_needed in needed.items() if is_needed)


def libraries_for(assignments: Sequence[Assignment]) -> list[str]:
    for each in {each.architecture: each for each in assignments if each.architecture.own}.values():
        from ..model.own import build

        build(each.architecture, each.run, each.dtype)  # what Python keeps of having run it once, they share
    for each in assignments:  # what is loaded before they are forked, they share
        uses = each.training.loss.use, each.training.optimizer_use
        for use in filter(None, (*uses, *(metric.use for metric in each.evaluation.metrics))):
            own_code.load_copy(use, "use", each.run.folder, each.run.code)
    found = [libraries_of(algorithm_of(each), [each.architecture.kind], each.training) for each in assignments]
    return sorted({library for several in found for library in several})


def links_of(assignment: Assignment) -> dict[int, Channel]:
    """Returns {neighbour: what may travel on the edge}"""
    algorithm = algorithm_of(assignment)
    return {peer.node: link(algorithm, assignment, peer) for peer in assignment.neighbours}


def link(algorithm: Algorithm, own: Assignment, peer: Neighbour) -> Channel:
    model, server = own.architecture, own.run.clients
    edge = Edge(own.node, peer.node, model.size, peer.parameters, model, own.node == server, peer.facts)
    reverse = Edge(peer.node, own.node, peer.parameters, model.size, model, peer.node == server, peer.facts)
    out, back = _messages(algorithm, edge), _messages(algorithm, reverse)
    later = [[vector for vector in each if not vector.opening] for each in (out, back)]
    exact, received = (tuple(vector.exact for vector in each) for each in later)
    integers, integers_received = (tuple(vector.integers for vector in each) for each in later)
    return Channel(
        sends=tuple(vector.length for vector in later[0]),
        receives=tuple(vector.length for vector in later[1]),
        opens=tuple(vector.length for vector in out if vector.opening),
        opened=tuple(vector.length for vector in back if vector.opening),
        may_be_quiet=algorithm.traits.silent_edges,
        codec=codec(own.transport.between if peer.remote else own.transport.codec, own.dtype, own.transport.keep),
        exact=exact if any(exact) else (),
        exact_received=received if any(received) else (),
        integers=integers if any(integers) else (),
        integers_received=integers_received if any(integers_received) else (),
        is_shown=algorithm.traits.server == "answers" and own.role == "client",
    )


def _messages(algorithm: Algorithm, edge: Edge) -> Sequence[Vector]:
    """Raises SettingsError where an algorithm does not say what travels."""
    found = algorithm.messages(edge)
    if not isinstance(found, Sequence) or not all(isinstance(each, Vector) for each in found):
        raise SettingsError(
            f"{type(algorithm).__name__}.messages", f"returned {found!r}; it has to be a list of Vector(length)"
        )
    for vector in found:
        if not isinstance(vector.length, int | np.integer) or vector.length < 0:
            raise SettingsError(
                f"{type(algorithm).__name__}.messages", f"{vector}: the length is a whole number of at least 0"
            )
    return found
