"""The user's own table: one row a sample, with columns for features, the target and the client."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .arrays import codes, finite, root_of, some, targets, wrong
from .columns import Column, read_columns
from .pool import Pool

if TYPE_CHECKING:
    from ..config.data import DataSection

CLIENT = "client"
"""The column, or array, that names owners where data.client does not say."""

_MOST_TEXTS = 64
_NAMELESS = "Unnamed: "  # as pandas calls what has no name, with its number


def load_table(section: DataSection) -> Pool:
    """Columns data.target and, unless it is "", data.client; the others, or data.features, are features.

    Raises DataError.
    """
    path = root_of(section, "the .csv, .npz or .parquet file")
    read = read_columns(path)
    columns = read.by_name
    client = (CLIENT if CLIENT in columns else "") if section.client is None else section.client
    taken = {"data.target": section.target} | ({"data.client": client} if client else {})
    for key, name in taken.items():
        if name not in columns:
            raise wrong(path, f'there is no column "{name}" ({key}); its columns are {", ".join(columns)}')
    if section.target == client:
        raise wrong(path, f'data.target and data.client are both "{client}"; they must be two columns')
    features = {name: columns[name] for name in _chosen(section, path, list(columns), list(taken.values()))}
    if not features:
        raise wrong(path, "it has no column of features")
    used = {name: columns[name] for name in taken.values()} | features
    if complaints := [*_nameless(features), *_texts(section, features), *_missing(section, used)]:
        raise wrong(path, "; ".join(complaints))
    whole = ~np.any([column.missing for column in used.values()], axis=0)
    if not whole.any():
        raise wrong(path, "no row has a value in every column; name some of them in data.drop")
    names, x = _numbers(path, {name: column.values[whole] for name, column in features.items()})
    y, outputs = targets(path, section.target, columns[section.target].values[whole], section.task)
    owners, owner = codes(path, client, columns[client].values[whole]) if client else (None, None)
    told = list(read.told)
    if not whole.all():
        told.append(f"{np.sum(~whole):,} of {len(whole):,} rows left out, in which a value is missing")
    told.append(f"features: {some(names)}")
    return Pool(
        x,
        y,
        section.task,
        outputs,
        client=owner,
        owners=None if owners is None else tuple(map(str, owners)),
        told=tuple(told),
    )


def _chosen(section: DataSection, path: Path, columns: Sequence[str], taken: Sequence[str]) -> list[str]:
    """The names of the features' columns. Raises DataError."""
    if section.features and section.drop:
        raise wrong(path, "data.features and data.drop are both set; write one of them")
    key, named = ("data.features", section.features) if section.features else ("data.drop", section.drop)
    for name in named:
        if name not in columns:
            raise wrong(path, f'there is no column "{name}" ({key}); its columns are {", ".join(columns)}')
        if name in taken:
            raise wrong(path, f'{key} names "{name}", which is data.target or data.client')
    others = [name for name in columns if name not in taken]
    return [name for name in others if (name in named) == bool(section.features)]


def _nameless(features: Iterable[str]) -> list[str]:
    """Most often row numbers: nothing to learn from."""
    names = [name for name in features if name.startswith(_NAMELESS)]
    return [f"no name above column {some(_places(names))}: write {_way_out(names)}"] if names else []


def _places(names: Sequence[str]) -> list[str]:
    return [str(int(number) + 1) for name in names if (number := name.removeprefix(_NAMELESS)).isdecimal()]


def _texts(section: DataSection, features: Mapping[str, Column]) -> list[str]:
    texts = {name: column.values for name, column in features.items() if column.is_text}
    many = {name for name, values in texts.items() if len(np.unique(values)) > _MOST_TEXTS}
    if section.text == "one-hot":
        texts = {name: values for name, values in texts.items() if name in many}
    if not texts:
        return []
    shown = some([f'{name} (such as "{_clear(values)}")' for name, values in texts.items()])
    if section.text == "one-hot":
        return [f"more than {_MOST_TEXTS} different texts in {shown}: write {_way_out(list(texts))}"]
    encoded = "" if many == set(texts) else ', or data.text = "one-hot"'
    if many and encoded:
        encoded += f" with {_way_out(sorted(many, key=list(texts).index))}"
    return [f"text, not numbers, in {shown}: write {_way_out(list(texts))}{encoded}"]


def _clear(values: np.ndarray) -> str:
    return str(next((value for value in values.tolist() if value), ""))[:40]


def _missing(section: DataSection, used: Mapping[str, Column]) -> list[str]:
    if section.missing == "drop":
        return []
    counts = {name: int(column.missing.sum()) for name, column in used.items()}
    counts = {name: count for name, count in counts.items() if count}
    if not counts:
        return []
    missing = np.any([used[name].missing for name in counts], axis=0)
    row = int(missing.argmax())
    first = next(name for name in counts if used[name].missing[row])
    shown = some([f"{name} ({count})" for name, count in counts.items()])
    return [
        f"{first} is empty in row {row}, and {missing.sum():,} of {len(missing):,} rows lack a value, in {shown}: "
        'write data.missing = "drop" to leave these rows out, or name columns in data.drop'
    ]


def _way_out(names: Sequence[str]) -> str:
    return f"data.drop = {json.dumps(list(names), ensure_ascii=False)}"


def _numbers(path: Path, features: Mapping[str, np.ndarray]) -> tuple[list[str], np.ndarray]:
    """x (n, features) with their names; of a column of text one feature for each text, 0 or 1."""
    x: dict[str, np.ndarray] = {}
    for name, values in features.items():
        if values.dtype.kind in "biuf":
            x[name] = finite(path, name, values)
        else:
            x |= {f"{name}={text}": (values == text).astype(np.float32) for text in np.unique(values)}
    return list(x), np.stack(list(x.values()), axis=1)
