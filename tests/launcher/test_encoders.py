"""What training an encoder makes. What is refused stands in bad_inputs.txt."""

import numpy as np

from sheafgossip.launcher.config.sections import validate
from sheafgossip.launcher.prepare.preparation import train_encoder
from sheafgossip.node.algorithms.flt import Autoencoder

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
