"""How near Sheaf-FMTL's two step sizes are to divergence, from what a round computes anyway."""

import math
from dataclasses import dataclass, field

import numpy as np

from .base import Client


@dataclass(slots=True)
class StabilityWatch:
    """Two numbers, each harmless while well below 1; whichever crosses it drives the other up.

    ``models``: R lam alpha ||P||^2 for R local steps a round, where ||P||^2 is seen as ||P^T r||^2 / ||r||^2 (never
    more than the true value, and equal to it when (18) runs away). ``maps``: eta lam ||theta||^2 of one client; (19)
    multiplies the disagreement over an edge by 1 - eta lam (||theta_i||^2 + ||theta_j||^2), which grows once both ends
    are above 1.
    """

    crossed: dict[str, str] = field(default_factory=dict)
    """{number: the warning that told}, the first to cross 1 first."""

    def see(self, *, models: float, maps: float, steps: int = 1) -> list[str]:
        """Takes in the numbers of a round; returns the warnings that were not given before."""
        if not (math.isfinite(models) and math.isfinite(maps)):  # tells nothing about its own cause
            return []
        new = {}
        if maps > 1:
            new["maps"] = (
                f"eta lam ||theta||^2 = {maps:.3g} is above 1: the maps may diverge; lower algorithm.eta or "
                "algorithm.lam"
            )
        if models > 1:
            several, more = (f"{steps} local steps: {steps} ", ", training.alpha or the local steps")
            new["models"] = (
                f"{several if steps > 1 else ''}lam alpha ||P||^2 = {models:.3g} is above 1: the models may diverge; "
                f"lower algorithm.lam, algorithm.start_scale{more if steps > 1 else ' or training.alpha'}"
            )
        new = {number: text for number, text in new.items() if number not in self.crossed}
        self.crossed |= new
        return list(new.values())

    def tell(self, client: Client, lam: float, pull: np.ndarray, squared: float, *, maps: float = 0.0) -> None:
        """Tells the client's report the penalty of a round with this ``pull``, whose edges disagreed by ``squared`` =
        sum_j ||r_ij||^2, the warnings, and what to blame."""
        report, steps = client.report, client.steps
        report.penalty = lam / 4 * squared
        models = steps * lam * client.alpha * norm(pull) ** 2 / squared if squared else 0.0
        report.warnings += self.see(models=models, maps=maps, steps=steps)
        report.cause_of_divergence = self.cause()

    def cause(self) -> str:
        """What most likely made theta infinite."""
        return next(iter(self.crossed.values()), "the local steps diverged; lower training.alpha")


def norm(vector: np.ndarray) -> float:
    return math.sqrt(float(vector @ vector))
