"""The five folders' import line, and how large files, functions and classes may be; nothing is exempt but what is said.
What each check measures is printed by ``pytest -rP tests/test_house.py``."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("topology", "transport", "metrics", "node", "launcher", "api")
"""Each imports only itself and those before it."""
FILES = {str(path.relative_to(ROOT)): path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))}
MODULES = {place.removesuffix(".py").removesuffix("/__init__").replace("/", "."): place for place in FILES}
"""node/algorithms/base.py is node.algorithms.base; a folder is its __init__."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def trees() -> dict[str, ast.Module]:
    return {place: ast.parse(path.read_text()) for place, path in FILES.items()}


def imported(node: ast.AST, place: str) -> list[str]:
    """ "folder.module" or "folder.module.name" of what an import statement of ours takes."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
    if isinstance(node, ast.ImportFrom):
        package = [] if place.startswith("api/") else place.split("/")[:-1]
        above = ["sheafgossip", *package][: 2 + len(package) - node.level] if node.level else []
        names = [".".join([*above, *filter(None, [node.module]), name]) for name in names]
    return [name.removeprefix("sheafgossip.") for name in names if name.startswith("sheafgossip.")]


def at_module_level(node: ast.AST) -> Iterator[ast.AST]:
    """All below a node that is executed when its module is imported; not what only type checkers see."""
    for child in ast.iter_child_nodes(node):
        unseen = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not unseen and not isinstance(child, (*FUNCTIONS, ast.Lambda)):
            yield child
            yield from at_module_level(child)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_imports_only_from_those_below_it(folder):
    found = [
        (f"{place}:{node.lineno}", target)
        for place in FILES
        if place.startswith(f"{folder}/")
        for node in ast.walk(trees()[place])
        for target in imported(node, place)
    ]
    print(f"{folder}: {len(found)} imports")
    above = FOLDERS[FOLDERS.index(folder) + 1 :]
    assert [each for each in found if each[1].split(".")[0] in above] == []


def test_no_files_import_each_other_in_a_circle():
    graph = networkx.DiGraph()
    for place, tree in trees().items():
        targets = [target for node in at_module_level(tree) for target in imported(node, place)]
        modules = [MODULES.get(target) or MODULES.get(target.rpartition(".")[0]) for target in targets]
        graph.add_edges_from((place, module) for module in modules if module not in (None, place))
    print(f"{len(graph)} files, {graph.size()} imports between them")
    assert [sorted(circle) for circle in networkx.strongly_connected_components(graph) if len(circle) > 1] == []


def sizes_of(kinds: type | tuple[type, ...], size) -> dict[str, int]:
    return {
        f"{place}:{node.lineno} {node.name}": size(node)
        for place, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, kinds)
    }


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def parameters_of_others() -> dict[str, int]:
    commands = ("launcher/cli", "launcher/commands/")
    return {name: count for name, count in sizes_of(FUNCTIONS, parameters).items() if not name.startswith(commands)}


def methods(node: ast.ClassDef) -> int:
    return sum(isinstance(each, FUNCTIONS) for each in node.body)


SIZES = {  # what a dataclass generates is written nowhere
    "lines of a file": (400, lambda: {place: len(path.read_text().splitlines()) for place, path in FILES.items()}),
    "lines of a function": (50, lambda: sizes_of(FUNCTIONS, lambda node: node.end_lineno - node.lineno + 1)),
    "parameters of a function that is no command": (6, parameters_of_others),
    "methods of a class": (20, lambda: sizes_of(ast.ClassDef, methods)),
}


@pytest.mark.parametrize("what", SIZES)
def test_nothing_is_too_large(what):
    most, measure = SIZES[what]
    sizes = measure()
    largest = sorted(sizes.items(), key=lambda each: -each[1])
    print(f"{len(sizes)} measured, the largest: {largest[:5]}")
    assert [each for each in largest if each[1] > most] == []


@pytest.mark.parametrize(
    ("where", "line", "target"),
    [
        ("node/algorithms/base.py", "from . import local", "node.algorithms.local"),
        ("node/algorithms/base.py", "from ... import launcher", "launcher"),
        ("metrics/store.py", "def f():\n    import sheafgossip.node.client", "node.client"),
        ("api/__init__.py", "from .launcher.cli import main", "launcher.cli.main"),
    ],
)
def test_imports_are_seen_however_they_are_written(where, line, target):
    assert [name for node in ast.walk(ast.parse(line)) for name in imported(node, where)] == [target]
