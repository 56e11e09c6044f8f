"""The values that a sweep tries, as they are written on the command line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from ....metrics.config_file import parse as parse_toml
from ...config.files import parse
from ...config.sections import ConfigError

_EXAMPLE = 'for example --grid "algorithm.gamma=0.01,0.03"'
_NOT_HERE = {
    "seed": "how many seeds there are is told by --seeds",
    "name": "it changes nothing in a run",
    "compare": "[[compare]] tables are written in the file",
}


@dataclass(frozen=True)
class Grid:
    key: str
    values: tuple[Any, ...]


def parse_grids(texts: Sequence[str]) -> list[Grid]:
    """Each "key=value,value"; values as in TOML, bare words need no quotes. Raises ConfigError."""
    grids: list[Grid] = []
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not key or not values:
            raise ConfigError(f"--grid {text}: write it as key=value,value, {_EXAMPLE}")
        if key in _NOT_HERE:
            raise ConfigError(f"--grid {text}: {key} cannot be swept: {_NOT_HERE[key]}")
        if any(key == grid.key for grid in grids):
            raise ConfigError(f"--grid {text}: {key} has a grid already; write all its values in one")
        grids.append(Grid(key, _values(text, values)))
    return grids


def settings(grids: Sequence[Grid]) -> Iterator[dict[str, Any]]:
    """{key: value} for every point of the product, the last grid turning fastest; one empty one without grids."""
    for values in product(*(grid.values for grid in grids)):
        yield {grid.key: value for grid, value in zip(grids, values, strict=True)}


def _values(text: str, values: str) -> tuple[Any, ...]:
    try:
        found = parse_toml(f"values = [{values}]")["values"]
    except ValueError:
        found = [parse(value) for value in values.split(",")]
    if "" in found:
        raise ConfigError(f"--grid {text}: a value between the commas is missing")
    if any(isinstance(value, dict) for value in found):
        raise ConfigError(f"--grid {text}: a value is a table; write a grid for each of its keys")
    for number, value in enumerate(found):
        if any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in found[:number]):
            raise ConfigError(f"--grid {text}: {value} is there twice")
    return tuple(found)
