"""An LSTM that learns to tell the next character, and text for it: each client has a dialect of its own."""

import numpy as np
import torch
from torch import nn

SUBJECTS = ["the cat", "a dog", "my bird", "our horse", "the fox"]
VERBS = ["sees", "hears", "likes", "follows", "fears", "finds"]
OBJECTS = ["the moon", "a river", "my garden", "the old town", "a storm"]
LETTERS = sorted(set(". ".join(SUBJECTS + VERBS + OBJECTS)))


class NextLetter(nn.Module):
    def __init__(self, outputs, embedding, width):
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), embedding)
        self.lstm = nn.LSTM(embedding, width, batch_first=True)
        self.output = nn.Linear(width, outputs)

    def forward(self, x):
        states, _ = self.lstm(self.embedding(x.long()))
        return self.output(states[:, -1])


def make_model(shape, outputs, embedding=8, width=64):
    return NextLetter(outputs, embedding, width)


def load(clients=6, samples=200, window=12):
    """Windows of text (samples of all clients, window), the letter after each, and whose they are. A client knows three
    of the verbs, and every second one puts the object first."""
    parts = []
    for client in range(clients):
        rng = np.random.default_rng(client)
        verbs, order = rng.choice(VERBS, 3, replace=False), 1 - 2 * (client % 2)
        sentences = (" ".join(map(rng.choice, (SUBJECTS, verbs, OBJECTS)[::order])) for _ in range(samples))
        text = np.array([LETTERS.index(letter) for letter in ". ".join(sentences)])
        starts = rng.choice(len(text) - window, samples, replace=False)
        x = np.lib.stride_tricks.sliding_window_view(text, window + 1)[starts]
        parts.append((x[:, :-1], x[:, -1], np.full(samples, client)))
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))


def said(model, start, length=40):
    """What a trained model makes of the beginning of a text: ``said(run.module(0), "the cat sees")``."""
    text = start
    for _ in range(length):
        x = torch.tensor([[LETTERS.index(letter) for letter in text[-12:]]])
        text += LETTERS[model(x).argmax()]
    return text
