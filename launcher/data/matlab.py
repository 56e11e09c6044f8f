"""Multi-task data in MATLAB's files. They are read here, as a damaged one can crash SciPy's reader."""

import math
import struct
import zlib
from collections.abc import Iterator

import numpy as np

from ..config.data import DataSection
from .files import Source
from .pool import Pool

# "MAT-File Level 5 File Format", of MathWorks: the types of elements, and the classes of arrays.
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_MATRIX, _COMPRESSED = 14, 15
_CELLS, _NUMBERS = 1, range(6, 16)
_COMPLEX = 0x800  # among the flags
_DAMAGED = (struct.error, zlib.error, ValueError, IndexError, KeyError)


def load_matlab(section: DataSection) -> Pool:
    """School, vehicle, gleam, a task a client (docs/data.md). The cell arrays X and Y have an entry a task: X{t} is
    (n_t, features), Y{t} holds n_t numbers; of two labels, -1 and 1 in the published files, the smaller one is
    class 0."""
    source = Source.of(section, f"{section.dataset}.mat, or the folder with it")
    if source.path.is_dir():
        source = Source(source.path / f"{section.dataset}.mat")
    inputs, outcomes = _inputs_and_outcomes(source)
    if len(inputs) != len(outcomes):
        raise source.wrong(f"X has {len(inputs)} cells and Y has {len(outcomes)}")
    features = inputs[0].shape[-1]
    for task, (x, y) in enumerate(zip(inputs, outcomes, strict=True), start=1):
        if x.ndim != 2 or x.shape[1] != features or x.size == 0:
            raise source.wrong(f"X{{{task}}} has shape {x.shape}; needed is (samples, {features}), as in X{{1}}")
        if y.size != len(x) or max(y.shape) != y.size:
            raise source.wrong(f"Y{{{task}}} has shape {y.shape}, but X{{{task}}} has {len(x)} samples")
    owner = np.repeat(np.arange(len(inputs)), [len(x) for x in inputs])
    x, y = source.finite("X", np.concatenate(inputs)), np.concatenate([y.reshape(-1) for y in outcomes])
    if section.dataset == "school":
        return Pool(x, source.finite("Y", y)[:, None], "regression", outputs=1, client=owner)
    labels, classes = source.codes("Y", y)
    if len(labels) != 2:
        raise source.wrong(f"Y holds {len(labels)} different labels; needed are two, like -1 and 1")
    return Pool(x, classes, "classification", outputs=2, client=owner)


def _inputs_and_outcomes(source: Source) -> tuple[list[np.ndarray], list[np.ndarray]]:
    source.require_file()
    source.require_room("what it holds", source.path.stat().st_size)
    content = source.path.read_bytes()
    order = {b"IM": "<", b"MI": ">"}.get(content[126:128], "")
    if order and struct.unpack_from(f"{order}H", content, 124)[0] == 0x200:
        raise source.wrong("this is a MATLAB file of version 7.3; save it with -v7")
    try:
        if not order:
            raise ValueError("its header is another")
        found = {name: cells for name, cells in _variables(source, memoryview(content)[128:], order) if name in "XY"}
    except _DAMAGED as error:
        raise source.wrong("this is not a MATLAB file, or it is damaged") from error
    if missing := [name for name in "XY" if name not in found]:
        raise source.wrong(f"it lacks {' and '.join(missing)}; needed are cells X and Y")
    return found["X"], found["Y"]


def _variables(source: Source, data: memoryview, order: str) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Yields the name of each variable, and of X and Y the cells."""
    for kind, variable in _elements(data, order):
        if kind == _COMPRESSED:
            [(kind, variable)] = _elements(_unpacked(source, variable, order), order)
        if kind != _MATRIX:
            continue
        shape, name, what, parts = _matrix(variable, order)
        if name not in ("X", "Y"):
            continue
        if what != _CELLS or not parts or max(shape) != len(parts) or math.prod(shape) != len(parts):
            raise source.wrong(f"{name} has shape {shape}, or holds no cells; needed is a row of cells, one a task")
        yield name, [_numbers(source, f"{name}{{{task}}}", part, order) for task, part in enumerate(parts, start=1)]


def _unpacked(source: Source, data: memoryview, order: str) -> memoryview:
    """Unpacks as much as the element inside announces; more is damage."""
    stream = zlib.decompressobj()
    tag = stream.decompress(data, 8)
    size = struct.unpack(f"{order}II", tag)[1]
    source.require_room("what it holds", size)
    content = tag + stream.decompress(stream.unconsumed_tail, max(size, 1))
    if stream.decompress(stream.unconsumed_tail, 1) or not stream.eof:  # the end has a checksum
        raise ValueError("more or less is packed than announced")
    return memoryview(content)


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Yields the type and the bytes of each. Raises ValueError or struct.error where they end early."""
    at = 0
    while at < len(data):
        kind, size = struct.unpack_from(f"{order}II", data, at)
        start = at + 8
        if kind >> 16:  # a small one: its bytes, at most four, stand in place of its size
            kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
        if start + size > len(data):
            raise ValueError("an element ends early")
        yield kind, data[start : start + size]
        at = start + size if kind == _COMPRESSED else at + 8 + (-(-size // 8) * 8 if start == at + 8 else 0)


def _matrix(data: memoryview, order: str) -> tuple[tuple[int, ...], str, int, list[tuple[int, memoryview]]]:
    """Returns shape, name, class (0 where numbers are complex) and what follows."""
    (_, flags), (_, shape), (_, name), *parts = _elements(data, order)
    word = struct.unpack_from(f"{order}I", flags)[0]
    lengths = np.frombuffer(shape, f"{order}i4").tolist()
    if len(lengths) < 2 or min(lengths) < 0:
        raise ValueError("a shape is none")
    return tuple(lengths), bytes(name).decode("latin-1"), 0 if word & _COMPLEX else word & 0xFF, parts


def _numbers(source: Source, name: str, part: tuple[int, memoryview], order: str) -> np.ndarray:
    if part[0] != _MATRIX:
        raise ValueError("a cell is no array")
    if not part[1]:  # an empty one is written without anything
        return np.empty((0, 0))
    shape, _, what, parts = _matrix(part[1], order)
    if what not in _NUMBERS:
        raise source.wrong(f"{name} is not an array of whole or real numbers")
    [(kind, content)] = parts
    values = np.frombuffer(content, f"{order}{_TYPES[kind]}")
    return values.astype(values.dtype.newbyteorder("=")).reshape(shape, order="F")
