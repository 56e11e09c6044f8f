"""torchvision's data sets: downloads, and the reader of CIFAR-10. Slow to import, so only on demand."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np


class Failed(Exception):
    """A download or a reading failed; the message is one line."""


def download(name: str, folder: Path) -> None:
    """The data set of torchvision's class ``name`` into ``folder``, unless it is there. Raises Failed."""
    _dataset(name, folder, download=True)


def read_cifar10(folder: Path, *, download: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 (60000, 32, 32, 3), and labels, int64 (60000,). Raises Failed.

    torchvision compares the checksums of the files before it unpickles them: no other file is ever unpickled.
    """
    parts = [_dataset("CIFAR10", folder, train=train, download=download) for train in (True, False)]
    labels = np.concatenate([part.targets for part in parts]).astype(np.int64)
    return np.concatenate([part.data for part in parts]), labels


def _dataset(name: str, folder: Path, **options: bool):
    from http.client import HTTPException  # with it comes all of SSL

    try:
        return getattr(_import_datasets(), name)(folder, **options)
    except (OSError, RuntimeError, HTTPException) as error:
        # torchvision lists every mirror on a line of its own; the last line is the reason.
        raise Failed((str(error).strip().splitlines() or [type(error).__name__])[-1]) from error


def _import_datasets() -> ModuleType:
    try:
        import torchvision.datasets
    except RuntimeError as error:
        # torchvision's compiled operators belong to another build of torch (one for CUDA, the other for CPUs, say).
        # Data sets use none of them: the two that its import insists on are declared without an implementation.
        if "torchvision::nms" not in str(error):
            raise
        from torch import library

        for half_imported in [module for module in sys.modules if module.partition(".")[0] == "torchvision"]:
            del sys.modules[half_imported]
        for operator in ("nms", "qnms"):
            library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision.datasets
    return torchvision.datasets
