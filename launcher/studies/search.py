"""The search for the values with which a method does best on validation samples: Optuna's tree-structured Parzen
estimator (Bergstra et al. 2011) after a Latin hypercube. The seeds are the steps of a trial: after each, one that is
worse than the median of the earlier trials at that step ends. What cannot be made, or would cost more than is allowed,
ends before anything is trained. Trials are asked for a few at a time, whatever the number of jobs, and each outcome is
kept as it is known: the course of a search follows from configuration and seed alone."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any, Literal, Protocol

from ...topology.errors import install
from ...topology.randomness import generator
from ..config.sections import ConfigError
from .space import Distribution, Space

_AT_ONCE = 4  # trials whose values are chosen together, and runs that may go on at once
_FIRST = 8  # trials of the Latin hypercube
_BEFORE_PRUNING = 4  # trials that have to have finished

State = Literal["begun", "finished", "pruned", "over budget", "refused", "diverged", "failed"]


@dataclass(frozen=True)
class Budget:
    """What a method may spend: ``trials``, each with ``seeds``; what a run may send, and last in virtual seconds."""

    trials: int
    seeds: int = 1
    payload_bytes: float = math.inf
    virtual_s: float = math.inf


@dataclass
class Trial:
    number: int  # from 1 on
    values: dict[str, Any]  # {key: value}
    state: State = "begun"  # finished, pruned, over budget, refused, diverged, failed
    metric: str = ""  # accuracy, or mse
    of_seeds: list[float] = field(default_factory=list)  # the final metric on validation samples, mean over clients
    reason: str = ""  # why it did not finish

    @property
    def mean(self) -> float:
        """The mean over seeds so far; nan without any."""
        return mean(self.of_seeds) if self.of_seeds else math.nan

    @property
    def loss(self) -> float:
        """What is minimized; infinite where it came to nothing."""
        if self.state not in ("begun", "finished", "pruned") or not self.of_seeds:
            return math.inf
        return self.loss_after(len(self.of_seeds))

    def loss_after(self, seeds: int) -> float:
        """Returns that of the first so many seeds."""
        return mean(self.of_seeds[:seeds]) * (1 if self.metric == "mse" else -1)


@dataclass(frozen=True)
class Result:
    """Of one run: its metric, or how it ended otherwise."""

    value: float = math.nan
    metric: str = ""
    state: State = "begun"
    reason: str = ""


Note = Callable[[Trial, Result], None]


class Judge(Protocol):
    """Makes the runs of trials."""

    def admit(self, trial: Trial) -> Result | None:
        """Returns why none of its runs is to be made; None: they are ready."""

    def run(self, trials: Sequence[Trial], step: int, note: Note) -> None:
        """Makes the run of each with the seed of that number, and notes each result once. Raises KeyboardInterrupt."""

    def end(self, trial: Trial) -> None:
        """Removes what is left of its runs."""


@dataclass
class Search:
    """``known`` are trials from before, by number, perhaps begun only; ``keep`` is told of whatever is new."""

    space: Space
    budget: Budget
    seed: int
    judge: Judge
    known: Mapping[int, Trial] = field(default_factory=dict)
    keep: Callable[[Trial], None] = lambda trial: None
    trials: list[Trial] = field(default_factory=list)

    def __call__(self) -> list[Trial]:
        """Returns all trials in their order. Raises ConfigError where a known one is none of this search."""
        optuna = load_optuna()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study = self._study(optuna)
            while (left := self.budget.trials - len(self.trials)) > 0:
                asked = [self._ask(optuna, study) for _ in range(min(_AT_ONCE, left))]
                self._judge(asked)
                for told, trial in asked:
                    pruned = trial.state == "pruned"
                    state = optuna.trial.TrialState.PRUNED if pruned else optuna.trial.TrialState.COMPLETE
                    study.tell(told, None if pruned else trial.loss, state=state)
        return self.trials

    def _study(self, optuna: Any) -> Any:
        """Its first trials fill a Latin hypercube: of each key, one value from each of equal parts of its range."""
        draws = generator(self.seed, "tuning")
        sampler = optuna.samplers.TPESampler(
            n_startup_trials=_FIRST, multivariate=True, constant_liar=True, seed=int(draws.integers(1 << 31))
        )
        study = optuna.create_study(sampler=sampler, pruner=optuna.pruners.NopPruner())
        shares = {key: (draws.permutation(_FIRST) + draws.random(_FIRST)) / _FIRST for key in self.space}
        for number in range(_FIRST):
            study.enqueue_trial({key: each.at(float(shares[key][number])) for key, each in self.space.items()})
        return study

    def _ask(self, optuna: Any, study: Any) -> tuple[Any, Trial]:
        told = study.ask({key: _told(optuna, each) for key, each in self.space.items()})
        values = {key: each.value(told.params[key]) for key, each in self.space.items()}
        trial = Trial(len(self.trials) + 1, values)
        if found := self.known.get(trial.number):
            if found.values != values:
                raise ConfigError(f"trial {trial.number} has other values than this search would have chosen")
            trial = found
        self.trials.append(trial)
        return told, trial

    def _judge(self, asked: Sequence[tuple[Any, Trial]]) -> None:
        for _, trial in asked:
            if trial.state == "begun":
                self._begin(trial)
        for step in range(self.budget.seeds):
            missing = [trial for _, trial in asked if trial.state == "begun" and len(trial.of_seeds) <= step]
            missing = [trial for trial in missing if self._twin(trial) is None]
            if missing:
                self.judge.run(missing, step, self._note)
            for told, trial in asked:
                if len(trial.of_seeds) <= step or self._twin(trial):
                    continue
                told.report(trial.loss_after(step + 1), step)
                last = step + 1 == self.budget.seeds
                if trial.state == "begun" and (last or self._is_behind(trial, step + 1, asked[0][1].number)):
                    why = f"worse than the median of earlier trials after {step + 1} of {self.budget.seeds} seeds"
                    self._end(trial, Result(state="finished") if last else Result(state="pruned", reason=why))
        for _, trial in asked:
            if trial.state == "begun" and (twin := self._twin(trial)):
                trial.metric, trial.of_seeds = twin.metric, list(twin.of_seeds)
                self._end(trial, Result(state=twin.state, reason=twin.reason or f"the values of trial {twin.number}"))

    def _is_behind(self, trial: Trial, seeds: int, first: int) -> bool:
        """Tells whether it is worse than the median of those that had finished before the ``first`` was asked for, at
        the same seeds: these may be easy or hard ones."""
        finished = [each.loss_after(seeds) for each in self.trials[: first - 1] if each.state == "finished"]
        return len(finished) >= _BEFORE_PRUNING and trial.loss_after(seeds) > median(finished)

    def _begin(self, trial: Trial) -> None:
        if self._twin(trial) is None and (refused := self.judge.admit(trial)):
            self._end(trial, refused)

    def _twin(self, trial: Trial) -> Trial | None:
        """Returns an earlier trial with the same values: it would come to the same."""
        return next((each for each in self.trials[: trial.number - 1] if each.values == trial.values), None)

    def _note(self, trial: Trial, result: Result) -> None:
        if result.state != "begun":
            self._end(trial, result)
            return
        trial.metric = result.metric
        trial.of_seeds.append(result.value)
        self.keep(trial)

    def _end(self, trial: Trial, result: Result) -> None:
        trial.state, trial.reason = result.state, result.reason
        self.judge.end(trial)
        self.keep(trial)


def load_optuna() -> Any:
    """Raises ConfigError."""
    try:
        import optuna
    except ImportError:
        raise ConfigError(f"tune needs optuna: {install('tune')}") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _told(optuna: Any, of: Distribution) -> Any:
    if of.choices:
        return optuna.distributions.CategoricalDistribution(range(len(of.choices)))
    if of.whole:
        return optuna.distributions.IntDistribution(int(of.low), int(of.high), log=of.log)
    return optuna.distributions.FloatDistribution(of.low, of.high, log=of.log)
