"""The keys of restriction maps that are learned, or could be, and the maps that they describe."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from annotated_types import Le

from ..topology.errors import UserError
from ..topology.randomness import generator
from ..topology.section import Index, Needs, Positive
from .assignment import Neighbour
from .constrained_maps import BallMaps, Constraint, DiagonalMaps, LayerMaps, OrthonormalMaps
from .edges import EdgeFacts, EdgesTable, Pair, both_ways, given_edges
from .given_maps import GivenMaps
from .maps import IDENTITY_NOISE, FixedMaps, Maps, MatrixStart, Stacking, StartingMaps, shared_rows, starting_maps
from .model.architecture import Architecture, named
from .selections import selected
from .stored_maps import Storage, StoredMaps

if TYPE_CHECKING:  # algorithms import this file
    from .algorithms.base import Client, RunFacts

_WITH_GAMMA = Needs("start", "gaussian", "uniform", "orthogonal", "identity", "shared")
_WITH_ROWS = Needs("start", "gaussian", "uniform", "orthogonal", "identity", "shared", "given")
_LAYERS = "algorithm.layers"
_WITH_PLACES = ("selection", "shared", "identity", "given")  # starts whose rows can have a place each

OF_A_TRANSFORM = 12
"""Vectors of d_i numbers that structured maps take at most, what their transforms make on the way included."""


@dataclass(frozen=True)
class Owner:
    """Whose maps they are, as a client tells it; of ``theta`` the size and the type are used."""

    node: int
    seed: int
    theta: np.ndarray
    neighbours: Mapping[int, Neighbour]
    model: Architecture | None = None


@dataclass(frozen=True)
class MapSettings:
    gamma: Annotated[Positive, Le(1), _WITH_GAMMA] = 0.01
    """Size of the shared vectors: d_ij = max(1, floor(gamma min(d_i, d_j))), of what maps see of the models."""
    start: Literal["gaussian", "uniform", "orthogonal", "identity", "shared", "given", "selection"] = "gaussian"
    """Restriction maps at the start. The paper's: gaussian N(0, 1), uniform U(-1, 1), orthogonal (random orthonormal
    rows), identity (rows of the identity plus N(0, 0.01^2)). Ours: shared (both ends of an edge have the same
    orthonormal rows). given: those of maps_from. All times start_scale. selection: the parameters that both ends have,
    where clients see different features; fixed, with eta = 0, or learned with constraint = "diagonal"."""
    start_scale: Annotated[Positive, _WITH_ROWS, "Factor on the starting maps; zero maps would never learn."] = 1.0
    maps_from: Annotated[str, Needs("start", "given")] = ""
    """given: safetensors file with a matrix P.I.J (d_ij, d_i) for client I's edge to J, both maps of every edge."""
    layers: Annotated[tuple[str, ...], _WITH_ROWS] = ()
    """Maps see only these layers or parameters, by names or patterns as in model.head; none: all."""
    constraint: Annotated[Constraint, Needs("eta")] = "none"
    """A set that maps stay in while they learn: each is replaced by the nearest one of it after (19), and at the start.
    orthonormal: rows orthogonal, of length start_scale; diagonal: each row has one entry, at its place (start =
    "selection", "shared", "identity" or "given"); ball: Frobenius norm at most radius."""
    radius: Annotated[Positive, Needs("constraint", "ball"), "ball: the largest ||P_ij||_F."] = 1.0
    storage: Storage = "auto"
    """How maps are kept, exactly in every case: dense matrices, factored into start and history, or auto: factored
    until dense is cheaper. orthonormal maps are dense, diagonal ones keep their entries alone."""
    rank_cap: Annotated[Index, Needs("eta")] = 0
    """At most so many rows of history in factored maps, the rest approximated, with a bound on the error in the
    records; 0 keeps all, exactly."""

    def unfit(self, *, fused: bool, server: bool, learns: bool) -> tuple[str, str]:
        """Returns a key that does not fit the others, and what is told of it; ("", "") where all fit."""
        constraint = f"constraint = {self.constraint!r}"
        is_fixed = "= 'selection' are fixed maps; they need eta = 0"
        wrong = {
            ("start", is_fixed): self.start == "selection" and learns and (server or self.constraint != "diagonal"),
            ("maps_from", "is missing: start = 'given' needs a file"): self.start == "given" and not self.maps_from,
            ("rank_cap", "dense maps have no history; use storage = 'factored', or rank_cap = 0"): (
                self.rank_cap > 0 and self.storage == "dense"
            ),
            ("rank_cap", f"= {self.rank_cap}: maps with {constraint} have no history; leave it out"): (
                self.rank_cap > 0 and self.constraint in ("orthonormal", "diagonal")
            ),
            ("exchange", f"= 'fused' needs maps as (19) leaves them, and {constraint} changes them; use 'two-phase'"): (
                fused and self.constraint != "none"
            ),
            ("start", f"= {self.start!r}: {constraint} needs rows with a place each: {', '.join(_WITH_PLACES)}"): (
                self.constraint == "diagonal" and self.start not in _WITH_PLACES
            ),
            ("storage", f"= 'factored': {constraint} changes whole maps, of which no history tells; use 'auto'"): (
                self.constraint == "orthonormal" and self.storage == "factored"
            ),
            ("storage", f"= {self.storage!r}: {constraint} keeps one entry a row, and no matrix; use 'auto'"): (
                self.constraint == "diagonal" and self.storage != "auto"
            ),
        }
        return next((said for said, is_wrong in wrong.items() if is_wrong), ("", ""))

    def places(self, model: Architecture) -> slice | np.ndarray:
        """Returns where the parameters are that maps see. Raises ArchitectureError."""
        if not self.layers:
            return slice(0, model.size)
        return model.places_of(named(model, self.layers, _LAYERS))

    def seen(self, model: Architecture) -> int:
        """Counts the parameters that maps see."""
        return sum(each.size for each in named(model, self.layers, _LAYERS)) if self.layers else model.size

    def edge_facts(self, run: "RunFacts", given: EdgesTable, *, learns: bool) -> dict[Pair, EdgeFacts]:
        """Returns what each end of the edges is told; nothing where gamma says it all. Raises UserError."""
        edges, sizes = run.graph.edges, [model.size for model in run.models]
        if self.start == "selection":
            found = both_ways(given_edges(given, edges, sizes, with_rows=False))
            return {ends: facts._replace(common=_common(run, *ends)) for ends, facts in found.items()}
        seen = list(map(self.seen, run.models))
        if self.start == "given":
            file = GivenMaps(Path(self.maps_from))
            rows = file.rows(edges, sizes, seen)
            diagonal = self.constraint == "diagonal"
            file.check(edges, list(map(self.places, run.models)), learns=learns, diagonal=diagonal)
            found = given_edges(given, edges, sizes, with_rows=False)
        elif given.is_given or self.layers:
            found = given_edges(given, edges, seen)
            rows = {(i, j): each.rows or shared_size(self.gamma, seen[i], seen[j]) for (i, j), each in found.items()}
        else:
            return {}
        return both_ways({edge: facts._replace(rows=rows[edge]) for edge, facts in found.items()})

    def rows(self, d_i: int, d_j: int, facts: EdgeFacts) -> int:
        """Returns d_ij, the same at both ends of an edge."""
        given = len(facts.common) if self.start == "selection" else facts.rows
        return given or shared_size(self.gamma, d_i, d_j)

    def maps(self, of: "Client | Owner") -> Maps:
        """Returns those of a client before the first round."""
        theta, told = of.theta, {j: EdgeFacts.of(peer.facts) for j, peer in of.neighbours.items()}
        if self.start == "selection":
            common = {j: np.array(facts.common) for j, facts in told.items()}
            if self.constraint == "diagonal":
                return DiagonalMaps(theta.size, common, {j: np.ones(len(p), theta.dtype) for j, p in common.items()})
            return FixedMaps(theta.size, common, {j: facts.a for j, facts in told.items()})
        rows = {j: self.rows(theta.size, peer.parameters, told[j]) for j, peer in of.neighbours.items()}
        if not self.layers:
            return self._learned(of.node, of.seed, rows, theta)
        assert of.model is not None
        places = self.places(of.model)
        return LayerMaps(self._learned(of.node, of.seed, rows, theta[places], places), places, theta.size)

    def _learned(
        self, node: int, seed: int, rows: Mapping[int, int], theta: np.ndarray, places: slice | np.ndarray = slice(None)
    ) -> Maps:
        if self.constraint == "diagonal":
            return self._diagonal(node, seed, rows, theta, places)
        start: StartingMaps
        if self.start == "given":
            stacking = Stacking(rows)
            matrix = np.empty((stacking.height, theta.size), theta.dtype)
            for j, given in GivenMaps(Path(self.maps_from)).matrices(node, rows):
                matrix[stacking.parts[j]] = self.start_scale * given[:, places]
            start = MatrixStart(matrix, stacking)
        else:
            assert self.start != "selection"
            start = starting_maps(self.start, seed=seed, node=node, rows=rows, theta=theta, scale=self.start_scale)
        cap = self.rank_cap or None
        if self.constraint == "orthonormal":
            return OrthonormalMaps(start, self.start_scale)
        if self.constraint == "ball":
            return BallMaps(start, self.storage, cap, self.radius)
        return StoredMaps(start, self.storage, cap)

    def _diagonal(
        self, node: int, seed: int, rows: Mapping[int, int], theta: np.ndarray, places: slice | np.ndarray
    ) -> DiagonalMaps:
        if self.start == "given":
            found = {j: P[:, places] for j, P in GivenMaps(Path(self.maps_from)).matrices(node, rows)}
            chosen = {j: np.abs(P).argmax(axis=1) for j, P in found.items()}
            entries = {j: P[np.arange(len(P)), chosen[j]] for j, P in found.items()}
        elif self.start == "shared":
            chosen = shared_rows(seed, node, rows, theta.size, 0)
            entries = {j: np.ones(d_ij) for j, d_ij in rows.items()}
        else:
            drawn = {j: generator(seed, "diagonal starting map", node, j) for j in rows}
            chosen = {j: np.arange(d_ij) for j, d_ij in rows.items()}
            entries = {j: 1 + IDENTITY_NOISE * drawn[j].standard_normal(d_ij) for j, d_ij in rows.items()}
        scaled = {j: (self.start_scale * p).astype(theta.dtype) for j, p in entries.items()}
        return DiagonalMaps(theta.size, chosen, scaled)

    def numbers(self, model: Architecture, rows: list[int], rounds: int, *, learns: bool) -> int:
        """Counts about how many numbers a client keeps for them by the end of a run."""
        d_i, height = self.seen(model), sum(rows)
        dense = height * d_i
        if self.constraint == "diagonal" and learns:
            return OF_A_TRANSFORM * model.size + 2 * height
        if self.constraint == "orthonormal" and learns:
            return dense + 2 * max(rows, default=0) * d_i
        if learns and self.storage == "dense":
            return dense
        start = OF_A_TRANSFORM * model.size if self.start in ("orthogonal", "shared", "selection") else dense
        history = min(rounds, self.rank_cap or rounds) * (d_i + height) if learns else 0
        return start + (min(history, dense) if self.storage == "auto" else history)


def shared_size(gamma: float, d_i: int, d_j: int) -> int:
    """Returns d_ij, the same at both ends of an edge."""
    return max(1, math.floor(gamma * min(d_i, d_j) + 1e-9))  # 0.29 * 100 is 28.999999999999996


def _common(run: "RunFacts", i: int, j: int) -> tuple[int, ...]:
    """Returns the coordinates of client i's theta that client j has, too; a server sees all features. Raises UserError
    where there are none."""
    server = tuple(range(math.prod(run.models[-1].input_shape))) if None not in run.features else None
    mine, theirs = (run.features[node] if node < len(run.features) else server for node in (i, j))
    if mine is None or theirs is None:
        raise UserError(
            f"algorithm.start = 'selection': clients {i} and {j} have no parameter in common; set data.features_held "
            "below 1, or choose another start"
        )
    return tuple(selected(run.models[i], mine, theirs).tolist())
