"""The shapes of the models, without torch."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, Self

import msgspec
import numpy as np

from ...topology.errors import UserError
from ...topology.randomness import generator
from ..settings import LayerSettings

LINEAR = frozenset({"logistic", "linear"})  # kinds of models that are one linear layer
DENSE = LINEAR | {"mlp"}  # kinds of models whose gradient is computed without torch


Block = Literal["body", "head"]


class ArchitectureError(UserError):
    """A model does not fit its data."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One block of theta. ``fan_in`` inputs feed each output of its layer, but in a GRU, where it is the width of its
    state, as in torch's own start; a sample multiplies it at ``places``."""

    name: str
    shape: tuple[int, ...]
    fan_in: int
    places: int = 0
    start: float | None = None  # what all of it starts as; None: drawn

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def drawn(self, rng: np.random.Generator) -> np.ndarray:
        if self.start is not None:
            return np.full(self.size, self.start)
        return rng.uniform(-1, 1, self.size) / math.sqrt(self.fan_in)


class Convolution(NamedTuple):
    filters: int
    kernel: int
    stride: int
    padding: int  # zeros on each side
    pool: int  # pixels a side of which the largest stays


@dataclass(frozen=True, slots=True)
class OwnModel:
    """What is known of a module that the user's code makes, measured once before a run."""

    use: str  # the function that makes it
    options: str  # what it is called with beside the shape and the outputs, as JSON
    blocks: tuple[tuple[str, tuple[int, ...]], ...]  # trainable parameters, in their order: names and shapes
    features: int  # that its last layer sees, a linear one with weight and bias; 0: the last layer is none
    widest: int
    evaluation_flops: int
    gradient_flops: int
    channels_last: bool = False  # its images may lie in memory with the channels last
    batch_norm: tuple[str, ...] = ()  # those of its parameters that are of batch normalization
    learns_from_one: bool = True  # whether a mini-batch may have one sample: batch normalization needs two values


@dataclass(frozen=True)
class Architecture(LayerSettings):
    """``input_shape`` is that of one sample: (features,), (channels, height, width), or of a series (steps,) or (steps,
    features); ``outputs`` is the number of classes, or of regression targets. Raises ArchitectureError."""

    kind: Literal["logistic", "linear", "mlp", "cnn", "gru", "own"] = field()
    input_shape: tuple[int, ...]
    outputs: int
    own: OwnModel | None = None  # of kind "own"
    held: tuple[int, ...] = ()  # of kind "mlp": which of the input features it sees, ascending, where others see others
    held_of: int = 0  # how many features there are

    @classmethod
    def of(cls, layers: LayerSettings, input_shape: tuple[int, ...], outputs: int) -> Self:
        given = {each.name: getattr(layers, each.name) for each in fields(LayerSettings)}
        return cls(**given, input_shape=input_shape, outputs=outputs)

    def __post_init__(self) -> None:
        shape, groups, wrong = self.input_shape, self.norm_groups, ""
        has = f"the data has samples of shape {shape}"
        if self.kind == "cnn" and len(shape) != 3:
            wrong = f"kind = 'cnn' needs images, {has}"
        elif self.kind == "cnn" and (uneven := self._uneven()):
            wrong = f"{uneven}: give one number, or one for each of model.filters = {list(self.filters)}"
        elif self.kind == "cnn" and self.padding is True and any(side % 2 == 0 for side in self.kernel):
            wrong = f"kernel = {list(self.kernel)}: with model.padding = true allowed are odd numbers"
        elif self.kind == "cnn" and groups and any(filters % groups for filters in self.filters):
            wrong = f"norm_groups = {groups}: must divide every number of model.filters = {list(self.filters)}"
        elif self.kind == "gru" and len(shape) not in (1, 2):
            as_series = "; data.series = true reads them as series" if shape[0] == 1 else ""
            wrong = f"kind = 'gru' needs series of shape (steps,) or (steps, features), {has}{as_series}"
        elif self.kind == "gru" and len(self.hidden) != 1:
            wrong = f"hidden = {list(self.hidden)}: 'gru' has one layer; give its width, such as [16]"
        if wrong:
            raise ArchitectureError(f"model.{wrong}")
        if self.kind != "own" or self.own:
            _check_head(self.head, [block.name for block in self.parameters()])

    def _uneven(self) -> str:
        """Returns what is given for other convolutions than there are."""
        given = {"kernel": self.kernel, "stride": self.stride, "pool": self.pool, "padding": self.padding}
        lists = {key: list(each) for key, each in given.items() if isinstance(each, tuple)}
        return next((f"{key} = {each}" for key, each in lists.items() if len(each) not in (1, len(self.filters))), "")

    @property
    def convolutions(self) -> list[Convolution]:
        padding = [side // 2 for side in self.kernel] if self.padding is True else self.padding or (0,)
        each = [
            several if len(several) > 1 else tuple(several) * len(self.filters)
            for several in (self.kernel, self.stride, padding, self.pool)
        ]
        return [Convolution(*layer) for layer in zip(self.filters, *each, strict=True)]

    @property
    def is_linear(self) -> bool:
        return self.kind in LINEAR

    @property
    def is_dense(self) -> bool:
        return self.kind in DENSE

    @property
    def series(self) -> tuple[int, int]:
        """gru: (steps, features) of a sample."""
        steps, *features = self.input_shape
        return steps, math.prod(features)

    @property
    def label(self) -> str:
        if self.own:
            return self.own.use.rpartition("/")[2]
        parts = [self.filters] * (self.kind == "cnn") + [self.hidden] * (not self.is_linear)
        return f"{self.kind} {' + '.join('-'.join(map(str, part)) for part in parts if part)}".rstrip()

    def _layers(self) -> Iterator[tuple[int, list[Parameter]]]:
        """What each layer, from the input on, makes of one sample, in numbers, and its blocks of theta."""
        width = math.prod(self.input_shape)
        yield width, []
        if self.kind == "cnn":
            channels, *sides = self.input_shape
            too_small = f"model.filters = {list(self.filters)} leaves nothing of images of {sides[0]}x{sides[1]} pixels"
            for depth, (filters, kernel, stride, padding, pool) in enumerate(self.convolutions):
                sides = [max(0, (side + 2 * padding - kernel) // stride + 1) for side in sides]
                places = math.prod(sides)
                blocks = layer(f"conv{depth}", (filters, channels, kernel, kernel), places)
                if self.norm_groups:
                    parts = ("weight", 1.0), ("bias", 0.0)
                    blocks += [Parameter(f"norm{depth}.{part}", (filters,), 1, start=start) for part, start in parts]
                yield filters * places, blocks
                channels, sides = filters, [side // pool for side in sides]
                if min(sides) < 1:
                    hint = f"lower model.kernel = {kernel}, or use fewer than {depth + 1} layers"
                    raise ArchitectureError(f"{too_small} after layer {depth + 1}; {hint}")
            width = channels * math.prod(sides)
        if self.kind == "gru":
            (width,) = self.hidden
            steps, features = self.series
            blocks = [Parameter("gru.weight_ih", (3 * width, features), width, steps)]
            blocks += [Parameter("gru.weight_hh", (3 * width, width), width, steps)]
            blocks += [Parameter(f"gru.{name}", (3 * width,), width) for name in ("bias_ih", "bias_hh")]
            yield steps * 3 * width, blocks  # the three gates of all steps
        elif not self.is_linear:
            for depth, hidden in enumerate(self.hidden):
                yield hidden, layer(f"hidden{depth}", (hidden, width))
                width = hidden
        yield self.outputs, layer("output", (self.outputs, width))

    def parameters(self) -> tuple[Parameter, ...]:
        """The blocks of theta in their order, shaped as torch.nn.functional has them."""
        if self.own:
            return tuple(Parameter(name, shape, 1) for name, shape in self.own.blocks)
        return tuple(block for _, blocks in self._layers() for block in blocks)

    def widest(self) -> int:
        """Numbers in the largest layer that one sample passes through, the input included."""
        if self.own:
            return self.own.widest
        return max(numbers for numbers, _ in self._layers())

    @property
    def features(self) -> int:
        """Numbers that the last layer gets to see of a sample. Raises ArchitectureError where a module of the user's
        does not end in a linear layer with a bias."""
        if self.own and not self.own.features:
            why = "its last layer must be torch.nn.Linear with a bias"
            raise ArchitectureError(f"model.use = {self.own.use!r}: {why}, where model.head does not name a head")
        return self.parameters()[-2].shape[1]

    @property
    def last_size(self) -> int:
        """Parameters of the last layer: the last of theta, weights (outputs, features) before biases (outputs,)."""
        return self.outputs * (self.features + 1)

    def parameters_of(self, block: Block) -> tuple[Parameter, ...]:
        """Those of the body or the head, as ``model.head`` says, in the order of theta. Raises ArchitectureError where
        that says nothing, and a module of the user's does not end in a linear layer with a bias."""
        if not self.head and self.features:
            *body, weight, bias = self.parameters()
            return tuple(body) if block == "body" else (weight, bias)
        return tuple(each for each in self.parameters() if _matches(each.name, self.head) == (block == "head"))

    def size_of(self, block: Block) -> int:
        """Numbers of theta that are the body's or the head's, for ``Vector``. Raises ArchitectureError as above."""
        return sum(each.size for each in self.parameters_of(block))

    def places_of(self, block: Block | Collection[Parameter]) -> slice | np.ndarray:
        """Where body or head is in theta, or some parameters, for ``theta[places]``: a slice where its parameters
        follow each other, else numbers of places. Raises ArchitectureError as above."""
        parameters = self.parameters_of(block) if isinstance(block, str) else block
        names, place, runs = {each.name for each in parameters}, 0, list[list[int]]()
        for each in self.parameters():
            start, place = place, place + each.size
            if each.name not in names:
                continue
            if runs and runs[-1][1] == start:
                runs[-1][1] = place
            else:
                runs.append([start, place])
        if len(runs) < 2:
            return slice(*runs[0]) if runs else slice(0, 0)
        return np.concatenate([np.arange(*run) for run in runs])

    @property
    def size(self) -> int:
        """d: the length of theta."""
        return sum(block.size for block in self.parameters())

    @property
    def evaluation_flops(self) -> int:
        """Floating point operations of one sample's pass forward: two for a multiplication and an addition, nothing for
        element-wise work, as torch.utils.flop_counter.FlopCounterMode counts."""
        if self.own:
            return self.own.evaluation_flops
        return 2 * sum(block.size * block.places for block in self.parameters())

    @property
    def gradient_flops(self) -> int:
        """The same of one sample's pass forward and back. Back is twice as much, for the gradients of a layer's weights
        and of its input; what is given needs none: the data, and the zeros from which a GRU starts."""
        if self.own:
            return self.own.gradient_flops
        first, *others = (block for block in self.parameters() if block.places)
        given = first.size * first.places + (others[0].size if self.kind == "gru" else 0)
        return 3 * self.evaluation_flops - 2 * given

    def start(
        self, seed: int, *client: int, init: Literal["uniform", "zeros"] = "uniform", like: int = 0
    ) -> np.ndarray:
        """theta^0, (d,) float64: zeros, or uniform in +-1/sqrt(fan-in) of its layer (torch's own bounds). With
        ``client`` the draw is that client's own; without, it is the same for every client of this architecture, and all
        layers before the last are those of the same model with ``like`` outputs, unless that is 0."""
        if init == "zeros":
            return np.zeros(self.size)
        if self.held:  # hidden units mean the same in all clients, whatever features they see
            whole = replace(self, input_shape=(self.held_of,), held=(), held_of=0)
            start, (first, *_) = whole.start(seed, *client, like=like), whole.parameters()
            weights = start[: first.size].reshape(first.shape)[:, self.held]
            return np.concatenate([weights.ravel(), start[first.size :]])
        name = (
            f"Architecture(kind={self.kind!r}, input_shape={self.input_shape}, outputs={self.outputs}, "
            f"filters={self.filters}, hidden={self.hidden})"
        )
        kernel, *more = (each[0] if len(set(each)) == 1 else each for each in (self.kernel, self.stride, self.pool))
        special = kernel, self.padding, self.norm_groups, *(more if more != [1, 2] else ())
        rng = generator(seed, f"initial theta of {name}{'' if special == (3, False, 0) else f' {special}'}", *client)
        start = np.concatenate([block.drawn(rng) for block in self.parameters()])
        if like not in (0, self.outputs):
            below = self.size - self.last_size
            start[:below] = replace(self, outputs=like).start(seed, *client)[:below]
        return start


class Given(NamedTuple):
    """What a model is made with: it has views of theta and of its gradient, both (d,)."""

    architecture: Architecture
    task: str
    theta: np.ndarray
    gradient: np.ndarray
    key: tuple[int, int] = (0, 0)  # of what is drawn in training: seed and client


def _check_head(head: Sequence[str], names: Sequence[str]) -> None:
    """Raises ArchitectureError where a pattern matches nothing, or all of them everything."""
    there = _require_known(head, names, "model.head")
    if head and all(_matches(name, head) for name in names):
        raise ArchitectureError(f"model.head = {list(head)}: leaves nothing for the body of {there}")


def named(model: Architecture, patterns: Collection[str], key: str) -> tuple[Parameter, ...]:
    """Returns the parameters, or all of a layer, that one of ``patterns`` is the name of. Raises ArchitectureError
    where one is of none."""
    _require_known(patterns, [each.name for each in model.parameters()], key)
    return tuple(each for each in model.parameters() if _matches(each.name, patterns))


def _require_known(patterns: Collection[str], names: Sequence[str], key: str) -> str:
    """Returns the names in a few words. Raises ArchitectureError where a pattern matches none of them."""
    there = ", ".join(names if len(names) < 9 else [*names[:6], "...", *names[-2:]])
    for pattern in patterns:
        if not any(_matches(name, [pattern]) for name in names):
            raise ArchitectureError(f"{key} = {list(patterns)}: {pattern!r} is none of {there}")
    return there


def _matches(name: str, patterns: Collection[str]) -> bool:
    """Tells whether one of them is the name of a parameter, or of a layer that it is of."""
    return any(fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*") for pattern in patterns)


def layer(name: str, shape: tuple[int, ...], places: int = 1) -> list[Parameter]:
    fan_in = math.prod(shape[1:])
    return [Parameter(f"{name}.weight", shape, fan_in, places), Parameter(f"{name}.bias", shape[:1], fan_in)]


def told(models: Sequence[Architecture]) -> str:
    """Returns the architectures of a run's processes in JSON, each once."""
    kinds = {model: number for number, model in enumerate(dict.fromkeys(models))}
    return msgspec.json.encode([list(kinds), [kinds[model] for model in models]]).decode()


def of_process(text: str, node: int) -> Architecture:
    """Returns one of them. Raises ArchitectureError where there is none."""
    try:
        kinds, numbers = msgspec.json.decode(text, type=tuple[list[Architecture], list[int]])
        return kinds[numbers[node]]
    except (msgspec.MsgspecError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise ArchitectureError(f"the run does not tell what the model of client {node} is: {error}") from None
