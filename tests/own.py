"""A user's own files: algorithms, a model with batch normalization, dropout and a frozen parameter, and data."""

from pathlib import Path

ALGORITHM = """
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Le

import sheafgossip as sg
from averages import mean


@dataclass(frozen=True)
class HalfWay(sg.Algorithm):
    way: Annotated[float, Gt(0), Le(1), "How far towards the neighbours' mean."] = 0.5

    traits = sg.Traits(same_size=True)

    def begin(self, client):
        vectors = {j: client.theta.copy() for j in client.neighbours}
        return sg.State(velocity=client.theta.copy(), buffer=vectors)  # names that the program uses, too

    def round(self, client, peers):
        client.learn()
        theirs = peers.exchange(dict.fromkeys(client.neighbours, client.theta))
        client.state.buffer |= {j: vector.copy() for j, vector in theirs.items()}
        client.theta += self.way * (mean(client.state.buffer.values()) - client.theta)
        client.state.velocity += 0.1 * (client.theta - client.state.velocity)
        before = getattr(client.state, "before", client.state.velocity)  # which ``begin`` does not know
        client.theta += 0.01 * (client.state.velocity - before)
        client.state.before = client.theta.copy()


@dataclass(frozen=True)
class SharedBodies(sg.Algorithm):
    def messages(self, edge):
        return [sg.Vector(edge.model.size_of("body"))]

    def round(self, client, peers):
        client.learn()
        body = client.blocks["body"]
        theirs = peers.exchange(dict.fromkeys(client.neighbours, client.theta[body]))
        client.theta[body] = mean([client.theta[body], *theirs.values()])


@dataclass(frozen=True)
class Mean(sg.ServerAlgorithm):
    def aggregate(self, server, uploads):
        server.theta[:] = mean(uploads.values())
"""
AVERAGES = """
def mean(vectors):
    return sum(vectors) / len(vectors)
"""
MODEL = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.norm(self.convolution(x)))


def make(shape, outputs, width=4):
    first, block = nn.Conv2d(shape[0], width, 3, padding=1), Block(width)
    block.convolution.bias.requires_grad_(False)
    layers = first, block, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(4 * width, outputs)
    return nn.Sequential(*layers)
"""
DATA = """
import numpy as np


def load():
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=240)
    x = rng.normal(size=(240, 1, 6, 6)).astype("f4")
    x[np.arange(240), 0, y, y] += 3
    return {"train": (x[:160], y[:160], np.arange(160) % 4), "test": (x[160:], y[160:], np.arange(80) % 4)}
"""
CONFIG = """
clients = 4
rounds = 6
topology.kind = "ring"
checkpoints.every = 2
data.use = "data.py:load"
training = { work = "epochs", batch_size = 8, alpha = 0.05, momentum = 0.5 }
model = { use = "model.py:make", options = { width = 5 } }
algorithm = { use = "algorithm.py:HalfWay", way = 0.3 }
"""


def write(folder: Path) -> Path:
    """Writes the files and the configuration that uses them."""
    folder.mkdir()
    for name, text in {"algorithm": ALGORITHM, "averages": AVERAGES, "model": MODEL, "data": DATA}.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "mine.toml").write_text(CONFIG)
    return folder
