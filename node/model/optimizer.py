"""What a local step makes of a gradient, on one flat vector: torch.optim takes a second and 100 MB in every client."""

from collections.abc import Callable, Mapping

import numpy as np

Add = Callable[[np.ndarray, np.ndarray, float], None]  # (vector, other, factor): vector += factor * other


class Adam:
    """Adam (Kingma and Ba 2015):

    m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2,   direction = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + e)

    theta <- theta - alpha (decay theta + direction)

    with e = 1e-8; t counts the steps of all rounds; ``kept`` are zeros for m and v. With a ``decay`` it is AdamW
    (Loshchilov and Hutter 2019)."""

    def __init__(self, theta: np.ndarray, add: Add, kept: list[np.ndarray], betas: tuple[float, ...], decay: float):
        self._theta, self._add, (self._m, self._v) = theta, add, kept
        self._betas, self._decay, self._steps = betas, decay, 0

    def step(self, g: np.ndarray, alpha: float) -> None:
        direction = self._direction(g)
        if self._decay:
            self._theta *= 1 - alpha * self._decay
        self._add(self._theta, direction, -alpha)

    def _direction(self, g: np.ndarray) -> np.ndarray:
        b1, b2 = self._betas
        self._steps += 1
        self._m += (1 - b1) * (g - self._m)
        self._v += (1 - b2) * (g * g - self._v)
        scale = np.sqrt(self._v / (1 - b2**self._steps))
        scale += 1e-8
        return self._m / (1 - b1**self._steps) / scale

    def state(self) -> dict[str, np.ndarray]:
        return {"adam.m": self._m, "adam.v": self._v, "adam.steps": np.array([self._steps])}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self._m[:], self._v[:] = state["adam.m"], state["adam.v"]
        self._steps = int(state["adam.steps"][0])
