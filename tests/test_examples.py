from pathlib import Path

import pytest

from sheafgossip.launcher.config import load

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_a_valid_configuration(path):
    assert load(path)
