"""A model of the user's own: any torch.nn.Module over one flat vector."""

import json
import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ...topology.randomness import generator
from .. import own_code
from ..assignment import Run
from ..mixed_builds import importing
from .architecture import Architecture, ArchitectureError, Given, OwnModel
from .networks import TorchModel, views
from .pull import Pull

_SAMPLES = 4  # that a module is measured with
_AT_ONCE = 256  # seeds of passes that are drawn together: a generator for each alone takes 0.2 ms
_SEEDS = 1 << 62
_one_at_a_time = threading.Lock()  # torch has one generator a process, and clients may be threads


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    draws = torch.default_generator  # a tenth of the time of torch.random.fork_rng and torch.manual_seed
    with _one_at_a_time:
        before = draws.get_state()
        draws.manual_seed(seed)
        try:
            yield
        finally:
            draws.set_state(before)


def drawing(seed: int, purpose: str, *key: int) -> AbstractContextManager[None]:
    """What torch draws here follows from the seed."""
    return _seeded(int(generator(seed, purpose, *key).integers(_SEEDS)))


def build(architecture: Architecture, run: Run, dtype: np.dtype, *client: int) -> nn.Module:
    """Returns a client's module as it starts: with ``client`` its own draw, else the same for all clients."""
    assert architecture.own
    make = own_code.load_copy(architecture.own.use, "model.use", run.folder, run.code)
    return made(make, architecture, dtype, run.seed, *client)


def made(make: Callable[..., nn.Module], of: Architecture, dtype: np.dtype, seed: int, *client: int) -> nn.Module:
    assert of.own
    with drawing(seed, "own model", *client):
        options = json.loads(of.own.options)
        module = importing(lambda: make(of.input_shape, of.outputs, **options))
        return module.to(torch_type(dtype))


def flat(module: nn.Module) -> np.ndarray:
    """Returns its trainable parameters (d,), in their order."""
    return np.concatenate([each.detach().numpy().ravel() for each in module.parameters() if each.requires_grad])


_ONE = "a mini-batch has one sample, and batch normalization needs two at least; choose another training.batch_size"


class ModuleModel(TorchModel):
    """``start`` of theta is that of the module. Buffers, such as the running means of batch normalization, stay with
    the client, and are part of its state; what layers draw, as dropout does, follows from the run's seed."""

    def __init__(self, given: Given, module: nn.Module):
        super().__init__(given)
        architecture, _, theta, gradient, self._key = given
        self._module, self._passes = module, 0
        self._several, self._pass_seeds = -1, list[int]()  # seeds of the passes that go on, and which they are
        self._seen: Tensor | None = None
        trained = [each for each in module.parameters() if each.requires_grad]
        with torch.no_grad():
            for parameter, view in zip(trained, views(architecture, theta), strict=True):
                view.copy_(parameter)
        for parameter, view, slope in zip(
            trained, views(architecture, theta), views(architecture, gradient), strict=True
        ):
            parameter.data, parameter.grad = view, slope
        if layer := last_layer(module):
            layer.register_forward_pre_hook(self._note)
        self._channels_last = bool(architecture.own and architecture.own.channels_last and keep_channels_last(module))

    def _note(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._seen = inputs[0]

    def add_gradient(self, x: Tensor, y: Tensor, samples: int, pull: Pull | None = None) -> float:
        self._passes += 1
        several, one = divmod(self._passes, _AT_ONCE)
        if self._several != several:
            run, client = self._key
            self._several = several
            draws = generator(run, "own model's draws", client, several)
            self._pass_seeds = draws.integers(_SEEDS, size=_AT_ONCE).tolist()
        with _seeded(self._pass_seeds[one]):
            return super().add_gradient(x, y, samples, pull)

    def _forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self._module.training != torch.is_grad_enabled():  # without gradients it is evaluated
            self._module.train(torch.is_grad_enabled())
        if self._channels_last and x.shape[1] > 1:
            x = x.contiguous(memory_format=torch.channels_last)
        try:
            z = self._module(x)
        except ValueError as error:
            if len(x) > 1 or not self._module.training or not _norms(self._module):
                raise
            raise ArchitectureError(f"{_ONE}, or torch.nn.GroupNorm in its place") from error
        seen, self._seen = self._seen, None
        return z if seen is None else seen, z

    def state(self) -> dict[str, np.ndarray]:
        buffers = {f"buffer.{name}": each.numpy() for name, each in self._module.named_buffers()}
        return buffers | {"model_passes": np.array([self._passes])}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self._passes = int(state["model_passes"][0])
        for name, each in self._module.named_buffers():
            each.copy_(torch.from_numpy(state[f"buffer.{name}"]).reshape(each.shape))


def last_layer(module: nn.Module) -> nn.Linear | None:
    """Returns the layer that ends theta: a linear one with a bias."""
    last = [id(each) for each in module.parameters() if each.requires_grad][-2:]
    linear = (layer for layer in module.modules() if isinstance(layer, nn.Linear))
    return next((layer for layer in linear if last == [id(layer.weight), id(layer.bias)]), None)


def keep_channels_last(module: nn.Module) -> list[RemovableHandle]:
    """Has a module keep images as torch is quickest with them, a third and more; returns the hooks that see to it."""

    def channels_last(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        return out.contiguous(memory_format=torch.channels_last)

    return [layer.register_forward_hook(channels_last) for layer in module.modules() if isinstance(layer, nn.Conv2d)]


def measured(
    use: str, key: str, options: Mapping[str, Any], data: tuple[tuple[int, ...], int, str], dtype: np.dtype
) -> OwnModel:
    """Makes the module once and looks at it. ``data`` are the shape of a sample, the outputs and the task. Raises
    ArchitectureError where it does not fit the data."""
    from torch.utils import flop_counter

    shape, outputs, task = data
    module = _made(use, key, options, shape, outputs).to(torch_type(dtype))
    trained = {name: each for name, each in module.named_parameters() if each.requires_grad}
    if not trained:
        raise ArchitectureError(f"{key} = {use!r}: has no parameter that is trained")
    widest, flops = [math.prod(shape)], []
    for layer in module.modules():
        layer.register_forward_hook(lambda _, __, out: widest.append(_width(out)))
    x = torch.zeros(_SAMPLES, *shape, dtype=torch_type(dtype))
    y = torch.zeros(_SAMPLES, dtype=torch.int64) if task == "classification" else x.new_zeros(_SAMPLES, outputs)
    loss = nn.functional.cross_entropy if task == "classification" else nn.functional.mse_loss
    rnn = torch.ops.aten.mkldnn_rnn_layer, torch.ops.aten.mkldnn_rnn_layer_backward
    counted = {rnn[0]: _of_rnn, rnn[1]: lambda *shapes, **_: 2 * _of_rnn(*shapes)}
    for learns in (False, True):
        module.train(learns)
        counter = flop_counter.FlopCounterMode(display=False, custom_mapping=counted)
        with drawing(0, "own model"), _without_compiler(flop_counter), counter:
            z = _predictions(module, x, outputs, f"{key} = {use!r}")
            if learns:
                loss(z, y).backward()
        flops.append(counter.get_total_flops() // _SAMPLES)
    with drawing(0, "own model"):
        fits = _takes_channels_last(module, x)
        learns_from_one = _learns_from_one(module, x)
    head = last_layer(module)
    blocks = tuple((name, tuple(each.shape)) for name, each in trained.items())
    features = head.in_features if head else 0
    evaluation, gradient = flops
    of_norms = {id(each) for layer in _norms(module) for each in layer.parameters()}
    batch_norm = tuple(name for name, each in trained.items() if id(each) in of_norms)
    looked_at = blocks, features, max(widest), evaluation, gradient, fits, batch_norm, learns_from_one
    return OwnModel(use, json.dumps(dict(options)), *looked_at)


@contextmanager
def _without_compiler(counting: ModuleType) -> Iterator[None]:
    """torch keeps what counts operations out of its compiler, which it loads for that alone, in 1 s. Where nobody has
    loaded it, nothing is compiled, and it can do without."""
    counts = getattr(getattr(counting, "_FlopCounterMode", None), "__torch_dispatch__", None)
    function = None if "torch._dynamo" in sys.modules else getattr(counts, "__wrapped__", None)
    if function is not None:
        function.__dynamo_disable = function
    try:
        yield
    finally:
        if function is not None:
            vars(function).pop("__dynamo_disable", None)


def _norms(module: nn.Module) -> list[nn.Module]:
    return [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


@torch.no_grad()
def _learns_from_one(module: nn.Module, x: Tensor) -> bool:
    module.train()
    try:
        module(x[:1]) if _norms(module) else None
    except ValueError:  # "Expected more than 1 value per channel when training"
        return False
    return True


def unlike_alone(architecture: Architecture, run: Run, dtype: np.dtype) -> str:
    """Returns why a module does not learn from each sample as if that were alone; "" where it does."""
    module = build(architecture, run, dtype).train()
    x = torch.rand((2, *architecture.input_shape), generator=torch.Generator().manual_seed(0)).to(torch_type(dtype))
    before = {name: each.clone() for name, each in module.named_buffers()}
    with drawing(0, "own model"):
        (of_both,) = torch.autograd.grad(module(x.requires_grad_())[0].sum(), x)
    if of_both[1].any():
        return "mixes the samples of a mini-batch"
    kept = (name for name, each in module.named_buffers() if not torch.equal(each, before[name]))
    return f"keeps something of samples in its buffer {name}" if (name := next(kept, "")) else ""


@torch.no_grad()
def _takes_channels_last(module: nn.Module, x: Tensor) -> bool:
    """Tells whether images may lie in memory so on their way through a module: ``view`` fails with them, say."""
    if x.ndim != 4:
        return False
    module.eval()
    x = torch.rand(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0))
    plain, hooks = module(x), keep_channels_last(module)
    try:
        other = module(x.contiguous(memory_format=torch.channels_last))
        return bool(hooks) and torch.allclose(plain, other, rtol=1e-3, atol=1e-5)
    except Exception:
        return False
    finally:
        for hook in hooks:
            hook.remove()


def _made(use: str, key: str, options: Mapping[str, Any], shape: tuple[int, ...], outputs: int) -> nn.Module:
    make = own_code.load(use, key)
    called = ", ".join([f"{shape}", f"{outputs}", *(f"{k}={v!r}" for k, v in options.items())])
    if not callable(make):
        raise ArchitectureError(f"{key} = {use!r}: is no function that makes a model")
    with drawing(0, "own model"):
        try:
            module = importing(lambda: make(shape, outputs, **options))
        except TypeError as error:
            if own_code.blamed(error):
                raise
            raise ArchitectureError(f"{key} = {use!r}: cannot be called with ({called}): {error}") from error
    if not isinstance(module, nn.Module):
        found = f"returned {type(module).__name__} for ({called})"
        raise ArchitectureError(f"{key} = {use!r}: {found}; it has to be a torch.nn.Module")
    return module


def _predictions(module: nn.Module, x: Tensor, outputs: int, named: str) -> Tensor:
    try:
        z = module(x)
    except Exception as error:
        told = own_code.blamed(error) or own_code.described(error)
        raise ArchitectureError(f"{named}: cannot take samples of shape {tuple(x.shape[1:])}: {told}") from error
    if not isinstance(z, Tensor) or z.shape != (len(x), outputs):
        found = f"a {type(z).__name__}" if not isinstance(z, Tensor) else f"shape {tuple(z.shape)}"
        raise ArchitectureError(f"{named}: makes {found} of {len(x)} samples; it has to be ({len(x)}, {outputs})")
    return z


def check_loss(use: str, options: Mapping[str, Any], outputs: int, task: str) -> None:
    """Raises ArchitectureError where the user's loss does not give one of each sample, with a gradient."""

    def wrong(what: str) -> ArchitectureError:
        return ArchitectureError(f"training.loss.use = {use!r}: {what}")

    loss = own_code.load(use, "training.loss.use")
    if not callable(loss):
        raise wrong("is no function")
    z = torch.zeros(_SAMPLES, outputs, requires_grad=True)
    y = torch.zeros(_SAMPLES, dtype=torch.int64) if task == "classification" else torch.zeros(_SAMPLES, outputs)
    try:
        found = loss(z, y, **options)
    except Exception as error:
        told = own_code.blamed(error) or own_code.described(error)
        raise wrong(f"cannot take outputs {tuple(z.shape)} and targets {tuple(y.shape)}: {told}") from error
    if not isinstance(found, Tensor) or found.shape != (_SAMPLES,):
        shape = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise wrong(f"makes {shape} of {_SAMPLES} samples; it has to be ({_SAMPLES},), the loss of each")
    if not found.requires_grad:
        raise wrong("has no gradient by the outputs of the model")


def _of_rnn(x: Sequence[int], w_ih: Sequence[int], w_hh: Sequence[int], *_: Any, **__: Any) -> int:
    """Returns the operations forward of an LSTM's layer, from shapes: torch's counter leaves them out."""
    return 2 * math.prod(x[:2]) * (math.prod(w_ih) + math.prod(w_hh))


def _width(out: Any) -> int:
    if isinstance(out, tuple):  # an LSTM's
        return max(map(_width, out), default=0)
    return out[0].numel() if isinstance(out, Tensor) and out.ndim else 0


def torch_type(dtype: np.dtype) -> torch.dtype:
    return torch.float64 if dtype == np.float64 else torch.float32
