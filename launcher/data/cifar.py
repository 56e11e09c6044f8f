"""CIFAR-10 from torchvision's folder cifar-10-batches-py, the official training and test samples taken together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import torchvision_readers
from .cache import cache_folder
from .errors import DataError
from .pool import Pool

if TYPE_CHECKING:
    from ..config.sections import DataSection

WANTED = "the unchanged folder cifar-10-batches-py of cifar-10-python.tar.gz"


def load_cifar10(section: DataSection) -> Pool:
    root = section.root
    # Looked for here because torchvision's import takes seconds.
    if root is not None and not (root / "cifar-10-batches-py").is_dir():
        raise DataError(f'data.root = "{root}" lacks {WANTED}')
    try:
        x, y = torchvision_readers.read_cifar10(root or cache_folder(), download=root is None)
    except torchvision_readers.Failed as error:
        if root is not None:
            raise DataError(f'data.root = "{root}" must hold {WANTED}: {error}') from error
        raise DataError(
            f'data.dataset = "cifar10" could not be downloaded ({error}): '
            f"without a network, set data.root to a folder with {WANTED}"
        ) from error
    return Pool(x=np.moveaxis(x, 3, 1), y=y, task="classification", outputs=10, scale=255.0)
