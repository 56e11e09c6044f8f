"""Code that the user names, and nothing else: "FILE.py:NAME", or "package.module:NAME" of an installed package. A file
is read once: what is executed is the text whose digest is told, and that a run's folder keeps."""

import difflib
import hashlib
import importlib
import random
import sys
import threading
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ..topology.errors import UserError
from ..topology.randomness import generator
from .mixed_builds import importing
from .own_imports import Beside, execute

FOLDER = "code"  # of a run, with the text of its files
_LARGEST = 4 << 20  # bytes of a file
_LONGEST = 400  # characters of an error's message


class _Loaded(NamedTuple):
    module: ModuleType
    text: str
    beside: Beside


_loaded: dict[tuple[str, str], _Loaded] = {}  # {(path of a file, digest of its text): what it has become}
_asked_for: set[str] = set()  # what of packages has been named
_being_loaded: set[str] = set()  # files
_lock = threading.RLock()


class CodeError(UserError):
    """What was named cannot be used; a line that names the key, and the user's own line where that is at fault."""


@dataclass(frozen=True)
class Use:
    """``key`` is where it is written, for messages; ``file`` is None where a module of a package is named."""

    key: str
    text: str
    file: Path | None
    module: str
    name: str

    @classmethod
    def of(cls, text: str, key: str) -> "Use":
        """Raises CodeError."""
        where, colon, name = text.rpartition(":")
        is_file = where.endswith(".py")
        if not colon or not name.isidentifier() or not (is_file or all(map(str.isidentifier, where.split(".")))):
            raise CodeError(f'{key} = {text!r}: write "FILE.py:NAME", or "package.module:NAME"')
        return cls(key, text, Path(where) if is_file else None, "" if is_file else where, name)

    def error(self, why: str) -> CodeError:
        return CodeError(f"{self.key} = {self.text!r}: {why}")


def load(text: str, key: str) -> Any:
    """Returns what the user names. Its file is executed once, and again only after a change. Raises CodeError."""
    use = Use.of(text, key)
    if use.file is None:
        _asked_for.add(text)
        return _named(use, _imported(use))
    return _named(use, _at_home(use).module)


def is_loaded(text: str, key: str) -> bool:
    """Tells whether the user has had it loaded before: ``load`` would execute nothing then."""
    use = Use.of(text, key)
    return text in _asked_for if use.file is None else _found(use, _read(use, use.file)) is not None


def load_copy(text: str, key: str, folder: Path, digests: Mapping[str, str]) -> Any:
    """Does the same in a process of a run, whose ``folder`` has copies of the files. ``digests`` are those of the files
    that the run began with: whatever else lies there is not executed. Raises CodeError."""
    use = Use.of(text, key)
    if use.file is None:
        return _named(use, _imported(use))
    if loaded := _loaded.get((str(use.file), digests.get(use.file.name, ""))):
        return _named(use, loaded.module)

    def read(name: str) -> str | None:
        if name not in digests:
            return None
        copy = folder / FOLDER / name
        if digest_of(text := _read(use, copy)) != digests[name]:
            raise use.error(f"{copy} is another than the run began with")
        return text

    if (own := read(use.file.name)) is None:
        raise use.error("is no file that the run began with")
    is_folder = lambda place: any(name.startswith(f"{place}/") for name in digests)  # noqa: E731
    return _named(use, _executed(use, own, Beside(use.file.parent, read, is_folder)).module)


def sources(uses: Mapping[str, str]) -> dict[str, str]:
    """Returns {path: text} of the files of {key: what is named}, which are loaded, and of those beside them that they
    import; paths start from their folder. Raises CodeError."""
    found: dict[str, str] = {}
    for key, text in uses.items():
        use = Use.of(text, key)
        if use.file is None:
            _imported(use)
            continue
        loaded = _at_home(use)
        for name, written in {use.file.name: loaded.text, **loaded.beside.texts}.items():
            if found.setdefault(name, written) != written:
                raise use.error(f"another key needs another file called {name}; give one of them another name")
    return found


def seed(run: int, *key: int) -> None:
    """What the user's code draws from generators that serve a whole process follows from the run's seed."""
    draws = generator(run, "generators of the process", *key)
    random.seed(int(draws.integers(1 << 62)))
    np.random.seed(int(draws.integers(1 << 32)))
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(int(draws.integers(1 << 62)))


@contextmanager
def seeded() -> Iterator[None]:
    """Does so for what makes data, which every run is to find the same, and leaves the generators as they were."""
    torch = sys.modules.get("torch")
    before = random.getstate(), np.random.get_state(), torch and torch.default_generator.get_state()
    seed(0)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        if torch:
            torch.default_generator.set_state(before[2])


def digests(uses: Mapping[str, str]) -> dict[str, str]:
    return {name: digest_of(text) for name, text in sources(uses).items()}


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(use: Use, path: Path) -> str:
    try:
        if not path.is_file():
            raise use.error("is no file" if path.exists() else "there is no such file")
        if path.stat().st_size > _LARGEST:
            raise use.error(f"is larger than {_LARGEST >> 20} MB")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise use.error(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _at_home(use: Use) -> _Loaded:
    """What the file is where the user has it."""
    assert use.file
    folder, text = use.file.parent, _read(use, use.file)

    def read(name: str) -> str | None:
        return _read(use, folder / name) if (folder / name).is_file() else None

    with _lock:
        return _found(use, text) or _executed(use, text, Beside(folder, read, lambda place: (folder / place).is_dir()))


def _executed(use: Use, text: str, beside: Beside) -> _Loaded:
    file, digest = str(use.file), digest_of(text)
    module = ModuleType(f"{__name__}.{Path(file).stem}_{digest_of(file + text)[:12]}")
    module.__file__, module.__package__ = file, ""
    if file in _being_loaded:
        raise use.error('makes runs of itself while it is loaded: that has to stand below if __name__ == "__main__"')
    for name in (name for loaded in _loaded.values() for name in loaded.beside.modules):
        sys.modules.pop(name, None)  # those of another folder, or from before a change
    sys.modules[module.__name__] = module  # dataclasses look there for the names in annotations
    _being_loaded.add(file)
    try:
        with beside.importing():
            importing(lambda: execute(text, file, module))
        beside.follow(text)
    except BaseException as error:
        sys.modules.pop(module.__name__)
        if isinstance(error, CodeError) or not isinstance(error, (Exception, SystemExit)):
            raise
        told = described(error, [file, *map(beside.origin, beside.texts)])
        raise use.error(f"cannot be loaded: {told}") from error
    finally:
        _being_loaded.remove(file)
    _loaded[file, digest] = _Loaded(module, text, beside)
    return _loaded[file, digest]


def _found(use: Use, text: str) -> _Loaded | None:
    """Returns what a file with this text has become before, if nothing that it imports from its folder has changed."""
    loaded = _loaded.get((str(use.file), digest_of(text)))
    if loaded is None:
        return None
    try:
        unchanged = all(loaded.beside.read(name) == was for name, was in loaded.beside.texts.items())
    except CodeError:
        return None
    return loaded if unchanged else None


def _imported(use: Use) -> ModuleType:
    try:
        return importing(lambda: importlib.import_module(use.module))
    except (Exception, SystemExit) as error:
        raise use.error(f"cannot be loaded: {described(error)}") from error


def blamed(error: BaseException) -> str:
    """Returns what an error says, in a line, with the last line of the user's code that took part in it; "" where none
    did."""
    files = {loaded.module.__file__ for loaded in _loaded.values()}
    files |= {loaded.beside.origin(name) for loaded in _loaded.values() for name in loaded.beside.texts}
    frames = traceback.extract_tb(error.__traceback__)
    return "" if files.isdisjoint(frame.filename for frame in frames) else described(error, files)


def described(error: BaseException, files: Collection[str | None] = ()) -> str:
    """Returns an error in a line, with the last line of one of the files that took part in it."""
    said = f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST]}".rstrip(": ")
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}, line {error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    if not frames:
        return said
    last = frames[-1]
    return f"{said} ({Path(last.filename).name}, line {last.lineno}, in {last.name}: {last.line})"


def _named(use: Use, module: ModuleType) -> Any:
    if use.name not in vars(module) and not hasattr(module, use.name):
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        close = difflib.get_close_matches(use.name, own, n=1)
        hint = f" (did you mean {close[0]}?)" if close else f"; it defines {', '.join(own[:8]) or 'nothing'}"
        raise use.error(f"has no {use.name}{hint}")
    return getattr(module, use.name)
