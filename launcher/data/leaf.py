"""The JSON files of LEAF (Caldas et al. 2018, arXiv:1812.01097): samples of many users, each of whom is an owner."""

import re
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..config.data import DataSection
from .files import Source, first_line
from .pool import DataError, Pool

# As LEAF's models/utils/language_utils.py has them; from it follow the numbers of letters.
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
_UNKNOWN = len(LETTERS)
_NUMBERS = np.full(129, _UNKNOWN, np.uint8)  # by code point; the last stands for all others
_NUMBERS[np.frombuffer(LETTERS.encode(), np.uint8)] = np.arange(len(LETTERS))
_WORD = re.compile(r"[\w']+|[.,!?;]")  # from there, too
_SIDES = {28 * 28: 28, 128 * 128: 128}  # of the images that FEMNIST comes in
_TWEET = 5  # texts of a sample of Sent140: id, date, query, user, and what is written
_PARSED = 4  # times the size of a file: what its samples take while they are read


class _Json(msgspec.Struct):
    """What a user has; x is parsed user by user."""

    x: msgspec.Raw
    y: list[str | float]


class _File(msgspec.Struct):
    users: list[str]
    user_data: dict[str, _Json]
    num_samples: list[int] = []


class _User(NamedTuple):
    name: str
    tested: bool
    x: np.ndarray
    y: np.ndarray

    @property
    def form(self) -> tuple[Any, ...]:
        return self.x.shape[1:], self.x.dtype.name, self.y.dtype.name


def load_leaf(section: DataSection) -> Pool:
    """Folders train and test, as LEAF's preprocess.sh writes them, or a folder with data/train and data/test; or .json
    files without a split. A sample x is a list of numbers (28 x 28 or 128 x 128 of them: an image), a text with the
    letter after it as y (Shakespeare: places in LETTERS), or a row of five texts, of which the last one's words are
    counted (Sent140)."""
    source = Source.of(section, "LEAF's folder with train and test, or .json files")
    users = list(_users(section, source))
    if not users:
        raise source.wrong("its users have no samples")
    for each in users:
        if each.form != users[0].form:
            raise source.wrong(f"samples of {each.name} are {each.form}, of {users[0].name} {users[0].form}")
    sizes = [len(each.y) for each in users]
    owners = tuple(sorted({each.name for each in users}))
    place = {name: number for number, name in enumerate(owners)}
    client = np.repeat([place[each.name] for each in users], sizes)
    tests, told = _split(client, np.repeat([each.tested for each in users], sizes))
    x, y = np.concatenate([each.x for each in users]), np.concatenate([each.y for each in users])
    if y.dtype == np.uint8:  # letters
        if unknown := int((x == _UNKNOWN).sum() + (y == _UNKNOWN).sum()):
            told += (f"{unknown:,} letters that are not among LEAF's {len(LETTERS)} are read as blanks",)
        x, y = (np.where(numbers == _UNKNOWN, LETTERS.index(" "), numbers) for numbers in (x, y))
        labels, outputs = y.astype(np.int64), len(LETTERS)
    else:
        labels, outputs = source.targets("y", y, "classification")
    if x.shape[1] in _SIDES and x.dtype == np.float32:
        x = x.reshape(-1, 1, _SIDES[x.shape[1]], _SIDES[x.shape[1]])
    return Pool(x, labels, "classification", outputs, client=client, owners=owners, tests=tests, told=told)


def _split(client: np.ndarray, tests: np.ndarray) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Returns which samples are for testing, if there are some of either kind, and what is to be told of it."""
    if tests.all() or not tests.any():
        return None, ()
    if not np.intersect1d(client[tests], client[~tests]).size:
        return None, ("train and test have different users, so that each user's samples are split at random",)
    return tests, ()


def _users(section: DataSection, source: Source) -> Iterator[_User]:
    root = source.path
    if not root.exists():
        raise source.wrong("there is no such folder")
    within = next((folder for folder in (root, root / "data") if (folder / "train").is_dir()), None)
    folders = {"": root} if within is None else {"train": within / "train", "test": within / "test"}
    files = {part: [at] if at.is_file() else sorted(at.glob("*.json")) for part, at in folders.items()}
    if not any(files.values()):
        raise source.wrong("it holds neither folders train and test nor .json files")
    counted = 0
    for part, paths in files.items():
        names: set[str] = set()
        for path in paths:
            for name, found in _read(path).items():
                if name in names:
                    raise DataError(f"{path}: user {name[:80]} is in another file, too")
                names.add(name)
                counted += section.words * len(found.y)
                source.require_room("the table of words", counted)
                yield _user(section, path, name, found)._replace(tested=part == "test")


def _read(path: Path) -> dict[str, _Json]:
    """Returns the users of a file who have samples."""
    Source(path).require_file()
    Source(path).require_room("what it holds", _PARSED * path.stat().st_size)
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except (msgspec.MsgspecError, OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is no file of LEAF, or damaged: {first_line(error)}") from error
    if lacking := [name for name in file.users if name not in file.user_data]:
        raise DataError(f"{path}: user_data lacks {lacking[0][:80]}, one of users")
    for name, samples in zip(file.users, file.num_samples, strict=False):
        if len(file.user_data[name].y) != samples:
            raise DataError(f"{path}: num_samples says {samples} of {name[:80]}, who has {len(file.user_data[name].y)}")
    return {name: found for name, found in file.user_data.items() if found.y}


def _user(section: DataSection, path: Path, name: str, found: _Json) -> _User:
    def wrong(what: str) -> DataError:
        return DataError(f"{path}: user {name[:80]}: {what}")

    try:
        x = msgspec.json.decode(found.x, type=list)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise wrong(f"x: {first_line(error)}") from error
    if len(x) != len(found.y):
        raise wrong(f"x has {len(x)} samples and y has {len(found.y)}")
    numbers = all(isinstance(label, float) for label in found.y)
    if all(isinstance(text, str) for text in x):
        if numbers or {len(str(label)) for label in found.y} != {1} or len({len(text) for text in x}) != 1:
            said = f'x is text, such as "{x[0][:40]}", but not of one length with the next letter as y'
            raise wrong(f"{said}: read it by a function of yours, data.use")
        return _User(name, False, _letters(x), _letters(found.y)[:, 0])
    if not numbers:
        raise wrong("y must be numbers where x is no text")
    y = np.array(found.y)
    if all(isinstance(row, list) and len(row) == _TWEET and isinstance(row[-1], str) for row in x):
        if not section.words:
            raise wrong(
                "x is text: write data.words = 1000 to count words, or read it by a function of yours, data.use"
            )
        return _User(name, False, _counts([row[-1] for row in x], section.words), y)
    try:
        values = np.array(x, np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise wrong(f"x is neither numbers of one shape nor text: {first_line(error)}") from error
    if values.ndim != 2 or not values.size:
        raise wrong(f"x has shape {values.shape}; it must be (samples, numbers)")
    return _User(name, False, Source(path).finite(f"x of {name[:80]}", values), y)


def _letters(texts: list[Any]) -> np.ndarray:
    """Returns the places in LETTERS, uint8 (texts, letters)."""
    points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")
    return _NUMBERS[np.minimum(points, len(_NUMBERS) - 1)].reshape(len(texts), -1)


def _counts(texts: list[str], words: int) -> np.ndarray:
    """Returns how often words are in the texts, uint8 (texts, words)."""
    places = [(row, _place(word, words)) for row, text in enumerate(texts) for word in _WORD.findall(text)]
    rows, columns = np.array(places, np.int64).reshape(-1, 2).T
    counts = np.zeros((len(texts), words), np.int64)
    np.add.at(counts, (rows, columns), 1)
    return np.minimum(counts, 255).astype(np.uint8)


@lru_cache(maxsize=1 << 17)
def _place(word: str, words: int) -> int:
    """Words are told apart by their hash, without a vocabulary; some share a place."""
    return zlib.crc32(word.encode("utf-8", "surrogatepass")) % words
