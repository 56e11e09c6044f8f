"""The algorithms. To add one: write its file, and its class in this table."""

from collections.abc import Iterable

from ...transport.channel import Channel
from ...transport.codecs import codec
from ..assignment import Assignment, Neighbour
from ..model.architecture import LINEAR
from .base import Algorithm, Edge
from .flt import FLT
from .gossip import D2, DPSGD, GradientTracking, Local, Pairwise, PushSum
from .hypernetworks import GHN, SHN, PFedHN
from .selective_sheaf import SelectiveSheaf
from .server import Ditto, FedAvg, PerFedAvg, PFedMe
from .sfmtl_graph import SFMTLGraph
from .shared_layers import FedAvgC, FedSAK
from .sheaf_fmtl import DFedU, SheafFMTL

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (
        *(Local, DPSGD, D2, GradientTracking, PushSum, Pairwise),
        *(FedAvg, Ditto, PFedMe, PerFedAvg, FedAvgC, FedSAK, FLT, SFMTLGraph, PFedHN, GHN, SHN),
        *(DFedU, SheafFMTL, SelectiveSheaf),
    )
}

INPUT_FILES = ("encoder",)
"""Keys of algorithms that name files for processes to read, relative to the configuration's folder; "" names none."""


def algorithm_of(assignment: Assignment) -> Algorithm:
    return ALGORITHMS[assignment.algorithm["name"]](**assignment.algorithm)


def libraries_of(algorithm: Algorithm, kinds: Iterable[str]) -> tuple[str, ...]:
    """Returns the large modules that clients with these kinds of models need beyond what all do."""
    return algorithm.traits.libraries + (() if LINEAR.issuperset(kinds) else ("sheafgossip.node.model.networks",))


def libraries_for(assignments: Iterable[Assignment]) -> list[str]:
    asked = {(algorithm_of(assignment), assignment.architecture.kind) for assignment in assignments}
    return sorted({library for algorithm, kind in asked for library in libraries_of(algorithm, [kind])})


def links_of(assignment: Assignment) -> dict[int, Channel]:
    """Returns {neighbour: what may travel on the edge}"""
    algorithm = algorithm_of(assignment)
    return {peer.node: link(algorithm, assignment, peer) for peer in assignment.neighbours}


def link(algorithm: Algorithm, own: Assignment, peer: Neighbour) -> Channel:
    model, server = own.architecture, own.run.clients
    edge = Edge(own.node, peer.node, model.size, peer.parameters, model, own.node == server, peer.facts)
    reverse = Edge(peer.node, own.node, peer.parameters, model.size, model, peer.node == server, peer.facts)
    out, back = algorithm.messages(edge), algorithm.messages(reverse)
    exact = tuple(vector.exact for vector in out if not vector.opening)
    return Channel(
        sends=tuple(vector.length for vector in out if not vector.opening),
        receives=tuple(vector.length for vector in back if not vector.opening),
        opens=tuple(vector.length for vector in out if vector.opening),
        opened=tuple(vector.length for vector in back if vector.opening),
        may_be_quiet=algorithm.traits.silent_edges,
        codec=codec(own.transport.between if peer.remote else own.transport.codec, own.dtype, own.transport.keep),
        exact=exact if any(exact) else (),
        is_shown=algorithm.traits.server == "answers" and own.role == "client",
    )
