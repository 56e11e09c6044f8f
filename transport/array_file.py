"""Files of arrays: safetensors that are there whole or not at all, and that tell whether they still are as written: the
SHA-256 of the whole file, with zeros in its own place, stands first in its metadata."""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from .environment import failpoint

_BEFORE_DIGEST = b'{"__metadata__":{"sha256":"'
_PLACE = slice(8 + len(_BEFORE_DIGEST), 8 + len(_BEFORE_DIGEST) + 64)
_NO_DIGEST = "0" * 64
_TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


class DamagedFile(Exception):
    """A file that is not as it was written; one line for the user."""


class ArrayFile:
    """The same arrays and metadata have the same ``digest``. Raises TypeError for arrays that are not of numbers."""

    def __init__(self, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None):
        contents, parts, end = {}, [], 0
        for name, array in sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
            if array.dtype.name not in _TYPES:
                raise TypeError(f"{name} is of {array.dtype.name}, which no file of arrays can hold")
            little = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
            place = [end, end := end + little.size]
            contents[name] = {"dtype": _TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": place}
            parts.append(little.data)
        told = {"__metadata__": {"sha256": _NO_DIGEST, **(metadata or {})}}
        header = json.dumps(told | contents, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        start = bytearray(len(header).to_bytes(8, "little") + header)
        sha256 = hashlib.sha256(start)
        for part in parts:
            sha256.update(part)
        self.digest = sha256.hexdigest()
        start[_PLACE] = self.digest.encode()
        self._parts: list[bytearray | memoryview] = [start, *parts]

    def save(self, path: Path, *, lasting: bool = False) -> None:
        """``lasting``: not even a power cut undoes it any more. Raises OSError, and leaves what was there before."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.part")
        try:
            with unfinished.open("wb") as file:
                file.writelines(self._parts)
                if lasting:
                    file.flush()
                    os.fsync(file.fileno())
            failpoint("file written")
            unfinished.replace(path)
        except OSError:
            with suppress(OSError):
                unfinished.unlink()
            raise
        if lasting:
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def digest_of(path: Path) -> str | None:
    """Checks the digest that the file bears; None where it bears none, as older ones. Raises as ``read`` does."""
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        start = file.read(_PLACE.stop)
        if start[8 : _PLACE.start] != _BEFORE_DIGEST:
            from safetensors import SafetensorError, safe_open

            try:
                with safe_open(path, framework="numpy"):
                    return None
            except SafetensorError as error:
                raise DamagedFile(f"{path}: is damaged: {error}") from None
        sha256.update(start[: _PLACE.start] + _NO_DIGEST.encode())
        while chunk := file.read(1 << 20):
            sha256.update(chunk)
    if start[_PLACE] != sha256.hexdigest().encode():
        raise DamagedFile(f"{path}: is damaged: it is not as it was written")
    return sha256.hexdigest()


def read(path: Path) -> dict[str, np.ndarray]:
    """Raises DamagedFile, FileNotFoundError."""
    from safetensors.numpy import load_file

    digest_of(path)
    return load_file(path)
