from pathlib import Path

import pytest

from sheafgossip.launcher.config.files import load

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(path for path in FOLDER.rglob("*.toml") if path.name != "published.toml")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_an_example_is_a_valid_configuration(path):
    assert load(path)
