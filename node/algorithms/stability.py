"""How near Sheaf-FMTL's two step sizes are to divergence, from what a round computes anyway."""

import math
from dataclasses import dataclass, field

import numpy as np

from ..client import Client


@dataclass(slots=True)
class StabilityWatch:
    """Two numbers, each harmless while well below 1.

    ``models``: R lam alpha ||P||^2 for R local steps a round, where ||P||^2 is seen as ||P^T r||^2 / ||r||^2 (never
    more than the true value, and equal to it when (18) runs away). ``maps``: eta lam ||theta||^2 of one client; (19)
    multiplies the disagreement over an edge by 1 - eta lam (||theta_i||^2 + ||theta_j||^2), which grows once both ends
    are above 1.
    """

    models: float = 0.0
    maps: float = 0.0
    steps: int = 1
    """R"""
    _crossed: dict[str, str] = field(default_factory=dict)

    def see(self, *, models: float, maps: float, steps: int = 1) -> list[str]:
        """Takes in the numbers of a round; returns the warnings that were not given before."""
        self.steps = steps
        if math.isfinite(models) and math.isfinite(maps):  # what is no longer finite tells nothing about its cause
            self.models, self.maps = models, maps
        new = {name: text for name, text in self._warnings().items() if name not in self._crossed}
        self._crossed |= new
        return list(new.values())

    def tell(self, client: Client, lam: float, pull: np.ndarray, squared: float, *, maps: float = 0.0) -> None:
        """Tells the client's report the penalty of a round with this ``pull``, whose edges disagreed by ``squared`` =
        sum_j ||r_ij||^2, the warnings, and what to blame."""
        report = client.report
        report.penalty = lam / 4 * squared
        report.warnings += self.see(
            models=client.steps * lam * client.alpha * norm(pull) ** 2 / squared if squared else 0.0,
            maps=maps,
            steps=client.steps,
        )
        report.cause_of_divergence = self.cause()

    def _warnings(self) -> dict[str, str]:
        warnings = {}
        if self.maps > 1:
            warnings["maps"] = (
                f"eta lam ||theta||^2 = {self.maps:.3g} is above 1: the maps may diverge; lower algorithm.eta or "
                "algorithm.lam"
            )
        if self.models > 1:
            several = self.steps > 1
            warnings["models"] = (
                f"{f'{self.steps} local steps: {self.steps} ' if several else ''}lam alpha ||P||^2 = {self.models:.3g} "
                "is above 1: the models may diverge; lower algorithm.lam, algorithm.start_scale"
                f"{', training.alpha or the local steps' if several else ' or training.alpha'}"
            )
        return warnings

    def cause(self) -> str:
        """What most likely made theta infinite: the number that crossed 1 first, since each drives the other up."""
        return next(iter(self._crossed.values()), "the local steps diverged; lower training.alpha")


def norm(vector: np.ndarray) -> float:
    return math.sqrt(float(vector @ vector))
