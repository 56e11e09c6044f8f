"""The algorithms, one file each. To add one: write its file, and its line in this table."""

from .base import Algorithm
from .dfedu import DFedU
from .dpsgd import DPSGD
from .local import Local
from .sheaf_fmtl import SheafFMTL

ALGORITHMS: dict[str, type[Algorithm]] = {
    "local": Local,
    "d-psgd": DPSGD,
    "dfedu": DFedU,
    "sheaf-fmtl": SheafFMTL,
}
