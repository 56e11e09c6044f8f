"""What the pages say can be checked: links, configurations, queries and tables; and every example is valid."""

import re
from pathlib import Path

import pytest

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
