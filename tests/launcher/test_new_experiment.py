"""`sheafgossip new experiment`: a configuration that runs as it is."""

import pytest

from sheafgossip.launcher.commands.new import experiment
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.config.sections import ConfigError


def test_it_is_valid_and_overwrites_nothing(tmp_path):
    experiment("mine", tmp_path)
    assert [config.algorithm.name for config in load(tmp_path / "mine.toml")] == ["local", "d-psgd", "dfedu"]
    with pytest.raises(ConfigError, match="nothing is overwritten"):
        experiment("mine", tmp_path)
    with pytest.raises(ConfigError, match="NAME = "):
        experiment("../x", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]
