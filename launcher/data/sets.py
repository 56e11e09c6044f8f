"""The data sets by name: images (official training and test samples together), other files, and drawn ones."""

import gzip
import importlib.util
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
from ...topology.randomness import generator
from ..config.data import DataSection
from .files import Source, first_line, load_npz, load_sensors, load_table
from .huggingface import load_huggingface
from .leaf import load_leaf
from .matlab import load_matlab
from .own import load_own
from .pictures import load_folders
from .pool import DataError, Pool

_LARGEST = 1 << 30
_TORCHVISION = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST", "cifar10": "CIFAR10"}
_MNIST_FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
_CIFAR_FOLDER = "the unchanged folder cifar-10-batches-py of cifar-10-python.tar.gz"
_HAR_FILES = [f"{part}/{kind}_{part}.txt" for part in ("train", "test") for kind in ("X", "y", "subject")]


def load(section: DataSection, seed: int, clients: int = 1) -> Pool:
    """Loads a data set, or ``section.samples`` of it in their original order. Raises DataError. What is drawn instead
    of read has a task for each of ``clients``."""
    drawn = section.dataset == "synthetic"
    pool = _draw_synthetic(section, seed, clients) if drawn else _LOADERS[section.dataset](section)
    if section.samples > len(pool):
        raise DataError(f"data.samples is {section.samples}, but {section.dataset} holds {len(pool)}: 0 takes them all")
    if section.samples == 0:
        return pool
    rows = np.sort(generator(seed, "samples").choice(len(pool), section.samples, replace=False))
    of_rows = {name: getattr(pool, name) for name in ("x", "y", "client", "tests")}
    return replace(pool, **{name: values[rows] for name, values in of_rows.items() if values is not None})


def _draw_synthetic(section: DataSection, seed: int, clients: int) -> Pool:
    """Groups of clients whose linear models are similar. Client i of group g = i * groups // clients has parameters W_i
    of shape (outputs, dimensions),

        W_i = (U_g + deviation * V_i) / sqrt(dimensions),    U_g, V_i ~ N(0, 1), all entries independent,

    and its samples are x ~ N(0, I) with scores s = W_i x + noise * e, e ~ N(0, I).
    Regression: y = s, with one output. Classification: y = argmax s, with one score a class."""
    shape = section.synthetic
    if shape.groups > clients:
        raise DataError(f"data.synthetic.groups is {shape.groups}; allowed are 1 to {clients}, the number of clients")
    outputs = 1 if section.task == "regression" else shape.classes
    groups = np.arange(clients) * shape.groups // clients
    inputs, scores = [], []
    for client, group in enumerate(groups.tolist()):
        common = generator(seed, "synthetic group", group).standard_normal((outputs, shape.dimensions))
        rng = generator(seed, "synthetic client", client)
        parameters = (common + shape.deviation * rng.standard_normal(common.shape)) / np.sqrt(shape.dimensions)
        x = rng.standard_normal((shape.samples, shape.dimensions))
        inputs.append(x.astype(np.float32))
        scores.append(x @ parameters.T + shape.noise * rng.standard_normal((shape.samples, outputs)))
    x, s = np.concatenate(inputs), np.concatenate(scores)
    y = s.astype(np.float32) if section.task == "regression" else s.argmax(axis=1)
    return Pool(x, y, section.task, outputs, client=np.repeat(np.arange(clients), shape.samples), groups=groups)


def _load_digits(section: DataSection) -> Pool:
    """1,797 images of 1x8x8 pixels from 0 to 16."""
    # Its table is read without importing it: sklearn.datasets takes longer than everything else before a run.
    sklearn = importlib.util.find_spec("sklearn")
    path = Path(sklearn.origin if sklearn and sklearn.origin else "").parent / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        raise DataError(f'data.dataset = "digits" comes with scikit-learn, and there is no {path}')
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    return _ten_classes(table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1], scale=16.0)


def _ten_classes(x: np.ndarray, y: np.ndarray, scale: float = 255.0) -> Pool:
    return Pool(x, y.astype(np.int64), "classification", outputs=10, scale=scale)


def _load_mnist(section: DataSection) -> Pool:
    name, root = _TORCHVISION[section.dataset], _folder_of(section)
    wanted = f"{', '.join(_MNIST_FILES)} (each as it is or .gz; also in {name}/raw)"
    files = _find_mnist(root, name)
    if not files:
        if section.root is not None:
            raise DataError(f'data.root = "{root}" lacks files of {section.dataset}: {wanted} are needed')
        _torchvision(section, f"a folder with {wanted}")
        files = _find_mnist(root, name)
    images, labels = [read_idx(path, 3) for path in files[::2]], [read_idx(path, 1) for path in files[1::2]]
    for image_file, label_file, image, label in zip(files[::2], files[1::2], images, labels, strict=True):
        if len(image) != len(label):
            raise DataError(f"{image_file} has {len(image)} images, {label_file} has {len(label)} labels")
        if (label >= 10).any():
            raise DataError(f"{label_file} holds label {label.max()}: labels are 0 to 9")
    train, test = images
    if train.shape[1:] != test.shape[1:]:
        raise DataError(f"{files[0].parent}: training images are {train.shape[1:]}, test images {test.shape[1:]}")
    pool = _ten_classes(np.concatenate(images)[:, None], np.concatenate(labels))
    return replace(pool, tests=np.arange(len(pool)) >= len(train))


def _folder_of(section: DataSection) -> Path:
    return section.root or Path(os.environ.get("SHEAFGOSSIP_CACHE") or Path.home() / ".cache" / "sheafgossip")


def _find_mnist(root: Path, name: str) -> list[Path]:
    for folder in (root, root / name / "raw"):
        places = [(file, folder / f"{file}{suffix}") for file in _MNIST_FILES for suffix in (".gz", "")]
        found = {file: path for file, path in places if path.is_file()}
        if len(found) == len(_MNIST_FILES):
            return list(found.values())
    return []


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Reads a uint8 array with so many dimensions. Unpacks .gz. Raises DataError. Layout: two zero bytes, type, number
    of dimensions; the sizes as uint32; the entries in row-major order."""
    # Not torchvision's reader: it costs 5 seconds of imports, wants files unpacked, and lets an overlong file pass.
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} can't be read: {error}") from error
    if len(content) > _LARGEST:
        raise DataError(f"{path} holds more than {_LARGEST >> 30} GB, the most that is read")
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes([0, 0, 8, dimensions]):  # 8: unsigned bytes
        raise DataError(f"{path} is not an IDX file of unsigned bytes in {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise DataError(f"{path} announces {math.prod(shape)} entries and holds {len(content) - start}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _load_cifar10(section: DataSection) -> Pool:
    """torchvision compares the checksums of the files before it unpickles them: no other file is ever unpickled."""
    # Looked for here because torchvision's import takes seconds.
    if section.root is not None and not (section.root / "cifar-10-batches-py").is_dir():
        raise DataError(f'data.root = "{section.root}" lacks {_CIFAR_FOLDER}')
    parts = [_torchvision(section, f"a folder with {_CIFAR_FOLDER}", train=train) for train in (True, False)]
    images = np.concatenate([part.data for part in parts])
    pool = _ten_classes(np.moveaxis(images, 3, 1), np.concatenate([part.targets for part in parts]))
    return replace(pool, tests=np.arange(len(pool)) >= len(parts[0].data))


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


def _load_har(section: DataSection) -> Pool:
    """UCI HAR: six activities of 30 people, each a client, in 561 features; training and test samples together."""
    source = Source.of(section, "the folder of the unpacked archive")
    within = source.path / "UCI HAR Dataset"
    files = [(within if (within / _HAR_FILES[0]).is_file() else source.path) / name for name in _HAR_FILES]
    if missing := [name for name, file in zip(_HAR_FILES, files, strict=True) if not file.is_file()]:
        raise source.wrong(f"it lacks {', '.join(missing)}")
    arrays: list[np.ndarray] = []
    for number, file in enumerate(files):  # twice features (n, 561), activities and subjects (n, 1)
        try:
            arrays.append(np.loadtxt(file, dtype=np.int64 if number % 3 else np.float32, ndmin=2))
        except (OSError, ValueError) as error:
            raise DataError(f"{file} can't be read: {first_line(error)}") from error
        first = number - number % 3
        values = arrays[number] = arrays[number].reshape(-1) if number % 3 else Source(file).finite("X", arrays[number])
        if len(values) != len(arrays[first]):
            raise DataError(f"{files[first]} has {len(arrays[first])} lines, {file} has {len(values)}")
        if number % 3 == 1 and (unknown := sorted({*values.tolist()} - {*range(1, 7)})):
            raise DataError(f"{file} holds activity {unknown[0]}: activities are 1 to 6")
    train, test = arrays[0], arrays[3]
    if train.shape[1] != test.shape[1]:
        raise source.wrong(f"training samples have {train.shape[1]} features, test samples {test.shape[1]}")
    x, y, subject = (np.concatenate(arrays[kind::3]) for kind in range(3))
    return Pool(x, y - 1, "classification", outputs=6, **source.owners("subject", subject))


_LOADERS: dict[str, Callable[[DataSection], Pool]] = {
    **{"digits": _load_digits, "cifar10": _load_cifar10},
    **dict.fromkeys(("mnist", "fashion-mnist"), _load_mnist),
    **dict.fromkeys(("school", "vehicle", "gleam"), load_matlab),
    **{"har": _load_har, "sensors": load_sensors, "npz": load_npz, "own": load_own, "table": load_table},
    **{"huggingface": load_huggingface, "leaf": load_leaf, "folders": load_folders},
}
