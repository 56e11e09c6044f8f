from dataclasses import fields
from pathlib import Path

import pytest

from sheafgossip.launcher.config import RunConfig, Section
from sheafgossip.launcher.schema import describe
from sheafgossip.node.algorithms import ALGORITHMS

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def section_of(title):
    """The part of the page between a heading and the next one."""
    return describe().partition(f"{title}\n")[2].partition("\n#")[0]


def test_the_page_in_docs_is_up_to_date():
    assert PAGE.read_text() == describe() + "\n", "docs/configuration.md is stale: run `make docs`"


@pytest.mark.parametrize("name", [name for name, field in RunConfig.model_fields.items() if name != "algorithm"])
def test_every_key_is_described(name):
    default = RunConfig.model_fields[name].default
    keys = type(default).model_fields if isinstance(default, Section) else {name: RunConfig.model_fields[name]}
    text = section_of(f"## `[{name}]`" if isinstance(default, Section) else "## Keys outside any table")
    for key, field in keys.items():
        assert f"- **`{key}`** · " in text
        assert field.description, f"{name}.{key} has no description"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_setting_of_every_algorithm_is_described(name):
    text = section_of(f'### `name = "{name}"`')
    for field in fields(ALGORITHMS[name].Settings):
        if field.name != "name":
            head, _, meaning = text.partition(f"- **`{field.name}`** · ")[2].partition("\n\n  ")
            assert "default" in head
            assert meaning.strip()


def test_bounds_alternatives_and_defaults_are_told():
    assert "- **`p`** · number at least 0, at most 1 · default `0.2`" in section_of("## `[topology]`")
    assert "- **`test_fraction`** · number above 0, below 1 · default `0.25`" in section_of("## `[data]`")
    assert '- **`protocol`** · one of `"ipc"`, `"tcp"` · default `"ipc"`' in section_of("## `[transport]`")
    assert "- **`gamma`** · number above 0, at most 1 · default `0.01`" in section_of('### `name = "sheaf-fmtl"`')
