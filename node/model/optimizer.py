"""What a local step makes of a gradient, on one flat vector: torch.optim takes a second and 100 MB in every client."""

from collections.abc import Mapping

import numpy as np


class Adam:
    """Adam (Kingma and Ba 2015):

    m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2,   direction = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + e)

    with e = 1e-8; t counts the steps of all rounds."""

    def __init__(self, m: np.ndarray, v: np.ndarray, betas: tuple[float, float]):
        self._m, self._v, self._betas, self._steps = m, v, betas, 0

    def direction(self, g: np.ndarray) -> np.ndarray:
        """Returns a new vector (d,)."""
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
