"""MNIST and Fashion-MNIST: four IDX files each, the official training and test samples taken together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from . import torchvision_readers
from .cache import cache_folder
from .errors import DataError
from .idx import read_idx
from .pool import Pool

if TYPE_CHECKING:
    from ..config.sections import DataSection

PARTS = ("train", "t10k")
CLASSES = 10
FILES = tuple(f"{part}-{kind}-ubyte" for part in PARTS for kind in ("images-idx3", "labels-idx1"))


def load_mnist(section: DataSection) -> Pool:
    return _load(section, torchvision_name="MNIST")


def load_fashion_mnist(section: DataSection) -> Pool:
    return _load(section, torchvision_name="FashionMNIST")


def _load(section: DataSection, torchvision_name: str) -> Pool:
    if section.root is not None:
        files = _find(section.root, torchvision_name)
        if not files:
            raise DataError(
                f'data.root = "{section.root}" lacks files of {section.dataset}: {_wanted(torchvision_name)} are needed'
            )
        return _read(files)
    cache = cache_folder()
    if not _find(cache, torchvision_name):
        try:
            torchvision_readers.download(torchvision_name, cache)
        except torchvision_readers.Failed as error:
            raise DataError(
                f'data.dataset = "{section.dataset}" could not be downloaded ({error}): '
                f"without a network, set data.root to a folder with {_wanted(torchvision_name)}"
            ) from error
    return _read(_find(cache, torchvision_name))


def _wanted(torchvision_name: str) -> str:
    return f"{', '.join(FILES)} (each as it is or .gz; also in {torchvision_name}/raw)"


def _find(root: Path, torchvision_name: str) -> dict[str, Path]:
    """The four files by name, of the first folder that has them all; empty where none has."""
    for folder in (root, root / torchvision_name / "raw"):
        found = {name: path for name in FILES for path in (folder / f"{name}.gz", folder / name) if path.is_file()}
        if len(found) == len(FILES):
            return found
    return {}


def _read(files: dict[str, Path]) -> Pool:
    images, labels = [], []
    for part in PARTS:
        image_file, label_file = files[f"{part}-images-idx3-ubyte"], files[f"{part}-labels-idx1-ubyte"]
        images.append(read_idx(image_file, dimensions=3))
        labels.append(read_idx(label_file, dimensions=1))
        if len(images[-1]) != len(labels[-1]):
            raise DataError(f"{image_file} has {len(images[-1])} images, {label_file} has {len(labels[-1])} labels")
        if (labels[-1] >= CLASSES).any():
            raise DataError(f"{label_file} holds label {labels[-1].max()}: labels are 0 to {CLASSES - 1}")
    if images[0].shape[1:] != images[1].shape[1:]:
        raise DataError(
            f"{files[FILES[0]].parent}: training images are {images[0].shape[1:]}, test images {images[1].shape[1:]}"
        )
    return Pool(
        x=np.concatenate(images)[:, None],
        y=np.concatenate(labels).astype(np.int64),
        task="classification",
        outputs=CLASSES,
        scale=255.0,
    )
