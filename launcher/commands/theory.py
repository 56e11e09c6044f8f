"""``sheafgossip theory``: the averaged gradient norm of a run beside the bound of Theorem 1, which is proven:

    1/K sum_k ||grad Psi(theta^k, P^k)||^2 <= (Psi(theta^0, P^0) - Psi*) / (rho K)                     (20)
    rho = min{ alpha (1 - alpha N L / 2), eta (1 - eta lam D^2 / 2) }

for alpha < 2/(N L) and eta < 2/(lam D^2), where every f_i is L-smooth and ||theta|| <= D all along. Psi* is not known;
as no loss here is negative, Psi* >= 0, and 0 in its place gives a somewhat larger, still valid bound. Maps that are
fixed, eta = 0, take no steps; then rho is taken to be the first of the two.

The proof's (34) leaves out the curvature of the penalty. With it a step makes Psi smaller where

    alpha < 2/(L + lam sigma^2),        sigma the largest singular value of all maps as one matrix P,

so that a run can meet the theorem's condition and break its bound."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...metrics.config_file import read_config, require_plain_file
from ...metrics.reader import open_records
from ...metrics.store import RunFolderError
from ...metrics.text import say
from ...node.algorithms.sheaf_fmtl import DFedU, SheafAlgorithm
from ...node.assignment import Neighbour
from ...node.learned_maps import Owner
from ...node.maps import Maps
from ...topology.graph import Graph, mixing_row
from ..config.sections import ConfigError, RunConfig, validate
from ..data.shards import shard_path


@dataclass(frozen=True)
class TheoryCheck:
    """``smoothness`` is L, ``radius`` D; ``bound`` is None where step sizes are too large; ``curved_limit`` is
    2/(L + lam sigma^2) of the maps at the start, None where no edges are on record."""

    rounds: int
    averaged_gradient: float
    start_objective: float
    smoothness: float
    radius: float
    alpha: float
    alpha_limit: float
    curved_limit: float | None
    eta: float
    eta_limit: float
    bound: float | None

    @property
    def holds(self) -> bool:
        return self.bound is not None and self.averaged_gradient <= self.bound

    @property
    def verdict(self) -> str:
        if self.holds:
            return "the bound holds"
        if self.curved_limit is None or self.alpha < self.curved_limit:
            return "the bound is BROKEN"
        return (
            "the bound is BROKEN, as it may be: alpha is not below 2/(L + lam sigma^2); the theorem's condition on "
            "alpha leaves out the curvature lam sigma^2 of the penalty"
        )


def theory(folder: Path) -> int:
    check = check_theorem(folder)
    curved, fixed = (
        "unknown: no edges on record, or given maps, weights or layers",
        "0: the maps are fixed; the bound is that of the models' steps alone",
    )
    if check.curved_limit is not None:
        curved = f"{check.curved_limit:.6g}, which the theorem leaves out"
    rows = {
        "rounds K": f"{check.rounds}",
        "objective at the start": f"{check.start_objective:.6g}",
        "smoothness L of the losses": f"{check.smoothness:.6g}",
        "largest ||theta|| (D)": f"{check.radius:.6g}",
        "alpha (limit 2/(N L))": f"{check.alpha:g} ({check.alpha_limit:.6g})",
        "and 2/(L + lam sigma^2)": curved,
        "eta (limit 2/(lam D^2))": f"{check.eta:g} ({check.eta_limit:.6g})" if check.eta else fixed,
        "averaged ||gradient||^2": f"{check.averaged_gradient:.6g}",
        "bound of Theorem 1": "none: a step size is above its limit" if check.bound is None else f"{check.bound:.6g}",
    }
    say("\n".join(f"{name:<30}{value}" for name, value in rows.items()))
    if check.bound is None:
        return 0
    say(check.verdict)
    return int(not check.holds)


def check_theorem(run_folder: Path) -> TheoryCheck:
    """Raises RunFolderError; ConfigError for a run that the theorem does not speak of."""
    with open_records(run_folder, check=("round",)) as records:
        config = _suitable(run_folder)
        met = records.execute(
            "SELECT sum(gradient_norm * gradient_norm), sum(objective) FROM round WHERE round >= 1"
            " GROUP BY round HAVING count(gradient_norm) = ? ORDER BY round",
            (config.clients,),
        ).fetchall()
        radius = "SELECT max(s) FROM (SELECT sum(theta_norm * theta_norm) s FROM round GROUP BY round)"
        squared_radius = records.execute(radius).fetchone()[0]
        squared_sigma = _squared_sigma(config, records)
    if not met or met[0][1] is None:
        raise ConfigError(f"{run_folder}: no round was completed by all clients, or none has an objective")
    smoothness = max(_smoothness(config, run_folder, client) for client in range(config.clients))
    alpha, lam, eta = config.training.alpha, config.algorithm.lam, config.algorithm.eta
    rho = alpha * (1 - alpha * config.clients * smoothness / 2)
    if eta:  # else the maps are fixed, and take no steps
        rho = min(rho, eta * (1 - eta * lam * squared_radius / 2))
    return TheoryCheck(
        rounds=len(met),
        averaged_gradient=sum(squared for squared, _ in met) / len(met),
        start_objective=met[0][1],
        smoothness=smoothness,
        radius=squared_radius**0.5,
        alpha=alpha,
        alpha_limit=_limit(config.clients * smoothness),
        curved_limit=None if squared_sigma is None else _limit(smoothness + lam * squared_sigma),
        eta=eta,
        eta_limit=_limit(lam * squared_radius),
        bound=met[0][1] / (rho * len(met)) if rho > 0 else None,
    )


def _limit(curvature: float) -> float:
    return 2 / curvature if curvature else float("inf")


def _squared_sigma(config: RunConfig, records: sqlite3.Connection) -> float | None:
    """The largest eigenvalue of P^T P, with the maps as they start: (P^T P theta)_i = sum_j P_ij^T (P_ij theta_i -
    P_ji theta_j). For selections that of the graph's Laplacian, which is no smaller: each parameter has a part of the
    graph. None where a file or function gives the maps or their weights, or they see some layers."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    sizes = dict(records.execute("SELECT node, parameters FROM node WHERE role = 'client'").fetchall())
    pairs = {(i, j) for i, j in records.execute("SELECT DISTINCT node, neighbour FROM edge") if i < j}
    if not pairs or set(sizes) != set(range(config.clients)) or not {i for pair in pairs for i in pair} <= set(sizes):
        return None
    graph, algorithm, maps = Graph.of(config.clients, pairs), config.algorithm, dict[int, Maps]()
    if algorithm.edges.is_given or getattr(algorithm, "layers", ()) or algorithm.start == "given":
        return None
    if algorithm.start == "selection":  # parameter with parameter
        algorithm = algorithm if isinstance(algorithm, DFedU) else DFedU()
        sizes = dict.fromkeys(sizes, 1)
    for i in range(config.clients):
        mixing = mixing_row(graph, i, config.topology.weights)
        neighbours = {j: Neighbour(j, sizes[j], mixing.get(j, 0.0)) for j in graph.neighbours(i)}
        maps[i] = algorithm.restriction_maps(Owner(i, config.seed, np.empty(sizes[i]), neighbours))
    ends = np.cumsum([sizes[i] for i in range(config.clients)])

    def product(theta: np.ndarray) -> np.ndarray:
        sent = {i: maps[i].project(part) for i, part in enumerate(np.split(theta.ravel(), ends[:-1]))}
        return np.concatenate([maps[i].pull_back({j: sent[i][j] - sent[j][i] for j in sent[i]}) for i in sent])

    if (total := int(ends[-1])) <= 2:
        return float(np.linalg.eigvalsh(np.column_stack([product(row) for row in np.eye(total)]))[-1])
    operator = LinearOperator((total, total), matvec=product, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(total)
    return float(eigsh(operator, k=1, which="LA", v0=start, tol=1e-6, return_eigenvectors=False)[0])


def _suitable(run_folder: Path) -> RunConfig:
    config = validate(read_config(run_folder))
    algorithm = config.algorithm
    needs = {
        "algorithm.name": isinstance(algorithm, SheafAlgorithm),
        # all clients descend on one and the same (8) all along
        "algorithm": algorithm.traits.server != "exchanges" and not getattr(algorithm, "rotate_every", 0),
        "algorithm.constraint": getattr(algorithm, "constraint", "none") == "none",
        "training.work": config.training.work == "full",
        "training.momentum": config.training.momentum == 0,
        "training.optimizer": config.training.is_plain and config.training.schedule == "constant",
        "model.kind": config.model.kind in ("logistic", "linear") and not config.model.mix,
    }
    if wrong := ", ".join(key for key, suits in needs.items() if not suits):
        raise ConfigError(
            f"{run_folder}: Theorem 1 does not speak of this run, because of {wrong}; "
            "it needs sheaf-fmtl or dfedu, fixed objective, full gradients without momentum, a logistic or linear model"
        )
    return config


def _smoothness(config: RunConfig, run_folder: Path, client: int) -> float:
    """Returns one client's L: the largest eigenvalue of X^T X / n, X with a column of ones, times 1/2 (softmax
    cross-entropy) or 2 (squared error), plus l2. Raises RunFolderError."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = shard_path(run_folder / "shards", client)
    try:
        require_plain_file(path)
        x = load_file(path)["x_train"]
        if not x.size or x.dtype.kind != "f" or not np.isfinite(x).all():
            raise ValueError("x_train must hold finite numbers")
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise RunFolderError(f"{path}: cannot be read as the shard of a client: {said}") from error
    inputs = np.column_stack([x.reshape(len(x), -1).astype(np.float64), np.ones(len(x))])
    largest = float(np.linalg.norm(inputs, 2)) ** 2 / len(x)
    return largest * (0.5 if config.model.kind == "logistic" else 2.0) + config.training.l2
