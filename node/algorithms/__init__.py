"""The algorithms, one file each. To add one: write its file, and its line in this table."""

from .base import Algorithm
from .d2 import D2
from .dfedu import DFedU
from .ditto import Ditto
from .dpsgd import DPSGD
from .fedavg import FedAvg
from .gradient_tracking import GradientTracking
from .local import Local
from .pairwise import Pairwise
from .per_fedavg import PerFedAvg
from .pfedme import PFedMe
from .push_sum import PushSum
from .selective_sheaf import SelectiveSheaf
from .sheaf_fmtl import SheafFMTL

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
    "dfedu": DFedU,
    "sheaf-fmtl": SheafFMTL,
    "selective-sheaf": SelectiveSheaf,
}
