"""IDX, the file format of MNIST: a big-endian header, then bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from .errors import DataError

UNSIGNED_BYTE = 0x08
_LARGEST = 1 << 30


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """A uint8 array, read-only, with the given number of dimensions. Unpacks .gz. Raises DataError.

    Layout: two zero bytes, type, number of dimensions; the sizes as uint32; the entries in row-major order.
    """
    # Not torchvision's reader: it costs 5 seconds of imports, wants files unpacked, and lets an overlong file pass.
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} can't be read: {error}") from error
    if len(content) > _LARGEST:
        raise DataError(f"{path} holds more than {_LARGEST >> 30} GB, the most that is read")
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]):
        raise DataError(f"{path} is not an IDX file of unsigned bytes in {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise DataError(f"{path} announces {math.prod(shape)} entries and holds {len(content) - start}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
