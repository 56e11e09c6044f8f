"""Encoders for FLT, trained on data at hand."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...node.algorithms.flt import FLT, Autoencoder, EncoderError
from ...topology.randomness import generator
from ..config.sections import ConfigError, RunConfig
from ..data.sets import load


def train_encoder(config: RunConfig, epochs: int, embedding: int | None, out: Path) -> Iterator[tuple[int, float]]:
    """Trains an autoencoder on all images of the configuration's data set, as they are, and saves it. Yields (epoch,
    mean squared error). Without ``embedding``, it is that of the algorithm, where that is FLT. Raises UserError."""
    if out.exists():
        raise ConfigError(f"--out {out}: is there already; nothing is overwritten, choose another name")
    if embedding is None:
        embedding = config.algorithm.embedding if isinstance(config.algorithm, FLT) else FLT.embedding
    pool = load(config.data, config.seed, config.clients)
    try:
        autoencoder = Autoencoder(pool.input_shape, embedding)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.touch(exist_ok=False)  # nobody shall wait for what cannot be kept
        out.unlink()
    except EncoderError as error:
        raise ConfigError(f"data.dataset = {config.data.dataset!r}: an encoder {error}") from None
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error.strerror or error}") from None
    import torch

    torch.set_num_threads(1)  # as in the clients: the same bits whatever the machine, and no waste where it is busy
    images = pool.inputs(np.arange(len(pool)))
    vector = autoencoder.start(generator(config.seed, "encoder")).astype(np.float32)
    errors = autoencoder.train(vector, images, epochs, generator(config.seed, "training of the encoder"))
    yield from enumerate(errors, 1)
    autoencoder.save(vector, out)
