"""How near Sheaf-FMTL's two step sizes are to divergence, from what a round computes anyway."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(slots=True)
class StabilityWatch:
    """Two numbers, each harmless while well below 1.

    ``models``: lam alpha ||P||^2, where ||P||^2 is seen as ||P^T r||^2 / ||r||^2 (never more than the true value, and
    equal to it when (18) runs away). ``maps``: eta lam ||theta||^2; the maps diverge above 2 (Theorem 1).
    """

    models: float = 0.0
    maps: float = 0.0
    _told: set[str] = field(default_factory=set)

    def see(self, *, models: float, maps: float) -> None:
        if math.isfinite(models) and math.isfinite(maps):  # what is no longer finite tells nothing about its cause
            self.models, self.maps = models, maps

    def news(self) -> list[str]:
        """Warnings that were not given before."""
        new = {name: text for name, text in self._warnings().items() if name not in self._told}
        self._told |= new.keys()
        return list(new.values())

    def _warnings(self) -> dict[str, str]:
        warnings = {}
        if self.models > 1:
            warnings["models"] = (
                f"lam alpha ||P||^2 = {self.models:.3g} is above 1: the models may diverge; lower algorithm.lam, "
                "algorithm.start_scale or training.alpha"
            )
        if self.maps > 1:
            warnings["maps"] = (
                f"eta lam ||theta||^2 = {self.maps:.3g} is above 1, and maps diverge above 2; lower algorithm.eta or "
                "algorithm.lam"
            )
        return warnings

    def cause(self) -> str:
        """What most likely made theta or the maps infinite."""
        warnings = self._warnings()
        if "maps" in warnings and self.maps / 2 >= self.models:
            return warnings["maps"]
        if warnings:
            return warnings.get("models", next(iter(warnings.values())))
        return "the local steps diverged; lower training.alpha"
