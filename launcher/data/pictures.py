"""Pictures, in files or in columns of tables, as arrays of one shape; and folders of them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from warnings import catch_warnings

import numpy as np

from ...metrics.config_file import require_plain_file
from ..config.data import DataSection
from .files import Source, first_line
from .pool import DataError, Pool, some

if TYPE_CHECKING:
    from PIL.Image import Image

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_GREY, _COLOUR = ("1", "L", "LA"), ("RGB", "RGBA", "P", "CMYK", "YCbCr")
_MOST_PIXELS = 1 << 26  # of one picture: a small file can announce any number
_MOST_FILES = 1_000_000
_LARGEST_LIST = 1 << 26
_PARTS = {"train", "val", "test"}  # val is for testing only where there is no test


class BadPicture(Exception):
    """What is wrong with a picture, in one line."""


@contextmanager
def opened(file: Path | IO[bytes]) -> "Iterator[Image]":
    """A picture of 8 bits, of which the size is known and the pixels are not yet decoded. Raises BadPicture, also for
    what PIL raises within."""
    from PIL import Image

    try:
        if isinstance(file, Path):
            require_plain_file(file)
        with catch_warnings(action="error", category=Image.DecompressionBombWarning):
            found = Image.open(file, formats=_FORMATS)
        with found as picture:
            if picture.width * picture.height > _MOST_PIXELS:
                raise BadPicture(f"it has {picture.width}x{picture.height} pixels, more than the {_MOST_PIXELS:,} read")
            if picture.mode not in _GREY + _COLOUR:
                raise BadPicture(f"it has mode {picture.mode}; allowed are 8 bits")
            yield picture
    except Image.UnidentifiedImageError as error:
        raise BadPicture(f"it is none of {', '.join(_FORMATS)}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning, OSError, ValueError, SyntaxError) as error:
        raise BadPicture(f"it can't be read: {first_line(error)}") from error


def pixels(picture: "Image", side: int = 0) -> np.ndarray:
    """Returns uint8 (height, width), with colours (height, width, 3). With ``side`` the picture is resized to side x
    side, its proportions disregarded, by PIL's bilinear filter over all pixels of the original (antialiased)."""
    from PIL import Image

    plain = picture.convert("L" if picture.mode in _GREY else "RGB")
    return np.asarray(plain.resize((side, side), Image.Resampling.BILINEAR) if side else plain)


def stacked(found: list[np.ndarray]) -> np.ndarray:
    """Returns (n, height, width), or (n, height, width, 3) where any has colours."""
    if len({each.ndim for each in found}) > 1:
        found = [each if each.ndim == 3 else np.repeat(each[:, :, None], 3, axis=2) for each in found]
    return np.stack(found)


@dataclass(frozen=True)
class _Labelled:
    path: Path
    first: str  # the folder directly below the root
    label: str  # the folder that it is in


def load_folders(section: DataSection) -> Pool:
    """ROOT/DOMAIN/CLASS/*.png as in PACS (Li, Yang, Song and Hospedales 2017, arXiv:1710.03077), or with a folder
    images between, as in Office-31 (Saenko, Kulis, Fritz and Darrell 2010): the domain is the owner. Domains train and
    test, or val, are an official split; ROOT/CLASS/*.png has neither. Classes are the sorted names of their folders.
    data.split = "official" takes the split of domains from the lists of PACS."""
    source = Source.of(section, "a folder of DOMAIN/CLASS/*.png, or of CLASS/*.png")
    if not source.path.is_dir():
        raise source.wrong("there is no such folder")
    files, with_domains = _files(source)
    x, owned = read_pictures(source, [file.path for file in files], section.image_size), dict[str, Any]()
    y, outputs = source.targets("the folders of classes", np.array([file.label for file in files]), "classification")
    firsts = np.array([file.first for file in files])
    names, counts = np.unique(firsts, return_counts=True)
    told = [f"{outputs} classes: {some(sorted({file.label for file in files}))}"]
    if with_domains and set(names.tolist()) <= _PARTS:
        if len(names) > 1:
            owned = {"tests": firsts == ("test" if "test" in names else "val")}
    elif with_domains:
        owned = source.owners("the folders of domains", firsts)
        held = [f"{name} ({count:,})" for name, count in zip(names.tolist(), counts.tolist(), strict=True)]
        told.append(f"{len(names)} domains: {some(held)}")
        if section.split == "official":
            owned["tests"] = _kept_for_testing(source, files, names.tolist())
    return Pool(x, y, "classification", outputs, scale=255.0, told=tuple(told), **owned)


def read_pictures(source: Source, paths: list[Path], wanted: int) -> np.ndarray:
    """Returns uint8 (n, channels, height, width); with ``wanted`` above 0 all are resized to that side. Raises
    DataError."""
    images: list[np.ndarray] = []
    for path in paths:
        try:
            with opened(path) as picture:
                side = (wanted,) * 2 if wanted else picture.size
                if not images:
                    source.require_room(f"{len(paths):,} pictures", 3 * side[0] * side[1] * len(paths))
                elif side != images[0].shape[1::-1]:
                    other = f"{paths[0]} {images[0].shape[1]}x{images[0].shape[0]}"
                    hint = "write data.image_size = 64, or another side, to resize all"
                    raise BadPicture(f"it has {side[0]}x{side[1]} pixels, {other}: {hint}")
                images.append(pixels(picture, wanted))
        except BadPicture as error:
            raise DataError(f"{path}: {error}") from error
    x = stacked(images)
    return x[:, None] if x.ndim == 3 else np.moveaxis(x, 3, 1)


def read_lines(path: Path) -> list[str]:
    """Raises DataError."""
    try:
        require_plain_file(path)
        if path.stat().st_size > _LARGEST_LIST:
            raise DataError(f"{path} has more than {_LARGEST_LIST >> 20} MB, the most that is read")
        return path.read_text("utf-8", errors="replace").splitlines()
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror or error}") from error


def _kept_for_testing(source: Source, files: list[_Labelled], domains: list[str]) -> np.ndarray:
    """Of PACS's lists DOMAIN_crossval_kfold.txt, with lines such as "photo/dog/056_0001.jpg 1", beside the domains, or
    in a folder splits beside theirs (github.com/KaiyangZhou/Dassl.pytorch, DATASETS.md)."""
    tests = set[str]()
    for domain in domains:
        name = f"{domain}_crossval_kfold.txt"
        lists = [path for path in (source.path / name, source.path.parent / "splits" / name) if path.is_file()]
        if not lists:
            raise source.wrong(f'data.split = "official" needs {name}, and there is none here or in ../splits')
        tests |= {line.rpartition(" ")[0] for line in read_lines(lists[0])}
    return np.array([f"{file.first}/{file.label}/{file.path.name}" in tests for file in files])


def _files(source: Source) -> tuple[list[_Labelled], bool]:
    """Returns the pictures in the order of their paths, and whether there is a folder of domains above the classes."""
    found: dict[bool, list[_Labelled]] = {False: [], True: []}
    for first in _entries(source.path, folders=True):
        found[False] += [_Labelled(path, first.name, first.name) for path in _entries(first, folders=False)]
        below = _entries(first, folders=True)
        if [each.name for each in below] == ["images"] and not _entries(below[0], folders=False):
            below = _entries(below[0], folders=True)
        for folder in below:
            found[True] += [_Labelled(path, first.name, folder.name) for path in _entries(folder, folders=False)]
        if sum(map(len, found.values())) > _MOST_FILES:
            raise source.wrong(f"it holds more than {_MOST_FILES:,} pictures, the most that are read")
    if found[False] and found[True]:
        places = f"{found[False][0].path} and {found[True][0].path}"
        raise source.wrong(f"pictures must all be in ROOT/DOMAIN/CLASS, or all in ROOT/CLASS; there are {places}")
    with_domains = bool(found[True])
    if not found[with_domains]:
        raise source.wrong(f"it holds no pictures in DOMAIN/CLASS or CLASS ({', '.join(_SUFFIXES)})")
    return found[with_domains], with_domains


def _entries(folder: Path, *, folders: bool) -> list[Path]:
    """Returns the folders, or the pictures, in it, sorted; nothing that is hidden."""
    try:
        with os.scandir(folder) as entries:
            every = [entry for entry in entries if not entry.name.startswith(".")]
        pictures = [entry for entry in every if entry.name.lower().endswith(_SUFFIXES)]
        kept = [entry.name for entry in (every if folders else pictures) if entry.is_dir() == folders]
    except OSError as error:
        raise DataError(f"{folder} can't be read: {error.strerror}") from error
    return [folder / name for name in sorted(kept)]
