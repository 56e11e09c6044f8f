"""What the pages say can be checked: links, configurations, queries and tables."""

import re
from pathlib import Path

import pytest

from sheafgossip.launcher.config.files import load
from sheafgossip.metrics.reader import open_records
from sheafgossip.metrics.records import TABLES
from sheafgossip.metrics.store import Store

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def records(tmp_path):
    Store(tmp_path / "run.sqlite").close()
    with open_records(tmp_path) as records:
        yield records


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_repository_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_configurations_on_a_page_are_valid(page, tmp_path):
    for text in blocks(page, "toml"):
        (tmp_path / "block.toml").write_text(text)
        assert load(tmp_path / "block.toml")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_queries_on_a_page_can_be_asked(page, records):
    for query in blocks(page, "sql"):
        records.execute(query)


@pytest.mark.parametrize("table", TABLES)
def test_every_column_of_a_run_is_described(table):
    text = (ROOT / "docs" / "run-folder.md").read_text().partition(f"**`{table}`**:")[2].partition("**`")[0]
    described = {
        name for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert described == set(TABLES[table]._fields)


def test_every_view_of_a_run_is_described(records):
    text = (ROOT / "docs" / "run-folder.md").read_text()
    described = re.findall(r"^\| `(\w+)` \|", text.partition("## Views")[2], re.MULTILINE)
    views = records.execute("SELECT name FROM sqlite_schema WHERE type = 'view'").fetchall()
    assert sorted(described) == sorted(name for (name,) in views)


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
