"""Training an encoder: what it makes, and what is refused."""

import numpy as np
import pytest

from sheafgossip.launcher.config.sections import ConfigError, validate
from sheafgossip.launcher.prepare.encoders import train_encoder
from sheafgossip.node.algorithms.flt.encoder import Autoencoder

FEW = {"data": {"dataset": "digits", "samples": 100}}


def test_an_encoder_fits_the_data_and_has_the_embedding_of_the_algorithm(tmp_path):
    config = validate(FEW | {"algorithm": {"name": "flt", "embedding": 5}})
    errors = dict(train_encoder(config, 4, None, tmp_path / "new" / "encoder.safetensors"))
    assert list(errors) == [1, 2, 3, 4]
    assert errors[4] < errors[1]
    assert len(Autoencoder((1, 8, 8), 5).load(tmp_path / "new" / "encoder.safetensors"))


def test_the_same_seed_gives_the_same_encoder_and_another_seed_another(tmp_path):
    vectors = []
    for number, seed in enumerate((0, 0, 1)):
        path = tmp_path / f"{number}.safetensors"
        list(train_encoder(validate(FEW | {"seed": seed}), 1, 4, path))
        vectors.append(Autoencoder((1, 8, 8), 4).load(path))
    assert np.array_equal(vectors[0], vectors[1])
    assert not np.array_equal(vectors[0], vectors[2])


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "encoder.safetensors").touch()
    with pytest.raises(ConfigError, match=r"^--out .*encoder.safetensors: is there already"):
        list(train_encoder(validate(FEW), 1, 4, tmp_path / "encoder.safetensors"))


def test_data_without_images_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^data.dataset = 'synthetic': an encoder encodes images"):
        list(train_encoder(validate({"data": {"dataset": "synthetic"}}), 1, 4, tmp_path / "encoder.safetensors"))
