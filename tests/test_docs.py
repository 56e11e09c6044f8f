"""What the pages say can be checked: links, configurations, queries and tables; and every example is valid."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from sheafgossip.launcher.cli import app
from sheafgossip.launcher.config.files import load
from sheafgossip.metrics.reader import FRAMES, open_records
from sheafgossip.metrics.records import TABLES
from sheafgossip.metrics.store import Store

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
PAPER = ROOT / "examples" / "paper"
NO_RUNS = ROOT / "examples" / "board", PAPER / "published.toml", PAPER / "sources.toml"  # tested with the board
EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*.toml") if not any(map(path.is_relative_to, NO_RUNS)))


@pytest.fixture
def records(tmp_path):
    Store(tmp_path / "run.sqlite").close()
    with open_records(tmp_path) as records:
        yield records


def understood(words):
    """Goes down to the command, which reads its options and their values; raises what it cannot understand. Returns
    the command's name."""
    group, context = get_command(app), None
    while hasattr(group, "commands"):
        context = group.make_context("sheafgossip", words[:], parent=context, resilient_parsing=False)
        rest = [*context._protected_args, *context.args]
        group, words = group.commands[rest[0]], rest[1:]
    group.make_context(group.name, words, parent=context)
    return group.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_configures_and_asks_is_there_valid_and_answered(page, tmp_path, records):
    text = page.read_text()
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", text)
    assert [target for target in targets if not (page.parent / target).exists()] == []
    for language, block in re.findall(r"^```(toml|sql)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language == "sql":
            records.execute(block)
            continue
        (tmp_path / "block.toml").write_text(block)
        assert load(tmp_path / "block.toml"), block


def test_every_page_and_picture_is_listed():
    docs = ROOT / "docs"
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (docs / "README.md").read_text()))
    assert {page.name for page in docs.glob("*.md")} - listed == {"README.md"}
    shown = set(re.findall(r"!\[.*\]\((.*)\)", (docs / "gallery.md").read_text()))
    assert {path.relative_to(docs).as_posix() for path in (docs / "pictures").rglob("*.svg")} == shown


COMMAND = re.compile(r"^    +(?:\.venv/bin/)?((?:sheafgossip|make) (?:.*\\\n)*.*)", re.MULTILINE)
COMMANDS = sorted({line for page in PAGES for line in COMMAND.findall(page.read_text())})
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_a_page_is_one(line):
    program, *words = shlex.split(line.replace("\\\n", ""), comments=True)
    if program == "make":
        assert words[0] in TARGETS
        return
    if any(word.startswith("[") for word in words):
        pytest.skip("shows what may be left out")
    understood(words)


def commands_of(group):
    for command in group.commands.values():
        yield from commands_of(command) if hasattr(command, "commands") else [command]


@pytest.mark.parametrize("command", [*commands_of(get_command(app))], ids=lambda command: command.name)
def test_the_help_of_a_command_ends_with_an_example_of_it(command):
    program, *words = shlex.split(command.epilog.splitlines()[-1], comments=True)
    assert program == "sheafgossip"
    assert understood(words[: words.index(">")] if ">" in words else words) == command.name


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_a_valid_configuration(path):
    assert load(path)


def test_every_column_and_view_of_a_run_is_described(records):
    _, _, views = (ROOT / "docs" / "run-folder.md").read_text().partition("## Views")
    page = (ROOT / "docs" / "api.md").read_text()
    for frame, table in FRAMES.items():
        if table in TABLES:
            section = page.partition(f"### run.{frame}\n")[2].partition("\n### ")[0]
            assert re.findall(r"^- \*\*`(\w+)", section, re.MULTILINE) == list(TABLES[table]._fields), table
    found = records.execute("SELECT name FROM sqlite_schema WHERE type = 'view'").fetchall()
    assert sorted(re.findall(r"^\| `(\w+)` \|", views, re.MULTILINE)) == sorted(name for (name,) in found)


def test_every_promise_names_the_test_that_holds_it():
    table = (ROOT / "docs" / "architecture.md").read_text().partition("## When things fail")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "what survives" not in line]
    named = [re.fullmatch(r".* `(\w+\.py)::(\w+)` \|", row) for row in rows]
    assert len(rows) > 40
    assert [row for row, match in zip(rows, named, strict=True) if match is None] == []
    tests = {
        (path.name, name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (\w+)\(", path.read_text(), re.MULTILINE)
    }
    assert {match.groups() for match in named if match} - tests == set()
