"""torchvision beside another build of torch than the one that its operators were compiled for: one for CUDA, the other
for CPUs, say."""

import sys
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


def importing(what: Callable[[], _Result]) -> _Result:
    """Returns what a function does that may import torchvision; where only that fails, it is called once more. Data
    sets and networks use no operators: the two that the import insists on are then declared, not implemented."""
    try:
        return what()
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    from torch import library

    for half_imported in [module for module in sys.modules if module.partition(".")[0] == "torchvision"]:
        del sys.modules[half_imported]
    for operator in ("nms", "qnms"):
        library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return what()
