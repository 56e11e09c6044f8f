"""Attacks on a client by a neighbour that has an estimate of its theta after every round."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from safetensors.numpy import load_file
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from scipy.stats import rankdata

from ...node.assignment import Assignment
from ...node.model.architecture import Architecture
from ...node.model.learner import Learner
from ...topology.randomness import generator
from ...transport.array_file import ArrayFile

_PULLS = (0.0, 0.1, 0.3, 0.6, 0.9)  # how far a shadow is drawn to the attacker's model in a round


@dataclass(frozen=True)
class Data:
    """x (samples, features) and y."""

    x: np.ndarray
    y: np.ndarray

    def take(self, chosen: np.ndarray) -> "Data":
        return Data(self.x[chosen], self.y[chosen])

    @classmethod
    def joined(cls, several: Sequence["Data"]) -> "Data":
        return cls(np.concatenate([each.x for each in several]), np.concatenate([each.y for each in several]))


class Victim:
    """A client, its samples, and what its model makes of them."""

    def __init__(self, own: Assignment):
        shard = load_file(own.shard)
        self.own, self.learner = own, Learner(own)
        self.members, self.others = (Data(shard[f"x_{name}"], shard[f"y_{name}"]) for name in ("train", "test"))
        self.classifies = own.run.task == "classification"

    def losses(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns those of members and of others in a model theta, each (samples,)."""
        learner = self.learner
        made = [learner.tested(theta.astype(learner.theta.dtype), training=training) for training in (True, False)]
        return tuple(self._each(z.astype(np.float64), y) for z, y in made)  # type: ignore[return-value]

    def _each(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        if not self.classifies:
            return np.square(z - y.reshape(len(z), -1)).sum(1)
        return logsumexp(z, axis=1) - z[np.arange(len(y)), y]


# -- membership --------------------------------------------------------------------------------------------------------


def auc(of_members: np.ndarray, of_others: np.ndarray) -> float:
    """Returns how often a member has the higher score of a pair, ties as half."""
    n, m = len(of_members), len(of_others)
    ranks = rankdata(np.concatenate([of_members, of_others]))[:n].sum()
    return float((ranks - n * (n + 1) / 2) / (n * m))


def power(of_members: np.ndarray, of_others: np.ndarray, false: float) -> float:
    """Returns the share of members above a threshold that at most this share of the others is above."""
    threshold = np.sort(of_others)[::-1][int(false * len(of_others))]
    return float((of_members > threshold).mean())


class Shadows:
    """Models of the attacker's own, for LiRA (Carlini et al. 2022): each learns as the client does, by the same local
    work from the same start, on a random half of the client's training and test samples; every second one on the other
    half. Each round it is drawn to the attacker's own model, as gossip draws the client to its neighbours', as far as
    brings the first of them nearest to the estimate of theta."""

    def __init__(self, victim: Victim, count: int, rounds: Sequence[int], attacker: dict[int, np.ndarray]):
        """``rounds`` are those after whose local work scores are wanted; ``attacker`` is {round: its theta}."""
        self.victim, self.rounds, self._attacker = victim, rounds, attacker
        self._pool = Data.joined([victim.members, victim.others])
        self._count = count + count % 2
        self._told: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # {round: by shadow, confidence and membership}

    def learn(self, estimate: np.ndarray) -> None:
        own, n = self.victim.own, len(self._pool.y)
        inside = np.zeros((self._count, n), bool)
        for pair in range(self._count // 2):
            order = generator(own.run.seed, "halves of shadow models", own.node, pair).permutation(n)
            inside[2 * pair, order[: n // 2]], inside[2 * pair + 1, order[n // 2 :]] = True, True
        pulls = _PULLS if self._attacker else (0.0,)
        trials = [self._one(inside[0], pull) for pull in pulls]
        nearest = int(np.argmin([np.linalg.norm(theta - estimate) for theta, _ in trials]))
        told = [trials[nearest][1]] + [self._one(row, pulls[nearest])[1] for row in inside[1:]]
        for round in self.rounds:
            self._told[round] = np.stack([each[round] for each in told]), inside

    def _one(self, chosen: np.ndarray, pull: float) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """Its theta after all rounds, and {round: the confidence in each sample of the pool}."""
        told: dict[int, np.ndarray] = {}
        with learning_from(self.victim.own, self._pool.take(chosen)) as learner:
            for round in range(max(self.rounds) + 1):
                if round:
                    learner.enter(round)
                    before = learner.theta.copy()
                    learner.learn()
                    if round in self._attacker:
                        learner.theta += (pull * (self._attacker[round] - before)).astype(before.dtype)
                if round in self.rounds:
                    told[round] = self.confidence(learner.theta)
            return learner.theta.copy(), told

    def confidence(self, theta: np.ndarray) -> np.ndarray:
        """Returns log p/(1 - p) of each sample of the pool, p the probability of its class; or minus its loss."""
        losses = np.concatenate(self.victim.losses(theta))
        return -np.log(np.expm1(np.clip(losses, 1e-9, 500))) if self.victim.classifies else -losses

    def scores(self, round: int, estimate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns, of members and of others, how far the confidence in a sample is above the middle between what it is
        to shadows that have seen it and to those that have not; in the median over samples not at all. With one
        variance and one gap for all samples, which is all that a few shadows tell, the likelihood ratio grows with it.
        """
        told, inside = self._told[round]
        middle = sum(np.where(mask, told, 0).sum(0) / mask.sum(0) for mask in (inside, ~inside)) / 2
        above = self.confidence(estimate) - middle
        return tuple(np.split(above - np.median(above), [len(self.victim.members.y)]))  # type: ignore[return-value]


@contextmanager
def learning_from(own: Assignment, data: Data) -> Iterator[Learner]:
    """A learner as the client's own, with these samples for its training."""
    with TemporaryDirectory(prefix="sheafgossip-leak-") as folder:
        other = replace(own, run=replace(own.run, folder=Path(folder)))
        few = data.take(np.arange(1))
        ArrayFile({"x_train": data.x, "y_train": data.y, "x_test": few.x, "y_test": few.y}).save(other.shard)
        yield Learner(other)


# -- inputs ------------------------------------------------------------------------------------------------------------


def distance(found: np.ndarray, inputs: np.ndarray) -> float:
    """Returns the smallest ||found - x|| / ||x|| over all pairs of a row and an input."""
    lengths = np.maximum(np.linalg.norm(inputs, axis=1), 1e-12)
    return float((cdist(found, inputs) / lengths).min())


def from_first_layer(model: Architecture, update: np.ndarray) -> np.ndarray:
    """Returns an input for each unit of the first layer of a dense model, (units, features): the row of its weights
    over its bias. A gradient has sum_n s_n x_n there over sum_n s_n, s_n the slope at the unit of sample n: the input
    itself of a sample that is alone, or alone in moving the unit; else a mean of inputs."""
    weight, bias = model.parameters()[:2]
    W = update[: weight.size].reshape(weight.shape)
    b = update[weight.size : weight.size + bias.size]
    moved = np.abs(b) > 1e-6 * np.abs(b).max(initial=0)
    return W[moved] / b[moved, None]


def by_matching(model: Architecture, theta: np.ndarray, gradient: np.ndarray, samples: int, seed: int) -> np.ndarray:
    """Returns inputs (samples, features) of a dense classifier whose gradient at theta is near the one given (Zhu et
    al. 2019, "Deep leakage from gradients"): by L-BFGS, with labels to be found, too, the best of four starts."""
    import torch

    blocks, place = model.parameters(), 0
    parameters, wanted = list[torch.Tensor](), list[torch.Tensor]()
    for block in blocks:
        part = slice(place, place := place + block.size)
        parameters.append(torch.tensor(theta[part], dtype=torch.float64).reshape(block.shape).requires_grad_())
        wanted.append(torch.tensor(gradient[part], dtype=torch.float64).reshape(block.shape))
    size = sum(float(each.square().sum()) for each in wanted) or 1.0

    def error(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
            x = torch.relu(x @ weight.T + bias)
        scores = torch.log_softmax(x @ parameters[-2].T + parameters[-1], 1)
        loss = -(torch.softmax(labels, 1) * scores).sum() / samples
        made = torch.autograd.grad(loss, parameters, create_graph=True)
        return sum(((one - other) ** 2).sum() for one, other in zip(made, wanted, strict=True)) / size  # type: ignore

    best, found = np.inf, np.empty(0)
    for start in range(4):
        rng = generator(seed, "starts of matched inputs", start)
        x = torch.tensor(rng.uniform(0, 1, (samples, blocks[0].shape[1])), requires_grad=True)
        labels = torch.tensor(rng.standard_normal((samples, model.outputs)), requires_grad=True)
        search = torch.optim.LBFGS([x, labels], max_iter=300, line_search_fn="strong_wolfe", tolerance_change=1e-14)

        def step(x: torch.Tensor = x, labels: torch.Tensor = labels) -> torch.Tensor:
            value = error(x, labels)
            x.grad, labels.grad = torch.autograd.grad(value, [x, labels])
            return value.detach()

        search.step(step)
        if (value := float(step())) < best:
            best, found = value, x.detach().numpy()
    return found


# -- properties --------------------------------------------------------------------------------------------------------


def prototypes(own: Assignment, known: dict[int, Data]) -> dict[int, np.ndarray]:
    """Returns {value of the property: -grad f(theta^0) on samples that have it}."""
    found = {}
    for value, data in known.items():
        with learning_from(own, data) as learner:
            found[value] = -learner.gradient()[1].copy()
    return found


def likeliest(update: np.ndarray, prototypes: dict[int, np.ndarray]) -> int:
    """Returns the value whose prototype has the largest cosine with the update."""
    return max(prototypes, key=lambda value: float(update @ prototypes[value]) / np.linalg.norm(prototypes[value]))
