"""Code that the user names, and nothing else: "FILE.py:NAME", or "package.module:NAME" of an installed package."""

import difflib
import hashlib
import importlib
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ..topology.errors import UserError

FOLDER = "code"  # of a run, with the text of its files
_LARGEST = 4 << 20  # bytes of a file


class _Loaded(NamedTuple):
    module: ModuleType
    beside: dict[Path, str]  # files of its folder, or below, that it has imported, and the digests of their texts


_loaded: dict[tuple[str, str], _Loaded] = {}  # {(path of a file, digest of its text): what it has become}
_asked_for: set[str] = set()  # what of packages has been named
_imported_beside: set[str] = set()  # names of modules that files have imported from their folders


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
    return _named(use, _executed(use, _read(use, use.file), use.file.parent))


def is_loaded(text: str, key: str) -> bool:
    """Tells whether the user has had it loaded before: ``load`` would execute nothing then."""
    use = Use.of(text, key)
    return text in _asked_for if use.file is None else _found(use, _read(use, use.file)) is not None


def load_copy(text: str, key: str, folder: Path, digests: Mapping[str, str]) -> Any:
    """Does the same in a process of a run, whose ``folder`` has copies of the files. ``digests`` are those of the files
    that the run began with. Raises CodeError."""
    use = Use.of(text, key)
    if use.file is None:
        return _named(use, _imported(use))
    digest = digests.get(use.file.name, "")
    if loaded := _loaded.get((str(use.file), digest)):
        return _named(use, loaded.module)
    copy = folder / FOLDER / use.file.name
    text = _read(use, copy)
    if digest_of(text) != digest:
        raise use.error(f"{copy} is another than the run began with")
    return _named(use, _executed(use, text, copy.parent))


def sources(uses: Mapping[str, str]) -> dict[str, str]:
    """Returns {path: text} of the files of {key: what is named}, which are loaded, and of those that they import from
    their own folder, from which paths start. Raises CodeError."""
    found: dict[str, str] = {}
    for key, text in uses.items():
        use = Use.of(text, key)
        load(text, key)
        if use.file is not None:
            own = _read(use, use.file)
            loaded = _loaded.get((str(use.file), digest_of(own)))
            for path in (use.file, *(loaded.beside if loaded else ())):
                written, name = _read(use, path), path.relative_to(use.file.parent).as_posix()
                if found.setdefault(name, written) != written:
                    raise use.error(f"another key needs another file called {name}; give one of them another name")
    return found


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


def _executed(use: Use, text: str, folder: Path) -> ModuleType:
    """``folder`` is where it may import other files from."""
    if module := _found(use, text):
        return module
    digest = digest_of(text)
    module = ModuleType(f"{__name__}.{Path(use.text).stem}_{digest[:12]}")
    module.__file__ = str(use.file)
    for name in _imported_beside:  # those of another folder, or from before a change
        sys.modules.pop(name, None)
    before = set(sys.modules)
    sys.modules[module.__name__] = module  # dataclasses look there for the names in annotations
    try:
        with _importing_from(folder):
            exec(compile(text, str(use.file), "exec"), module.__dict__)  # it is what the user names
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise use.error(f"cannot be loaded: {described(error, [str(use.file)])}") from error
    beside = dict(_imported_from(folder))
    _imported_beside.update(beside.keys() - before)
    _loaded[str(use.file), digest] = _Loaded(module, {path: digest_of(_read(use, path)) for path in beside.values()})
    return module


def _found(use: Use, text: str) -> ModuleType | None:
    """Returns what a file with this text has become before, if nothing that it imports from its folder has changed."""
    loaded = _loaded.get((str(use.file), digest_of(text)))
    if loaded is None:
        return None
    try:
        return loaded.module if all(digest_of(_read(use, path)) == was for path, was in loaded.beside.items()) else None
    except CodeError:
        return None


def _imported(use: Use) -> ModuleType:
    try:
        return importlib.import_module(use.module)
    except (Exception, SystemExit) as error:
        raise use.error(f"cannot be loaded: {described(error)}") from error


def _imported_from(folder: Path) -> Iterator[tuple[str, Path]]:
    for name, module in list(sys.modules.items()):
        place, file = folder / name.replace(".", "/"), getattr(module, "__file__", None)
        if file in (str(place.with_suffix(".py")), str(place / "__init__.py")):
            yield name, Path(file)


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """A file may import others beside it: first of all while it is executed, and last afterwards."""
    name = str(folder.resolve())
    sys.path.insert(0, name)
    try:
        yield
    finally:
        sys.path.remove(name)
        if name not in sys.path:
            sys.path.append(name)


def blamed(error: BaseException) -> str:
    """Returns what an error says, in a line, with the last line of the user's code that took part in it; "" where none
    did."""
    files = {loaded.module.__file__ for loaded in _loaded.values()}
    frames = traceback.extract_tb(error.__traceback__)
    return "" if files.isdisjoint(frame.filename for frame in frames) else described(error, files)


def described(error: BaseException, files: Collection[str | None] = ()) -> str:
    """Returns an error in a line, with the last line of one of the files that took part in it."""
    said = f"{type(error).__name__}: {error}".rstrip(": ")
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
