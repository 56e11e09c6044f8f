"""Which room may import which: launcher -> node -> transport -> topology, and everyone the modules of FOR_ALL."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BELOW = {
    "launcher": ("node", "transport", "topology", "metrics"),
    "node": ("transport", "topology"),
    "transport": ("topology",),
    "topology": (),
    "metrics": (),
}
FOR_ALL = (
    "metrics.records",
    "transport.constants",
    "transport.errors",
    "transport.failpoints",
    "transport.keys",
    "transport.limits",
    "transport.monitor",
)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, "room.module") of everything of ours that a file imports, wherever in the file."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ["sheafgossip", *package][: 1 + len(package) - (node.level - 1)] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("sheafgossip."):
                yield node.lineno, name.removeprefix("sheafgossip.")


def allowed(room: str, target: str) -> bool:
    other = target.split(".")[0]
    return other == room or other in BELOW[room] or is_for_all(target)


def is_for_all(target: str) -> bool:
    return f"{target}.".startswith(tuple(f"{module}." for module in FOR_ALL))


@pytest.mark.parametrize("room", BELOW)
def test_a_room_imports_only_from_the_rooms_below_it(room):
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {target}"
        for path in files
        for line, target in imports(path)
        if not allowed(room, target)
    ]
    assert wrong == []


@pytest.mark.parametrize("module", FOR_ALL)
def test_what_every_room_may_import_imports_nothing_else_of_ours(module):
    found = imports(ROOT / f"{module.replace('.', '/')}.py")
    assert [target for _, target in found if not is_for_all(target)] == []


@pytest.mark.parametrize(
    ("place", "line", "target"),
    [
        ("node/process/main.py", "from ..metrics.records import COLLECTOR", "metrics.records.COLLECTOR"),
        ("node/algorithms/base.py", "from ...transport.peers import Peers", "transport.peers.Peers"),
        ("node/algorithms/base.py", "from . import local", "node.algorithms.local"),
        ("node/algorithms/base.py", "from ... import launcher", "launcher"),
        ("metrics/store.py", "def f():\n    import sheafgossip.node.client", "node.client"),
        ("metrics/store.py", "from sheafgossip.node import client", "node.client"),
    ],
)
def test_imports_are_seen_however_they_are_written(tmp_path, monkeypatch, place, line, target):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(line)
    assert [name for _, name in imports(path)] == [target]
