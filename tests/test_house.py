"""The five folders' import line, and how large files, functions and classes may be; nothing is exempt but what is said.

What each check measures is printed by ``pytest -rP tests/test_house.py``."""

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("topology", "transport", "metrics", "node", "launcher", "api")
"""Each imports only itself and those before it."""
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in FILES}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def module_of(path: Path, root: Path = ROOT) -> str:
    """node/algorithms/base.py is node.algorithms.base; a folder is its __init__."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


def imported(node: ast.AST, path: Path, root: Path = ROOT) -> Iterator[str]:
    """ "folder.module" or "folder.module.name" of what an import statement of ours takes."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        package = path.relative_to(root).parent.parts
        package = () if package[:1] == ("api",) else package
        above = ["sheafgossip", *package][: 1 + len(package) - (node.level - 1)] if node.level else []
        module = ".".join([*above, *filter(None, [node.module])])
        names = [f"{module}.{alias.name}" for alias in node.names]
    else:
        return
    yield from (name.removeprefix("sheafgossip.") for name in names if name.startswith("sheafgossip."))


def at_module_level(node: ast.AST) -> Iterator[ast.AST]:
    """All below a node that is executed when its module is imported; not what only type checkers see."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from at_module_level(child)


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_imports_only_from_those_below_it(folder):
    allowed = FOLDERS[: FOLDERS.index(folder) + 1]
    found = [
        (f"{place(path)}:{node.lineno}", target)
        for path in FILES
        if path.relative_to(ROOT).parts[0] == folder
        for node in ast.walk(TREES[path])
        for target in imported(node, path)
    ]
    print(f"{folder}: {len(found)} imports")
    assert [each for each in found if each[1].split(".")[0] in FOLDERS and each[1].split(".")[0] not in allowed] == []


def test_no_files_import_each_other_in_a_circle():
    graph = networkx.DiGraph()
    for path, tree in TREES.items():
        for node in at_module_level(tree):
            for target in imported(node, path):
                module = target if target in MODULES else target.rpartition(".")[0]
                if module in MODULES and MODULES[module] != path:
                    graph.add_edge(place(path), place(MODULES[module]))
    print(f"{len(graph)} files, {graph.size()} imports between them")
    assert [sorted(circle) for circle in networkx.strongly_connected_components(graph) if len(circle) > 1] == []


def require_at_most(most: int, sizes: dict[str, int]) -> None:
    largest = sorted(sizes.items(), key=lambda each: -each[1])
    print(f"{len(sizes)} measured, the largest: {largest[:5]}")
    assert [each for each in largest if each[1] > most] == []


def definitions(*kinds: type) -> Iterator[tuple[str, ast.AST]]:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, kinds):
                yield f"{place(path)}:{node.lineno} {node.name}", node


def test_no_file_has_more_than_400_lines():
    require_at_most(400, {place(path): len(path.read_text().splitlines()) for path in FILES})


def test_no_function_has_more_than_50_lines():
    functions = definitions(ast.FunctionDef, ast.AsyncFunctionDef)
    require_at_most(50, {name: node.end_lineno - node.lineno + 1 for name, node in functions})


def is_of_the_command_line(name: str) -> bool:
    """Whether its parameters are a command's options."""
    return name.startswith(("launcher/cli", "launcher/commands/"))


def test_no_function_has_more_than_6_parameters():
    """Those of commands apart; what a dataclass generates is written nowhere."""
    counts = {}
    for name, node in definitions(ast.FunctionDef, ast.AsyncFunctionDef):
        if not is_of_the_command_line(name):
            names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            counts[name] = len(names) - (names[:1] in (["self"], ["cls"]))
    require_at_most(6, counts)


def test_no_class_has_more_than_20_methods():
    classes = definitions(ast.ClassDef)
    require_at_most(20, {name: sum(isinstance(each, Function) for each in node.body) for name, node in classes})


@pytest.mark.parametrize(
    ("where", "line", "target"),
    [
        ("node/process/main.py", "from ...metrics.records import COLLECTOR", "metrics.records.COLLECTOR"),
        ("node/algorithms/base.py", "from ...transport.peers import Peers", "transport.peers.Peers"),
        ("node/algorithms/base.py", "from . import gossip", "node.algorithms.gossip"),
        ("node/algorithms/base.py", "from ... import launcher", "launcher"),
        ("metrics/store.py", "def f():\n    import sheafgossip.node.client", "node.client"),
        ("metrics/store.py", "from sheafgossip.node import client", "node.client"),
        ("api/__init__.py", "from .launcher.cli import main", "launcher.cli.main"),
    ],
)
def test_imports_are_seen_however_they_are_written(where, line, target):
    tree = ast.parse(line)
    assert [name for node in ast.walk(tree) for name in imported(node, ROOT / where)] == [target]
