"""Classes and functions of a notebook or a script as the text of a file, which clients can load.

A client is another process: it does not see what a notebook has defined, and would begin a script's runs anew if it
executed that. So what is named is written down with all that it refers to: imports, classes, functions, plain values.
"""

import ast
import os
import symtable
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from .node.algorithms import installed
from .node.own_code import digest_of
from .topology.errors import UserError


def use_of(thing: Any) -> str:
    """Returns "FILE.py:NAME" of a class or function; one of __main__ is written into a file of its own. Raises Error
    where that cannot be done."""
    name, module = thing.__qualname__, sys.modules.get(thing.__module__)
    if not name.isidentifier():
        where = "is a lambda" if name.endswith("<lambda>") else "is defined inside something else"
        raise UserError(
            f"{name}: {where}, where no client finds it; define it on its own, at the top of a file or cell"
        )
    if thing.__module__ != "__main__":
        file, use = getattr(module, "__file__", None), f"{thing.__module__}:{name}"
        if not file or "site-packages" in Path(file).parts or use in installed().values():
            return use
        return f"{Path(file).resolve()}:{name}"
    text = _text_of(name)
    return f"{_written(text, f'{name.lower()}.py')}:{name}"


def _written(text: str, name: str) -> Path:
    """Returns a file with this text, which nobody else can change. Raises UserError."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "sheafgossip"
    folder = cache / "code" / digest_of(text)[:16]
    for place in (cache, folder.parent, folder):
        if not place.is_symlink():
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if place.is_symlink() or place.stat().st_uid != os.geteuid():
            raise UserError(f"{place}: is a link, or not yours; remove it, or set XDG_CACHE_HOME to a folder of yours")
        place.chmod(0o700)
    path, part = folder / name, folder / f"{name}.{os.getpid()}.{threading.get_ident()}"
    if path.is_symlink() or not path.is_file() or path.read_text(encoding="utf-8") != text:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    return path


def _text_of(wanted: str) -> str:
    """Returns the statements of __main__ that a name needs, in their order."""
    main, bound = vars(sys.modules["__main__"]), dict(_bound())
    if wanted not in bound:
        raise UserError(f"{wanted}: its text cannot be found; write it into a file")
    texts, left, seen = dict[tuple[int, int], str](), [wanted], set[str]()
    while left:
        name = left.pop()
        if name in seen or name not in main or name.startswith("__"):
            continue
        seen.add(name)
        if name not in bound:  # as of "a, b = 1, 2", or "from math import *"
            texts[-1, len(texts)] = _restated(name, main[name], wanted)
            continue
        place, node, text = bound[name]
        if isinstance(node, ast.Assign | ast.AnnAssign):
            texts[place] = f"{name} = {_literal(main.get(name), name, wanted)}"
            continue
        texts[place] = text
        left += _globals_of(text)
    return "\n\n".join(text for _, text in sorted(texts.items())) + "\n"


def _globals_of(text: str) -> Iterator[str]:
    """Yields the names that a statement, and all in it, takes from the module: a function's own are none of them."""
    tables = [symtable.symtable(text, "", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        is_module = table.get_type() == "module"
        yield from (each.get_name() for each in table.get_symbols() if each.is_global() or is_module)


def _bound() -> Iterator[tuple[str, tuple[tuple[int, int], ast.stmt, str]]]:
    """Yields (name, (place, statement, its text)) of what statements of __main__ bind, the latest last."""
    main = sys.modules["__main__"]
    file, cells = getattr(main, "__file__", None), getattr(main, "In", ())
    sources = list(cells) if cells else [Path(file).read_text(encoding="utf-8")] if file else []
    for number, source in enumerate(sources):
        try:
            statements = ast.parse(source).body
        except SyntaxError:  # a cell that did not run
            continue
        for node in statements:
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
            text = "\n".join(source.splitlines()[first - 1 : node.end_lineno])
            for name in _names(node):
                yield name, ((number, node.lineno), node, text)


def _names(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [each.asname or each.name.partition(".")[0] for each in names]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _restated(name: str, value: Any, user: str) -> str:
    """Returns a statement that binds the name to the same."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if module is not None and module.__name__ != "__main__" and getattr(module, name, None) is value:
        return f"from {module.__name__} import {name}"
    return f"{name} = {_literal(value, name, user)}"


def _literal(value: Any, name: str, user: str) -> str:
    try:
        if ast.literal_eval(repr(value)) == value:
            return repr(value)
    except (ValueError, SyntaxError):
        pass
    kind = type(value).__name__
    raise UserError(f"{user} uses {name}, a {kind}, which no client sees; make it a setting, or write both into a file")
