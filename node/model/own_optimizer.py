"""An optimizer of torch, or of the user's own: any torch.optim.Optimizer, on parameters that are views of theta."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
import torch._dynamo  # constructors of torch.optim do so, which takes a second: here it is once for all clients
from torch import Tensor

from ...transport.array_file import ArrayFile
from .. import own_code
from ..settings import OptimizerSettings
from .architecture import Architecture, ArchitectureError
from .networks import views
from .own import drawing

KEY = "training.optimizer.use"


class OwnOptimizer:
    """Steps as ``kind(parameters, lr=alpha, **options)`` does. The tensors and numbers that it keeps for parameters and
    for their groups are the client's state; what it draws follows from ``key``, seed and client."""

    def __init__(
        self,
        kind: Callable[..., torch.optim.Optimizer],
        options: Mapping[str, Any],
        alpha: float,
        parameters: list[Tensor],
        key: tuple[int, int],
    ):
        self._parameters, self._key, self._steps = parameters, key, 0
        with self._drawing():
            self._optimizer = kind(parameters, lr=alpha, **options)

    def step(self, _: np.ndarray, alpha: float) -> None:
        """The gradient is where its parameters' are."""
        self._steps += 1
        for group in self._optimizer.param_groups:
            group["lr"] = alpha
        with self._drawing():
            self._optimizer.step()

    def _drawing(self) -> AbstractContextManager[None]:
        seed, client = self._key
        return drawing(seed, "own optimizer", client, self._steps)

    def state(self) -> dict[str, np.ndarray]:
        kept, found = self._optimizer.state, {"optimizer.steps": np.array([self._steps])}
        tables = [(f"state.{number}", kept.get(each, {})) for number, each in enumerate(self._parameters)]
        tables += [(f"group.{number}", each) for number, each in enumerate(self._optimizer.param_groups)]
        for place, table in tables:
            for key, value in table.items():
                if isinstance(value, Tensor):
                    found[f"optimizer.{place}.tensor.{key}"] = value.detach().numpy()
                elif isinstance(value, bool | int | float):
                    found[f"optimizer.{place}.number.{key}"] = np.array([value])
        return found

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Puts in what is kept as it is: ``load_state_dict`` would make it numbers of theta's type."""
        self._steps = int(state["optimizer.steps"][0])
        for name, array in state.items():
            match name.split(".", 4):
                case ["optimizer", place, number, kind, key]:
                    is_group = place == "group"
                    table = self._optimizer.param_groups[int(number)] if is_group else self._kept_of(int(number))
                    table[key] = torch.from_numpy(array).clone() if kind == "tensor" else array[0].item()

    def _kept_of(self, number: int) -> dict[str, Any]:
        return self._optimizer.state[self._parameters[number]]


def parameters_of(architecture: Architecture, theta: np.ndarray, gradient: np.ndarray) -> list[Tensor]:
    """Returns views of theta, whose gradients are views of that one."""
    parameters = views(architecture, theta)
    for parameter, slope in zip(parameters, views(architecture, gradient), strict=True):
        parameter.requires_grad_().grad = slope
    return parameters


def check_optimizer(settings: OptimizerSettings, architecture: Architecture, dtype: np.dtype, alpha: float) -> None:
    """Takes three steps, with what is kept after two of them put into another. Raises ArchitectureError where something
    is wrong with the class, its options, or what it keeps."""

    def wrong(what: str, error: Exception | None = None) -> ArchitectureError:
        told = f": {own_code.blamed(error) or own_code.described(error)}" if error else ""
        return ArchitectureError(f"{KEY} = {settings.use!r}: {what}{told}")

    def made() -> OwnOptimizer:
        return OwnOptimizer(kind, settings.options, alpha, parameters_of(architecture, theta, gradient), (0, 0))

    kind = own_code.load(settings.use, KEY)
    if not isinstance(kind, type) or not issubclass(kind, torch.optim.Optimizer):
        raise wrong("is no subclass of torch.optim.Optimizer")
    if "lr" in settings.options:
        raise wrong("its lr is training.alpha; leave it out of training.optimizer.options")
    rng = np.random.default_rng(0)
    theta, gradient = (rng.normal(size=architecture.size).astype(dtype) for _ in range(2))
    start = theta.copy()
    try:
        first = made()
    except Exception as error:
        raise wrong(f"cannot be made with lr={alpha:g} and options {settings.options}", error) from error
    try:
        for _ in range(2):
            first.step(gradient, alpha)
    except Exception as error:
        raise wrong("cannot take a step", error) from error
    if (theta == start).all():
        raise wrong("its steps leave the parameters where they are")
    try:
        kept, before = {name: array.copy() for name, array in first.state().items()}, theta.copy()
        ArrayFile(kept)
    except TypeError as error:
        raise wrong("what it keeps fits into no checkpoint", error) from error
    first.step(gradient, alpha)
    after, theta[:] = theta.copy(), before
    other = made()
    other.load(kept)
    other.step(gradient, alpha)
    if after.tobytes() != theta.tobytes():
        raise wrong("keeps more than tensors and numbers of parameters and groups; no run could go on from that")
