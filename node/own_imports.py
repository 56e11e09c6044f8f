"""Imports of files beside a user's own, from texts that have been read once."""

import ast
import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from itertools import accumulate
from pathlib import Path
from types import ModuleType


class Beside(MetaPathFinder, Loader):
    """First of all while the user's file is executed, last afterwards, and never in place of Python's own modules.
    ``read`` returns the text of a file by its path from ``folder``, where the user has it; None where there is none.
    ``is_folder`` tells the same of a folder. Neither compiled files nor search paths have a part in it."""

    def __init__(self, folder: Path, read: Callable[[str], str | None], is_folder: Callable[[str], bool]):
        self._folder, self.read, self._is_folder = folder, read, is_folder
        self.texts: dict[str, str] = {}  # of files that the user's own imports, directly or not, or may import later
        self.modules: set[str] = set()  # that have been imported
        self._followed: set[str] = set()
        self._specs: dict[str, tuple[str, str]] = {}  # {module: (file, text)}

    def origin(self, name: str) -> str:
        return str(self._folder / name)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        found = self._find(fullname) or self._find_folder(fullname)
        if found is None:
            return None
        self._specs[fullname] = found
        name, text = found
        if text:
            self.texts[name] = text
        spec = spec_from_loader(fullname, self, origin=self.origin(name), is_package=name.endswith("/__init__.py"))
        assert spec
        spec.has_location = True
        return spec

    def exec_module(self, module: ModuleType) -> None:
        self.modules.add(module.__name__)
        execute(self._specs[module.__name__][1], self.origin(self._specs[module.__name__][0]), module)

    def _find(self, module: str) -> tuple[str, str] | None:
        """(file, its text) of a module."""
        place = module.replace(".", "/")
        if module.partition(".")[0] not in sys.stdlib_module_names | {"sheafgossip"}:
            for name in (f"{place}/__init__.py", f"{place}.py"):
                if (text := self.read(name)) is not None:
                    return name, text
        return None

    def _find_folder(self, module: str) -> tuple[str, str] | None:
        place = module.replace(".", "/")
        with suppress(ImportError, ValueError):
            if self._is_folder(place) and PathFinder.find_spec(module) is None:
                return f"{place}/__init__.py", ""
        return None

    def follow(self, text: str, package: str = "") -> None:
        """Notes the texts of all files that one with this text may import, also in its functions."""
        with suppress(SyntaxError, ValueError):  # it is told when it is executed
            for each in ast.walk(ast.parse(text)):
                for module in filter(self._is_beside, _imported_by(each, package)):
                    for part in accumulate(module.split("."), "{}.{}".format):
                        if (found := self._find(part)) and found[0] not in self._followed:
                            self._followed.add(found[0])
                            self.texts[found[0]] = found[1]
                            self.follow(found[1], part if found[0].endswith("__init__.py") else part.rpartition(".")[0])

    def _is_beside(self, module: str) -> bool:
        """False of what has already been imported from elsewhere."""
        first = module.partition(".")[0]
        return first in self.modules or first not in sys.modules

    @contextmanager
    def importing(self) -> Iterator[None]:
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            others = (each for each in sys.meta_path if getattr(each, "_folder", None) != self._folder)
            sys.meta_path[:] = [*others, self]  # in place of those from before a change


def _imported_by(statement: ast.AST, package: str) -> list[str]:
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if not isinstance(statement, ast.ImportFrom):
        return []
    above = package.split(".")[: len(package.split(".")) - statement.level + 1] if statement.level else []
    base = ".".join(filter(None, [*above, statement.module]))
    return [f"{base}.{alias.name}" if base else alias.name for alias in statement.names] + ([base] if base else [])


def execute(text: str, file: str, module: ModuleType) -> None:
    """Errors show lines of this text, whatever stands in the file by then."""
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    exec(compile(text, file, "exec"), module.__dict__)  # it is what the user names, or imports there
