"""Which client learns which model."""

from collections.abc import Sequence
from dataclasses import replace

from ...node.model.architecture import Architecture
from ..config.section import ConfigError
from ..config.sections import RunConfig
from ..data import DataSummary
from .graphs import has_server


def deal_architectures(config: RunConfig, data: DataSummary) -> list[Architecture]:
    """One a client, dealt so that every first n clients hold the architectures in proportion to their shares; a server
    comes last, with that of the first client, or the one on all features.
    """
    sections = (config.model, *config.model.mix)
    choices = [Architecture.of(section, data.input_shape, data.outputs) for section in sections]
    server = [choices[0]] if has_server(config) else []
    if config.data.features_held < 1:
        if len(set(config.data.tasks)) > 1:
            raise ConfigError(f"data.features_held below 1 needs one task: data.tasks = {list(config.data.tasks)}")
        return [_on_features(choices, client.features) for client in data.clients] + server
    _check_task(config, data)
    total = sum(section.share for section in sections)
    dealt = [0] * len(sections)
    architectures = []
    for number, client in enumerate(data.clients):
        owed = [section.share / total * (number + 1) - count for section, count in zip(sections, dealt, strict=True)]
        chosen = max(range(len(sections)), key=lambda index: (owed[index], -index))
        dealt[chosen] += 1
        architectures.append(replace(choices[chosen], outputs=client.outputs))
    return architectures + server


def _on_features(choices: Sequence[Architecture], features: tuple[int, ...] | None) -> Architecture:
    """The run's one linear model, on the features that a client sees."""
    if len(choices) > 1 or choices[0].kind not in ("logistic", "linear") or features is None:
        raise ConfigError("data.features_held below 1 needs model.kind = 'logistic' or 'linear', and no model.mix")
    return replace(choices[0], input_shape=(len(features),))


def _check_task(config: RunConfig, data: DataSummary) -> None:
    for section in (config.model, *config.model.mix):
        if (section.kind, data.task) in (("linear", "classification"), ("logistic", "regression")):
            fitting = "linear" if data.task == "regression" else "logistic"
            raise ConfigError(
                f"model.kind = {section.kind!r}: the data is a {data.task} task; use {fitting!r}, 'mlp', 'cnn' or 'gru'"
            )
        if config.model.init == "zeros" and section.kind in ("mlp", "cnn", "gru"):
            raise ConfigError(
                "model.init = 'zeros': hidden layers would never learn; allowed with 'logistic' and 'linear'"
            )
