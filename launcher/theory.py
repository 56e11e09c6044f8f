"""Theorem 1 held against a run: the averaged gradient norm that was met, and the bound that the paper proves.

    1/K sum_k ||grad Psi(theta^k, P^k)||^2 <= (Psi(theta^0, P^0) - Psi*) / (rho K)                     (20)
    rho = min{ alpha (1 - alpha N L / 2), eta (1 - eta lam D^2 / 2) }

for alpha < 2/(N L) and eta < 2/(lam D^2), where every f_i is L-smooth and ||theta|| <= D all along. Psi* is not known;
as no loss here is negative, Psi* >= 0, and 0 in its place gives a somewhat larger, still valid bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..metrics.config_file import read_config, require_plain_file
from ..metrics.reader import open_records
from ..metrics.schema import RunFolderError
from .config import ConfigError, RunConfig, validate
from .data import shard_path


@dataclass(frozen=True)
class TheoryCheck:
    """``smoothness`` is L, ``radius`` D; ``rho`` is None where the step sizes are too large for the theorem."""

    rounds: int
    averaged_gradient: float
    start_objective: float
    smoothness: float
    radius: float
    alpha: float
    alpha_limit: float
    eta: float
    eta_limit: float
    rho: float | None

    @property
    def bound(self) -> float | None:
        return None if self.rho is None else self.start_objective / (self.rho * self.rounds)


def check_theorem(run_folder: Path) -> TheoryCheck:
    """Raises RunFolderError; ConfigError for a run that the theorem does not speak of."""
    with open_records(run_folder, check=("round",)) as records:
        config = _suitable(run_folder)
        met = records.execute(
            "SELECT sum(gradient_norm * gradient_norm), sum(objective), count(*) FROM round WHERE round >= 1"
            " GROUP BY round HAVING count(gradient_norm) = ? ORDER BY round",
            (config.clients,),
        ).fetchall()
        radius = records.execute("SELECT max(s) FROM (SELECT sum(theta_norm * theta_norm) s FROM round GROUP BY round)")
        squared_radius = radius.fetchone()[0]
    if not met or met[0][1] is None:
        raise ConfigError(f"{run_folder}: no round was completed by all clients, or none has an objective")
    smoothness = max(_smoothness(config, run_folder, client) for client in range(config.clients))
    alpha, lam, eta = config.training.alpha, config.algorithm.lam, config.algorithm.eta
    of_theta = alpha * (1 - alpha * config.clients * smoothness / 2)
    of_maps = eta * (1 - eta * lam * squared_radius / 2) if eta else of_theta  # fixed maps take no steps
    rho = min(of_theta, of_maps)
    return TheoryCheck(
        rounds=len(met),
        averaged_gradient=sum(squared for squared, _, _ in met) / len(met),
        start_objective=met[0][1],
        smoothness=smoothness,
        radius=squared_radius**0.5,
        alpha=alpha,
        alpha_limit=_limit(config.clients * smoothness),
        eta=eta,
        eta_limit=_limit(lam * squared_radius),
        rho=rho if rho > 0 else None,
    )


def _limit(curvature: float) -> float:
    return 2 / curvature if curvature else float("inf")


def _suitable(run_folder: Path) -> RunConfig:
    config = validate(read_config(run_folder))
    needs = {
        "algorithm.name": config.algorithm.name in ("sheaf-fmtl", "dfedu"),
        "algorithm.server": not getattr(config.algorithm, "server", False),
        "algorithm.rotate_every": not getattr(config.algorithm, "rotate_every", 0),
        "training.work": config.training.work == "full",
        "training.momentum": config.training.momentum == 0,
        "model.kind": config.model.kind in ("logistic", "linear") and not config.model.mix,
    }
    if not all(needs.values()):
        wrong = ", ".join(key for key, suits in needs.items() if not suits)
        raise ConfigError(
            f"{run_folder}: Theorem 1 does not speak of this run, because of {wrong}; "
            "it needs sheaf-fmtl or dfedu, fixed objective, full gradients without momentum, a logistic or linear model"
        )
    return config


def _smoothness(config: RunConfig, run_folder: Path, client: int) -> float:
    """Of one client's loss: the largest eigenvalue of X^T X / n, X with a column of ones, times 1/2 (softmax
    cross-entropy) or 2 (squared error), plus l2."""
    x = _samples(shard_path(run_folder / "shards", client))
    inputs = np.column_stack([x.reshape(len(x), -1).astype(np.float64), np.ones(len(x))])
    largest = float(np.linalg.norm(inputs, 2)) ** 2 / len(x)
    return largest * (0.5 if config.model.kind == "logistic" else 2.0) + config.training.l2


def _samples(path: Path) -> np.ndarray:
    """x_train of a shard. Raises RunFolderError."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        require_plain_file(path)
        x = load_file(path)["x_train"]
        if not x.size or x.dtype.kind != "f" or not np.isfinite(x).all():
            raise ValueError("x_train must hold finite numbers")
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise RunFolderError(f"{path}: cannot be read as the shard of a client: {said}") from error
    return x
