import re
from functools import cache
from pathlib import Path

import pytest

from sheafgossip.launcher.config import reference
from sheafgossip.launcher.config.explanation import keys_of
from sheafgossip.launcher.config.sections import EdgeTable, RunConfig
from sheafgossip.launcher.planner.scenario import Fault
from sheafgossip.node.algorithms import ALGORITHMS
from sheafgossip.topology.section import Section

describe = cache(reference.describe)
PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def section_of(title):
    """The part of the page between a heading and the next one."""
    return describe().partition(f"{title}\n")[2].partition("\n#")[0]


def meaning_of(key, text):
    """What is said of a key, below the line with its bounds and default."""
    line, _, below = text.partition(f"- **`{key}`** · ")[2].partition("\n\n  ")
    assert any(word in line for word in ("default", "required", "table"))
    assert "- **" not in line
    return below.partition("\n\n")[0].strip()


def test_the_page_in_docs_is_up_to_date():
    assert PAGE.read_text() == describe() + "\n", "docs/configuration.md is stale: run `make docs`"


SECTIONS = {name: key.default for name, key in keys_of(RunConfig).items() if isinstance(key.default, Section)}
TABLES = {f"## `[{name}]`": type(section) for name, section in SECTIONS.items()}
TABLES |= {"## `[[faults]]`": Fault, "## `[[links.edges]]`": EdgeTable}
TABLES |= {f'### `name = "{name}"`': algorithm for name, algorithm in ALGORITHMS.items()}


@pytest.mark.parametrize("table", TABLES)
def test_every_key_of_every_table_is_described(table):
    text = section_of(table)
    assert not text.lstrip().startswith("- "), "the table itself is not described"
    for key in set(keys_of(TABLES[table])) - ({"name"} if table.startswith("###") else set()):
        assert meaning_of(key, text), f"{table} {key} has no description"


def test_every_key_outside_tables_is_described_and_no_table_is_among_them():
    keys = set(keys_of(RunConfig)) - set(SECTIONS) - {"algorithm", "faults"}
    assert set(re.findall(r"^- \*\*`(\w+)`", section_of("## Keys outside any table"), re.MULTILINE)) == keys


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ("[topology]", "`p`** · number at least 0, at most 1 · default `0.2`"),
        ("[data]", "`test_fraction`** · number above 0, below 1 · default `0.25`"),
        ("[data]", '`beta`** · number above 0 · default `0.5` · only with `partition` = `"dirichlet"`'),
        ("[transport]", '`protocol`** · one of `"ipc"`, `"tcp"` · default `"ipc"`'),
        ("[[faults]]", '`kind`** · one of `"crash"`, `"leave"`'),
        ("[[faults]]", "`rounds`** · list of at most 2, each entry: whole number at least 1 · default `[]`"),
        ("[[links.edges]]", "`between`** · list of 2, each entry: whole number at least 0 · required"),
        ("[links]", "`edges`** · list, each entry: `[[links.edges]]` table"),
    ],
)
def test_bounds_alternatives_defaults_and_needs_are_told(table, line):
    assert f"\n- **{line}" in section_of(f"## `{table}`")
