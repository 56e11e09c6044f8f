"""The data sets by name, and those that are bundled or drawn."""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...topology.randomness import generator
from ..config.data import DataSection
from .files import Source, first_line, load_npz, load_table
from .huggingface import load_huggingface
from .images import images_of, load_cifar10, load_cifar100, load_emnist, load_mnist
from .leaf import load_leaf
from .matlab import load_matlab
from .own import load_own
from .picture_sets import load_adience, load_compcars
from .pictures import load_folders
from .pool import DataError, Pool
from .sensors import load_sensors

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
    return images_of(table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1], 10, scale=16.0)


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
    tests = np.arange(len(x)) >= len(train)
    return Pool(x, y - 1, "classification", outputs=6, tests=tests, **source.owners("subject", subject))


_LOADERS: dict[str, Callable[[DataSection], Pool]] = {
    **{"digits": _load_digits, "emnist": load_emnist, "cifar10": load_cifar10, "cifar100": load_cifar100},
    **dict.fromkeys(("mnist", "fashion-mnist"), load_mnist),
    **dict.fromkeys(("school", "vehicle", "gleam"), load_matlab),
    **{"har": _load_har, "sensors": load_sensors, "npz": load_npz, "own": load_own, "table": load_table},
    **{"huggingface": load_huggingface, "leaf": load_leaf, "folders": load_folders},
    **{"compcars": load_compcars, "adience": load_adience},
}
