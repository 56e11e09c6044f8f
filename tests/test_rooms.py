"""Which room may import which: launcher -> node -> metrics -> transport -> topology."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("topology", "transport", "metrics", "node", "launcher")
"""Each imports only itself and those before it."""


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
    return target.split(".")[0] in ROOMS[: ROOMS.index(room) + 1]


@pytest.mark.parametrize("room", ROOMS)
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


@pytest.mark.parametrize(
    ("place", "line", "target"),
    [
        ("node/process/main.py", "from ...metrics.records import COLLECTOR", "metrics.records.COLLECTOR"),
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
