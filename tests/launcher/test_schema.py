"""docs/configuration.md, which is made from the sections themselves."""

import re
from functools import cache
from pathlib import Path

import pytest

from sheafgossip.launcher.config import reference
from sheafgossip.launcher.config.sections import RunConfig, keys_of
from sheafgossip.launcher.planner.scenario import Fault, UnlikeEdge
from sheafgossip.node.algorithms import ALGORITHMS
from sheafgossip.topology.section import Section

describe = cache(reference.describe)
SECTIONS = {name: key.default for name, key in keys_of(RunConfig).items() if isinstance(key.default, Section)}
TABLES = {f"## `[{name}]`": type(section) for name, section in SECTIONS.items()}
TABLES |= {"## `[[faults]]`": Fault, "## `[[links.edges]]`": UnlikeEdge}
TABLES |= {f'### `name = "{name}"`': algorithm for name, algorithm in ALGORITHMS.items()}


def keys_below(title: str) -> dict[str, tuple[str, str]]:
    """{key: (its bounds and default, its meaning)}, as told between a heading and the next one."""
    text = describe().partition(f"{title}\n")[2].partition("\n#")[0]
    assert not text.lstrip().startswith("- ") or "outside" in title, "the table itself is not described"
    entries = re.findall(r"^- \*\*`(\w+)`\*\*(?: · (.*))?(?:\n\n  (.*))?", text, re.MULTILINE)
    return {key: (bounds, meaning) for key, bounds, meaning in entries}


def test_the_page_in_docs_is_up_to_date_and_has_no_table_among_the_keys_outside_tables():
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert page.read_text() == describe() + "\n", "docs/configuration.md is stale: run `make docs`"
    assert set(keys_below("## Keys outside any table")) == set(keys_of(RunConfig)) - {*SECTIONS, "algorithm", "faults"}


@pytest.mark.parametrize("title", TABLES)
def test_every_key_of_every_table_is_described(title):
    found = keys_below(title)
    assert set(found) == set(keys_of(TABLES[title])) - ({"name"} if title.startswith("###") else set())
    for key, (bounds, meaning) in found.items():
        assert any(word in bounds for word in ("default", "required", "table")), key
        assert meaning, key
