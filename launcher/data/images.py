"""Published sets of images, in the files that their publishers have, official training and test samples together."""

import gzip
import math
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ...node.mixed_builds import importing
from ..config.data import DataSection
from .files import Source
from .pool import DataError, Pool

_LARGEST = 1 << 30
_TORCHVISION = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST", "cifar10": "CIFAR10"}
_MNIST_FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
_CIFAR_FOLDER = "the unchanged folder cifar-10-batches-py of cifar-10-python.tar.gz"
_CIFAR100 = "cifar-100-binary"
_PIXELS = (3, 32, 32)  # red, green and blue, each row by row
_EMNIST = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


def images_of(x: np.ndarray, y: np.ndarray, outputs: int, scale: float = 255.0) -> Pool:
    return Pool(x, y.astype(np.int64), "classification", outputs, scale=scale)


def load_mnist(section: DataSection) -> Pool:
    name, root = _TORCHVISION[section.dataset], _folder_of(section)
    wanted = f"{', '.join(_MNIST_FILES)} (each as it is or .gz; also in {name}/raw)"
    places = (root, root / name / "raw")
    files = _find(places, _MNIST_FILES)
    if not files:
        if section.root is not None:
            raise DataError(f'data.root = "{root}" lacks files of {section.dataset}: {wanted} are needed')
        _torchvision(section, f"a folder with {wanted}")
        files = _find(places, _MNIST_FILES)
    return _idx_pool(files, range(10))


def load_emnist(section: DataSection) -> Pool:
    """The gzip version of nist.gov/itl/products-and-services/emnist-dataset (Cohen, Afshar, Tapson and van Schaik 2017,
    arXiv:1702.05373), in the IDX layout of MNIST. Pixels stand column by column there and are turned upright; letters
    have labels 1 to 26, the other subsets from 0."""
    source = Source.of(section, "the folder with EMNIST's files, gzip.zip unpacked")
    start, classes = f"emnist-{section.subset}", _EMNIST[section.subset]
    kinds = ("images-idx3", "labels-idx1")
    names = tuple(f"{start}-{part}-{kind}-ubyte" for part in ("train", "test") for kind in kinds)
    files = _find((source.path, source.path / "gzip", source.path / "EMNIST" / "raw"), names)
    if not files:
        raise source.wrong(f"it lacks files of emnist: {', '.join(names)} (each as it is or .gz) are needed")
    first = int(section.subset == "letters")
    pool = _idx_pool(files, range(first, first + classes))
    return replace(pool, x=np.ascontiguousarray(pool.x.swapaxes(2, 3)))


def _idx_pool(files: list[Path], labels: range) -> Pool:
    """Of images and labels to train with, and of those to test with."""
    images, given = [read_idx(path, 3) for path in files[::2]], [read_idx(path, 1) for path in files[1::2]]
    for image_file, label_file, image, label in zip(files[::2], files[1::2], images, given, strict=True):
        if len(image) != len(label):
            raise DataError(f"{image_file} has {len(image)} images, {label_file} has {len(label)} labels")
        if len(foreign := label[(label < labels[0]) | (label > labels[-1])]):
            raise DataError(f"{label_file} holds label {foreign.max()}: labels are {labels[0]} to {labels[-1]}")
    train, test = images
    if train.shape[1:] != test.shape[1:]:
        raise DataError(f"{files[0].parent}: training images are {train.shape[1:]}, test images {test.shape[1:]}")
    pool = images_of(np.concatenate(images)[:, None], np.concatenate(given) - np.uint8(labels[0]), len(labels))
    return replace(pool, tests=np.arange(len(pool)) >= len(train))


def _folder_of(section: DataSection) -> Path:
    return section.root or Path(os.environ.get("SHEAFGOSSIP_CACHE") or Path.home() / ".cache" / "sheafgossip")


def _find(folders: tuple[Path, ...], names: tuple[str, ...]) -> list[Path]:
    """Returns the files of the first folder that has all, packed or not; [] where none has."""
    for folder in folders:
        places = [(name, folder / f"{name}{suffix}") for name in names for suffix in (".gz", "")]
        found = {name: path for name, path in places if path.is_file()}
        if len(found) == len(names):
            return list(found.values())
    return []


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Reads a uint8 array with so many dimensions. Unpacks .gz. Raises DataError. Layout: two zero bytes, type, number
    of dimensions; the sizes as uint32; the entries in row-major order."""
    # Not torchvision's reader: it costs 5 seconds of imports, wants files unpacked, and lets an overlong file pass.
    content = _bytes_of(path, gzip.open if path.suffix == ".gz" else open)
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes([0, 0, 8, dimensions]):  # 8: unsigned bytes
        raise DataError(f"{path} is not an IDX file of unsigned bytes in {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise DataError(f"{path} announces {math.prod(shape)} entries and holds {len(content) - start}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _bytes_of(path: Path, opener: Callable[[Path, str], Any]) -> bytes:
    try:
        with opener(path, "rb") as file:
            content: bytes = file.read(_LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} can't be read: {error}") from error
    if len(content) > _LARGEST:
        raise DataError(f"{path} holds more than {_LARGEST >> 30} GB, the most that is read")
    return content


def load_cifar10(section: DataSection) -> Pool:
    """torchvision compares the checksums of the files before it unpickles them: no other file is ever unpickled."""
    # Looked for here because torchvision's import takes seconds.
    if section.root is not None and not (section.root / "cifar-10-batches-py").is_dir():
        raise DataError(f'data.root = "{section.root}" lacks {_CIFAR_FOLDER}')
    parts = [_torchvision(section, f"a folder with {_CIFAR_FOLDER}", train=train) for train in (True, False)]
    images = np.concatenate([part.data for part in parts])
    pool = images_of(np.moveaxis(images, 3, 1), np.concatenate([part.targets for part in parts]), 10)
    return replace(pool, tests=np.arange(len(pool)) >= len(parts[0].data))


def load_cifar100(section: DataSection) -> Pool:
    """The binary version of cs.toronto.edu/~kriz/cifar.html: train.bin and test.bin, an image after the other as
    <1 x coarse label><1 x fine label><3072 x pixel>."""
    source = Source.of(section, f"the folder {_CIFAR100} of cifar-100-binary.tar.gz")
    folder = source.path / _CIFAR100 if (source.path / _CIFAR100).is_dir() else source.path
    files = [folder / "train.bin", folder / "test.bin"]
    if not all(file.is_file() for file in files):
        pickled = any((place / "meta").is_file() for place in (folder, folder / "cifar-100-python"))
        why = "; the Python version is pickled, and not read" if pickled else ""
        raise source.wrong(f"it lacks train.bin and test.bin of {_CIFAR100}.tar.gz{why}")
    row = np.dtype([("coarse", "u1"), ("fine", "u1"), ("pixels", "u1", _PIXELS)])
    parts = []
    for file in files:
        content = _bytes_of(file, open)
        if not content or len(content) % row.itemsize:
            raise DataError(f"{file} has {len(content):,} bytes; an image takes {row.itemsize:,}")
        part = np.frombuffer(content, row)
        for kind, there in (("coarse", 20), ("fine", 100)):
            if (largest := int(part[kind].max())) >= there:
                raise DataError(f"{file} holds {kind} label {largest}: those are 0 to {there - 1}")
        parts.append(part)
    rows = np.concatenate(parts)
    pool = images_of(rows["pixels"], *((rows["coarse"], 20) if section.superclasses else (rows["fine"], 100)))
    families = np.zeros(100, dtype=np.int64)
    families[rows["fine"]] = rows["coarse"]
    if not section.superclasses:
        pool = replace(pool, families=families)
    return replace(pool, x=np.ascontiguousarray(pool.x), tests=np.arange(len(rows)) >= len(parts[0]))


def _torchvision(section: DataSection, wanted: str, **options: bool) -> Any:
    from http.client import HTTPException  # with it comes all of SSL

    kind = getattr(torchvision_datasets(), _TORCHVISION[section.dataset])
    try:
        return kind(_folder_of(section), download=section.root is None, **options)
    except (OSError, RuntimeError, HTTPException) as error:
        # torchvision lists every mirror on a line of its own; the last line is the reason.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        said = f'data.root = "{section.root}" must be {wanted}: {reason}'
        if section.root is None:
            failed = f'data.dataset = "{section.dataset}" could not be downloaded ({reason})'
            said = f"{failed}: without a network, set data.root to {wanted}"
        raise DataError(said) from error


def torchvision_datasets() -> ModuleType:
    return importing(lambda: import_module("torchvision.datasets"))
