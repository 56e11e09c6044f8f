"""Adam (Kingma and Ba 2015), on one flat vector."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


class Adam:
    """m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2,   x <- x - eta (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + e)

    with b1 = 0.9, b2 = 0.999 and e = 1e-8, as in torch.optim.Adam, whose constructor takes a second and 100 MB.
    """

    def __init__(self, x: Tensor, shares: tuple[float, float] = (0.1, 0.001)):
        """``x`` is changed in place; ``shares`` are 1 - b1 and 1 - b2, to the last digit."""
        self._x, self._shares = x, shares
        self._m, self._v = (torch.zeros_like(x, requires_grad=False) for _ in range(2))
        self._steps = 0

    @torch.no_grad()
    def step(self, g: Tensor, eta: float) -> None:
        of_g, of_square = self._shares
        b1, b2 = 1 - of_g, 1 - of_square
        self._steps += 1
        self._m.mul_(b1).add_(g, alpha=of_g)
        self._v.mul_(b2).addcmul_(g, g, value=of_square)
        scale = (self._v / (1 - b2**self._steps)).sqrt_().add_(1e-8)
        self._x.addcdiv_(self._m, scale, value=-eta / (1 - b1**self._steps))

    def arrays(self) -> dict[str, np.ndarray]:
        return {"adam.m": self._m.numpy(), "adam.v": self._v.numpy(), "adam.steps": np.array([self._steps])}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._m.numpy()[:], self._v.numpy()[:] = arrays["adam.m"], arrays["adam.v"]
        self._steps = int(arrays["adam.steps"][0])
