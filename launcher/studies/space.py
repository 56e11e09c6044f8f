"""What is searched for each key: a range of numbers, on a linear or a logarithmic scale, or a choice."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...metrics.config_file import parse as parse_toml
from ..config.files import parse
from ..config.sections import ConfigError

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"(?P<kind>(?:int:)?(?:log:)?)\s*(?P<low>{_NUMBER})\s*\.\.\s*(?P<high>{_NUMBER})")
_LARGEST = 2**53  # up to here each whole number is a float
_DIGITS = 4  # of a value, or of where it is in its range
_HOW = 'write it as KEY=log:0.001..10, 0.1..1, int:1..10, int:log:1..64 or a,b,c, for example --search "algorithm.lam='
_HOW += 'log:0.001..10"'
_NOT_HERE = {
    "seed": "--seeds tells how many there are",
    "name": "it changes nothing in a run",
    "compare": "[[compare]] tables are written in the file",
    "algorithm.name": "write a [[compare]] table for each method; each is searched by itself",
    "algorithm.use": "write a [[compare]] table for each method; each is searched by itself",
    "data.evaluate_on": "trials are always judged on validation samples",
}


@dataclass(frozen=True)
class Distribution:
    """Numbers from ``low`` to ``high``, or one of ``choices`` if there are any."""

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[Any, ...] = ()

    def at(self, share: float) -> float | int:
        """Returns what lies there in the range, 0 <= share < 1; of choices, the number of one."""
        if self.choices:
            return int(share * len(self.choices))
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        found = low * (high / low) ** share if self.log else low + (high - low) * share
        return min(max(round(found), int(self.low)), int(self.high)) if self.whole else found

    def share_of(self, value: float) -> float:
        """Returns where a number lies in the range, from 0 to 1."""
        low, high, value = map(math.log, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return (value - low) / (high - low)

    def value(self, found: float) -> Any:
        """Returns the value of the key: a number is rounded to what matters in the range."""
        if self.choices:
            return self.choices[int(found)]
        if self.whole:
            return int(found)
        least = self.high - self.low
        if self.log:
            least = min(least, found)
        return min(max(round(found, _DIGITS - 1 - math.floor(math.log10(least))), self.low), self.high)

    def __str__(self) -> str:
        if self.choices:
            return ",".join(map(str, self.choices))
        return f"{'int:' * self.whole}{'log:' * self.log}{self.low:g}..{self.high:g}"


Space = Mapping[str, Distribution]  # {key with dots: what is searched}


def parse_space(given: Sequence[str] | Mapping[str, Any]) -> dict[str, Distribution]:
    """Reads each "key=distribution"; from Python {key: the same text, or a list to choose from}. Raises ConfigError."""
    space: dict[str, Distribution] = {}
    pairs = given.items() if isinstance(given, Mapping) else [text.partition("=")[::2] for text in given]
    for name, what in pairs:
        key = name.strip()
        told = f"--search {name}={what}" if what else f"--search {name}"
        if not key or (isinstance(what, str) and not what.strip()):
            raise ConfigError(f"{told}: {_HOW}")
        if key in _NOT_HERE:
            raise ConfigError(f"{told}: {key} cannot be searched: {_NOT_HERE[key]}")
        if key in space:
            raise ConfigError(f"{told}: {key} is searched already")
        space[key] = _distribution(what, told)
    if not space:
        raise ConfigError(f"--search: nothing is searched; {_HOW}")
    return space


def _distribution(what: Any, told: str) -> Distribution:
    if isinstance(what, str) and (found := _RANGE.fullmatch(what.strip())):
        return _range(found, told)
    if isinstance(what, str) and (".." in what or what.strip().startswith(("log:", "int:"))):
        raise ConfigError(f"{told}: {_HOW}")
    values = _listed(what) if isinstance(what, str) else what
    values = list(values) if isinstance(values, Iterable) and not isinstance(values, Mapping) else []
    if len(values) < 2:
        raise ConfigError(f"{told}: is no choice of at least two values; {_HOW}")
    for number, value in enumerate(values):
        if value == "" or isinstance(value, dict):
            raise ConfigError(f"{told}: a value between the commas is {'missing' if value == '' else 'a table'}")
        if any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in values[:number]):
            raise ConfigError(f"{told}: {value} is there twice")
    return Distribution(choices=tuple(values))


def _range(found: re.Match[str], told: str) -> Distribution:
    low, high, log, whole = float(found["low"]), float(found["high"]), "log" in found["kind"], "int" in found["kind"]
    for is_wrong, why in (
        (not (math.isfinite(low) and math.isfinite(high)), "both ends must be finite"),
        (not low < high, "the first end must be below the second"),
        (log and low <= 0, "both ends must be above 0 on a logarithmic scale"),
        (whole and not (low.is_integer() and high.is_integer()), "both ends must be whole numbers"),
        (whole and max(abs(low), abs(high)) > _LARGEST, f"both ends must be within {_LARGEST}"),
    ):
        if is_wrong:
            raise ConfigError(f"{told}: {why}")
    return Distribution(low, high, log, whole)


def _listed(text: str) -> list[Any]:
    try:
        return parse_toml(f"values = [{text}]")["values"]
    except ValueError:
        return [parse(value) for value in text.split(",")]
