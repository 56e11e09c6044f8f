"""The algorithms, one file each. To add one: write its file, and its line in this table."""

from ...transport.channel import Channel
from ..assignment import Assignment
from .base import Algorithm
from .d2 import D2
from .dfedu import DFedU
from .ditto import Ditto
from .dpsgd import DPSGD
from .fedavg import FedAvg
from .fedavg_c import FedAvgC
from .fedsak import FedSAK
from .flt import FLT
from .ghn import GHN
from .gradient_tracking import GradientTracking
from .local import Local
from .pairwise import Pairwise
from .per_fedavg import PerFedAvg
from .pfedhn import PFedHN
from .pfedme import PFedMe
from .push_sum import PushSum
from .selective_sheaf import SelectiveSheaf
from .sfmtl_graph import SFMTLGraph
from .sheaf_fmtl import SheafFMTL
from .shn import SHN

ALGORITHMS: dict[str, type[Algorithm]] = {
    "local": Local,
    "d-psgd": DPSGD,
    "d2": D2,
    "gradient-tracking": GradientTracking,
    "push-sum": PushSum,
    "pairwise": Pairwise,
    "fedavg": FedAvg,
    "ditto": Ditto,
    "pfedme": PFedMe,
    "per-fedavg": PerFedAvg,
    "fedavg-c": FedAvgC,
    "fedsak": FedSAK,
    "flt": FLT,
    "sfmtl-graph": SFMTLGraph,
    "pfedhn": PFedHN,
    "ghn": GHN,
    "shn": SHN,
    "dfedu": DFedU,
    "sheaf-fmtl": SheafFMTL,
    "selective-sheaf": SelectiveSheaf,
}


def links_of(assignment: Assignment) -> dict[int, Channel]:
    """{neighbour: what may travel on the edge}"""
    algorithm = ALGORITHMS[assignment.algorithm["name"]]
    settings = algorithm.Settings(**assignment.algorithm)
    return {peer.node: algorithm.link(settings, assignment, peer) for peer in assignment.neighbours}
