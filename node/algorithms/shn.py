"""Sheaf HyperNetwork (Nguyen et al. 2024): GHN with sheaf diffusion in the place of graph convolutions.

    X_0 = reshape(X W_in) in R^{(M d) x f}           a stalk R^d for each client, f times over
    F_{v of e = (v, u)} = orthogonal(tanh(Phi^t [vec(X_t)_v || vec(X_t)_u])) in R^{d x d}       restriction maps
    X_{t+1} = X_t - s(Delta_F(t) (I x W_1^t) X_t W_2^t)                                         (4)
    z_m = P vec(X_L)_m                               back to R^f

Delta_F = D^-1/2 delta^T delta D^-1/2 is the normalised sheaf Laplacian, (delta X)_e = F_{v of e} X_v - F_{u of e} X_u.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from .ghn import GHN, GHNSettings
from .pfedhn import Width

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SHNSettings(GHNSettings):
    name: Literal["shn"] = "shn"  # type: ignore[assignment]
    stalk: Annotated[Width, "Dimension d of the stalks, and of the d x d restriction maps."] = 3
    orthogonal: Annotated[
        Literal["householder", "cayley"], "How a restriction map is made orthogonal: by reflections, or as a rotation."
    ] = "householder"


class SHN(GHN):
    Settings: ClassVar[type[Any]] = SHNSettings

    def diffuse(self, X: Tensor) -> Tensor:
        d, f, graph = self.settings.stalk, self.settings.embedding, self.relations
        orthogonal = getattr(self._net, self.settings.orthogonal)
        X = (X @ self.psi["in.weight"].T + self.psi["in.bias"]).view(-1, d, f)
        for t in range(self.settings.layers):
            # Phi^t of two stalks side by side, part by part: a product a node instead of one an edge
            own, other = X.flatten(1) @ self.psi[f"Phi{t}.own"], X.flatten(1) @ self.psi[f"Phi{t}.other"]
            F_v = orthogonal((own[graph.v] + other[graph.u]).tanh(), d)
            F_u = orthogonal((own[graph.u] + other[graph.v]).tanh(), d)
            mixed = self.psi[f"W1.{t}"] @ X @ self.psi[f"W2.{t}"]  # (I x W_1) X W_2
            X = X - self._s(graph.sheaf_laplacian(F_v, F_u, mixed))  # (4)
        return X.flatten(1) @ self.psi["P.weight"].T + self.psi["P.bias"]

    def diffusion(self) -> dict[str, np.ndarray]:
        """W_2^t start orthogonal over L: whatever the number of layers, they begin as a diffusion of one length."""
        d, f = self.settings.stalk, self.settings.embedding
        blocks = self._linear("in", f, d * f) | self._linear("P", d * f, f)
        for t in range(self.settings.layers):
            halves = self._linear(f"Phi{t}", 2 * d * f, d * (d - 1) // 2)[f"Phi{t}.weight"]
            blocks |= {
                f"Phi{t}.own": halves[:, : d * f].T,
                f"Phi{t}.other": halves[:, d * f :].T,
                f"W1.{t}": np.eye(d),
                f"W2.{t}": self._orthogonal(f"W2.{t}", f) / self.settings.layers,
            }
        return blocks
